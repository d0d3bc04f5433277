"""The dtypes of weights, under the names that torch, its files and safetensors give them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dtype:
    """One dtype."""

    torch_name: str
    safetensors_name: str
    itemsize: int
    """Bytes an element."""

    storage: str
    """Class of storage by which torch's files name it; `UntypedStorage` for dtypes that are younger than those."""


DTYPES = tuple(
    Dtype(*row)
    for row in (
        ("bool", "BOOL", 1, "BoolStorage"),
        ("uint8", "U8", 1, "ByteStorage"),
        ("int8", "I8", 1, "CharStorage"),
        ("float8_e5m2", "F8_E5M2", 1, "UntypedStorage"),
        ("float8_e4m3fn", "F8_E4M3", 1, "UntypedStorage"),
        ("int16", "I16", 2, "ShortStorage"),
        ("uint16", "U16", 2, "UntypedStorage"),
        ("float16", "F16", 2, "HalfStorage"),
        ("bfloat16", "BF16", 2, "BFloat16Storage"),
        ("int32", "I32", 4, "IntStorage"),
        ("uint32", "U32", 4, "UntypedStorage"),
        ("float32", "F32", 4, "FloatStorage"),
        ("float64", "F64", 8, "DoubleStorage"),
        ("int64", "I64", 8, "LongStorage"),
        ("uint64", "U64", 8, "UntypedStorage"),
    )
)
"""In the order in which safetensors stores them, last first: what is aligned most strictly comes first."""

BY_TORCH_NAME = {f"torch.{dtype.torch_name}": dtype for dtype in DTYPES}
BY_SAFETENSORS_NAME = {dtype.safetensors_name: dtype for dtype in DTYPES}
