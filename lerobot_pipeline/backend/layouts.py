"""How a policy is laid out over the ranks: whole on each of them, or sharded. The runtime never asks which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from lerobot_pipeline.backend.dtensors import without_padding
from lerobot_pipeline.backend.float32_modules import Float32Losses, share_statistics
from lerobot_pipeline.backend.gradients import average_over_ranks
from lerobot_pipeline.backend.parallelism import Topology
from lerobot_pipeline.backend.precision import Precision
from lerobot_pipeline.backend.sharding import (
    ActivationCheckpointingConfig,
    CompileConfig,
    FSDPConfig,
    Sharder,
    checkpoint_activations,
    compile_units,
    make_mesh,
    set_gradient_sync,
)
from lerobot_pipeline.backend.tied import tied_names
from lerobot_pipeline.backend.unit_watch import UnitWatch
from lerobot_pipeline.backend.wrap_units import WrapUnits, find_wrap_units


@dataclass(frozen=True)
class LayoutOptions:
    """What besides the topology shapes a layout."""

    fsdp: FSDPConfig = field(default_factory=FSDPConfig)
    activation_checkpointing: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)


class Layout(Protocol):
    """What the runtime asks of a layout. Every method is called by every rank."""

    def prepare(self, policy: nn.Module) -> nn.Module:
        """Place a policy and lay it out."""
        ...

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which forward passes compute, in training and outside of it."""
        ...

    def micro_batch(self, policy: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch; the last one of an update exchanges gradients."""
        ...

    def complete_gradients(self) -> None:
        """Reduce what the backward pass left to be reduced. Called before unscaling and clipping."""
        ...

    def bare(self, policy: nn.Module) -> nn.Module:
        """Return LeRobot's own policy."""
        ...

    def weights(self, policy: nn.Module, only_trainable: bool) -> dict[str, Tensor]:
        """Return the whole state dict; where it has to be gathered on the main rank only, elsewhere an empty one.

        Args:
            only_trainable: leave frozen parameters out.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return what is in force, for banner and manifest."""
        ...


class WholeLayout:
    """The policy whole on every rank: one process, or DDP over several."""

    def __init__(self, accelerator: Accelerator, topology: Topology, precision: Precision, options: LayoutOptions):
        self.accelerator = accelerator
        self.is_replicated = topology.world_size > 1
        self.precision = precision
        self.options = options

    def prepare(self, policy: nn.Module) -> nn.Module:
        """Place the policy, and wrap it in DDP where there are several ranks."""
        policy = _place(policy, self.precision)
        needs_units = self.options.activation_checkpointing.mode == "full" or (
            self.options.compile.enabled and self.options.compile.regional
        )
        fsdp = self.options.fsdp
        units = (
            find_wrap_units(policy, policy_type(policy), fsdp.wrap_modules, fsdp.min_num_params)
            if needs_units
            else WrapUnits({}, "none")
        )
        _checkpoint_and_compile(policy, units, self.options)
        return self.accelerator.prepare_model(policy) if self.is_replicated else policy

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast chooses the dtype of every operation."""
        return self.precision.autocast()

    @contextmanager
    def micro_batch(self, policy: nn.Module, is_last: bool) -> Iterator[None]:
        """Compute under autocast; DDP exchanges gradients in the last micro-batch only."""
        with nullcontext() if is_last else self.accelerator.no_sync(policy), self.autocast():
            yield

    def complete_gradients(self) -> None:
        """DDP has reduced everything already."""

    def bare(self, policy: nn.Module) -> nn.Module:
        """Return the policy inside DDP."""
        module: nn.Module = self.accelerator.unwrap_model(policy)
        return module

    def weights(self, policy: nn.Module, only_trainable: bool) -> dict[str, Tensor]:
        """Return what every rank holds, sharing its memory; frozen parameters are no burden here."""
        return dict(self.bare(policy).state_dict())

    def describe(self) -> dict[str, Any]:
        """Nothing beyond the topology."""
        return {}


class ShardedLayout:
    """Parameters, gradients and optimizer state split over ranks: FSDP2, or HSDP with replicas of the shards."""

    def __init__(self, topology: Topology, precision: Precision, options: LayoutOptions):
        self.precision = precision
        self.options = options
        self.mesh = make_mesh(topology, precision.device)
        self.sharder = Sharder(options.fsdp, self.mesh, precision)
        self.units = WrapUnits({}, "none")

    def prepare(self, policy: nn.Module) -> nn.Module:
        """Place, checkpoint, compile, shard; then check that parameters really are sharded."""
        policy = _place(policy, self.precision)
        self.units = self.sharder.find_units(policy, policy_type(policy))
        _checkpoint_and_compile(policy, self.units, self.options)
        self.sharder.shard(policy, self.units, policy_type(policy))
        self._assert_sharded(policy)
        if not self.options.compile.enabled:  # which would trace the watch's hooks, and again when they are gone
            self.watch = UnitWatch(policy, self.units)
        return policy

    def autocast(self) -> AbstractContextManager[Any]:
        """The sharding policy rules precision alone: no autocast beside it."""
        return nullcontext()

    @contextmanager
    def micro_batch(self, policy: nn.Module, is_last: bool) -> Iterator[None]:
        """Gradients are reduced in the last micro-batch only."""
        set_gradient_sync(policy, is_last)
        float32_losses = nullcontext() if self.sharder.low_precision is None else Float32Losses()
        with self.autocast(), float32_losses:
            yield

    def complete_gradients(self) -> None:
        """Average what is kept whole on every rank, and let every rank have the same running statistics."""
        average_over_ranks(self.sharder.ignored)
        share_statistics(self.sharder.float32_modules)

    def bare(self, policy: nn.Module) -> nn.Module:
        """Sharding changes a policy in place."""
        return policy

    def weights(self, policy: nn.Module, only_trainable: bool) -> dict[str, Tensor]:
        """Gather the float32 masters on the main rank's CPU; other ranks get an empty dict."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=only_trainable)
        gathered: dict[str, Any] = get_model_state_dict(policy, options=options)
        whole = {name: without_padding(tensor) for name, tensor in gathered.items()}
        for first, *others in tied_names(policy):
            # Gathered apart, they are one tensor again, so that it is stored once.
            whole |= {name: whole[first] for name in others if first in whole}
        return whole

    def describe(self) -> dict[str, Any]:
        """Return units and the precision policy in force."""
        in_force = self.sharder.policy_in_force
        return {
            "wrap_units": len(self.units.modules),
            "wrap_units_from": self.units.source,
            "mixed_precision_policy": {
                name: str(getattr(in_force, name)).removeprefix("torch.")
                for name in ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
            },
        }

    def _assert_sharded(self, policy: nn.Module) -> None:
        kept_whole = {id(parameter) for parameter in self.sharder.kept_whole}
        for name, parameter in policy.named_parameters():
            assert isinstance(parameter, DTensor) or id(parameter) in kept_whole, f"{name} was not sharded"


def policy_type(policy: nn.Module) -> str:
    """Return the type by which LeRobot knows a policy, or its class's name where it has none."""
    for module in (policy, getattr(getattr(policy, "base_model", None), "model", None)):
        if found := getattr(getattr(module, "config", None), "type", None):
            return str(found)
    return type(policy).__name__


def _place(policy: nn.Module, precision: Precision) -> nn.Module:
    """Move a policy to its device; under mixed precision raise its trainable parameters to float32 masters."""
    policy = policy.to(precision.device)
    if precision.compute_dtype is not None:
        for parameter in policy.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.data = parameter.data.to(torch.float32)
    return policy


def _checkpoint_and_compile(policy: nn.Module, units: WrapUnits, options: LayoutOptions) -> None:
    if options.activation_checkpointing.mode == "full":
        checkpoint_activations(units)
    if options.compile.enabled:
        compile_units(policy, units, options.compile)
