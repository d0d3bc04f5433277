"""The header of a safetensors file, as the library itself would write it.

Format: https://github.com/huggingface/safetensors#format. Eight bytes hold the header's length, little-endian; the
header is JSON, padded with blanks; the tensors' bytes follow without gaps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from lerobot_pipeline.checkpoint.dcp_metadata import ShardedTensor
from lerobot_pipeline.checkpoint.dtypes import DTYPES

_ALIGNMENT = 8
_MAX_HEADER_BYTES = 100_000_000
"""The library reads no longer header."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a file holds a tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""


@dataclass(frozen=True)
class StoredFile:
    """What the header of a file says."""

    tensors: dict[str, StoredTensor]
    aliases: dict[str, str]
    """Names of tied weights that the file leaves out -> the name under which it holds them."""


def read_header(stream: BinaryIO) -> StoredFile:
    """Read the header of a file that is known to be whole.

    Raises:
        ValueError: it is none.
    """
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError("it has no safetensors header")
    header = json.loads(stream.read(length))
    metadata = header.pop("__metadata__", {})
    tensors = {
        name: StoredTensor(entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }
    return StoredFile(tensors, {name: kept for name, kept in metadata.items() if kept in tensors})


def storage_order(tensors: Sequence[ShardedTensor]) -> list[ShardedTensor]:
    """Return tensors as the library orders them: by alignment, then by name, so that equal tensors make equal files."""
    return sorted(tensors, key=lambda tensor: (-DTYPES.index(tensor.dtype), tensor.name.encode()))


def render_header(tensors: Sequence[ShardedTensor]) -> bytes:
    """Return the header for tensors that are stored in this order.

    Raises:
        ValueError: a name is no UTF-8 or means something else in a header, or the header is too long.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in tensors:
        if tensor.name in entries:
            raise ValueError(f"a tensor is named {tensor.name!r}, which cannot be stored")
        end = position + tensor.num_bytes
        shape = list(tensor.shape)
        entries[tensor.name] = {
            "dtype": tensor.dtype.safetensors_name,
            "shape": shape,
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > _MAX_HEADER_BYTES:
        raise ValueError(f"the names of its tensors fill more than {_MAX_HEADER_BYTES} bytes")
    return len(text).to_bytes(8, "little") + text
