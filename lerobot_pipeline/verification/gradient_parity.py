"""Is a sharded module the same module: its gradients against those of the whole one, by the backend that trains."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lerobot_pipeline.backend.dtensors import gather_whole
from lerobot_pipeline.backend.parallelism import Topology
from lerobot_pipeline.backend.precision import Precision
from lerobot_pipeline.backend.sharding import FSDPConfig, Sharder, make_mesh

_SAMPLES_PER_RANK = 3
_WIDTH = 7
"""Odd, so that shards are uneven and some are empty."""


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        normed: Tensor = self.norm(values + torch.tanh(self.linear(values)))
        return normed


class _Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(_Block(), _Block())
        self.head = nn.Linear(_WIDTH, 1)

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = self.head(self.blocks(values))
        return output.square().mean()


def largest_gradient_error(device: torch.device) -> float:
    """Return the largest error of a gradient, relative to its norm. Collective, over the default process group.

    Every rank computes the gradients of a whole module over all samples, and those of the sharded one over its share.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = _Toy().to(device)
        samples = torch.randn(world_size * _SAMPLES_PER_RANK, _WIDTH).to(device)
    sharded = copy.deepcopy(whole)
    topology = Topology(world_size=world_size, dp_replicate=1, dp_shard=world_size)
    config = FSDPConfig(wrap_modules=[_Block.__name__])
    sharder = Sharder(config, make_mesh(topology, device), Precision("no", device))
    sharder.shard(sharded, sharder.find_units(sharded, "toy"), "toy")
    whole(samples).backward()
    sharded(samples.chunk(world_size)[rank]).backward()
    errors = []
    for ours, reference in zip(sharded.parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None
        assert reference.grad is not None
        errors.append((gather_whole(ours.grad) - reference.grad).norm() / reference.grad.norm())
    return float(torch.stack(errors).max())
