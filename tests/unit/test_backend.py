"""Devices, precision, degrees and the guard: decided once, refused in words."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lerobot_pipeline.backend.devices import count_devices, detect_device, resolve_device
from lerobot_pipeline.backend.launch import foreign_settings, guard_environment, rank_environments
from lerobot_pipeline.backend.parallelism import ParallelismConfig
from lerobot_pipeline.backend.precision import GradScalerConfig, Precision, require_supported, set_tf32
from lerobot_pipeline.checkpoint.state import Progress
from lerobot_pipeline.errors import ConfigError, UsageError


def test_the_cpu_is_always_there() -> None:
    assert count_devices("cpu") == 1
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device(None).type == detect_device()


@pytest.mark.parametrize("name", ["cuda:7", "xpu", "mps"])
def test_a_device_that_is_not_there_is_no_silent_fall_back(name: str) -> None:
    if count_devices(name.partition(":")[0]) > 7 or (":" not in name and count_devices(name)):
        pytest.skip(f"this machine has {name}")
    with pytest.raises(UsageError, match=r"policy\.device: .* was asked for, but"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "", "CPU"])
def test_what_is_no_device_is_told(name: str) -> None:
    with pytest.raises(UsageError, match="is no device"):
        resolve_device(name)


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(UsageError, match="fp16 needs a GPU"):
        require_supported("fp16", torch.device("cpu"))
    require_supported("bf16", torch.device("cpu"))


def test_bf16_computes_in_bf16() -> None:
    """A precision that is a silent no-op would show the dtype of the inputs."""
    linear, seen = torch.nn.Linear(4, 4), []
    linear.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    for mixed_precision in ("no", "bf16"):
        with Precision(mixed_precision, torch.device("cpu")).autocast():  # type: ignore[arg-type]
            linear(torch.ones(1, 4))
    assert seen == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    ("enabled", "matmul", "cudnn"), [(True, True, True), (False, False, False), (None, "before", "before")]
)
def test_tf32_has_three_states(enabled: bool | None, matmul: object, cudnn: object) -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        in_force = set_tf32(enabled)
        expected = {"before": before[0]}.get(str(matmul), matmul), {"before": before[1]}.get(str(cudnn), cudnn)
        assert (in_force["matmul"], in_force["cudnn"]) == expected
        assert torch.backends.cudnn.allow_tf32 == expected[1]
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(
    "wrong",
    [
        {"init_scale": 0.0},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"backoff_factor": 0.0},
        {"growth_interval": 0},
    ],
)
def test_scaler_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"accelerator.grad_scaler.{next(iter(wrong))}"):
        GradScalerConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replicate", "shard", "world", "resolved", "name"),
    [
        (None, 1, 1, (1, 1), "single"),
        (None, 1, 4, (4, 1), "DDP 4"),
        (None, -1, 4, (1, 4), "FSDP2 4"),
        (2, -1, 8, (2, 4), "HSDP 2x4"),
        (None, 4, 8, (2, 4), "HSDP 2x4"),
        (4, 1, 4, (4, 1), "DDP 4"),
    ],
)
def test_degrees_fill_the_world(
    replicate: int | None, shard: int, world: int, resolved: tuple[int, int], name: str
) -> None:
    topology = ParallelismConfig(dp_replicate=replicate, dp_shard=shard).resolve(world)
    assert (topology.dp_replicate, topology.dp_shard) == resolved
    assert topology.name == name


@given(replicate=st.none() | st.integers(1, 9), shard=st.integers(1, 9) | st.just(-1), world=st.integers(1, 20))
def test_degrees_multiply_to_the_world_or_are_refused(replicate: int | None, shard: int, world: int) -> None:
    config = ParallelismConfig(dp_replicate=replicate, dp_shard=shard)
    fits = world % (replicate or 1) == 0 if shard == -1 else world % shard == 0 and replicate in (None, world // shard)
    if fits:
        topology = config.resolve(world)
        assert topology.dp_replicate * topology.dp_shard == world
    else:
        with pytest.raises(UsageError, match=r"dp_replicate \d+ x dp_shard \d+ = \d+, but"):
            config.resolve(world)


def test_effective_batch_is_the_product_of_its_factors() -> None:
    topology = ParallelismConfig(dp_replicate=2, dp_shard=4).resolve(8)
    progress = Progress(step=0, cursor=0, dp_world_size=topology.world_size, batch_size=8, accumulation_steps=3)
    assert progress.effective_batch_size == 8 * 8 * 3


PLAIN_ACCELERATE = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_USE_CPU": "False",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
}


def test_a_plain_launch_passes_the_guard() -> None:
    assert guard_environment(PLAIN_ACCELERATE | {"RANK": "0", "PATH": "/bin"}) == {}


@pytest.mark.parametrize(
    "setting",
    [
        {"ACCELERATE_MIXED_PRECISION": "bf16"},
        {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"},
        {"ACCELERATE_USE_FSDP": "true"},
        {"FSDP_SHARDING_STRATEGY": "FULL_SHARD"},
        {"ACCELERATE_USE_DEEPSPEED": "true"},
        {"ACCELERATE_USE_MEGATRON_LM": "true"},
        {"PARALLELISM_CONFIG_DP_SHARD_SIZE": "2"},
        {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_behind_the_config_are_refused_by_name(setting: dict[str, str]) -> None:
    environment = PLAIN_ACCELERATE | setting
    assert foreign_settings(environment) == setting
    with pytest.raises(UsageError, match=next(iter(setting))):
        guard_environment(environment)
    assert guard_environment(environment | {"LEROBOT_ALLOW_ACCELERATE_ENV": "1"}) == setting


def test_one_process_is_no_rank() -> None:
    assert rank_environments(1, {"A": "b"}, port=5) == [{"A": "b"}]
    ranks = rank_environments(2, {}, port=5)
    named = [(rank["RANK"], rank["LOCAL_RANK"], rank["WORLD_SIZE"]) for rank in ranks]
    assert named == [("0", "0", "2"), ("1", "1", "2")]


def test_threads_are_divided_among_ranks() -> None:
    def threads(granted: dict[str, str]) -> set[str]:
        return {rank["OMP_NUM_THREADS"] for rank in rank_environments(4, granted, port=5)}

    assert threads({"OMP_NUM_THREADS": "8"}) == {"2"}
    assert threads({"OMP_NUM_THREADS": "2"}) == {"1"}
    assert threads({}) == {"1"}, "as torchrun does, whose runs are the same bit for bit"
