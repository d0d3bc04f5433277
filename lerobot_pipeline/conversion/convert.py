"""Converting a checkpoint so that it is whole, and can be resumed, at every moment."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lerobot_pipeline.checkpoint.dcp_metadata import METADATA
from lerobot_pipeline.checkpoint.layout import MANIFEST
from lerobot_pipeline.checkpoint.manifest import amend_manifest, listed_digest
from lerobot_pipeline.config.policy_files import ADAPTER_WEIGHTS, SHARDS, file_fault
from lerobot_pipeline.conversion.merge import Merge
from lerobot_pipeline.conversion.places import KEY, Model, Source
from lerobot_pipeline.conversion.shards import Shards
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.files import list_files, sync_directory

_DELETING = ".deleting-"


@dataclass(frozen=True)
class Outcome:
    """What became of one model."""

    path: Path
    """What was asked for: the merged file, or the directory of shards."""

    was_there: bool
    """Whether it had been converted before."""


def merge_shards(source: Source, delete_dcp: bool) -> list[Outcome]:
    """Merge every model's shards into its safetensors file; then, if asked, delete them.

    Raises:
        UsageError: shards are missing, damaged or hostile, or a merged file holds something else than they do.
        RunFailure: writing failed. The checkpoint is as whole as it was, and the command may be run again.
    """
    outcomes = [_merge(model, _is_listed(source, model.merged), delete_dcp) for model in source.models]
    # Nothing is deleted before the manifest has let go of it, and nothing is listed before it is there.
    sharded = [model.shards for model in source.models if delete_dcp and model.shards.exists()]
    _amend(source, [outcome.path for outcome in outcomes], sharded)
    for directory in sharded:
        _delete(directory)
    return outcomes


def make_shards(source: Source) -> list[Outcome]:
    """Make shards of every model's safetensors file.

    Raises:
        UsageError: there is no such file, or it is damaged, or there are shards that hold something else.
        RunFailure: writing failed, or the shards read back otherwise than the file.
    """
    outcomes = [_make_shards(model) for model in source.models]
    _amend(source, [path for outcome in outcomes for path in list_files(outcome.path)], [])
    return outcomes


def _make_shards(model: Model) -> Outcome:
    _remove_leftovers(model.directory)
    if fault := file_fault(model.merged):
        raise UsageError(KEY, f"{model.merged} {fault}; there is nothing to make shards of")
    if not model.shards.exists():
        # torch takes seconds to import, and only torch's own writer makes what torch reads.
        from lerobot_pipeline.conversion.split import split_file

        split_file(model.merged, model.shards)
        return Outcome(model.shards, was_there=False)
    with _open(model.shards) as shards:
        if not Merge(shards).holds(model.merged):
            raise UsageError(KEY, f"{model.shards} holds something else than {model.merged.name}; remove one of them")
    return Outcome(model.shards, was_there=True)


def _merge(model: Model, is_listed: bool, is_last_use: bool) -> Outcome:
    """Make one model's merged file, unless it is there. Shards that are about to go are read again in either case."""
    _remove_leftovers(model.directory)
    target = model.merged
    if target.is_symlink():
        raise UsageError(KEY, f"{target} is a link, and would be replaced; remove it")
    if not model.shards.exists() or (is_listed and not is_last_use):
        if fault := file_fault(target):
            raise UsageError(KEY, f"{target} {fault}, and there are no shards in {model.shards.name} to make it from")
        return Outcome(target, was_there=True)
    with _open(model.shards) as shards:
        merge = Merge(shards)
        if target.name == ADAPTER_WEIGHTS:
            _require_adapter(merge, model.shards)
        if not target.exists():
            merge.write(target)
            return Outcome(target, was_there=False)
        if not merge.holds(target):
            raise UsageError(
                KEY, f"{target} holds something else than {model.shards.name}; remove the one that is wrong"
            )
    return Outcome(target, was_there=True)


def _open(directory: Path) -> Shards:
    try:
        return Shards(directory)
    except OSError as error:
        reason = "is a link, which is not followed" if directory.is_symlink() else f"cannot be read: {error.strerror}"
        raise UsageError(KEY, f"{directory} {reason}; name the directory that holds the shards") from error


def _require_adapter(merge: Merge, shards: Path) -> None:
    """An adapter file has peft's names; those of a wrapped model in memory would be ignored in silence by a loader."""
    for tensor in merge.tensors:
        parts = tensor.name.split(".")
        if parts[0] != "base_model" or "default" in parts or "base_layer" in parts:
            raise UsageError(
                KEY,
                f"{shards / METADATA} holds {tensor.name!r}, which is no name of an adapter file; "
                "save the adapter under peft's names (get_peft_model_state_dict)",
            )


def _is_listed(source: Source, path: Path) -> bool:
    """Whether a file belongs to the checkpoint by its manifest."""
    root = source.step_dir
    return root is not None and listed_digest(root, path.relative_to(root).as_posix()) is not None


def _amend(source: Source, added: list[Path], removed: list[Path]) -> None:
    root = source.step_dir
    if root is None or not (root / MANIFEST).exists():
        return
    added = [path for path in added if not _is_listed(source, path)]
    removed = [directory for directory in removed if _is_listed(source, directory / METADATA)]
    if added or removed:
        amend_manifest(root, added, removed)
        sync_directory(root)


def _delete(directory: Path) -> None:
    """Delete shards. They lose their name first: half of them would be read as shards."""
    doomed = directory.with_name(f"{_DELETING}{directory.name}")
    os.rename(directory, doomed)
    sync_directory(directory.parent)
    shutil.rmtree(doomed)


def _remove_leftovers(directory: Path) -> None:
    """Delete what a conversion that died was deleting or making."""
    for pattern in (f"{_DELETING}*", f".{SHARDS}.*"):
        for path in directory.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
