"""Sharding with torch's own `fully_shard`, the same on every device: checkpoint activations, compile, then shard."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from lerobot_pipeline.backend.float32_modules import compute_in_float32, find_float32_modules
from lerobot_pipeline.backend.parallelism import Topology
from lerobot_pipeline.backend.precision import MIXED_PRECISION_KEY, MixedPrecision, Precision
from lerobot_pipeline.backend.wrap_units import WrapUnits, find_wrap_units, require_untied
from lerobot_pipeline.errors import ConfigError, UsageError

logger = logging.getLogger(__name__)

FloatName = Literal["float32", "bfloat16", "float16"]

_POLICY_KEY = "accelerator.fsdp.mixed_precision_policy"

_ENTRY_POINTS = ("select_action", "predict_action_chunk")
"""Methods besides forward through which LeRobot's policies compute."""


@dataclass(kw_only=True)
class MixedPrecisionPolicyConfig:
    """PyTorch's MixedPrecisionPolicy. One field that is set replaces the whole policy that is derived otherwise."""

    param_dtype: FloatName | None = None
    """Dtype of the gathered parameters and of the computation."""

    reduce_dtype: FloatName | None = None
    """Dtype in which gradients are reduced; unset, PyTorch decides."""

    output_dtype: FloatName | None = None
    """Dtype of what a unit's forward returns."""

    cast_forward_inputs: bool | None = None
    """Whether a unit's inputs are cast to param_dtype; unset, they are."""

    @property
    def is_set(self) -> bool:
        """Whether any field is."""
        return any(getattr(self, each.name) is not None for each in fields(self))

    def check(self, mixed_precision: MixedPrecision) -> None:
        """Raise `ConfigError` for float16 without the loss scaler that it needs."""
        uses_fp16 = "float16" in (self.param_dtype, self.reduce_dtype, self.output_dtype)
        if uses_fp16 and mixed_precision != "fp16":
            raise ConfigError(
                _POLICY_KEY, f"float16 needs the loss scaler that --{MIXED_PRECISION_KEY}=fp16 makes; give that too"
            )


@dataclass(kw_only=True)
class FSDPConfig:
    """Options of sharded runs."""

    wrap_modules: list[str] | None = None
    """Class names of the wrap units, in place of what the policy declares."""

    min_num_params: int | None = None
    """Make a wrap unit of every module with at least so many parameters, in place of naming classes."""

    reshard_after_forward: bool = True
    """Free a unit's gathered parameters after its forward pass and gather them again for the backward pass."""

    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory."""

    ignored_modules: str | None = None
    """Regular expression over module paths; what it matches in full is kept whole on every rank."""

    mixed_precision_policy: MixedPrecisionPolicyConfig = field(default_factory=MixedPrecisionPolicyConfig)
    """PyTorch's MixedPrecisionPolicy, in place of the one derived from accelerator.mixed_precision."""

    def __post_init__(self) -> None:
        if self.wrap_modules is not None and self.min_num_params is not None:
            raise ConfigError("accelerator.fsdp.min_num_params", "excludes accelerator.fsdp.wrap_modules; give one")
        if self.min_num_params is not None and self.min_num_params < 1:
            raise ConfigError("accelerator.fsdp.min_num_params", f"must be >= 1, got {self.min_num_params}")
        if self.ignored_modules is not None:
            try:
                re.compile(self.ignored_modules)
            except re.error as error:
                raise ConfigError("accelerator.fsdp.ignored_modules", f"is no regular expression: {error}") from error


@dataclass(kw_only=True)
class ActivationCheckpointingConfig:
    """Recompute activations in the backward pass instead of keeping them."""

    mode: Literal["none", "full"] = "none"
    """full recomputes every wrap unit."""


@dataclass(kw_only=True)
class CompileConfig:
    """torch.compile."""

    enabled: bool = False
    """Compile the policy."""

    backend: str = "inductor"
    """Backend of torch.compile."""

    mode: str | None = None
    """Mode of torch.compile, such as reduce-overhead."""

    regional: bool = True
    """Compile each wrap unit for itself, which is quick where units repeat; false compiles the whole policy."""


def make_mesh(topology: Topology, device: torch.device) -> DeviceMesh:
    """Return the mesh of a sharded topology: one dimension to shard over, and for HSDP one to replicate over before it.

    Consecutive ranks shard together, so that a node's ranks gather parameters among themselves and only gradients of
    replicas cross nodes.
    """
    if topology.dp_replicate == 1:
        return init_device_mesh(device.type, (topology.dp_shard,), mesh_dim_names=("dp_shard",))
    shape = (topology.dp_replicate, topology.dp_shard)
    return init_device_mesh(device.type, shape, mesh_dim_names=("dp_replicate", "dp_shard"))


def mixed_precision_policy(config: MixedPrecisionPolicyConfig, precision: Precision) -> MixedPrecisionPolicy:
    """Return the policy in force. The derived one keeps float32 masters and reduces in float32."""
    config.check(precision.mixed_precision)
    if config.is_set:
        if config.param_dtype is None:
            logger.warning("%s is set without param_dtype: computation stays in the parameters' dtype", _POLICY_KEY)
        return MixedPrecisionPolicy(
            param_dtype=_dtype(config.param_dtype),
            reduce_dtype=_dtype(config.reduce_dtype),
            output_dtype=_dtype(config.output_dtype),
            cast_forward_inputs=config.cast_forward_inputs is not False,
        )
    if precision.compute_dtype is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=precision.compute_dtype, reduce_dtype=torch.float32)


class Sharder:
    """Lays a policy out over a mesh."""

    def __init__(self, config: FSDPConfig, mesh: DeviceMesh, precision: Precision) -> None:
        self.config = config
        self.mesh = mesh
        self.policy_in_force = mixed_precision_policy(config.mixed_precision_policy, precision)
        self.ignored: list[nn.Parameter] = []
        """Trainable parameters that are kept whole; their gradients are averaged by hand."""
        self.kept_whole: set[nn.Parameter] = set()
        self.float32_modules: list[nn.Module] = []
        """Modules with float32 buffers, such as running statistics."""

    def find_units(self, policy: nn.Module, policy_type: str) -> WrapUnits:
        """Return the wrap units, proven free of split tied weights."""
        units = find_wrap_units(policy, policy_type, self.config.wrap_modules, self.config.min_num_params)
        require_untied(policy, units)
        return units

    def shard(self, policy: nn.Module, units: WrapUnits, policy_type: str) -> nn.Module:
        """Shard every unit and then the root, in place.

        Raises:
            UsageError: the trainable parameters of a unit have more than one dtype.
        """
        self.float32_modules = find_float32_modules(policy, policy_type)
        self.kept_whole = ignored = self._ignored_parameters(policy) | self._float32_parameters()
        # In the policy's order, which is the same on every rank; a set's is not.
        self.ignored = [p for p in policy.parameters() if p in ignored and p.requires_grad]
        options: dict[str, Any] = {
            "mesh": self.mesh,
            "reshard_after_forward": self.config.reshard_after_forward,
            "mp_policy": self.policy_in_force,
            "offload_policy": self._offload_policy(),
            "ignored_params": ignored,
        }
        for path, unit in units.modules.items():
            _require_one_dtype(path, unit, ignored)
            fully_shard(unit, **options)
        if self.low_precision is not None:
            for module in self.float32_modules:
                compute_in_float32(module, self.low_precision)
            if self.policy_in_force.cast_forward_inputs:
                _cast_inputs_in_root(policy, units, self.float32_modules, self.low_precision)
        _require_one_dtype("", policy, ignored)
        fully_shard(policy, **options)
        for name in _ENTRY_POINTS:
            if hasattr(policy, name):
                register_fsdp_forward_method(policy, name)
        _sum_explicitly(policy)
        return policy

    @property
    def low_precision(self) -> torch.dtype | None:
        """What units compute in, if that is not what their parameters are."""
        dtype = self.policy_in_force.param_dtype
        return None if dtype == torch.float32 else dtype

    def _float32_parameters(self) -> set[nn.Parameter]:
        if self.low_precision is None:
            return set()
        return {parameter for module in self.float32_modules for parameter in module.parameters()}

    def _offload_policy(self) -> OffloadPolicy:
        if not self.config.cpu_offload:
            return OffloadPolicy()
        # Pinned memory makes copies to a card fast, and needs a driver of one.
        return CPUOffloadPolicy(pin_memory=self.mesh.device_type != "cpu")

    def _ignored_parameters(self, policy: nn.Module) -> set[nn.Parameter]:
        pattern = self.config.ignored_modules
        if pattern is None:
            return set()
        matched = [module for path, module in policy.named_modules() if path and re.fullmatch(pattern, path)]
        if not matched:
            raise UsageError("accelerator.fsdp.ignored_modules", f"{pattern!r} matches no module path in full")
        return {parameter for module in matched for parameter in module.parameters()}


def checkpoint_activations(units: WrapUnits) -> None:
    """Let every unit recompute its activations in the backward pass.

    The unit's own forward is wrapped, not the unit: a wrapper module would rename every parameter below it.
    """
    for unit in units.modules.values():
        unit.forward = partial(checkpoint, unit.forward, use_reentrant=False)


def compile_units(policy: nn.Module, units: WrapUnits, config: CompileConfig) -> None:
    """Compile each unit, or the whole policy, in place."""
    for module in units.modules.values() if config.regional else [policy]:
        module.compile(backend=config.backend, mode=config.mode)


def set_gradient_sync(policy: nn.Module, is_last: bool) -> None:
    """Say whether this micro-batch's backward pass exchanges gradients."""
    assert isinstance(policy, FSDPModule)
    policy.set_requires_gradient_sync(is_last)


def _cast_inputs_in_root(
    policy: nn.Module, units: WrapUnits, float32_modules: list[nn.Module], dtype: torch.dtype
) -> None:
    """Cast what reaches the root's own layers, as `fully_shard` casts what reaches a unit.

    The root is cast where it is entered only, but policies make float32 tensors inside their forward pass (a latent of
    zeros, say) and hand them to layers whose gathered parameters are `dtype`.
    """
    apart = [*units.modules.values(), *float32_modules]
    are_cast_already = {id(module) for each in apart for module in each.modules()}

    def cast(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for value in inputs
        )

    for module in policy.modules():
        if id(module) not in are_cast_already and next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(cast)


def _sum_explicitly(policy: nn.Module) -> None:
    """Reduce by sum and divide, since gloo has no averaging reduce-scatter (older torch summed in silence)."""
    for module in policy.modules():
        if isinstance(module, FSDPModule) and torch.distributed.get_backend() == "gloo":
            module.set_force_sum_reduction_for_comms(True)


def _require_one_dtype(path: str, unit: nn.Module, ignored: set[nn.Parameter]) -> None:
    """Called before a unit is sharded, when the parameters of units inside it are DTensors already."""
    own = [p for p in unit.parameters() if p.requires_grad and p not in ignored and not isinstance(p, DTensor)]
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in own})
    if len(dtypes) > 1:
        raise UsageError(
            MIXED_PRECISION_KEY,
            f"the trainable parameters of {path or 'the root'} are {' and '.join(dtypes)}, but a unit has one dtype; "
            f"turn mixed precision on (--{MIXED_PRECISION_KEY}=bf16 raises them to float32)",
        )


def _dtype(name: FloatName | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)
