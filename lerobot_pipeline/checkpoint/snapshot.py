"""What a checkpoint is made of: as the training loop has it, and as it will be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.forms import Weights
from lerobot_pipeline.checkpoint.host_copies import HostCopies
from lerobot_pipeline.checkpoint.optimizer import OptimizerState, capture_optimizer
from lerobot_pipeline.checkpoint.state import Progress, SmallState, capture_random_state, capture_state
from lerobot_pipeline.phases import Phase, phase

_BYTES_PER_TENSOR = 4096
_BYTES_OF_SMALL_FILES = 1 << 20


@dataclass(frozen=True)
class Snapshot:
    """All that a checkpoint holds, as the training loop has it."""

    policy: Any
    """LeRobot's policy, or PEFT's around it."""

    preprocessor: Any
    postprocessor: Any
    optimizer: Optimizer
    scheduler: LRScheduler | None
    progress: Progress
    train_config: dict[str, Any]
    science: dict[str, Any]
    weights: Weights
    average: Weights | None = None
    """The averaged policy, where a run keeps one, in the same forms as its weights."""

    ema_updates: int = 0
    """Updates that went into the average."""

    metric_window: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What this rank summed up since the last log: name -> (sum, count)."""


@dataclass(frozen=True)
class Content:
    """All that a checkpoint holds, as it will be written: nothing more is asked of other ranks."""

    snapshot: Snapshot
    optimizer: OptimizerState
    state: SmallState

    def copied(self, copies: HostCopies) -> Content:
        """Return the same with tensors that training does not change."""
        weights, average = self.snapshot.weights, self.snapshot.average
        tree = copies.copy(
            {
                "gathered": weights.gathered,
                "shards": weights.shards,
                "average": (average.gathered, average.shards) if average is not None else None,
                "optimizer": self.optimizer.values,
            }
        )
        return replace(
            self,
            snapshot=replace(
                self.snapshot,
                weights=Weights(tree["gathered"], tree["shards"]),
                average=Weights(*tree["average"]) if average is not None else None,
            ),
            optimizer=replace(self.optimizer, values=tree["optimizer"]),
        )

    def num_bytes(self) -> int:
        """Estimate the checkpoint's size: its tensors, whole, and some room for what surrounds them."""
        weights, average = self.snapshot.weights, self.snapshot.average or Weights()
        trees = (weights.gathered, weights.shards, average.gathered, average.shards, self.optimizer.values)
        tensors = [tensor for tree in trees for tensor in _tensors(tree)]
        per_tensor = _BYTES_PER_TENSOR * len(self.state.random_states)
        return sum(tensor.numel() * tensor.itemsize + per_tensor for tensor in tensors) + _BYTES_OF_SMALL_FILES


def capture(snapshot: Snapshot, runtime: Runtime) -> Content:
    """Collect what a checkpoint holds beside the weights. Collective."""
    with phase(Phase.GATHER_STATE):
        ranks = runtime.gather((capture_random_state(), snapshot.metric_window))
        optimizer = capture_optimizer(snapshot.policy, snapshot.optimizer, runtime.topology.is_sharded)
    described = {
        "precision": runtime.precision.mixed_precision,
        "topology": runtime.topology.as_dict(),
        "ema_updates": snapshot.ema_updates,
        "parameters": runtime.parameters,
    }
    state = capture_state(
        snapshot.progress, snapshot.scheduler, runtime.scaler, [random for random, _ in ranks], described
    )
    windows = [{name: list(pair) for name, pair in window.items()} for _, window in ranks]
    state.records.update({layout.METRIC_WINDOW: windows, layout.SCIENCE: snapshot.science})
    return Content(snapshot, optimizer, state)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
