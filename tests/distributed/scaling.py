"""Training with a loss scaler on the CPU, where the command line refuses fp16: the same code computes in float32."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lerobot_pipeline.backend.dtensors import local_part
from lerobot_pipeline.backend.layouts import ShardedLayout
from lerobot_pipeline.backend.precision import LossScaler, Precision
from lerobot_pipeline.training.assembly import Run
from lerobot_pipeline.training.loop import TrainingLoop

from .recording import RecordingRuntime, open_loop


@dataclass(frozen=True)
class Overflow:
    """Where an inf comes up, once."""

    step: int
    rank: int
    place: str
    """`loss`: in the backward pass, before gradients are reduced. `sharded` or `whole`: after that, in a gradient of
    that kind, on this rank alone."""


class OverflowingScaler(LossScaler):
    """The product's scaler; one gradient is spoilt before it looks at them."""

    spoil: str | None = None

    def _unscale_grads_(self, optimizer: Optimizer, *arguments: Any) -> dict[torch.device, Tensor]:
        if self.spoil is not None:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            is_sharded = self.spoil == "sharded"
            chosen = [g for g in gradients if (local_part(g) is not g) == is_sharded and local_part(g).numel()]
            local_part(chosen[-1]).view(-1)[0] = torch.inf
        return super()._unscale_grads_(optimizer, *arguments)


class ScaledRuntime(RecordingRuntime):
    """Scales losses as fp16 would."""

    overflow: Overflow | None = None

    def __init__(self, accelerator: Any, topology: Any, precision: Precision, config: Any) -> None:
        super().__init__(accelerator, topology, precision, config)
        made = Precision("fp16", precision.device, config.grad_scaler).make_grad_scaler()
        assert made is not None
        made.__class__ = OverflowingScaler
        self.scaler = made

    def backward(self, loss: Tensor) -> None:
        overflow, step = self.overflow, self._micro_step + 1
        is_now = overflow is not None and (overflow.step, overflow.rank) == (step, self.rank)
        assert isinstance(self.scaler, OverflowingScaler)
        self.scaler.spoil = overflow.place if overflow is not None and is_now and overflow.place != "loss" else None
        super().backward(loss * torch.inf if overflow is not None and is_now and overflow.place == "loss" else loss)


class UnsharedFlag(ScaledRuntime):
    """Planted fault: each rank decides for itself."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.scaler is not None
        self.scaler._agree = lambda found_inf: None  # type: ignore[method-assign]


class FlagOfTheShardGroup(ScaledRuntime):
    """Planted fault: the flag reaches the ranks that shard together, and no replica."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.scaler is not None
        assert isinstance(self.layout, ShardedLayout)
        group = self.layout.mesh.get_group("dp_shard")
        self.scaler._agree = lambda found_inf: torch.distributed.all_reduce(found_inf, group=group)  # type: ignore[method-assign]


@dataclass
class StepState:
    """What a rank holds after a step; digests of bytes, so that equal means equal bit for bit."""

    weights: str
    moments: str
    average: str
    lr: float
    scale: float
    num_skips: int
    hook_calls: int
    loss: float | None


@dataclass
class Trace:
    """One state a step, the one before the first step at the head."""

    states: list[StepState] = field(default_factory=list)


def train_with_overflow(
    arguments: list[str], overflow: Overflow | None, runtime_class: type[ScaledRuntime] = ScaledRuntime
) -> Trace:
    """Train as `lerobot-pipeline train` would with a loss scaler, and return what every step left behind."""
    trace = Trace()
    hook_calls: list[int] = []
    with open_loop(arguments, runtime_class) as (loop, _):
        assert isinstance(loop.runtime, ScaledRuntime)
        loop.runtime.overflow = overflow
        loop._update_hook = lambda: hook_calls.append(1)
        trace.states.append(_state(loop.run, loop, len(hook_calls)))
        look = loop._look

        def remember(*arguments: Any) -> None:
            trace.states.append(_state(loop.run, loop, len(hook_calls)))
            look(*arguments)

        loop._look = remember  # type: ignore[method-assign]
        loop.train()
    return trace


def _state(run: Run, loop: TrainingLoop, hook_calls: int) -> StepState:
    moments = [value for state in run.optimizer.state.values() for value in state.values()]
    assert run.ema is not None
    assert run.runtime.scaler is not None
    return StepState(
        weights=_digest(run.policy.state_dict().values()),
        moments=_digest(moments),
        average=_digest(run.ema.averages.values()),
        lr=float(run.optimizer.param_groups[0]["lr"]),
        scale=run.runtime.scaler.get_scale(),
        num_skips=run.progress.skipped_updates,
        hook_calls=hook_calls,
        loss=loop.last_loss,
    )


def _digest(tensors: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(local_part(torch.as_tensor(tensor)).detach().contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
