"""All that a checkpoint restores, gathered, to be compared bit for bit. Importable by ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from lerobot_pipeline.backend.dtensors import gather_whole
from lerobot_pipeline.backend.precision import Precision
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.backend.signals import SignalListener
from lerobot_pipeline.config.request import read_train_request
from lerobot_pipeline.training.assembly import Run, assemble
from lerobot_pipeline.training.interruption import StopRequest, StopVote
from lerobot_pipeline.training.loop import TrainingLoop
from lerobot_pipeline.training.session import make_plan

State = dict[str, Any]


class ScalingRuntime(Runtime):
    """A runtime with the loss scaler of fp16, which on a CPU is there for tests only."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.scaler = Precision("fp16", torch.device("cpu"), self.precision.scaler).make_grad_scaler()


def train_and_gather(arguments: list[str]) -> State:
    """Train, with saves, and return the state at the end."""
    return _run(arguments, train=True)


def load_and_gather(arguments: list[str]) -> State:
    """Assemble a run from its checkpoint and return its state, without a step."""
    return _run(arguments, train=False)


def _run(arguments: list[str], train: bool) -> State:
    plan = make_plan(read_train_request(arguments))
    runtime = ScalingRuntime.from_config(plan.config)
    plan.run_dir.mkdir(parents=True, exist_ok=True)
    try:
        assert train or plan.found is not None, "there is nothing to load"
        run = assemble(plan.config, runtime, plan.found, plan.dataset_root)
        if train:
            TrainingLoop(run, plan.science, StopVote(StopRequest(SignalListener()), runtime)).train()
        return gather_state(run)
    finally:
        runtime.close()


def gather_state(run: Run) -> State:
    """Return every tensor whole and on the CPU, under its full name, and every number. Collective."""
    assert run.scheduler is not None
    assert run.ema is not None
    optimizer = get_optimizer_state_dict(run.bare_policy, run.optimizer)
    tensors: dict[str, Tensor] = {f"weights.{name}": value for name, value in run.bare_policy.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in run.ema.averages.items()}
    for name, state in optimizer["state"].items():
        tensors |= {f"optimizer.{name}.{entry}": value for entry, value in state.items()}
    return {
        **{name: gather_whole(value).detach().clone() for name, value in tensors.items()},
        **{
            f"group.{number}.{name}": value
            for number, group in enumerate(optimizer["param_groups"])
            for name, value in group.items()
            if name != "params"
        },
        "average.updates": run.ema.num_updates,
        "scheduler": run.scheduler.state_dict(),
        "scaler": run.runtime.scaler.state_dict() if run.runtime.scaler else None,
        "step": (run.progress.step, run.progress.cursor),
    }


def differing(ours: State, theirs: State) -> list[str]:
    """Return the names under which two states are not the same bit for bit."""
    return [name for name in sorted({*ours, *theirs}) if not _is_same(ours.get(name), theirs.get(name))]


def _is_same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    # JSON knows no tuples: betas may come back as a list.
    ours, theirs = (list(value) if isinstance(value, tuple) else value for value in (ours, theirs))
    return bool(ours == theirs)
