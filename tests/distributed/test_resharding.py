"""A run goes on under another layout from exactly what was saved, and exactly at the next sample."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.checkpoint.state import load_progress
from lerobot_pipeline.errors import UsageError

from .comparing import differences
from .ranks import RankPool
from .recording import Recording, record_training
from .states import State, differing, load_and_gather, train_and_gather

LAYOUTS: dict[str, tuple[int, list[str]]] = {
    name: (replicate * shard, [f"--parallelism.dp_replicate={replicate}", f"--parallelism.dp_shard={shard}"])
    for name, replicate, shard in (
        ("single", 1, 1),
        ("DDP 2", 2, 1),
        ("FSDP2 2", 1, 2),
        ("FSDP2 4", 1, 4),
        ("HSDP 2x2", 2, 2),
    )
}
"""Name -> world size and flags. HSDP's degenerate splits are here too: 2x1 is DDP 2, and 1x2 is FSDP2 2."""

FORMATS = ["safetensors", "dcp", "safetensors_dcp"]
ADAM = ["--optimizer.type=adamw", "--optimizer.lr=1e-2", "--optimizer.eps=1e-5", "--ema.enable=true", "--seed=3"]
COSINE = ["--scheduler.type=diffuser", "--scheduler.name=cosine", "--scheduler.num_warmup_steps=2"]
EFFECTIVE_BATCH = 4

SAVED = [
    (layout, checkpoint_format)
    for layout, checkpoint_format in itertools.product(LAYOUTS, FORMATS)
    if checkpoint_format == "safetensors" or layout not in ("single", "DDP 2")
]
PAIRS = list(itertools.product(SAVED, LAYOUTS))
QUICK = [
    (("single", "safetensors"), "FSDP2 2"),
    (("FSDP2 2", "safetensors"), "DDP 2"),
    (("FSDP2 2", "dcp"), "single"),
    (("FSDP2 2", "dcp"), "FSDP2 2"),
    (("FSDP2 2", "dcp"), "HSDP 2x2"),
    (("HSDP 2x2", "safetensors_dcp"), "FSDP2 2"),
]


def _run(layout: str, function: Callable[..., Any], flags: list[str], request: pytest.FixtureRequest) -> list[Any]:
    """Call `function(flags)` on every rank of a layout."""
    world_size, degrees = LAYOUTS[layout]
    if world_size == 1:
        return [function([*flags, *degrees])]
    pool: RankPool = request.getfixturevalue("four_ranks" if world_size == 4 else "two_ranks")
    return pool.run(function, [*flags, *degrees])


def _train(layout: str, flags: list[str], request: pytest.FixtureRequest) -> list[Recording]:
    flags = [*flags, *ADAM, f"--batch_size={EFFECTIVE_BATCH // LAYOUTS[layout][0]}", "--steps=6"]
    return _run(layout, record_training, flags, request)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Path, State]]:
    """Layout and format -> run directory and what was saved there."""
    return {}


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.long) for pair in PAIRS]
)
def test_what_one_layout_saved_another_loads_bit_for_bit(
    first: tuple[str, str],
    second: str,
    exact_act: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    saved: dict[tuple[str, str], tuple[Path, State]],
) -> None:
    flags = [*exact_act, *ADAM, *COSINE, "--steps=6"]
    if first not in saved:
        layout, checkpoint_format = first
        save = [f"--output_dir={tmp_path}", "--stop_at_step=2", f"--checkpoint_format={checkpoint_format}"]
        batch = f"--batch_size={EFFECTIVE_BATCH // LAYOUTS[layout][0]}"
        saved[first] = tmp_path, _run(layout, train_and_gather, [*flags, *save, batch], request)[0]
    run_dir, state = saved[first]
    load = [f"--output_dir={run_dir}", f"--batch_size={EFFECTIVE_BATCH // LAYOUTS[second][0]}"]
    loaded = _run(second, load_and_gather, [*flags, *load], request)
    assert [differing(one, state) for one in loaded] == [[]] * len(loaded)
    assert state["step"] == (2, 2 * EFFECTIVE_BATCH)
    moments = [name for name in state if name.endswith((".exp_avg", ".exp_avg_sq"))]
    assert sum(bool(torch.any(state[name] != 0)) for name in moments) > 40, "there must be something to restore"


def test_a_changed_bit_of_state_is_found() -> None:
    state = {"weights.a": torch.zeros(3), "scaler": {"scale": 2.0}}
    assert differing(state, {**state, "weights.a": torch.tensor([0.0, 0.0, 1e-45])}) == ["weights.a"]
    assert differing(state, {**state, "scaler": {"scale": 2}}) == []
    assert differing(state, {"weights.a": torch.zeros(3)}) == ["scaler"]


def test_shards_have_the_names_of_the_layout(exact_act: list[str], tmp_path: Path, two_ranks: RankPool) -> None:
    for checkpoint_format, gathered in (("dcp", False), ("safetensors_dcp", True)):
        run_dir = tmp_path / checkpoint_format
        flags = [*exact_act, *ADAM, *COSINE, "--steps=1", "--batch_size=2", "--parallelism.dp_shard=2"]
        two_ranks.run(record_training, [*flags, f"--checkpoint_format={checkpoint_format}", f"--output_dir={run_dir}"])
        step_dir = find_checkpoint(run_dir).step_dir
        present = {path.relative_to(step_dir).as_posix() for path in step_dir.rglob("*") if path.is_file()}
        for model in ("pretrained_model", "pretrained_model_ema"):
            expected = {"config.json", "train_config.json", "policy_preprocessor.json", "policy_postprocessor.json"}
            shards = {f"pytorch_model_fsdp_0/{name}" for name in (".metadata", "__0_0.distcp", "__1_0.distcp")}
            weights = {"model.safetensors"} if gathered else set()
            own = {name.removeprefix(f"{model}/") for name in present if name.startswith(f"{model}/")}
            assert {name for name in own if "processor_step" not in name} == expected | shards | weights
        assert {f"training_state/optimizer_0/{name}" for name in (".metadata", "__0_0.distcp")} <= present
        listed = json.loads((step_dir / "manifest.json").read_text())["files"]
        assert {entry["path"] for entry in listed} == present - {"manifest.json"}


@pytest.fixture(scope="module")
def untouched() -> dict[str, Recording]:
    return {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(*pair, marks=[] if pair in (("FSDP2 2", "DDP 2"), ("DDP 2", "FSDP2 2")) else pytest.mark.long)
        for pair in itertools.product(LAYOUTS, LAYOUTS)
    ],
)
def test_a_run_goes_on_under_another_layout(
    first: str,
    second: str,
    exact_act: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    untouched: dict[str, Recording],
) -> None:
    if "run" not in untouched:
        untouched["run"] = _train("single", [*exact_act, f"--output_dir={tmp_path / 'untouched'}"], request)[0]
    run_dir = tmp_path / "run"
    _train(first, [*exact_act, f"--output_dir={run_dir}", "--stop_at_step=3"], request)
    assert load_progress(find_checkpoint(run_dir).state_dir).cursor == 3 * EFFECTIVE_BATCH
    rest = _train(second, [*exact_act, f"--output_dir={run_dir}"], request)
    whole = untouched["run"]
    assert _consumed(rest) == _consumed([whole])[3 * EFFECTIVE_BATCH :]
    tail = replace(whole, losses=whole.losses[3:], gradients=whole.gradients[3:], grad_norms=whole.grad_norms[3:])
    found = differences(rest[0], tail)
    # Adam divides by the root of a second moment, which magnifies the rounding of another order of summation.
    assert max(found.values()) <= 1e-4, found
    assert all(torch.isfinite(value).all() for value in rest[0].weights.values())


def _consumed(ranks: list[Recording]) -> list[int]:
    """Return the samples that all ranks together consumed, in the order of the stream."""
    steps = zip(*(rank.indices for rank in ranks), strict=True)
    return [index for step in steps for share in step for index in share]


CHAINS = {
    # layout, batch of a rank, accumulation, steps until which it runs
    "ranks and accumulation": [("single", 16, 1, 2), ("FSDP2 2", 4, 2, 6), ("DDP 2", 8, 1, 8)],
    "accumulation only": [("DDP 2", 2, 4, 4), ("DDP 2", 8, 1, 6), ("DDP 2", 4, 2, 10)],
    "many ranks": [("HSDP 2x2", 4, 1, 2), ("FSDP2 4", 2, 2, 6), ("single", 8, 2, 10)],
}


@pytest.mark.parametrize(
    "chain", [pytest.param(name, marks=[] if name.startswith("ranks") else pytest.mark.long) for name in CHAINS]
)
def test_two_changes_in_a_row_lose_no_sample(
    chain: str, exact_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_dir = tmp_path / "run"
    consumed: list[int] = []
    for number, (layout, batch, accumulation, until) in enumerate(CHAINS[chain]):
        size = [f"--batch_size={batch}", f"--accelerator.gradient_accumulation.steps={accumulation}"]
        flags = [*exact_act, *ADAM, f"--output_dir={run_dir}", "--checkpoint_format=dcp"]
        if number:
            flags = ["--resume=true", f"--config_path={run_dir}", "--policy.device=cpu"]
        consumed += _consumed(_run(layout, record_training, [*flags, *size, f"--steps={until}"], request))
    whole = [*exact_act, *ADAM, f"--output_dir={tmp_path / 'whole'}", "--batch_size=16"]
    expected = _consumed([record_training([*whole, f"--steps={len(consumed) // 16}"])])
    assert consumed == expected
    assert len(consumed) > 60, "the chain must go on in another epoch"


def test_an_accumulation_that_does_not_fit_what_is_left_is_refused(exact_act: list[str], tmp_path: Path) -> None:
    record_training([*exact_act, f"--output_dir={tmp_path}", "--batch_size=4", "--steps=1"])
    resume = ["--resume=true", f"--config_path={tmp_path}", "--policy.device=cpu", "--batch_size=2"]
    with pytest.raises(UsageError, match="steps: 3 are left to step 4, no multiple of"):
        record_training([*resume, "--accelerator.gradient_accumulation.steps=2", "--steps=4"])
