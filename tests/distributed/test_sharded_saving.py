"""Saving shards: in the background, when one rank fails, when the disk is full, and what is found in damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import find_damage
from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.cli import main
from lerobot_pipeline.config.policy_files import SHARDS, find_policy
from lerobot_pipeline.errors import RunFailure, UsageError
from lerobot_pipeline.phases import Phase
from tests.damage import each_damage, require_seen_by_every_reader
from tests.phases import planted

from .ranks import RankPool
from .states import State, differing, load_and_gather, train_and_gather

FSDP = [
    *("--parallelism.dp_shard=2", "--checkpoint_format=dcp", "--batch_size=2", "--steps=6", "--ema.enable=true"),
    *("--optimizer.type=adamw", "--optimizer.lr=1e-2", "--seed=3"),
    *("--scheduler.type=diffuser", "--scheduler.name=cosine", "--scheduler.num_warmup_steps=2"),
]


def _flags(exact_act: list[str], run_dir: Path, *more: str) -> list[str]:
    return [
        *(flag for flag in exact_act if not flag.startswith("--save_freq")),
        *FSDP,
        f"--output_dir={run_dir}",
        *more,
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, State]]:
    return {}


@pytest.fixture
def untouched(
    exact_act: list[str],
    two_ranks: RankPool,
    saved: dict[str, tuple[Path, State]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, State]:
    """The directory and the last state of a run that nothing happened to."""
    if "untouched" not in saved:
        run_dir = tmp_path_factory.mktemp("runs") / "untouched"
        saved["untouched"] = run_dir, two_ranks.run(train_and_gather, _flags(exact_act, run_dir, "--save_freq=2"))[0]
    return saved["untouched"]


def test_shards_saved_in_the_background_hold_the_same_bits(
    untouched: tuple[Path, State], exact_act: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    flags = _flags(exact_act, tmp_path, "--save_freq=1", "--async_checkpoint=true")
    assert differing(two_ranks.run(train_and_gather, flags)[0], untouched[1]) == []
    shutil.rmtree(tmp_path / layout.CHECKPOINTS / "000006")
    shutil.rmtree(tmp_path / layout.CHECKPOINTS / "000005")
    shutil.copytree(untouched[0], tmp_path / "copy", symlinks=True)
    shutil.rmtree(tmp_path / "copy" / layout.CHECKPOINTS / "000006")
    ours, theirs = (
        two_ranks.run(load_and_gather, _flags(exact_act, place))[0] for place in (tmp_path, tmp_path / "copy")
    )
    assert ours["step"] == theirs["step"] == (4, 16)
    assert differing(ours, theirs) == []


@pytest.mark.long
@pytest.mark.parametrize("checkpoint_format", ["dcp", "safetensors", "safetensors_dcp"])
def test_replicas_of_shards_saved_in_the_background_go_on_with_the_same_bits(
    checkpoint_format: str, exact_act: list[str], tmp_path: Path, four_ranks: RankPool
) -> None:
    def flags(name: str, *more: str) -> list[str]:
        hybrid = [f"--checkpoint_format={checkpoint_format}", "--batch_size=1", "--parallelism.dp_replicate=2"]
        given = _flags(exact_act, tmp_path / name, "--save_freq=1", *hybrid, *more)
        return list({flag.partition("=")[0]: flag for flag in given}.values())

    whole = four_ranks.run(train_and_gather, flags("whole"))[0]
    four_ranks.run(train_and_gather, flags("cut", "--async_checkpoint=true", "--stop_at_step=4"))
    assert find_checkpoint(tmp_path / "cut").step_dir.name == "000004"
    assert differing(four_ranks.run(train_and_gather, flags("cut", "--async_checkpoint=true"))[0], whole) == []


def test_a_sharded_run_that_was_cut_off_ends_as_the_untouched_one(
    untouched: tuple[Path, State], exact_act: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    run_dir = Path(shutil.copytree(untouched[0], tmp_path / "run", symlinks=True))
    shutil.rmtree(run_dir / layout.CHECKPOINTS / "000006")
    assert differing(two_ranks.run(train_and_gather, _flags(exact_act, run_dir))[0], untouched[1]) == []


def _train_failing(arguments: list[str], failing_rank: int, phase: str, moment: str, disk: str | None) -> str:
    """Train; at a phase of the second save, fill the disk or fail on one rank. Return what the run ended with."""
    import os

    run_dir = Path(next(flag for flag in arguments if flag.startswith("--output_dir")).partition("=")[2])

    def strike() -> None:
        if int(os.environ["RANK"]) == failing_rank and layout.step_dirs(run_dir):
            if disk is None:
                raise OSError(5, "Input/output error")
            with (Path(disk) / "filler").open("wb") as stream:
                stream.write(b"\0" * (shutil.disk_usage(disk).free - 8192))

    with planted(Phase(phase), moment, strike):
        try:
            train_and_gather(arguments)
        except RunFailure as failure:
            return str(failure)
    return "it did not fail"


@pytest.mark.parametrize("is_async", ["false", "true"], ids=["at once", "in the background"])
def test_a_failure_on_one_rank_ends_every_rank(
    is_async: str, exact_act: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    flags = _flags(exact_act, tmp_path, "--save_freq=3", f"--async_checkpoint={is_async}")
    told = two_ranks.run(_train_failing, flags, 1, "save.write_optimizer", "end", None)
    for sentence in told:
        assert "checkpoint of step 6 could not be written (rank 1): [Errno 5] Input/output error" in sentence
    assert [path.name for path in layout.step_dirs(tmp_path)] == ["000003"]
    assert find_damage(tmp_path / layout.CHECKPOINTS / layout.LAST) == []
    assert not list((tmp_path / layout.CHECKPOINTS).glob(f"{layout.STAGING_PREFIX}*"))


def test_a_disk_that_fills_up_ends_every_rank_and_costs_nothing(
    untouched: tuple[Path, State], exact_act: list[str], small_disk: Path, two_ranks: RankPool
) -> None:
    flags = _flags(exact_act, small_disk / "run", "--save_freq=2")
    told = two_ranks.run(_train_failing, flags, 1, "save.write_weight_shards", "begin", str(small_disk))
    assert all("checkpoint of step 4 could not be written" in sentence for sentence in told), told
    assert [path.name for path in layout.step_dirs(small_disk / "run")] == ["000002"]
    assert not list((small_disk / "run" / layout.CHECKPOINTS).glob(f"{layout.STAGING_PREFIX}*"))
    (small_disk / "filler").unlink()
    assert differing(two_ranks.run(train_and_gather, flags)[0], untouched[1]) == []


def test_every_damage_to_shards_is_found(untouched: tuple[Path, State], tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(untouched[0], tmp_path / "run", symlinks=True))
    for path in each_damage(run_dir / layout.CHECKPOINTS / "000006"):
        assert find_checkpoint(run_dir).step_dir.name == "000004", f"{path.name} was trusted"
    assert find_checkpoint(run_dir).step_dir.name == "000006"


@pytest.mark.long
def test_every_damage_to_shards_is_found_by_every_command_that_reads(
    untouched: tuple[Path, State], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Merged as well, so that the commands which take no shards would go on.
    saved = untouched[0] / layout.CHECKPOINTS / "000006"
    step_dir = Path(shutil.copytree(saved, tmp_path / layout.CHECKPOINTS / "000006"))
    assert main(["convert-dcp", f"--checkpoint_dir={step_dir}"]) == 0
    require_seen_by_every_reader(step_dir, tmp_path / "out", capsys)


def test_shards_are_no_policy_to_act_with_until_they_are_converted(untouched: tuple[Path, State]) -> None:
    with pytest.raises(UsageError, match="convert-dcp --checkpoint_dir="):
        find_policy(untouched[0] / layout.CHECKPOINTS / layout.LAST)


@pytest.mark.parametrize("delete", ["true", "false"])
def test_a_converted_checkpoint_still_resumes(
    delete: str, untouched: tuple[Path, State], exact_act: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    run_dir = Path(shutil.copytree(untouched[0], tmp_path / "run", symlinks=True))
    shutil.rmtree(run_dir / layout.CHECKPOINTS / "000006")
    step_dir = run_dir / layout.CHECKPOINTS / "000004"
    assert main(["convert-dcp", f"--checkpoint_dir={step_dir}", f"--delete_dcp={delete}"]) == 0
    assert (step_dir / layout.PRETRAINED_MODEL / SHARDS).exists() == (delete == "false")
    assert differing(two_ranks.run(train_and_gather, _flags(exact_act, run_dir))[0], untouched[1]) == []


def _train_and_tell_what_was_read(arguments: list[str], path: Path) -> tuple[State, int]:
    """Train; return the state at the end, and how often LeRobot loaded a file whole."""
    from safetensors import torch as loading

    counts: list[int] = []
    load_model = loading.load_model

    def counted(model: object, filename: object, *rest: object, **keywords: object) -> object:
        counts.append(Path(str(filename)) == path)
        return load_model(model, filename, *rest, **keywords)  # type: ignore[arg-type]

    from lerobot.policies import pretrained

    pretrained.load_model_as_safetensor = counted  # type: ignore[assignment]
    try:
        return train_and_gather(arguments), sum(counts)
    finally:
        pretrained.load_model_as_safetensor = load_model


def test_a_published_policy_starts_a_sharded_run_from_shards_without_a_full_load(
    untouched: tuple[Path, State], exact_act: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    saved = untouched[0] / layout.CHECKPOINTS / "000006" / layout.PRETRAINED_MODEL
    published = Path(shutil.copytree(saved, tmp_path / "published"))
    assert main(["convert-dcp", f"--checkpoint_dir={published}", "--delete_dcp=true"]) == 0
    others = [flag for flag in exact_act if not flag.startswith(("--policy.", "--save_freq"))]

    def trained(name: str) -> tuple[State, int]:
        flags = [*others, *FSDP, "--save_freq=6", "--policy.device=cpu", f"--policy.path={published}"]
        flags = [flag if flag != "--steps=6" else "--steps=2" for flag in flags] + [f"--output_dir={tmp_path / name}"]
        state: tuple[State, int] = two_ranks.run(_train_and_tell_what_was_read, flags, published / layout.WEIGHTS)[0]
        return state

    from_file, loads = trained("from the file")
    assert loads == 1
    assert main(["convert-dcp", f"--checkpoint_dir={published}", "--to_dcp=true"]) == 0
    from_shards, loads = trained("from shards")
    assert loads == 0
    assert differing(from_shards, from_file) == []


@pytest.fixture
def like_lerobots(untouched: tuple[Path, State], tmp_path: Path) -> Path:
    """A sharded checkpoint as LeRobot's main line lays it out: no manifest, no cursor, no engine files."""
    run_dir = Path(shutil.copytree(untouched[0], tmp_path / "run", symlinks=True))
    for name in ("000004", "000006"):
        shutil.rmtree(run_dir / layout.CHECKPOINTS / name)
    (run_dir / layout.CHECKPOINTS / layout.LAST).unlink()
    step_dir = run_dir / layout.CHECKPOINTS / "000002"
    (run_dir / layout.CHECKPOINTS / layout.LAST).symlink_to("000002")
    (step_dir / layout.MANIFEST).unlink()
    shutil.rmtree(step_dir / layout.EMA_MODEL)
    state_dir = step_dir / layout.TRAINING_STATE
    for name in (layout.SCIENCE, layout.METRIC_WINDOW, layout.rng_state_name(1)):
        (state_dir / name).unlink()
    stored = {"step": 2, "dp_world_size": 2, "batch_size": 2}
    (state_dir / layout.TRAINING_STEP).write_text(json.dumps(stored))
    (state_dir / layout.SCALER_STATE).write_text(
        json.dumps({"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
                   | {"_growth_tracker": 7})
    )  # fmt: skip
    return run_dir


def test_a_sharded_checkpoint_of_lerobots_main_line_goes_on_here(
    like_lerobots: Path, untouched: tuple[Path, State], exact_act: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    resume = ["--resume=true", f"--config_path={like_lerobots}", "--policy.device=cpu"]
    loaded = two_ranks.run(load_and_gather, resume)[0]
    whole = Path(shutil.copytree(untouched[0], tmp_path / "whole", symlinks=True))
    for name in ("000004", "000006"):
        shutil.rmtree(whole / layout.CHECKPOINTS / name)
    expected = two_ranks.run(load_and_gather, _flags(exact_act, whole))[0]
    assert loaded["step"] == expected["step"] == (2, 8)
    assert loaded["scaler"]["scale"] == 1024.0
    assert loaded["scaler"]["_growth_tracker"] == 7
    differences = differing(loaded, expected)
    assert [name for name in differences if not name.startswith(("average", "scaler"))] == []
    assert two_ranks.run(train_and_gather, resume)[0]["step"] == (6, 24)


@pytest.mark.parametrize(
    "missing",
    [
        "pretrained_model/pytorch_model_fsdp_0/.metadata",
        "pretrained_model/pytorch_model_fsdp_0/__1_0.distcp",
        "pretrained_model/config.json",
        "pretrained_model/policy_preprocessor.json",
        "training_state/optimizer_0/__0_0.distcp",
        "training_state/scheduler_state.json",
        "training_state/training_step.json",
    ],
)
def test_what_lerobots_checkpoint_lacks_is_named(missing: str, like_lerobots: Path) -> None:
    (like_lerobots / layout.CHECKPOINTS / "000002" / missing).unlink()
    with pytest.raises(UsageError, match=rf"no whole checkpoint: .*{Path(missing).name}"):
        find_checkpoint(like_lerobots)
