"""Runs that train adapters on a small trained policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lerobot_pipeline.checkpoint.reader import find_checkpoint

from .layouts import LAYOUTS, run_under
from .recording import Recording, record_training

LORA = [
    "--peft.method_type=LORA",
    # A rank of 3 over two shards leaves them uneven.
    "--peft.r=3",
    '--peft.target_modules=["linear1", "linear2"]',
    '--peft.full_training_modules=["action_head"]',
]
EFFECTIVE_BATCH = 4


def make_base(flags: list[str], run_dir: Path) -> Path:
    """Train the policy that is adapted, a little, and return its directory."""
    sgd = ["--optimizer.type=sgd", "--optimizer.lr=0.1", "--batch_size=4", "--steps=1"]
    record_training([*flags, *sgd, f"--output_dir={run_dir}"])
    return find_checkpoint(run_dir).pretrained_dir


def adapter_flags(flags: list[str], base: Path, method: list[str] = LORA) -> list[str]:
    """Return the flags with the trained policy in place of a new one, and adapters on it."""
    others = [flag for flag in flags if not flag.startswith("--policy.")]
    return [*others, "--policy.device=cpu", f"--policy.path={base}", *method]


def train(layout: str, flags: list[str], request: pytest.FixtureRequest) -> list[Recording]:
    """Train under a layout with the same effective batch as under every other; one recording a rank."""
    batch_size = EFFECTIVE_BATCH // LAYOUTS[layout].world_size
    return run_under(layout, request, record_training, [*flags, f"--batch_size={batch_size}"])


def stored_adapter(run_dir: Path, model: str = "pretrained_model") -> dict[str, torch.Tensor]:
    """Return the tensors of a run's newest adapter."""
    adapter: dict[str, torch.Tensor] = load_file(
        find_checkpoint(run_dir).step_dir / model / "adapter_model.safetensors"
    )
    return adapter
