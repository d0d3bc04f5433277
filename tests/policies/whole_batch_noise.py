"""Noise that belongs to a sample, not to a rank: however a batch is cut, each sample meets the same noise and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_BY_SIZE = {torch.randn, torch.rand, torch.randint, torch.normal}
_LIKE = {torch.randn_like: torch.randn, torch.rand_like: torch.rand}
_IN_PLACE = {Tensor.normal_, Tensor.uniform_}
_BY_TENSOR = {torch._sample_dirichlet, torch._standard_gamma, torch.bernoulli}


class WholeBatchNoise(TorchFunctionMode):
    """Draws for the whole batch what is asked for a share of it, and gives the share."""

    def __init__(self, seed: int, whole: int, share: slice) -> None:
        super().__init__()
        self.seed, self.whole, self.share = seed, whole, share
        self.local = share.stop - share.start
        self.num_draws = 0
        numpy.random.seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LIKE:
            options = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
            return self._draw(args[0].shape, lambda shape: _LIKE[func](shape, **options))
        if func in _IN_PLACE:
            values = self._draw(args[0].shape, lambda shape: func(args[0].new_empty(shape), *args[1:], **kwargs))
            return args[0].copy_(values)
        if func in _BY_TENSOR:
            return self._draw(args[0].shape, lambda shape: func(args[0][:1].expand(shape).contiguous(), **kwargs))
        if func is torch.multinomial:
            return self._choose(*args, **kwargs)
        if func in _BY_SIZE and not any(isinstance(value, Tensor) for value in args):
            return self._draw_by_size(func, args, kwargs)
        return func(*args, **kwargs)

    def _draw_by_size(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        keywords = {name: value for name, value in kwargs.items() if name not in ("size", "generator")}
        if "size" in kwargs:
            return self._draw(kwargs["size"], lambda shape: func(*args, size=shape, **keywords))
        if isinstance(args[-1], (tuple, list)):
            return self._draw(args[-1], lambda shape: func(*args[:-1], shape, **keywords))
        return self._draw(args, lambda shape: func(shape, **keywords))

    def _draw(self, shape: Any, sample: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
        self.num_draws += 1
        shape = tuple(shape)
        repeats, rest = divmod(shape[0], self.local) if shape else (0, 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * self.seed + self.num_draws)
            if not repeats or rest:
                return sample(shape)
            # A batch that was repeated along its first dimension has each sample once in every repeat.
            drawn = sample((repeats * self.whole, *shape[1:])).reshape(repeats, self.whole, *shape[1:])
            return drawn[:, self.share].reshape(shape).contiguous()

    def _choose(self, weights: Tensor, num_samples: int) -> Tensor:
        """Choose once for each row of `weights`; the rows of a sample stand together."""
        assert num_samples == 1
        of_a_sample = weights.shape[0] // self.local
        uniform = self._draw((self.local, of_a_sample), torch.rand).reshape(-1, 1)
        shares = weights.cumsum(dim=-1) / weights.sum(dim=-1, keepdim=True)
        return (shares < uniform).sum(dim=-1, keepdim=True).clamp(max=weights.shape[-1] - 1)
