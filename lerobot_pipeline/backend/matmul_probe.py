"""A probe that sees in which dtype matrix products really run, so that a precision that does nothing is noticed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_MATRIX_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.convolution}


class MatmulProbe(TorchDispatchMode):
    """Counts, by dtype, the matrix products and convolutions that run while it is active.

    It sits below autocast, autograd and sharding, where an operation's inputs have the dtype that it computes in. A
    compiled region runs eagerly under it, once, in the dtypes that its compiled form has afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_by_dtype: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket in _MATRIX_PRODUCTS:
            self.num_by_dtype[str(args[1].dtype).removeprefix("torch.")] += 1
        return func(*args, **kwargs or {})
