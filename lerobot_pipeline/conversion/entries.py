"""One entry of a shard file: what `torch.save` writes for a tensor, read without running any of it.

It is a zip archive, uncompressed, of a pickle that describes the tensor and of the tensor's bytes.
"""

from __future__ import annotations

import math
import struct
import zipfile
from dataclasses import dataclass
from typing import Any

from lerobot_pipeline.checkpoint.dcp_metadata import Extents, Place
from lerobot_pipeline.checkpoint.dtypes import Dtype
from lerobot_pipeline.checkpoint.pickles import Global, Record, Reference, read_pickle

_MAX_PICKLE_BYTES = 1 << 16
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Fixed part of a zip entry's own header: signature, length of its name, length of its extra field (APPNOTE 4.3.7)."""

_REBUILD = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")


@dataclass(frozen=True)
class Payload:
    """The bytes of one chunk in a shard file."""

    file: str
    start: int
    """Offset of its first byte in the file."""

    crc: int
    """Checksum that the archive holds for them (CRC-32)."""

    strides: Extents
    """In elements, one for each dimension of the chunk."""

    is_contiguous: bool


def find_payload(archive: zipfile.ZipFile, place: Place, sizes: Extents, dtype: Dtype) -> Payload:
    """Return where the bytes of a tensor lie, after checking that it is the tensor that the metadata describe.

    Args:
        archive: the entry, opened.
        place: where the entry lies in its shard file.

    Raises:
        ValueError: the entry holds something else, or is damaged.
        KeyError: a part of it is missing.
    """
    entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
    if len(entries) != len(archive.infolist()):
        raise ValueError("a name stands twice in an archive")
    if "byteorder" in entries and _small(archive, entries["byteorder"]) != b"little":
        raise ValueError("its numbers are not little-endian")
    storage, strides = _describe(_small(archive, entries["data.pkl"]), sizes, dtype)
    data = entries[f"data/{storage}"]
    num_bytes = math.prod(sizes) * dtype.itemsize
    if data.compress_type != zipfile.ZIP_STORED or data.flag_bits & 1 or data.file_size != num_bytes:
        raise ValueError(f"the bytes of a tensor are compressed, encrypted, or not {num_bytes}")
    start = _data_start(archive, data)
    if start + num_bytes > place.length:
        raise ValueError("a tensor leaves its entry")
    return Payload(place.file, place.offset + start, data.CRC, strides, _is_row_major(sizes, strides))


def _small(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > _MAX_PICKLE_BYTES:
        raise ValueError(f"{entry.filename[:200]!r} is compressed or larger than {_MAX_PICKLE_BYTES} bytes")
    return archive.read(entry)


def _data_start(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Return where in the archive the bytes of an entry begin, by the entry's own header."""
    assert archive.fp is not None
    archive.fp.seek(entry.header_offset)
    signature, name_length, extra_length = _LOCAL_HEADER.unpack(archive.fp.read(_LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise ValueError("an archive names an entry that is not there")
    return int(entry.header_offset) + _LOCAL_HEADER.size + int(name_length) + int(extra_length)


def _describe(pickle: bytes, sizes: Extents, dtype: Dtype) -> tuple[str, Extents]:
    """Return the name of a tensor's storage and its strides, after holding its description against the metadata.

    The description is torch's: `_rebuild_tensor_v2(storage, offset, size, stride, ...)`; `_v3` is followed by a dtype.
    """
    dtype_name, storage_name = f"torch.{dtype.torch_name}", f"torch.{dtype.storage}"
    is_untyped = dtype.storage == "UntypedStorage"
    allowed = {*_REBUILD, "collections.OrderedDict", dtype_name, storage_name, "torch.storage.UntypedStorage"}
    record = read_pickle(pickle, allowed)
    if not isinstance(record, Record) or record.name != _REBUILD[is_untyped] or len(record.arguments) < 6:
        raise ValueError(f"an entry holds no tensor of dtype {dtype.torch_name}")
    reference, offset, size, strides = record.arguments[:4]
    kind, storage, key, _, count = reference.value if isinstance(reference, Reference) else (None,) * 5
    expected = Global("torch.storage.UntypedStorage" if is_untyped else storage_name)
    if kind != "storage" or storage != expected or (is_untyped and record.arguments[6] != Global(dtype_name)):
        raise ValueError(f"an entry holds no tensor of dtype {dtype.torch_name}")
    num_elements = math.prod(sizes)
    num_stored = num_elements * dtype.itemsize if is_untyped else num_elements
    if offset != 0 or count != num_stored or (tuple(size) or (1,)) != sizes:
        raise ValueError(f"an entry holds a tensor of another shape than {sizes}")
    strides = tuple(strides) or (1,)
    if not _covers(sizes, strides):
        raise ValueError("the strides of a tensor leave its bytes")
    return str(key), strides


def _covers(sizes: Extents, strides: tuple[Any, ...]) -> bool:
    """Whether strides stay inside of as many elements as the sizes make."""
    if len(strides) != len(sizes) or not all(type(stride) is int and stride >= 0 for stride in strides):
        return False
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return last < math.prod(sizes)


def _is_row_major(sizes: Extents, strides: Extents) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
