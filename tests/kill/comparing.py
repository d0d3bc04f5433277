"""Whether two runs ended alike, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

TIMES = ("data_s", "update_s", "samples_per_s", "time", "peak_memory_gb")


def final_state(run_dir: Path) -> dict[str, Any]:
    """Return all that a finished run leaves: every stored tensor, the states in JSON, and the logged numbers."""
    step_dir = (run_dir / "checkpoints" / "last").resolve()
    state: dict[str, Any] = {"step": step_dir.name}
    for path in sorted(step_dir.rglob("*.safetensors")):
        for name, tensor in load_file(path).items():
            state[f"{path.relative_to(step_dir)}:{name}"] = tensor
    for metadata in sorted(step_dir.rglob(".metadata")):
        shards = metadata.parent
        stored = _load_state_dict_from_keys(storage_reader=FileSystemReader(shards))
        for name, value in flatten(stored):
            state[f"{shards.relative_to(step_dir)}:{name}"] = value
    for name in ("scheduler_state.json", "training_step.json", "scaler_state.json"):
        if (path := step_dir / "training_state" / name).is_file():
            state[name] = json.loads(path.read_text(encoding="utf-8"))
    for step, values in logged(run_dir).items():
        state[f"log:{step}"] = values
    return state


def flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the leaves of nested dictionaries."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [leaf for key, each in value.items() for leaf in flatten(each, f"{prefix}.{key}")]


def logged(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Return the numbers that were logged for each step, times left out; of a step that was done twice, the last."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return {
        entry["step"]: {name: value for name, value in entry.items() if name not in TIMES}
        for entry in entries
        if entry["kind"] == "train"
    }


def different(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the names under which two states are not the same, bit for bit."""
    names = sorted(found.keys() | expected.keys())
    return [name for name in names if not _same(found.get(name), expected.get(name))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return bool(type(one) is type(other) and one == other)
