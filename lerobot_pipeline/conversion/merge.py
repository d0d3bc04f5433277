"""Shards into one safetensors file, which appears whole and verified or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lerobot_pipeline.checkpoint.dcp_metadata import METADATA
from lerobot_pipeline.config.policy_files import file_fault
from lerobot_pipeline.conversion.blocks import Block, BlockReader, blocks_of
from lerobot_pipeline.conversion.safetensors_header import read_header, render_header, storage_order
from lerobot_pipeline.conversion.shards import Bytes, Shards
from lerobot_pipeline.errors import RunFailure, UsageError
from lerobot_pipeline.files import sync_directory
from lerobot_pipeline.progress import follow

_FLUSH_BYTES = 1 << 28
"""What is written before the disk is told to begin."""

_READ_BYTES = 1 << 20

_READ_AHEAD = 4
"""Blocks that are read while one is put to use."""


class Merge:
    """The plan of one file: header and blocks, known before anything is written."""

    def __init__(self, shards: Shards) -> None:
        """Read the metadata and find every chunk. Raises `UsageError` for what is missing, damaged or hostile."""
        self.tensors = storage_order(shards.tensors())
        with shards.naming(METADATA):
            self.header = render_header(self.tensors)
        self.reader = BlockReader(shards, self.tensors)
        self.num_bytes = len(self.header) + sum(tensor.num_bytes for tensor in self.tensors)

    def write(self, target: Path) -> None:
        """Write the file beside `target`, flush it, read it again, and give it its name.

        Raises:
            UsageError: another process writes it, or a shard turns out to be damaged.
            RunFailure: the disk is full or fails, or what was written reads back otherwise.
        """
        staging = target.with_name(f".converting-{target.name}")
        with _staged(staging, self.num_bytes) as stream:
            checksum = self._write_to(stream)
            os.fsync(stream.fileno())
            if checksum != _checksum(stream):
                raise RunFailure(f"{target.name} read back otherwise than it was written; the shards are untouched")
            os.replace(staging, target)
        sync_directory(target.parent)

    def _write_to(self, stream: BinaryIO) -> int:
        """Write header and tensors, and return the CRC-32 of all; the disk works while the next bytes are read."""
        stream.write(self.header)
        checksum, unflushed = zlib.crc32(self.header), 0
        with ThreadPoolExecutor(1) as flusher:
            flushing: list[Future[None]] = []
            for _, data in self._data("Merging"):
                stream.write(memoryview(data))
                checksum = zlib.crc32(memoryview(data), checksum)
                unflushed += len(data)
                if unflushed >= _FLUSH_BYTES:
                    stream.flush()
                    flushing.append(flusher.submit(os.fdatasync, stream.fileno()))
                    unflushed = 0
            stream.flush()
            # A failure to write is reported once: a later flush would not tell of it.
            for each in flushing:
                each.result()
        return checksum

    def holds(self, path: Path) -> bool:
        """Whether a safetensors file holds exactly what the shards hold, tied weights once or twice."""
        if file_fault(path) is not None:
            return False
        with path.open("rb") as stream:
            return self._is_held(stream)

    def _is_held(self, stream: BinaryIO) -> bool:
        stored = read_header(stream)
        names = {tensor.name: stored.aliases.get(tensor.name, tensor.name) for tensor in self.tensors}
        if set(names.values()) != set(stored.tensors):
            return False
        for tensor in self.tensors:
            entry = stored.tensors[names[tensor.name]]
            if (entry.dtype, entry.shape) != (tensor.dtype.safetensors_name, tensor.shape):
                return False
        for block, data in self._data("Verifying"):
            stream.seek(stored.tensors[names[block.tensor.name]].start + block.start)
            if not np.array_equal(np.frombuffer(stream.read(len(data)), np.uint8), data):
                return False
        return True

    def _data(self, label: str) -> Iterator[tuple[Block, Bytes]]:
        """Yield the blocks and their data in order; the next ones are read while one is put to use."""
        with ThreadPoolExecutor(1) as ahead:
            reading: deque[tuple[Block, Future[Bytes]]] = deque()
            for block in follow(list(blocks_of(self.tensors)), label):
                reading.append((block, ahead.submit(self.reader.read, block)))
                if len(reading) > _READ_AHEAD:
                    done, data = reading.popleft()
                    yield done, data.result()
            for block, data in reading:
                yield block, data.result()


def _checksum(stream: BinaryIO) -> int:
    """CRC-32 of a file."""
    stream.seek(0)
    checksum, buffer = 0, memoryview(bytearray(_READ_BYTES))
    while count := stream.readinto(buffer):  # type: ignore[attr-defined]
        checksum = zlib.crc32(buffer[:count], checksum)
    return checksum


@contextmanager
def _staged(path: Path, num_bytes: int) -> Iterator[BinaryIO]:
    """Yield a file of no other process, empty; after an error it is gone. One that a killed process left is taken."""
    free = shutil.disk_usage(path.parent).free
    if free < num_bytes:
        raise RunFailure(f"{path.parent} has {free} bytes free, {num_bytes} are needed; make room and run this again")
    try:
        with os.fdopen(_open_alone(path), "r+b") as stream:
            stream.truncate(0)
            try:
                yield stream
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        reason = f"{path.parent} cannot be written: {error.strerror or error}; make it writable, with room, and rerun"
        raise RunFailure(reason) from error


def _open_alone(path: Path) -> int:
    """Open the file that a conversion writes to. Raises `UsageError` where another process does so already."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened, named = os.fstat(descriptor), os.stat(path, follow_symlinks=False)
        # The other process may have given the file its final name between opening and locking.
        is_ours = (opened.st_ino, opened.st_nlink) == (named.st_ino, 1) and stat.S_ISREG(opened.st_mode)
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    if not is_ours:
        os.close(descriptor)
        raise UsageError(
            "checkpoint_dir", f"another process is converting {path.parent}; wait for it, or remove {path}"
        )
    return descriptor
