"""The data of sharded tensors, in small blocks in the order in which a file holds them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lerobot_pipeline.checkpoint.dcp_metadata import Chunk, ShardedTensor
from lerobot_pipeline.conversion.entries import Payload
from lerobot_pipeline.conversion.shards import Bytes, Shards

_BLOCK_BYTES = 1 << 20
"""Small enough to stay in a core's cache from reading to writing."""


@dataclass(frozen=True)
class Block:
    """Some rows (of the first dimension) of a tensor; at least one, so that a row is the least that fits memory."""

    tensor: ShardedTensor
    first: int
    last: int

    @property
    def start(self) -> int:
        """Offset of its bytes in those of the tensor."""
        return self.first * math.prod(self.tensor.shape[1:]) * self.tensor.dtype.itemsize


@dataclass(frozen=True, eq=False)
class _Part:
    chunk: Chunk
    payload: Payload


class BlockReader:
    """Puts blocks together from chunks. Memory: a block or two, and a whole chunk where one is not row-major."""

    def __init__(self, shards: Shards, tensors: list[ShardedTensor]) -> None:
        """Find every chunk in its file. Raises `UsageError` for the first that is not as it is described."""
        self._shards = shards
        self._parts = {
            tensor.name: [_Part(chunk, shards.locate(chunk, tensor.dtype)) for chunk in tensor.chunks]
            for tensor in tensors
        }
        self._checksums: dict[_Part, int] = {}
        self._proven: set[_Part] = set()
        self._permuted: tuple[_Part, Bytes] | None = None

    def read(self, block: Block) -> Bytes:
        """Return the bytes of a block, row-major.

        Raises:
            UsageError: a shard cannot be read, or its bytes are not those that were written.
        """
        tensor = block.tensor
        inner, itemsize = tensor.shape[1:], tensor.dtype.itemsize
        buffer = np.empty((block.last - block.first, *inner, itemsize), np.uint8)
        for part in self._parts[tensor.name]:
            first, last = max(block.first, part.chunk.rows[0]), min(block.last, part.chunk.rows[1])
            if first >= last:
                continue
            columns = tuple(
                slice(offset, offset + size)
                for offset, size in zip(part.chunk.offsets[1:], part.chunk.sizes[1:], strict=True)
            )
            target = buffer[(slice(first - block.first, last - block.first), *columns)]
            with self._shards.naming(part.payload.file):
                self._fill(target, part, first - part.chunk.rows[0], itemsize)
        return buffer.reshape(-1)

    def _fill(self, target: Bytes, part: _Part, row: int, itemsize: int) -> None:
        """Fill `target` with the rows of a chunk from `row` on."""
        if not part.payload.is_contiguous:
            target[...] = self._permute(part, itemsize)[row : row + len(target)]
            return
        rows = target if target.flags.c_contiguous else np.empty(target.shape, np.uint8)
        bytes_before = row * math.prod(target.shape[1:])
        self._shards.read_into(rows, part.payload.file, part.payload.start + bytes_before)
        if rows is not target:
            target[...] = rows
        self._check(part, rows, is_first=row == 0, is_last=row + len(rows) == part.chunk.sizes[0])

    def _permute(self, part: _Part, itemsize: int) -> Bytes:
        """Return a chunk whose elements are stored in another order, as an array of elements' bytes."""
        if self._permuted is None or self._permuted[0] is not part:
            self._permuted = None
            count = math.prod(part.chunk.sizes) * itemsize
            stored = self._shards.read(part.payload.file, part.payload.start, count)
            self._check(part, stored, is_first=True, is_last=True)
            self._permuted = part, stored
        strides = [stride * itemsize for stride in part.payload.strides]
        return as_strided(self._permuted[1], (*part.chunk.sizes, itemsize), (*strides, 1), writeable=False)

    def _check(self, part: _Part, data: Bytes, is_first: bool, is_last: bool) -> None:
        """Hold a chunk's bytes, which come in order, against the checksum in its archive."""
        if part in self._proven:
            # Whoever reads a second time compares with what was read first.
            return
        checksum = zlib.crc32(memoryview(data.reshape(-1)), 0 if is_first else self._checksums[part])
        self._checksums[part] = checksum
        if is_last and checksum != part.payload.crc:
            raise ValueError("the bytes of a tensor are not those that were written (CRC-32)")
        if is_last:
            self._proven.add(part)


def blocks_of(tensors: list[ShardedTensor]) -> Iterator[Block]:
    """Cut tensors into blocks, in order."""
    for tensor in tensors:
        num_rows = (tensor.shape or (1,))[0]
        step = max(1, _BLOCK_BYTES * num_rows // max(1, tensor.num_bytes))
        if tensor.num_bytes > 0:
            for first in range(0, num_rows, step):
                yield Block(tensor, first, min(first + step, num_rows))
