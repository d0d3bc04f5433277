"""Small modules and a runtime for them, for what needs neither a dataset nor a policy of LeRobot's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lerobot_pipeline.backend.dtensors import gather_whole
from lerobot_pipeline.backend.parallelism import ParallelismConfig
from lerobot_pipeline.backend.runtime import AcceleratorConfig, Runtime

VOCABULARY = 5
WIDTH = 6


@contextmanager
def toy_runtime(dp_shard: int = 1, **accelerator: Any) -> Iterator[Runtime]:
    """Yield a runtime on the CPU over the ranks that there are."""
    config: Any = SimpleNamespace(
        accelerator=AcceleratorConfig(**accelerator),
        parallelism=ParallelismConfig(dp_shard=dp_shard),
        tf32=None,
        requested_device="cpu",
    )
    runtime = Runtime.from_config(config)
    try:
        yield runtime
    finally:
        runtime.close()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = values + torch.tanh(self.linear(values))
        return output


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = self.linear(values)
        return output


class TiedModel(nn.Module):
    """Predicts the next token; its head is tied to its embedding."""

    _fsdp_wrap_modules: ClassVar[list[str]] = ["Block"]

    def __init__(self, is_tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = Head()
        shared = self.embedding.weight
        self.head.linear.weight = shared if is_tied else nn.Parameter(shared.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            values = block(values)
        return nn.functional.cross_entropy(self.head(values).flatten(0, 1), tokens[:, 1:].flatten())


def train_tied(dp_shard: int, is_tied: bool = True, wrap_modules: list[str] | None = None) -> dict[str, Tensor]:
    """Train three SGD steps and return the whole weights: the same samples in all, however many ranks share them."""
    from lerobot_pipeline.backend.sharding import FSDPConfig

    with toy_runtime(dp_shard, fsdp=FSDPConfig(wrap_modules=wrap_modules)) as runtime:
        model, optimizer = runtime.prepare(TiedModel(is_tied), lambda module: torch.optim.SGD(module.parameters(), 0.5))
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            tokens = torch.randint(VOCABULARY, (8, 4), generator=generator)
            with runtime.accumulate(model):
                loss = model(tokens.chunk(runtime.topology.world_size)[runtime.rank])
                runtime.backward(loss)
            runtime.finish_step(model, optimizer, None, max_grad_norm=0)
        return {name: gather_whole(value).detach().clone() for name, value in model.state_dict().items()}


def save_tied_in_both_forms(directory: Path) -> None:
    """Shard a tied model over two ranks, and write it gathered and in shards beside each other."""
    from huggingface_hub import save_torch_state_dict

    from lerobot_pipeline.checkpoint.forms import capture_weights

    with toy_runtime(2) as runtime:
        model, _ = runtime.prepare(TiedModel(), lambda module: torch.optim.SGD(module.parameters(), 0.5))
        weights, _ = capture_weights(runtime, model, "safetensors_dcp", None)
        weights.write_shards(directory, None)
        if runtime.is_main:
            assert weights.gathered is not None
            # As LeRobot's `save_pretrained` does.
            save_torch_state_dict(weights.gathered, directory, max_shard_size=1 << 40)
