"""Runs the product's own training session in this process and records what it computed. Importable by ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lerobot_pipeline.backend.dtensors import gather_whole, local_part
from lerobot_pipeline.backend.layouts import ShardedLayout
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.backend.signals import SignalListener
from lerobot_pipeline.config.request import read_train_request
from lerobot_pipeline.training.assembly import assemble
from lerobot_pipeline.training.interruption import StopRequest, StopVote
from lerobot_pipeline.training.loop import TrainingLoop
from lerobot_pipeline.training.session import make_plan


@dataclass
class Recording:
    """What a training run computed, on the CPU."""

    losses: list[float] = field(default_factory=list)
    """One a step: the mean over all ranks."""

    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    """One an update: every parameter's gradient before clipping."""

    grad_norms: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    averages: dict[str, Tensor] = field(default_factory=dict)
    """The whole state dict with averaged weights, where a run keeps an average."""

    indices: list[list[int]] = field(default_factory=list)
    """One a step: the dataset rows that this rank was given."""


class RecordingRuntime(Runtime):
    """A runtime that remembers gradients; it changes nothing."""

    recording: Recording

    def _clip(self, policy: nn.Module, max_grad_norm: float) -> Tensor:
        named = self.unwrap(policy).named_parameters()
        self.recording.gradients.append({name: gather_whole(p.grad).clone() for name, p in named if p.grad is not None})
        grad_norm = super()._clip(policy, max_grad_norm)
        self.recording.grad_norms.append(float(grad_norm))
        return grad_norm


class SummedGradients(RecordingRuntime):
    """Planted fault: gradients are summed over ranks where they should be averaged."""

    def _clip(self, policy: nn.Module, max_grad_norm: float) -> Tensor:
        for parameter in policy.parameters():
            if parameter.grad is not None:
                parameter.grad *= self.topology.world_size
        return super()._clip(policy, max_grad_norm)


class MissingAllReduce(RecordingRuntime):
    """Planted fault: every rank trains alone."""

    @contextmanager
    def accumulate(self, policy: nn.Module) -> Iterator[None]:
        with self.accelerator.no_sync(policy), super().accumulate(policy):
            yield


class MissingReplicaReduce(RecordingRuntime):
    """Planted fault: shards are brought together within a replica, replicas never."""

    def prepare(
        self, policy: nn.Module, make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        assert isinstance(self.layout, ShardedLayout)
        self.layout.sharder.mesh = self.layout.mesh["dp_shard"]
        return super().prepare(policy, make_optimizer)


class UnaveragedWholeGradients(RecordingRuntime):
    """Planted fault: what is kept whole beside shards is trained by each rank alone."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.layout.complete_gradients = lambda: None  # type: ignore[method-assign]


class NormOfShardsOnly(RecordingRuntime):
    """Planted fault: what is kept whole beside shards is left out of the global norm."""

    def _clip(self, policy: nn.Module, max_grad_norm: float) -> Tensor:
        whole = [p for p in policy.parameters() if p.grad is not None and not isinstance(p.grad, DTensor)]
        kept = [p.grad for p in whole]
        super()._clip(policy, max_grad_norm=0)
        for parameter in whole:
            parameter.grad = None
        grad_norm = Runtime._clip(self, policy, max_grad_norm)
        for parameter, gradient in zip(whole, kept, strict=True):
            parameter.grad = gradient
        return grad_norm


class LocalNormClipping(RecordingRuntime):
    """Planted fault: each rank clips by the norm of what it holds itself."""

    def _clip(self, policy: nn.Module, max_grad_norm: float) -> Tensor:
        gradients = [p.grad for p in policy.parameters() if p.grad is not None]
        local = [local_part(gradient) for gradient in gradients]
        norm = torch.stack([g.norm() for g in local]).norm()
        for gradient in local:
            gradient *= (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        return super()._clip(policy, 0.0)


class UnreducedLocalNormClipping(MissingAllReduce):
    """Planted fault: each rank clips by its own norm, and only then are gradients averaged."""

    def _clip(self, policy: nn.Module, max_grad_norm: float) -> Tensor:
        nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        for parameter in policy.parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(self.reduce(parameter.grad, "mean"))
        return super()._clip(policy, max_grad_norm)


@contextmanager
def open_loop(
    arguments: list[str], runtime_class: type[RecordingRuntime] = RecordingRuntime
) -> Iterator[tuple[TrainingLoop, Recording]]:
    """Yield the loop that `lerobot-pipeline train` would run, before its first step."""
    plan = make_plan(read_train_request(arguments))
    runtime = runtime_class.from_config(plan.config)
    assert isinstance(runtime, RecordingRuntime)
    runtime.recording = Recording()
    plan.run_dir.mkdir(parents=True, exist_ok=True)
    try:
        run = assemble(plan.config, runtime, plan.found, plan.dataset_root)
        yield TrainingLoop(run, plan.science, StopVote(StopRequest(SignalListener()), runtime)), runtime.recording
    finally:
        runtime.close()


def record_training(arguments: list[str], runtime_class: type[RecordingRuntime] = RecordingRuntime) -> Recording:
    """Train as `lerobot-pipeline train` would, and return what was computed."""
    with open_loop(arguments, runtime_class) as (loop, recording):
        run = loop.run
        run.batches = _remembering(run.batches, recording)
        _watch_losses(loop, recording)
        loop.train()
        state = run.bare_policy.state_dict()
        recording.weights = {name: gather_whole(value).detach().clone() for name, value in state.items()}
        recording.averages = run.ema.over(recording.weights) if run.ema is not None else {}
    return recording


def _remembering(batches: Iterator[dict[str, Any]], recording: Recording) -> Iterator[dict[str, Any]]:
    for batch in batches:
        recording.indices.append(batch["index"].tolist())
        yield batch


def _watch_losses(loop: TrainingLoop, recording: Recording) -> None:
    log = loop._log

    def log_and_remember(*arguments: Any) -> None:
        log(*arguments)
        assert loop.last_loss is not None
        recording.losses.append(loop.last_loss)

    loop._log = log_and_remember  # type: ignore[method-assign]
