"""One of the processes that `verify` starts: joins the others, adds up over all of them, says what came out.

Usage: python -m lerobot_pipeline.verification.all_reduce_worker <backend> <rendezvous file> <rank> <world size>
"""

from __future__ import annotations

import datetime
import sys

import torch
import torch.distributed as dist

_DEVICE_TYPES = {"gloo": "cpu", "nccl": "cuda", "xccl": "xpu"}
_TIMEOUT_S = 60


def main(backend: str, rendezvous: str, rank: int, world_size: int) -> int:
    """Return 0 where every element of the sum is right."""
    device_type = _DEVICE_TYPES[backend]
    device = torch.device(device_type, rank) if device_type != "cpu" else torch.device("cpu")
    if device_type != "cpu":
        getattr(torch, device_type).set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=_TIMEOUT_S),
    )
    values = torch.full((1000,), float(rank + 1), device=device)
    dist.all_reduce(values)
    dist.destroy_process_group()
    expected = world_size * (world_size + 1) / 2
    if not bool((values == expected).all()):
        print(f"sum is {values[0].item()}, not {expected}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
