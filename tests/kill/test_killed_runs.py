"""A run that is killed at any moment and started again ends as one that was never touched, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .comparing import different, final_state
from .killing import LAYOUTS, STEPS, Attempt, Plan, newest_step, random_plan, start

LEAST = {"all": 30, "after the first checkpoint": 20, "inside a save": 5}
"""Random kills of a layout, by where they fall."""

MAX_RUNS = 12
KILLS_A_RUN = 6

Reference = tuple[dict[str, Any], Attempt]


@pytest.fixture(scope="session")
def flags(shared_data: Path) -> list[str]:
    """A small run with all that is random: dropout, a VAE's noise, image augmentation, data workers; and an average."""
    return [
        *("--policy.type=act", "--policy.device=cpu", "--policy.dim_model=16", "--policy.n_heads=2"),
        *("--policy.dim_feedforward=33", "--policy.n_encoder_layers=1", "--policy.n_vae_encoder_layers=1"),
        *("--policy.chunk_size=4", "--policy.n_action_steps=4", "--policy.dropout=0.1"),
        "--policy.pretrained_backbone_weights=null",
        *("--dataset.repo_id=lerobot/pusht", f"--dataset.root={shared_data / 'pusht_image_slice_v30'}"),
        *("--dataset.image_transforms.enable=true", "--num_workers=2", "--dataloader_multiprocessing_context=fork"),
        *(f"--steps={STEPS}", "--save_freq=4", "--log_freq=3", "--ema.enable=true", "--save_keep_last=2"),
    ]


@pytest.fixture(scope="session")
def untouched(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """Return the final state of a run that nothing happened to, and the phases that it went through."""
    done: dict[str, Reference] = {}

    def reference(layout: str) -> Reference:
        if layout not in done:
            run_dir = tmp_path_factory.mktemp("untouched") / "run"
            attempt = start(flags, layout, run_dir, Plan())
            assert attempt.exit_code == 0, (run_dir.parent / "run.out").read_text(encoding="utf-8")[-3000:]
            done[layout] = final_state(run_dir), attempt
        return done[layout]

    return reference


def go_on_to_the_end(flags: list[str], layout: str, run_dir: Path, plans: list[Plan]) -> list[Attempt]:
    """Start a run with one plan after another, then untouched. An attempt that ends before its kill is no failure."""
    attempts = []
    for plan in [*plans, Plan()]:
        attempt = start(flags, layout, run_dir, plan)
        attempts.append(attempt)
        if not attempt.was_killed:
            assert attempt.exit_code == 0, (run_dir.parent / f"{run_dir.name}.out").read_text(encoding="utf-8")[-3000:]
            break
        assert attempt.exit_code == 1
    assert newest_step(run_dir) == STEPS
    return attempts


def tell(layout: str, kind: str, attempts: list[Attempt]) -> None:
    """Print each kill's step and phase; the long test's output is what docs/reliability.md quotes."""
    for attempt in attempts:
        if attempt.was_killed:
            where = {"layout": layout, "kind": kind, "rank": attempt.plan.rank, "victims": attempt.plan.victims}
            when = {"from_step": attempt.from_step, "step": attempt.step, "is_in_save": attempt.is_in_save}
            print(json.dumps(where | when | {"phase": attempt.last_phase}))


@pytest.mark.timeout(1200)
def test_a_run_that_is_killed_in_a_save_and_between_saves_ends_bit_for_bit(
    flags: list[str], untouched: Callable[[str], Reference], tmp_path: Path
) -> None:
    expected, _ = untouched("single")
    plans = [Plan(point="save.write_weights end", occurrence=2), Plan(point="step end", occurrence=6)]
    attempts = go_on_to_the_end(flags, "single", tmp_path / "run", plans)
    assert [attempt.was_killed for attempt in attempts] == [True, True, False]
    assert different(final_state(tmp_path / "run"), expected) == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kills_at_random_times_leave_no_trace(
    layout: str, flags: list[str], untouched: Callable[[str], Reference], tmp_path: Path
) -> None:
    expected, whole = untouched(layout)
    generator = random.Random(f"{layout} 1")
    num_events = sum(entry["rank"] == 0 for entry in whole.phases)
    attempts: list[Attempt] = []
    for number in range(MAX_RUNS):
        if not _lacking(attempts):
            break
        # A few kills fall into each run; a finished one is compared and the next is begun.
        run_dir = tmp_path / f"run-{number}"
        plans = [random_plan(generator, layout, num_events // 2) for _ in range(KILLS_A_RUN)]
        attempts += go_on_to_the_end(flags, layout, run_dir, plans)
        assert different(final_state(run_dir), expected) == []
    tell(layout, "random", attempts)
    assert not _lacking(attempts)


def _lacking(attempts: list[Attempt]) -> dict[str, int]:
    """Return what random kills there are still too few of, and how many there are."""
    killed = [attempt for attempt in attempts if attempt.was_killed]
    have = {
        "all": len(killed),
        "after the first checkpoint": sum(attempt.from_step > 0 for attempt in killed),
        "inside a save": sum(attempt.is_in_save for attempt in killed),
    }
    return {kind: number for kind, number in have.items() if number < LEAST[kind]}


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_kill_at_every_point_leaves_no_trace(
    layout: str, flags: list[str], untouched: Callable[[str], Reference], tmp_path: Path
) -> None:
    expected, whole = untouched(layout)
    points = list(dict.fromkeys(entry["phase"] for entry in whole.phases if entry["rank"] == 0))
    remaining, attempts = list(points), []
    for number in range(len(points)):
        if not remaining:
            break
        run_dir = tmp_path / f"run-{number}"
        ended = go_on_to_the_end(flags, layout, run_dir, [Plan(point=point) for point in remaining[:KILLS_A_RUN]])
        assert different(final_state(run_dir), expected) == []
        attempts += ended
        killed_at = {attempt.plan.point for attempt in ended if attempt.was_killed}
        assert killed_at, f"{remaining[0]} was not reached"
        remaining = [point for point in remaining if point not in killed_at]
    tell(layout, "point", attempts)
    assert not remaining


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", ["random state", "cursor"])
def test_a_restore_that_is_left_out_is_found(
    fault: str, flags: list[str], untouched: Callable[[str], Reference], tmp_path: Path
) -> None:
    expected, _ = untouched("single")
    start(flags, "single", tmp_path / "run", Plan(point="step end", occurrence=10))
    assert start(flags, "single", tmp_path / "run", Plan(fault=fault)).exit_code == 0
    assert any(name.endswith("weight") for name in different(final_state(tmp_path / "run"), expected))
