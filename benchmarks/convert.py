"""Time and memory of `convert-dcp`, of accelerate's `merge_fsdp_weights`, and of copying as many bytes.

Shards of two ranks are made once; then, round by round, each arm turns them into a file of its own in a new process.
Time is that of the whole process. Memory is the peak that is resident over what the imports alone take.

    python benchmarks/convert.py [--gigabytes=2] [--rounds=3] [--directory=DIR]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lerobot_pipeline.config.reader import read_config

SHARDS = "pytorch_model_fsdp_0"
ARMS = ("cp", "ours", "accelerate")
_TENSOR_BYTES = 1 << 26
_MEASURED = """
import resource, sys
{imports}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
{work}
print(peak() - before)
"""
_COMMANDS = {
    "ours": ("from lerobot_pipeline.conversion import command", "command.run([f'--checkpoint_dir={sys.argv[1]}'])"),
    "accelerate": (
        "import torch.distributed.checkpoint.format_utils\nfrom accelerate.utils import merge_fsdp_weights",
        f"merge_fsdp_weights(sys.argv[1] + '/{SHARDS}', sys.argv[1])",
    ),
}


@dataclass(kw_only=True)
class BenchmarkConfig:
    """What is measured, and how often."""

    gigabytes: float = 2.0
    """Size of the weights."""

    rounds: int = 3
    """Times that each arm runs."""

    directory: Path | None = None
    """Where the shards and the files are written; left out, a temporary directory."""

    arm: Literal["all", "make"] = "all"
    """`make` writes the shards, under torchrun."""


def main(arguments: list[str]) -> None:
    """Measure, or make the shards."""
    config = read_config(BenchmarkConfig, arguments)
    if config.arm == "make":
        assert config.directory is not None
        _make_shards(config.directory, config.gigabytes)
        return
    with tempfile.TemporaryDirectory(dir=config.directory) as name:
        model_dir = Path(name)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        made = [f"--gigabytes={config.gigabytes}", f"--directory={model_dir}", "--arm=make"]
        subprocess.run([*torchrun, *made], check=True, capture_output=True)
        _measure(config, model_dir)


def _measure(config: BenchmarkConfig, model_dir: Path) -> None:
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    megabytes: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(config.rounds):
        for arm in ARMS:
            start = time.perf_counter()
            megabytes[arm].append(_copy(model_dir) if arm == "cp" else _merge(arm, model_dir))
            seconds[arm].append(time.perf_counter() - start)
            (model_dir / "model.safetensors").unlink(missing_ok=True)
        print(f"round {number + 1}: " + "  ".join(f"{arm} {seconds[arm][-1]:.1f} s" for arm in ARMS), flush=True)
    for arm in ARMS:
        ratio = statistics.median(cp / own for cp, own in zip(seconds["cp"], seconds[arm], strict=True))
        print(
            f"{arm}: median {statistics.median(seconds[arm]):.1f} s, {ratio:.2f} of the speed of cp and fsync, "
            f"{max(megabytes[arm]):.0f} MB over the imports"
        )


def _copy(model_dir: Path) -> float:
    copy = model_dir / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-r", model_dir / SHARDS, copy], check=True)
    for path in copy.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return 0.0


def _merge(arm: str, model_dir: Path) -> float:
    imports, work = _COMMANDS[arm]
    program = _MEASURED.format(imports=imports, work=work)
    result = subprocess.run([sys.executable, "-c", program, model_dir], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{arm} failed:\n{result.stderr[-4000:]}")
    descriptor = os.open(model_dir / "model.safetensors", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return float(result.stdout.splitlines()[-1])


def _make_shards(directory: Path, gigabytes: float) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    count = max(1, round(gigabytes * 1e9 / _TENSOR_BYTES))
    rows = torch.randn(4096 // mesh.size(), _TENSOR_BYTES // 4 // 4096)
    state = {f"layers.{i}.weight": DTensor.from_local(rows + i, mesh, [Shard(0)]) for i in range(count)}
    dcp.save({"model": state}, checkpoint_id=directory / SHARDS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
