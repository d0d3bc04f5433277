"""The runtime: decided once (device, precision, layout), then the same few calls for every layout on every device."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lerobot_pipeline.backend.devices import name_device, resolve_device
from lerobot_pipeline.backend.exchange import Exchange
from lerobot_pipeline.backend.gradients import clip_by_global_norm
from lerobot_pipeline.backend.launch import guard_environment, world_size
from lerobot_pipeline.backend.layouts import Layout, LayoutOptions, ShardedLayout, WholeLayout
from lerobot_pipeline.backend.matmul_probe import MatmulProbe
from lerobot_pipeline.backend.parallelism import ParallelismConfig, Topology
from lerobot_pipeline.backend.precision import (
    MIXED_PRECISION_KEY,
    GradScalerConfig,
    MixedPrecision,
    Precision,
    require_supported,
    set_tf32,
)
from lerobot_pipeline.backend.sharding import ActivationCheckpointingConfig, CompileConfig, FSDPConfig
from lerobot_pipeline.errors import ConfigError, RunFailure, UsageError

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class GradientAccumulationConfig:
    """How many micro-batches make one optimizer update."""

    steps: int = 1
    """Micro-batches whose gradients are averaged before an update."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError("accelerator.gradient_accumulation.steps", f"must be >= 1, got {self.steps}")


@dataclass(kw_only=True)
class DDPConfig:
    """Options of torch's DistributedDataParallel."""

    find_unused_parameters: bool = True
    """Allow parameters that take no part in a step; costs a walk over the graph."""

    gradient_as_bucket_view: bool = False
    """Let gradients be views of the reduction buckets, which saves one copy of them."""

    static_graph: bool = False
    """Promise that every step uses the same parameters."""


@dataclass(kw_only=True)
class AcceleratorConfig:
    """Precision, accumulation and data-parallel options."""

    mixed_precision: MixedPrecision = "no"
    """What matmuls and convolutions compute in: no (float32), bf16 or fp16."""

    grad_scaler: GradScalerConfig = field(default_factory=GradScalerConfig)
    """Loss scaling; fp16 only."""

    gradient_accumulation: GradientAccumulationConfig = field(default_factory=GradientAccumulationConfig)
    """Micro-batches per update."""

    ddp: DDPConfig = field(default_factory=DDPConfig)
    """Options of plain data parallelism."""

    fsdp: FSDPConfig = field(default_factory=FSDPConfig)
    """Options of sharded runs."""

    activation_checkpointing: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)
    """Recomputing activations to save memory."""

    compile: CompileConfig = field(default_factory=CompileConfig)
    """torch.compile."""

    def __post_init__(self) -> None:
        self.fsdp.mixed_precision_policy.check(self.mixed_precision)


class RuntimeConfig(Protocol):
    """What a config must offer to build a runtime from it."""

    accelerator: AcceleratorConfig
    parallelism: ParallelismConfig
    tf32: bool | None

    @property
    def requested_device(self) -> str | None: ...


@dataclass(frozen=True)
class StepResult:
    """What one micro-batch led to. `grad_norm` (0-d tensor, before clipping) is there on updates and on skips."""

    grad_norm: Tensor | None = None
    did_update: bool = False
    was_skipped: bool = False
    """fp16 overflowed at this loss scale: normal now and then."""

    has_diverged: bool = False
    """The gradients are not finite at any scale: on every rank, and the weights were left alone."""


class Runtime:
    """Device, precision and layout of a run, and what depends on them. Every method is called by every rank."""

    def __init__(self, accelerator: Accelerator, topology: Topology, precision: Precision, config: AcceleratorConfig):
        self.accelerator = accelerator
        self.topology = topology
        # Kept, because accelerate would start a new process group to answer after `close`.
        self.rank = int(accelerator.process_index)
        self.is_main = bool(accelerator.is_main_process)
        self.precision = precision
        self.accumulation_steps = config.gradient_accumulation.steps
        self.layout = _make_layout(accelerator, topology, precision, config)
        self.scaler = precision.make_grad_scaler()
        self.exchange = Exchange(topology.world_size)
        self.tf32: dict[str, Any] = {}
        self.allowed_environment: dict[str, str] = {}
        self.parameters: dict[str, int] = {}
        """How many numbers a prepared policy has, `total` and `trainable`."""
        self._consecutive_skips = 0
        self._micro_step = 0
        self._probe = MatmulProbe()

    @staticmethod
    def require_possible(config: RuntimeConfig) -> tuple[torch.device, Topology]:
        """Return the device and the layout that a config asks for.

        Raises:
            UsageError: this machine, or what the launcher started, cannot give them.
        """
        device = resolve_device(config.requested_device)
        require_supported(config.accelerator.mixed_precision, device)
        return device, _resolve_topology(config.parallelism)

    @classmethod
    def from_config(cls, config: RuntimeConfig) -> Runtime:
        """Decide everything, or raise `UsageError`, before a process group or a model exists."""
        allowed_environment = guard_environment()
        device, topology = cls.require_possible(config)
        ddp = config.accelerator.ddp
        accelerator = Accelerator(
            cpu=device.type == "cpu",
            # Autocast and the scaler are ours (`Precision`), so that they exist on every device alike.
            mixed_precision="no",
            step_scheduler_with_optimizer=False,
            kwargs_handlers=[
                DistributedDataParallelKwargs(
                    find_unused_parameters=ddp.find_unused_parameters,
                    gradient_as_bucket_view=ddp.gradient_as_bucket_view,
                    static_graph=ddp.static_graph,
                )
            ],
        )
        actual = accelerator.device if topology.world_size > 1 else device
        precision = Precision(config.accelerator.mixed_precision, actual, config.accelerator.grad_scaler)
        runtime = cls(accelerator, topology, precision, config.accelerator)
        runtime.allowed_environment = allowed_environment
        runtime.tf32 = set_tf32(config.tf32)
        runtime._assert_layout()
        return runtime

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.precision.device

    @property
    def is_update_boundary(self) -> bool:
        """Whether every gradient has been spent: the only moments at which a run may be saved."""
        return self._micro_step % self.accumulation_steps == 0

    def prepare(
        self, policy: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]
    ) -> tuple[nn.Module, Optimizer]:
        """Place and lay out a policy, then build its optimizer over the parameters that result."""
        policy = self.layout.prepare(policy)
        parameters = list(policy.parameters())
        self.parameters = {
            "total": sum(parameter.numel() for parameter in parameters),
            "trainable": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        }
        return policy, make_optimizer(self.unwrap(policy))

    def unwrap(self, policy: nn.Module) -> nn.Module:
        """Return the policy as it was before `prepare`."""
        return self.layout.bare(policy)

    def gather_weights(self, policy: nn.Module, only_trainable: bool = False) -> dict[str, Tensor]:
        """Return the whole state dict: on every rank where the policy is whole, else on the main one. Collective.

        Args:
            only_trainable: leave frozen parameters out.
        """
        return self.layout.weights(policy, only_trainable)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for forward passes outside training, such as evaluation."""
        return self.layout.autocast()

    @contextmanager
    def accumulate(self, policy: nn.Module) -> Iterator[None]:
        """Run one micro-batch in the layout's precision, without gradient exchange before the last of an update."""
        is_first, is_last = self._micro_step == 0, (self._micro_step + 1) % self.accumulation_steps == 0
        with self._probe if is_first else nullcontext(), self.layout.micro_batch(policy, is_last):
            yield
        if is_first:
            self._tell_matmul_dtypes()

    def backward(self, loss: Tensor) -> None:
        """Add this micro-batch's share to the gradients."""
        # Outside autocast, as torch asks: the backward pass runs in the dtypes that the forward chose.
        with torch.autocast(self.device.type, enabled=False):
            loss = loss / self.accumulation_steps
            (self.scaler.scale(loss) if self.scaler else loss).backward()

    def finish_step(
        self, policy: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None, max_grad_norm: float
    ) -> StepResult:
        """Close a micro-batch: on an update's last one unscale once, clip, step or skip; then advance the schedule.

        Args:
            max_grad_norm: clip to this global norm; 0 or less only measures it.
        """
        self._micro_step += 1
        result = self._update(policy, optimizer, max_grad_norm) if self.is_update_boundary else StepResult()
        if scheduler is not None:
            with warnings.catch_warnings():
                # The schedule counts training steps; under accumulation or a skip it moves before the optimizer.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
                scheduler.step()
        return result

    def reduce(self, values: Tensor, how: Literal["mean", "sum", "max"]) -> Tensor:
        """Reduce a tensor over all ranks; every rank gets the result. Collective."""
        if self.topology.world_size == 1:
            return values
        reduced = values.clone()
        operation = torch.distributed.ReduceOp.MAX if how == "max" else torch.distributed.ReduceOp.SUM
        torch.distributed.all_reduce(reduced, op=operation)
        return reduced / self.topology.world_size if how == "mean" else reduced

    def start_max(self, value: int) -> Callable[[], int]:
        """Begin to find the largest of the ranks' values, and return what waits for it. Collective."""
        return self.exchange.start_max(value)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks. Collective; waits as long as it takes."""
        return self.exchange.gather(value)

    def broadcast(self, value: Any) -> Any:
        """Return the main rank's value on every rank. Collective; waits as long as it takes."""
        return self.exchange.broadcast(value)

    def barrier(self) -> None:
        """Wait for every rank, as long as it takes."""
        self.exchange.gather(None)

    def close(self) -> None:
        """Leave the process group, if there is one, so that this process may build another runtime."""
        self.accelerator.end_training()
        AcceleratorState._reset_state(reset_partial_state=True)

    def describe(self) -> dict[str, Any]:
        """Return what was decided, for the banner and for manifests."""
        return {
            "topology": self.topology.as_dict(),
            "layout": self.topology.name,
            "device": self.device.type,
            "device_name": name_device(self.device),
            "mixed_precision": self.precision.mixed_precision,
            "tf32": self.tf32,
            "num_matmuls_by_dtype": dict(self._probe.num_by_dtype),
            "allowed_environment": self.allowed_environment,
            "parameters": self.parameters,
            **self.layout.describe(),
        }

    def _update(self, policy: nn.Module, optimizer: Optimizer, max_grad_norm: float) -> StepResult:
        self.layout.complete_gradients()
        if self.scaler:
            self.scaler.unscale_(optimizer)
        grad_norm = self._clip(policy, max_grad_norm)
        was_skipped = self.scaler is not None and bool(self.scaler.overflowed)
        # The one number that an update waits for: weights that took in a NaN cannot be mended afterwards.
        has_diverged = not was_skipped and not bool(torch.isfinite(grad_norm))
        if self.scaler:
            if not has_diverged:
                self.scaler.step(optimizer)
            self.scaler.update()
            self._count_skip(was_skipped)
        elif not has_diverged:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        did_update = not was_skipped and not has_diverged
        return StepResult(grad_norm, did_update, was_skipped, has_diverged)

    def _clip(self, policy: nn.Module, max_grad_norm: float) -> Tensor:
        # The norm is computed, not waited for: it stays on the device until metrics are logged.
        return clip_by_global_norm(policy.parameters(), max_grad_norm, self.device)

    def _count_skip(self, was_skipped: bool) -> None:
        self._consecutive_skips = self._consecutive_skips + 1 if was_skipped else 0
        if self._consecutive_skips >= self.precision.scaler.max_consecutive_skips:
            raise RunFailure(
                f"{self._consecutive_skips} updates in a row overflowed in fp16; the loss is not finite at any scale "
                "(lower --optimizer.lr, or train in bf16)"
            )

    def _tell_matmul_dtypes(self) -> None:
        seen, wanted = self._probe.num_by_dtype, str(self.precision.compute_dtype or torch.float32)
        told = ", ".join(f"{number} in {dtype}" for dtype, number in seen.most_common())
        if self.is_main:
            logger.info("matrix products of the first step: %s", told or "none")
            if self.precision.compute_dtype is not None and wanted.removeprefix("torch.") not in seen:
                logger.warning(
                    "%s=%s, but no matrix product ran in %s",
                    MIXED_PRECISION_KEY,
                    self.precision.mixed_precision,
                    wanted.removeprefix("torch."),
                )

    def _assert_layout(self) -> None:
        """Check that the launcher and accelerate gave what was resolved; a mismatch would train apart in silence."""
        assert self.accelerator.num_processes == self.topology.world_size
        assert sorted(self.gather(self.rank)) == list(range(self.topology.world_size))
        assert self.accelerator.device.type == self.device.type


def _resolve_topology(parallelism: ParallelismConfig) -> Topology:
    try:
        return parallelism.resolve(world_size())
    except UsageError as error:
        if world_size() == 1 and "ACCELERATE_MIXED_PRECISION" in os.environ:
            hint = "`accelerate launch` on a CPU starts one process unless --multi_gpu or --num_machines is given"
            raise UsageError(error.key, f"{error.reason} ({hint})") from error
        raise


def _make_layout(
    accelerator: Accelerator, topology: Topology, precision: Precision, config: AcceleratorConfig
) -> Layout:
    options = LayoutOptions(config.fsdp, config.activation_checkpointing, config.compile)
    if topology.is_sharded:
        return ShardedLayout(topology, precision, options)
    return WholeLayout(accelerator, topology, precision, options)
