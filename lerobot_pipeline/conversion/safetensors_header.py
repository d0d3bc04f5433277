"""The header of a safetensors file, as the library itself would write it.

Format: https://github.com/huggingface/safetensors#format. Eight bytes hold the header's length, little-endian; the
header is JSON, padded with blanks; the tensors' bytes follow without gaps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from lerobot_pipeline.conversion.dtypes import DTYPES
from lerobot_pipeline.conversion.metadata import ShardedTensor

_ALIGNMENT = 8
_MAX_HEADER_BYTES = 100_000_000
"""The library reads no longer header."""


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
