"""A policy is looked at while it trains, under every layout, and no rank gives up waiting for another."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.distributed_c10d import _set_pg_timeout

from lerobot_pipeline.backend.exchange import Exchange
from lerobot_pipeline.training import validation

from .layouts import LAYOUTS, pool_of, run_under
from .recording import open_loop

TIME_OUT_S = 2
ROLLOUT_S = 3 * TIME_OUT_S
LOOKS = [
    "--env.type=pusht",
    "--env.obs_type=environment_state_agent_pos",
    "--env.episode_length=6",
    "--eval.n_episodes=2",
    "--eval.batch_size=2",
    # Ranks of tests may not start processes of their own.
    "--eval.use_async_envs=false",
    "--env_eval_freq=2",
    "--dataset.eval_split=0.25",
    "--eval_steps=1",
]


class ImpatientExchange(Exchange):
    """Planted fault: ranks wait in the collectives of the run's own process group."""

    def __init__(self, world_size: int) -> None:
        self.world_size, self.group = world_size, torch.distributed.group.WORLD


def train_with_looks(arguments: list[str], is_impatient: bool = False) -> tuple[list[dict[str, float]], float, bool]:
    """Train while the process group's collectives give up after TIME_OUT_S and a rollout takes longer.

    Returns:
        what each look found, the last loss, and whether autocast was on while rolling out.
    """
    found: list[dict[str, float]] = []
    autocast: list[bool] = []
    roll_out = validation._roll_out
    with open_loop(arguments) as (loop, _):
        runtime, look = loop.runtime, loop._look
        if is_impatient:
            runtime.exchange = ImpatientExchange(runtime.topology.world_size)

        def roll_out_slowly(*arguments: Any) -> dict[str, float]:
            time.sleep(ROLLOUT_S if runtime.topology.world_size > 1 else 0)
            with runtime.autocast():
                autocast.append(torch.is_autocast_enabled("cpu"))
            return roll_out(*arguments)

        def look_impatiently(*arguments: Any) -> None:
            _set_time_out(TIME_OUT_S)
            look(*arguments)
            _set_time_out(120)

        loop._tell = lambda kind, log, trackers, values: found.append(values) if kind != "train" else None  # type: ignore
        loop._look = look_impatiently  # type: ignore[method-assign]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(validation, "_roll_out", roll_out_slowly)
            loop.train()
        assert loop.last_loss is not None
        return found, loop.last_loss, any(autocast)


def _set_time_out(seconds: float) -> None:
    if torch.distributed.is_initialized():
        _set_pg_timeout(timedelta(seconds=seconds), torch.distributed.group.WORLD)


@pytest.fixture
def looking_act(exact_act: list[str], pusht_state_dataset: Path) -> list[str]:
    flags = [flag for flag in exact_act if not flag.startswith("--dataset.root")]
    return [*flags, *LOOKS, f"--dataset.root={pusht_state_dataset}", "--optimizer.type=sgd", "--optimizer.lr=0.1"]


@pytest.mark.parametrize(
    ("layout", "mixed_precision"),
    [
        ("DDP 2", "no"),
        pytest.param("DDP 2", "bf16", marks=pytest.mark.long),
        ("FSDP2 2", "no"),
        ("FSDP2 2", "bf16"),
        pytest.param("HSDP 2x2", "no", marks=pytest.mark.long),
    ],
)
def test_every_rank_looks_and_none_gives_up(
    layout: str, mixed_precision: str, looking_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = [*looking_act, "--steps=2", f"--accelerator.mixed_precision={mixed_precision}"]
    flags += [f"--batch_size={4 // LAYOUTS[layout].world_size}", f"--output_dir={tmp_path / 'run'}"]
    results = run_under(layout, request, train_with_looks, flags)
    found, loss, _ = results[0]
    assert [sorted(values) == ["loss"] for values in found] == [True, True, False]
    for ours, *_ in results:
        assert ours == found, "every rank knows what was found"
    # Under sharding its own policy rules alone.
    assert results[0][2] == (layout == "DDP 2" and mixed_precision == "bf16")
    if mixed_precision == "no" and layout != "HSDP 2x2":
        flags = [*looking_act, "--steps=2", "--batch_size=4", f"--output_dir={tmp_path / 'one'}"]
        (alone, loss_alone, _), *_ = run_under("single", request, train_with_looks, flags)
        assert loss == pytest.approx(loss_alone, abs=1e-5)
        for ours, reference in zip(found, alone, strict=True):
            for name in ("loss", "avg_sum_reward", "avg_max_reward", "pc_success"):
                assert ours.get(name) == pytest.approx(reference.get(name), abs=1e-4)


def test_ranks_that_wait_in_the_process_group_give_up(
    looking_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = [*looking_act, "--steps=2", "--batch_size=2", f"--output_dir={tmp_path / 'run'}"]
    with pytest.raises(RuntimeError, match=r"(?i)timed out|timeout|closed"):
        pool_of("DDP 2", request).run(train_with_looks, flags, True)
