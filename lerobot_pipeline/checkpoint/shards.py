"""Shards on disk, in the format of torch's distributed checkpoints (DCP): each rank writes and reads its own part."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from lerobot_pipeline.checkpoint.dcp_metadata import Extents, Place, ShardedTensor, read_metadata
from lerobot_pipeline.errors import RunFailure


def save_shards(state: dict[str, Any], directory: Path, group: ProcessGroup | None = None) -> None:
    """Write a state dict, each rank what it holds, into a directory that must be fresh. Collective.

    Args:
        group: over which ranks agree on who writes what; the default group where there is none.

    Raises:
        RunFailure: on every rank, where writing failed on any.
    """
    assert not directory.exists() or not any(directory.iterdir()), "shards of another world size would survive"
    with _told("cannot be written", directory):
        dcp.save(state, storage_writer=dcp.FileSystemWriter(directory), process_group=group)


def load_shards(state: dict[str, Any], directory: Path) -> None:
    """Fill a state dict in place, whichever world size wrote the shards; each rank reads what it holds. Collective.

    Raises:
        RunFailure: on every rank, where a shard is missing, damaged, of another shape, or holds more than data.
    """
    with _told("cannot be read", directory):
        dcp.load(state, storage_reader=_Reader(directory), planner=_LoadPlanner())


class _Reader(dcp.FileSystemReader):
    """torch's reader, with the metadata read as data."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._directory = directory

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        contents = read_metadata(self._directory)
        entries = {name: _entry(tensor) for name, tensor in contents.tensors.items()}
        places = {
            MetadataIndex(name, torch.Size(_sized(chunk.offsets, tensor))): _info(chunk.place)
            for name, tensor in contents.tensors.items()
            for chunk in tensor.chunks
        }
        return Metadata(
            {**entries, **dict.fromkeys(contents.others, BytesStorageMetadata())},
            storage_data=places | {MetadataIndex(name): _info(place) for name, place in contents.others.items()},
            storage_meta=StorageMeta(load_id=self.load_id),
        )


def _entry(tensor: ShardedTensor) -> TensorStorageMetadata:
    chunks = [
        ChunkStorageMetadata(*(torch.Size(_sized(extents, tensor)) for extents in (chunk.offsets, chunk.sizes)))
        for chunk in tensor.chunks
    ]
    dtype = getattr(torch, tensor.dtype.torch_name)
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(tensor.shape), chunks)


def _sized(extents: Extents, tensor: ShardedTensor) -> Extents:
    """The extents of a chunk as torch counts them: those of a scalar have no dimension."""
    return extents if tensor.shape else ()


def _info(place: Place) -> _StorageInfo:
    return _StorageInfo(place.file, place.offset, place.length)


class _LoadPlanner(dcp.DefaultLoadPlanner):
    """torch's planner, except that entries which are no tensors are unpickled by torch's allow-list too."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(value, weights_only=True)
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)


@contextmanager
def _told(what: str, directory: Path) -> Iterator[None]:
    """Silence DCP's advice for one process, and turn its report of the ranks' tracebacks into a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            yield
    # Not an `Exception` in torch.
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise RunFailure(f"{directory} {what} (rank {rank}): {reason}") from error
