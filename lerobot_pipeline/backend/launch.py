"""How processes are started: command and environment of the ranks, and the guard against settings behind our back."""

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
    return rank_of_this_process(environment) == 0


def rank_of_this_process(environment: Mapping[str, str] | None = None) -> int:
    """Return this process's number among the ranks, from 0."""
    environment = os.environ if environment is None else environment
    return int(environment.get("RANK") or 0)


def training_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `lerobot-pipeline train` as one rank of this machine."""
    return [sys.executable, "-m", "lerobot_pipeline", "train", *arguments]


def rank_environments(processes: int, environment: Mapping[str, str], port: int) -> list[dict[str, str]]:
    """Return the environment of each rank, as torchrun would make it on one machine.

    The threads that were granted are divided among the ranks; with none granted each of several has one.
    """
    if processes == 1:
        return [dict(environment)]
    granted = environment.get("OMP_NUM_THREADS") or str(processes)
    common = {
        **environment,
        "OMP_NUM_THREADS": str(max(1, int(granted) // processes)) if granted.isdigit() else granted,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
