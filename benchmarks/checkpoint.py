"""How long a save and a load take, against `torch.save`, accelerate's FSDP save and the disk's own speed.

Each round writes the same policy and optimizer state once in every way and reads it again, one after the other on the
same disk; what counts are the ratios within a round. Started by torchrun with two ranks or more, the policy is sharded
over them.

    python benchmarks/checkpoint.py [--directory=DIR] [--rounds=3] [--dim_model=512]
    torchrun --nproc-per-node=2 benchmarks/checkpoint.py [--checkpoint_format=dcp]
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils import load_fsdp_model, load_fsdp_optimizer, save_fsdp_model, save_fsdp_optimizer
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from torch.utils._pytree import tree_map

from lerobot_pipeline.backend.dtensors import local_part
from lerobot_pipeline.backend.parallelism import ParallelismConfig
from lerobot_pipeline.backend.runtime import AcceleratorConfig, Runtime
from lerobot_pipeline.checkpoint.forms import capture_weights, load_weights
from lerobot_pipeline.checkpoint.optimizer import load_optimizer
from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.checkpoint.snapshot import Snapshot
from lerobot_pipeline.checkpoint.state import Progress
from lerobot_pipeline.checkpoint.writer import CheckpointWriter
from lerobot_pipeline.config.reader import read_config

RATIOS = (
    ("at once", "disk"),
    ("stall", "at once"),
    ("torch.save", "at once"),
    ("accelerate save", "at once"),
    ("load", "at once"),
    ("torch.load", "load"),
    ("accelerate load", "load"),
)
"""What is set against what."""

_CHUNK = bytes(1 << 22)


@dataclass(kw_only=True)
class BenchmarkConfig:
    """What is measured, and how often."""

    directory: Path | None = None
    """Where to write; unset, the system's directory for temporary files, which may be memory."""

    rounds: int = 3
    """Times that each way of saving runs."""

    dim_model: int = 512
    """Width of ACT's layers, which decides its size."""

    checkpoint_format: Literal["safetensors", "dcp", "safetensors_dcp"] = "dcp"
    """Format of the weights of a sharded policy."""


@dataclass
class _RuntimeConfig:
    accelerator: AcceleratorConfig = field(default_factory=AcceleratorConfig)
    parallelism: ParallelismConfig = field(default_factory=lambda: ParallelismConfig(dp_shard=-1))
    tf32: bool | None = None
    requested_device: str | None = None


class _NoProcessor:
    def save_pretrained(self, directory: Path) -> None:
        """There is nothing to save."""


class Bench:
    """A policy with a filled optimizer, and the ways to save it."""

    def __init__(self, config: BenchmarkConfig, root: Path) -> None:
        self.root = root
        self.runtime = Runtime.from_config(_RuntimeConfig())
        self.root = Path(self.runtime.broadcast(str(root)))
        policy, self.optimizer = self.runtime.prepare(
            _make_policy(config.dim_model), lambda made: torch.optim.AdamW(made.parameters())
        )
        self.policy = policy
        for parameter in policy.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self.format = config.checkpoint_format
        self.plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")

    def snapshot(self, step: int) -> Snapshot:
        """Return what is saved."""
        return Snapshot(
            policy=self.runtime.unwrap(self.policy),
            preprocessor=_NoProcessor(),
            postprocessor=_NoProcessor(),
            optimizer=self.optimizer,
            scheduler=None,
            progress=Progress(step, step, self.runtime.topology.world_size, 1, 1),
            train_config={},
            science={},
            weights=capture_weights(self.runtime, self.policy, self.format, None)[0],
        )

    def save(self, writer: CheckpointWriter, step: int) -> None:
        """Save as the training loop does."""
        writer.save(self.snapshot(step))

    def load(self, run_dir: Path) -> None:
        """Check, and restore weights and optimizer, as a run that goes on does."""
        found = find_checkpoint(run_dir)
        policy = self.runtime.unwrap(self.policy)
        load_weights(policy, found.pretrained_dir)
        load_optimizer(policy, self.optimizer, found.state_dir, self.runtime.topology.is_sharded)

    def torch_save(self, path: Path) -> None:
        """Write what this rank holds with `torch.save`, and flush it."""
        with path.open("wb") as stream:
            torch.save((self._local(self.policy.state_dict()), self._local(self.optimizer.state_dict())), stream)
            stream.flush()
            os.fsync(stream.fileno())

    def torch_load(self, path: Path) -> None:
        """Read it again, and restore it."""
        weights, state = torch.load(path, weights_only=True)
        with torch.no_grad():
            for name, tensor in self._local(self.policy.state_dict()).items():
                tensor.copy_(weights[name])
        if not self.runtime.topology.is_sharded:
            self.optimizer.load_state_dict(state)

    def accelerate_save(self, directory: Path) -> None:
        """Write weights and optimizer as accelerate does for FSDP2."""
        directory.mkdir(exist_ok=True)
        accelerator = self.runtime.accelerator
        save_fsdp_model(self.plugin, accelerator, self.policy, directory)
        save_fsdp_optimizer(self.plugin, accelerator, self.optimizer, self.policy, directory)

    def accelerate_load(self, directory: Path) -> None:
        """Read them again, and restore them."""
        accelerator = self.runtime.accelerator
        load_fsdp_model(self.plugin, accelerator, self.policy, directory)
        load_fsdp_optimizer(self.plugin, accelerator, self.optimizer, self.policy, directory)

    def _local(self, state: Any) -> Any:
        """A state as this rank holds it."""
        return tree_map(lambda leaf: local_part(leaf) if isinstance(leaf, torch.Tensor) else leaf, state)

    def timed(self, action: Callable[[], Any]) -> float:
        """Return the seconds that the slowest rank spends in `action`."""
        self.runtime.barrier()
        started = time.perf_counter()
        action()
        return max(self.runtime.gather(time.perf_counter() - started))


def main(arguments: list[str]) -> None:
    """Measure and print a Markdown table."""
    config = read_config(BenchmarkConfig, arguments)
    root = Path(tempfile.mkdtemp(dir=config.directory))
    bench = Bench(config, root)
    writers = {
        name: CheckpointWriter(bench.root / name, bench.runtime, 10, is_async=name == "background")
        for name in ("at_once", "background")
    }
    rows = []
    try:
        for step in range(config.rounds + 1):
            row = _round(bench, writers, step)
            # The first round also allocates the copies' memory.
            rows += [row] if step else []
        if bench.runtime.is_main:
            _print(rows, bench)
    finally:
        for writer in writers.values():
            writer.close()
        bench.runtime.close()
        shutil.rmtree(root, ignore_errors=True)


def _round(bench: Bench, writers: dict[str, CheckpointWriter], step: int) -> dict[str, float]:
    rank, root = bench.runtime.rank, bench.root
    row = {"at once": bench.timed(lambda: bench.save(writers["at_once"], step))}
    row["stall"] = bench.timed(lambda: bench.save(writers["background"], step))
    row["rest"] = bench.timed(writers["background"].wait)
    row["load"] = bench.timed(lambda: bench.load(root / "at_once"))
    row["torch.save"] = bench.timed(lambda: bench.torch_save(root / f"torch-{rank}"))
    row["torch.load"] = bench.timed(lambda: bench.torch_load(root / f"torch-{rank}"))
    if bench.runtime.topology.is_sharded:
        row["accelerate save"] = bench.timed(lambda: bench.accelerate_save(root / f"accelerate-{step}"))
        row["accelerate load"] = bench.timed(lambda: bench.accelerate_load(root / f"accelerate-{step}"))
    num_bytes = sum(path.stat().st_size for path in (root / "at_once").rglob("*") if path.is_file()) / (step + 1)
    row["MB"] = num_bytes / 1e6
    row["disk"] = bench.timed(lambda: _write_zeros(root / "zeros", num_bytes) if bench.runtime.is_main else None)
    return row


def _write_zeros(path: Path, num_bytes: float) -> None:
    with path.open("wb") as stream:
        for _ in range(round(num_bytes / len(_CHUNK))):
            stream.write(_CHUNK)
        stream.flush()
        os.fsync(stream.fileno())


def _make_policy(dim_model: int) -> ACTPolicy:
    state = PolicyFeature(FeatureType.STATE, (8,))
    config = ACTConfig(
        device="cpu",
        dim_model=dim_model,
        input_features={
            "observation.state": state,
            "observation.environment_state": PolicyFeature(FeatureType.ENV, (8,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (8,))},
    )
    return ACTPolicy(config)


def _print(rows: list[dict[str, float]], bench: Bench) -> None:
    print(f"{bench.runtime.topology.name}, {rows[0]['MB']:.0f} MB a checkpoint")
    pairs = [pair for pair in RATIOS if pair[0] in rows[0]]
    print("| round | " + " | ".join(f"{one} / {other}" for one, other in pairs) + " |")
    print("|---" * (len(pairs) + 1) + "|")
    table = [[row[one] / row[other] for one, other in pairs] for row in rows]
    for number, ratios in enumerate(table, 1):
        print(f"| {number} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    medians = [statistics.median(column) for column in zip(*table, strict=True)]
    print("| median | " + " | ".join(f"**{median:.2f}**" for median in medians) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
