"""How processes are started: the torchrun command of a topology, and the guard against settings behind our back."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from lerobot_pipeline.errors import UsageError

ALLOW_ACCELERATE_ENV = "LEROBOT_ALLOW_ACCELERATE_ENV"

_GUARDED_PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "DEEPSPEED_", "MEGATRON_LM_")

_PLAIN_LAUNCH = {
    # What `accelerate launch` (1.15) exports when it is told nothing but how many processes to start.
    "ACCELERATE_MIXED_PRECISION": {"no"},
    "ACCELERATE_USE_CPU": {"true", "false"},
    "ACCELERATE_DYNAMO_BACKEND": {"no"},
    "ACCELERATE_DYNAMO_MODE": {"default"},
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": {"false"},
    "ACCELERATE_DYNAMO_USE_DYNAMIC": {"false"},
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": {"false"},
}


def foreign_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that would configure accelerate behind the config's back."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_GUARDED_PREFIXES) and value.lower() not in _PLAIN_LAUNCH.get(name, set())
    }


def guard_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Refuse foreign settings, or return those that `LEROBOT_ALLOW_ACCELERATE_ENV=1` lets pass, for the record.

    Raises:
        UsageError: names every such variable.
    """
    environment = os.environ if environment is None else environment
    found = foreign_settings(environment)
    if found and environment.get(ALLOW_ACCELERATE_ENV) != "1":
        listed = ", ".join(f"{name}={value}" for name, value in found.items())
        raise UsageError(
            next(iter(found)),
            f"the environment configures accelerate ({listed}), perhaps through a --config_file; say it with "
            f"--accelerator.* and --parallelism.* flags instead, or set {ALLOW_ACCELERATE_ENV}=1 to go on regardless",
        )
    return found


def world_size(environment: Mapping[str, str] | None = None) -> int:
    """Return how many processes the launcher started (1 where there is none)."""
    environment = os.environ if environment is None else environment
    return int(environment.get("WORLD_SIZE") or 1)


def is_main_rank(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process is rank 0, known before a process group exists."""
    environment = os.environ if environment is None else environment
    return int(environment.get("RANK") or 0) == 0


def training_command(processes: int, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `lerobot-pipeline train` in `processes` processes of this machine."""
    program = ["-m", "lerobot_pipeline", "train", *arguments]
    if processes == 1:
        return [sys.executable, *program]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc-per-node={processes}"]
    return [sys.executable, *torchrun, *program]


def rank_environment(processes: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the ranks: the threads that were granted are divided among them."""
    divided = dict(environment)
    if granted := environment.get("OMP_NUM_THREADS", ""):
        divided["OMP_NUM_THREADS"] = str(max(1, int(granted) // processes)) if granted.isdigit() else granted
    return divided
