"""DCP's `.metadata`, which is a pickle, read as data: it describes shards, and nothing that stands in it runs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from lerobot_pipeline.errors import RunFailure

METADATA = ".metadata"

_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    *((f"{_DCP}.metadata", name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((f"{_DCP}.metadata", f"{kind}StorageMetadata") for kind in ("Tensor", "Chunk", "Bytes")),
    (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
    ("collections", "OrderedDict"),
}
"""What torch's own writer puts into `.metadata` by name; torch's dtypes beside these. Each of them only holds data."""


def read_metadata(directory: Path) -> Metadata:
    """Return the metadata of a directory of DCP shards. Nothing that stands in the file is executed.

    Raises:
        RunFailure: the file is missing, cannot be read, names anything but DCP's own records, or points to shards that
            are not there whole.
    """
    path = directory / METADATA
    try:
        with path.open("rb") as stream:
            metadata = _Unpickler(stream).load()
        _require_sound(metadata, directory)
    except FileNotFoundError as error:
        raise RunFailure(f"{path} is missing") from error
    # A damaged pickle ends in nearly any exception.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunFailure(f"{path} is not what DCP writes, and was not read further: {reason}") from error
    assert isinstance(metadata, Metadata)
    return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _require_sound(metadata: Any, directory: Path) -> None:
    """Refuse what is no description of shards in this directory."""
    if not isinstance(metadata, Metadata) or not isinstance(metadata.state_dict_metadata, Mapping):
        raise ValueError(f"it holds a {type(metadata).__name__}")
    for name, entry in metadata.state_dict_metadata.items():
        _require(
            isinstance(entry, (TensorStorageMetadata, BytesStorageMetadata)), f"its entry {name} is of no known kind"
        )
        if isinstance(entry, TensorStorageMetadata):
            _require_covered(name, entry)
    _require(isinstance(metadata.storage_data, Mapping), "it does not say where tensors are stored")
    sizes: dict[str, int] = {}
    for index, place in metadata.storage_data.items():
        _require(isinstance(index, MetadataIndex) and isinstance(place, _StorageInfo), "a place is of no known kind")
        name = place.relative_path
        # A path with parts could lead out of the checkpoint, which its manifest does not cover.
        _require(isinstance(name, str) and name == PurePath(name).name, f"it points to {name!r}")
        _require(not getattr(place, "transform_descriptors", None), f"{name} is stored transformed")
        if name not in sizes:
            _require((directory / name).is_file(), f"{name} is missing")
            sizes[name] = (directory / name).stat().st_size
        is_inside = place.offset >= 0 and place.length >= 0 and place.offset + place.length <= sizes[name]
        _require(is_inside, f"{name} has {sizes[name]} bytes, too few for {index.fqn}")


def _require_covered(name: str, entry: TensorStorageMetadata) -> None:
    """Refuse a tensor whose chunks leave it, or do not fill it."""
    filled = 0
    for chunk in entry.chunks:
        _require(isinstance(chunk, ChunkStorageMetadata), f"a chunk of {name} is of no known kind")
        ends = [offset + size for offset, size in zip(chunk.offsets, chunk.sizes, strict=True)]
        fits = all(end <= size for end, size in zip(ends, entry.size, strict=True))
        _require(fits and min(chunk.offsets, default=0) >= 0, f"a chunk of {name} lies outside of it")
        filled += chunk.sizes.numel()
    _require(filled == entry.size.numel(), f"the shards of {name} hold {filled} of its {entry.size.numel()} elements")


def _require(is_sound: bool, fault: str) -> None:
    if not is_sound:
        raise ValueError(fault)
