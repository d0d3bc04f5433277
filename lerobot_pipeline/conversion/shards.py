"""A directory of DCP shards, read without running anything that it holds and without leaving it."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lerobot_pipeline.checkpoint.dcp_metadata import METADATA, Chunk, Place, ShardedTensor, parse_metadata
from lerobot_pipeline.checkpoint.dtypes import Dtype
from lerobot_pipeline.conversion.entries import Payload, find_payload
from lerobot_pipeline.conversion.names import model_tensors
from lerobot_pipeline.errors import UsageError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_MAX_METADATA_BYTES = 1 << 26
_MAX_DIRECTORY_BYTES = 1 << 20
"""What may be read of one entry to find the tensor in it."""


class Shards:
    """The files of one directory of shards. Links are not followed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._open: tuple[str, int] | None = None

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *error: object) -> None:
        self._close_file()
        os.close(self._root)

    def tensors(self) -> list[ShardedTensor]:
        """Return the tensors that the directory's `.metadata` describes.

        Raises:
            UsageError: it is missing, damaged or hostile.
        """
        with self.naming(METADATA):
            size = os.fstat(self._descriptor(METADATA)).st_size
            if size > _MAX_METADATA_BYTES:
                raise ValueError(f"it has {size} bytes, more than the {_MAX_METADATA_BYTES} that are read")
            return model_tensors(parse_metadata(self.read(METADATA, 0, size).tobytes()))

    def locate(self, chunk: Chunk, dtype: Dtype) -> Payload:
        """Find a chunk's bytes, and check that they are what the metadata say.

        Raises:
            UsageError: the file is missing, too short, or holds something else there.
        """
        place = chunk.place
        with self.naming(place.file):
            size = os.fstat(self._descriptor(place.file)).st_size
            if place.offset + place.length > size:
                raise ValueError(f"it has {size} bytes, an entry ends at {place.offset + place.length}")
            with zipfile.ZipFile(io.BufferedReader(_Slice(self, place))) as archive:
                return find_payload(archive, place, chunk.sizes, dtype)

    def read(self, file: str, start: int, count: int) -> Bytes:
        """Return `count` bytes of a file. Raises `ValueError` where it ends before."""
        buffer = np.empty(count, np.uint8)
        self.read_into(buffer, file, start)
        return buffer

    def read_into(self, buffer: Bytes, file: str, start: int) -> None:
        """Fill a contiguous buffer from a file. Raises `ValueError` where the file ends before."""
        descriptor, done = self._descriptor(file), 0
        view = memoryview(buffer.reshape(-1))
        while done < len(view):
            count = os.preadv(descriptor, [view[done:]], start + done)
            if count == 0:
                raise ValueError(f"it ends at byte {start + done}, inside of a tensor")
            done += count

    @contextmanager
    def naming(self, file: str) -> Iterator[None]:
        """Turn what goes wrong with a file into one line that names it."""
        path = self.directory / file
        try:
            yield
        except FileNotFoundError as error:
            raise UsageError("checkpoint_dir", f"{path} is missing") from error
        except OSError as error:
            raise UsageError("checkpoint_dir", f"{path} cannot be read: {error.strerror or error}") from error
        # What damaged bytes raise depends on where the damage is.
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise UsageError("checkpoint_dir", f"{path} is damaged, or not what torch writes: {reason}") from error

    def _descriptor(self, file: str) -> int:
        if self._open is not None and self._open[0] == file:
            return self._open[1]
        self._close_file()
        # Not blocking, because opening a pipe would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(file, flags, dir_fd=self._root)
        self._open = file, descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        return descriptor

    def _close_file(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


class _Slice(io.RawIOBase):
    """One entry of a shard file as a file of its own."""

    def __init__(self, shards: Shards, place: Place) -> None:
        self._shards, self._place, self._position = shards, place, 0
        self._allowance = _MAX_DIRECTORY_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._place.length}[whence]
        if base + offset < 0:
            raise ValueError("an offset lies before its entry")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._place.length - self._position))
        self._allowance -= count
        if self._allowance < 0:
            raise ValueError(f"the directory of an archive has more than {_MAX_DIRECTORY_BYTES} bytes")
        target = np.frombuffer(buffer, np.uint8)[:count]
        self._shards.read_into(target, self._place.file, self._place.offset + self._position)
        self._position += count
        return count
