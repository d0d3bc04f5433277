"""One of the processes that `verify` starts: joins the others, computes with them, prints what came out as JSON.

Usage: python -m lerobot_pipeline.verification.process_worker <backend> <rendezvous file> <rank> <world size>
"""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from lerobot_pipeline.verification.gradient_parity import largest_gradient_error

_DEVICE_TYPES = {"gloo": "cpu", "nccl": "cuda", "xccl": "xpu"}
_TIMEOUT_S = 60


def main(backend: str, rendezvous: str, rank: int, world_size: int) -> int:
    """Print the sum over ranks of rank + 1 (NaN where its elements differ), and the error of sharded gradients."""
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
    report = {"sum": values[0].item() if bool((values == values[0]).all()) else float("nan")}
    print(json.dumps(report | _gradients(device)))
    dist.destroy_process_group()
    return 0


def _gradients(device: torch.device) -> dict[str, Any]:
    try:
        return {"gradient_error": largest_gradient_error(device), "gradient_fault": None}
    except Exception as error:
        # The sum is a finding of its own, whatever becomes of sharding.
        return {"gradient_error": None, "gradient_fault": f"{type(error).__name__}: {error}"[:200]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
