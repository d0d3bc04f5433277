"""Trains a small policy through the product's runtime and records what was computed. Importable by ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from lerobot_pipeline.backend.dtensors import gather_whole
from lerobot_pipeline.backend.layouts import ShardedLayout
from lerobot_pipeline.backend.parallelism import ParallelismConfig
from lerobot_pipeline.backend.runtime import AcceleratorConfig
from tests.distributed.recording import Recording, RecordingRuntime

from . import builders  # noqa: F401  (registers them)
from .small_policy import SmallPolicy, build, collate
from .whole_batch_noise import WholeBatchNoise

SHARE = 3
"""Samples of one update on each rank: no draw that concerns the policy as a whole, such as a crop, has this size."""

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    # An eps above float32's rounding: a gradient that is zero but for rounding would become a whole step of lr.
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=1e-5),
}


@dataclass
class PolicyRecording(Recording):
    """What training a small policy computed, and what it did afterwards."""

    action: Tensor = field(default_factory=lambda: torch.empty(0))
    """What `select_action` returned after training."""

    units: list[str] = field(default_factory=list)
    """Paths of the wrap units, if it was sharded."""


def record_policy(
    policy_type: str,
    optimizer: str = "sgd",
    updates: int = 5,
    batch: int = 2 * SHARE,
    parallelism: ParallelismConfig | None = None,
    accelerator: AcceleratorConfig | None = None,
    runtime_class: type[RecordingRuntime] = RecordingRuntime,
    is_nudged: bool = False,
) -> PolicyRecording:
    """Train a small policy for some updates of `batch` samples on all ranks of this process's group.

    Args:
        is_nudged: begin with every weight rounded up by one unit in its last place.
    """
    config = SimpleNamespace(
        accelerator=accelerator or AcceleratorConfig(),
        parallelism=parallelism or ParallelismConfig(),
        tf32=None,
        requested_device="cpu",
    )
    runtime = runtime_class.from_config(config)
    assert isinstance(runtime, RecordingRuntime)
    runtime.recording = recording = PolicyRecording()
    try:
        small = build(policy_type)
        if is_nudged:
            _nudge(small.policy)
        trainable = [parameter for parameter in small.policy.parameters() if parameter.requires_grad]
        assert trainable
        policy, made = runtime.prepare(
            small.policy, lambda policy: OPTIMIZERS[optimizer]([p for p in policy.parameters() if p.requires_grad])
        )
        if isinstance(runtime.layout, ShardedLayout):
            recording.units = list(runtime.layout.units.modules)
        for update in range(updates):
            _train_one(small, policy, made, runtime, update, batch)
        state = runtime.unwrap(policy).state_dict()
        recording.weights = {name: gather_whole(value).detach().clone() for name, value in state.items()}
        if small.can_act:
            recording.action = _act(small, policy, runtime)
    finally:
        runtime.close()
    return recording


@torch.no_grad()
def _nudge(policy: nn.Module) -> None:
    for parameter in policy.parameters():
        parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, torch.inf)))


def _train_one(
    small: SmallPolicy,
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    runtime: RecordingRuntime,
    update: int,
    whole: int,
) -> None:
    size = whole // runtime.topology.world_size
    share = slice(runtime.rank * size, (runtime.rank + 1) * size)
    batch = collate([small.sample(update * whole + position) for position in range(whole)[share]])
    with runtime.accumulate(policy):
        with WholeBatchNoise(seed=update, whole=whole, share=share):
            loss = small.loss(policy, batch)
        runtime.backward(loss)
    runtime.finish_step(policy, optimizer, None, max_grad_norm=1.0)
    runtime.recording.losses.append(float(runtime.reduce(loss.detach(), "mean")))


def _act(small: SmallPolicy, policy: Any, runtime: RecordingRuntime) -> Tensor:
    """Let every rank choose an action for the same observation."""
    policy.eval()
    policy.reset()
    batch = small.observe(collate([small.sample(1000)]))
    with torch.no_grad(), WholeBatchNoise(seed=0, whole=1, share=slice(0, 1)):
        return gather_whole(policy.select_action(batch)).clone()
