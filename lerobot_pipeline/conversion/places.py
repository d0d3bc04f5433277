"""Which weights `--checkpoint_dir` means, and the checkpoint that they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.dcp_metadata import METADATA
from lerobot_pipeline.checkpoint.manifest import has_manifest
from lerobot_pipeline.checkpoint.reader import find_faults
from lerobot_pipeline.config.policy_files import SHARDS, file_fault, policy_files, weights_file
from lerobot_pipeline.errors import UsageError

KEY = "checkpoint_dir"


@dataclass(frozen=True)
class Model:
    """One policy's directory with its weights, in shards, merged, or both."""

    directory: Path
    shards: Path

    @property
    def merged(self) -> Path:
        """The safetensors file: an adapter's for a PEFT policy."""
        return weights_file(self.directory)


@dataclass(frozen=True)
class Source:
    """What is to be converted."""

    step_dir: Path | None
    """The checkpoint; None for weights that stand alone."""

    models: tuple[Model, ...]
    """The policy, and its average where there is one."""


def find_source(path: Path) -> Source:
    """Return the weights that `path` means, of a checkpoint that is whole.

    Raises:
        UsageError: nothing is there, or the checkpoint is damaged; names the file.
    """
    source = _locate(_existing(path))
    for model in source.models:
        _require_no_link(model.directory)
    if source.step_dir is not None:
        _require_whole(source.step_dir, source.models)
    return source


def _locate(path: Path) -> Source:
    if (path / METADATA).exists():
        return _of_model(Model(path.parent, path))
    if (path / SHARDS).exists() or weights_file(path).exists():
        return _of_model(_model(path))
    step_dir = path if (path / layout.PRETRAINED_MODEL).exists() else _last_of_run(path)
    names = (layout.PRETRAINED_MODEL, layout.EMA_MODEL)
    return Source(step_dir, tuple(_model(step_dir / name) for name in names if (step_dir / name).exists()))


def _model(directory: Path) -> Model:
    return Model(directory, directory / SHARDS)


def _of_model(model: Model) -> Source:
    step_dir = model.directory.parent
    return Source(step_dir if (step_dir / layout.TRAINING_STATE).is_dir() else None, (model,))


def _existing(path: Path) -> Path:
    path = path.expanduser()
    try:
        path.stat()
    except FileNotFoundError as error:
        broken = next((place for place in (path, *path.parents) if place.is_symlink() and not place.exists()), None)
        reason = f"{broken} is a link to {broken.readlink()}, which does not exist" if broken else "does not exist"
        raise UsageError(KEY, f"{reason}; name a checkpoint" if broken else f"{path} {reason}") from error
    except OSError as error:
        raise UsageError(KEY, f"{path} cannot be read: {error.strerror}") from error
    if not path.is_dir():
        raise UsageError(
            KEY, f"{path} is no directory; name a checkpoint, a run, or a {layout.PRETRAINED_MODEL} in one"
        )
    return path.resolve()


def _last_of_run(path: Path) -> Path:
    run_dir = layout.named_run(path)
    last = run_dir / layout.CHECKPOINTS / layout.LAST
    if last.is_symlink():
        return _existing(last)
    if steps := layout.step_dirs(run_dir):
        return steps[-1]
    raise UsageError(
        KEY, f"{path} is neither a checkpoint, nor a run directory with one, nor a directory of shards ({METADATA})"
    )


def _require_no_link(directory: Path) -> None:
    """What is converted is written into: a link may lead anywhere."""
    if directory.is_symlink():
        raise UsageError(KEY, f"{directory} is a link, which conversion does not write through; name its target")


def _require_whole(step_dir: Path, models: tuple[Model, ...]) -> None:
    if has_manifest(step_dir):
        faults = find_faults(step_dir)
    else:
        # Other tools' checkpoints have no manifest; the weights are what this command looks at next.
        needed = [model.directory / name for model in models for name in policy_files(model.directory)]
        needed = [path for path in needed if path not in [model.merged for model in models]]
        needed.append(step_dir / layout.TRAINING_STATE / layout.TRAINING_STEP)
        faults = [f"{path.relative_to(step_dir)} {fault}" for path in needed if (fault := file_fault(path))]
    if faults:
        raise UsageError(KEY, f"checkpoint {step_dir} is not whole: {faults[0]}; convert another one")
