"""A safetensors file into DCP shards, a few MB at a time.

Every tensor is cut into blocks of rows, each a chunk of its own, so that a rank that loads the shards reads those
blocks that it holds a part of, and nothing else.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from lerobot_pipeline.checkpoint.dcp_metadata import METADATA
from lerobot_pipeline.conversion.merge import Merge
from lerobot_pipeline.conversion.names import WRAPPER
from lerobot_pipeline.conversion.shards import Shards
from lerobot_pipeline.errors import RunFailure
from lerobot_pipeline.files import fresh_directory, sync_directory
from lerobot_pipeline.progress import follow

_CHUNK_BYTES = 1 << 24
_SHARD = "__0_0.distcp"


def split_file(source: Path, target: Path) -> None:
    """Write the directory `target`, which holds what the safetensors file holds; it appears whole and verified.

    Raises:
        RunFailure: the disk is full or fails, or what was written reads back otherwise.
    """
    num_bytes, free = source.stat().st_size, shutil.disk_usage(target.parent).free
    if free < num_bytes:
        raise RunFailure(f"{target.parent} has {free} bytes free, {num_bytes} are needed; make room and run this again")
    try:
        with fresh_directory(target) as directory:
            _write(source, directory)
            with Shards(directory) as shards:
                if not Merge(shards).holds(source):
                    raise RunFailure(f"{target.name} read back otherwise than {source.name}; nothing was changed")
    except OSError as error:
        raise RunFailure(
            f"{target.parent} cannot be written: {error.strerror or error}; make room and rerun"
        ) from error


def _write(source: Path, directory: Path) -> None:
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    with safe_open(source, framework="pt") as stored, (directory / _SHARD).open("wb") as stream:
        names = list(stored.keys())
        for name in follow(names, "Splitting"):
            entry = TensorStorageMetadata(TensorProperties(), torch.Size(stored.get_slice(name).get_shape()), [])
            for offset, rows in _cut(stored, name):
                index = MetadataIndex(_full(name), offset, len(entry.chunks))
                places[index] = _append(stream, rows)
                entry.chunks.append(ChunkStorageMetadata(offset, rows.shape))
                entry.properties.dtype = rows.dtype
            entries[_full(name)] = entry
        _flush(stream)
    paths = {_full(name): (WRAPPER, name) for name in names}
    metadata = Metadata(entries, planner_data=paths, storage_data=places, version=CURRENT_DCP_VERSION)
    with (directory / METADATA).open("wb") as stream:
        pickle.dump(metadata, stream)
        _flush(stream)
    sync_directory(directory)


def _full(name: str) -> str:
    return f"{WRAPPER}.{name}"


def _cut(stored: Any, name: str) -> Iterator[tuple[torch.Size, torch.Tensor]]:
    """Yield a tensor's blocks of rows, each with its offset; a scalar, or a tensor without elements, as a whole."""
    view = stored.get_slice(name)
    shape = view.get_shape()
    if not shape or 0 in shape:
        yield torch.Size([0] * len(shape)), stored.get_tensor(name)
        return
    step = max(1, _CHUNK_BYTES // view[:1].nbytes)
    for first in range(0, shape[0], step):
        yield torch.Size([first, *[0] * (len(shape) - 1)]), view[first : first + step]


def _append(stream: BinaryIO, rows: torch.Tensor) -> _StorageInfo:
    start = stream.tell()
    # torch saves the whole memory that a view is of; a clone has its own.
    torch.save(rows.clone(), stream)
    return _StorageInfo(_SHARD, start, stream.tell() - start)


def _flush(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())
