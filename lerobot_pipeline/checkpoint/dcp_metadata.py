"""DCP's `.metadata`: which tensors there are, and in which file each of their chunks lies.

Its names and structure are those of `torch.distributed.checkpoint.metadata`. The file is a pickle, read as data:
nothing that stands in it runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lerobot_pipeline.checkpoint.dtypes import BY_TORCH_NAME, Dtype
from lerobot_pipeline.checkpoint.pickles import Global, Record, read_pickle
from lerobot_pipeline.errors import RunFailure

METADATA = ".metadata"

_DCP = "torch.distributed.checkpoint.metadata"
_STORAGE_INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
_ALLOWED = {
    *(f"{_DCP}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *(f"{_DCP}.{kind}StorageMetadata" for kind in ("Tensor", "Chunk", "Bytes")),
    *(f"{_DCP}._MEM_FORMAT_ENCODING", _STORAGE_INFO, "torch.Size", "torch.serialization._get_layout"),
    *(f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
    *BY_TORCH_NAME,
}
_MAX_CHUNKS = 1 << 14
"""Chunks of one tensor; as many ranks hold a part of it."""

Extents = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where an entry lies: `length` bytes from `offset` of a file."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Chunk:
    """A rectangular part of a tensor. A scalar has one dimension of size 1 here."""

    offsets: Extents
    sizes: Extents
    place: Place

    @property
    def rows(self) -> tuple[int, int]:
        """First row (index of the first dimension) and the one after the last."""
        return self.offsets[0], self.offsets[0] + self.sizes[0]


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor and the chunks that fill it exactly."""

    name: str
    dtype: Dtype
    shape: Extents
    chunks: tuple[Chunk, ...]

    @property
    def num_bytes(self) -> int:
        """Size of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Contents:
    """What a directory of shards holds, by full name."""

    tensors: dict[str, ShardedTensor]
    others: dict[str, Place]
    """What is no tensor: lists and numbers, each a small pickle of its own."""

    places: tuple[tuple[str, Place], ...]
    """Every place in the shards with its name, those of chunks without elements as well."""

    paths: dict[str, tuple[Any, ...]]
    """The path of each name through the nested state dict that was saved; empty where the writer has kept none."""


def read_metadata(directory: Path) -> Contents:
    """Return what a directory of DCP shards holds.

    Raises:
        RunFailure: the metadata are missing, cannot be read, describe anything but shards, or point to shards that are
            not there whole.
    """
    path = directory / METADATA
    try:
        contents = parse_metadata(path.read_bytes())
        _require_files(contents, directory)
    except FileNotFoundError as error:
        raise RunFailure(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise RunFailure(f"{path} is not what DCP writes, and was not read further: {error}") from error
    return contents


def parse_metadata(data: bytes) -> Contents:
    """Return what a `.metadata` describes, each tensor proven to be filled by its chunks.

    Raises:
        ValueError: it is damaged or hostile, or leaves a part of a tensor open.
    """
    metadata = _state(read_pickle(data, _ALLOWED), f"{_DCP}.Metadata")
    described, stored = metadata.get("state_dict_metadata"), metadata.get("storage_data")
    if not isinstance(described, dict) or not described:
        raise ValueError("it describes no tensors")
    if not isinstance(stored, dict):
        raise ValueError("it does not say where tensors are stored")
    if not all(isinstance(name, str) for name in described):
        raise ValueError("a tensor's name is no text")
    places = _places(stored)
    tensors, others = {}, {}
    for name, entry in described.items():
        if isinstance(entry, Record) and entry.name == f"{_DCP}.BytesStorageMetadata":
            if (name, ()) not in places:
                raise ValueError(f"{name!r} is stored nowhere")
            others[name] = places[name, ()]
        else:
            tensors[name] = _tensor(name, entry, places)
    _require_apart(list(places.values()))
    paths = metadata.get("planner_data")
    is_known = isinstance(paths, dict) and all(isinstance(paths.get(name), tuple) and paths[name] for name in described)
    named = tuple((name, place) for (name, _), place in places.items())
    return Contents(tensors, others, named, {name: paths[name] for name in described} if is_known else {})


def _require_files(contents: Contents, directory: Path) -> None:
    """Refuse places outside of the files of a directory."""
    sizes: dict[str, int] = {}
    for name, place in contents.places:
        if place.file not in sizes:
            path = directory / place.file
            if not path.is_file():
                raise ValueError(f"{place.file} is missing")
            sizes[place.file] = path.stat().st_size
        if place.offset + place.length > sizes[place.file]:
            raise ValueError(f"{place.file} has {sizes[place.file]} bytes, too few for {name}")


def _places(stored: dict[Any, Any]) -> dict[tuple[str, Extents], Place]:
    places: dict[tuple[str, Extents], Place] = {}
    for key, value in stored.items():
        index, info = _state(key, f"{_DCP}.MetadataIndex"), _state(value, _STORAGE_INFO)
        name, offset = index.get("fqn"), index.get("offset")
        if not isinstance(name, str):
            raise ValueError("a place belongs to no tensor")
        if info.get("transform_descriptors"):
            raise ValueError(f"{name!r} is stored compressed or encrypted")
        where = (name, () if offset is None else _extents(offset))
        if where in places:
            raise ValueError(f"{name!r} is stored twice")
        places[where] = Place(_file_name(info.get("relative_path")), *_counts((info.get("offset"), info.get("length"))))
    return places


def _file_name(name: Any) -> str:
    # A path with parts could lead out of the directory, which the checkpoint's manifest does not cover.
    if not isinstance(name, str) or "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"it points to {str(name)[:200]!r}, which is no file of this directory")
    return name


def _tensor(name: str, entry: Any, places: dict[tuple[str, Extents], Place]) -> ShardedTensor:
    fields = _state(entry, f"{_DCP}.TensorStorageMetadata")
    dtype = _dtype(name, fields.get("properties"))
    shape, entries = _extents(fields.get("size")), fields.get("chunks")
    if not isinstance(entries, list) or len(entries) > _MAX_CHUNKS:
        raise ValueError(f"the chunks of {name!r} are no list, or more than {_MAX_CHUNKS}")
    chunks = [chunk for each in entries if (chunk := _chunk(name, len(shape), each, places))]
    _require_filled(name, shape or (1,), chunks)
    return ShardedTensor(name, dtype, shape, tuple(chunks))


def _dtype(name: str, properties: Any) -> Dtype:
    state = _state(properties, f"{_DCP}.TensorProperties", tuple)
    named = state[0] if state else None
    if not isinstance(named, Global) or named.name not in BY_TORCH_NAME:
        raise ValueError(f"the dtype of {name!r} is none that safetensors has")
    return BY_TORCH_NAME[named.name]


def _chunk(name: str, num_dims: int, entry: Any, places: dict[tuple[str, Extents], Place]) -> Chunk | None:
    """Return a chunk; None for one without elements, as a rank has that holds nothing of a tensor."""
    fields = _state(entry, f"{_DCP}.ChunkStorageMetadata")
    offsets, sizes = _extents(fields.get("offsets")), _extents(fields.get("sizes"))
    if not len(offsets) == len(sizes) == num_dims:
        raise ValueError(f"a chunk of {name!r} has other dimensions than the tensor")
    if 0 in sizes:
        return None
    if (name, offsets) not in places:
        raise ValueError(f"the chunk of {name!r} at {offsets} is stored nowhere")
    return Chunk(offsets or (0,), sizes or (1,), places[name, offsets])


def _require_filled(name: str, shape: Extents, chunks: list[Chunk]) -> None:
    """Refuse chunks that leave the tensor, lie on each other, or do not add up to it."""
    for chunk in chunks:
        if any(offset + size > end for offset, size, end in zip(chunk.offsets, chunk.sizes, shape, strict=True)):
            raise ValueError(f"a chunk of {name!r} lies outside of the tensor")
    filled, whole = sum(math.prod(chunk.sizes) for chunk in chunks), math.prod(shape)
    if filled != whole:
        raise ValueError(f"the chunks of {name!r} hold {filled} elements, the tensor has {whole}")
    open_chunks: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.offsets):
        open_chunks = [other for other in open_chunks if other.rows[1] > chunk.rows[0]]
        if any(_overlap(chunk, other) for other in open_chunks):
            raise ValueError(f"chunks of {name!r} lie on each other")
        open_chunks.append(chunk)


def _overlap(one: Chunk, other: Chunk) -> bool:
    return all(
        a < b + other_size and b < a + size
        for a, size, b, other_size in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )


def _require_apart(places: list[Place]) -> None:
    """Refuse entries that share bytes: many large tensors could be made of one small file."""
    ordered = sorted(places, key=lambda place: (place.file, place.offset))
    for place, following in pairwise(ordered):
        if place.file == following.file and place.offset + place.length > following.offset:
            raise ValueError(f"entries of {place.file} lie on each other")


def _state(value: Any, name: str, kind: type = dict) -> Any:
    """Return the state of a record of the class `name`."""
    if not isinstance(value, Record) or value.name != name or not isinstance(value.state, kind):
        raise ValueError(f"it holds something else where a {name.rpartition('.')[2]} belongs")
    return value.state


def _extents(value: Any) -> Extents:
    """Return a `torch.Size`."""
    if not isinstance(value, Record) or value.name != "torch.Size" or len(value.arguments) != 1:
        raise ValueError("it holds something else where a Size belongs")
    return _counts(value.arguments[0])


def _counts(values: Any) -> Extents:
    if not isinstance(values, tuple) or not all(type(value) is int and 0 <= value < 1 << 60 for value in values):
        raise ValueError("an offset or a size is no count")
    return tuple(values)
