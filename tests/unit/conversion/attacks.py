"""What a hostile directory of shards may hold, and the words by which each is refused."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex

CANARY = "canary"
Attack = Callable[[Path], None]


class Command:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {CANARY}",)


def _metadata(change: Callable[[Metadata], Any]) -> Attack:
    """An attack that rewrites `.metadata`."""

    def attack(shards: Path) -> None:
        metadata = pickle.loads((shards / ".metadata").read_bytes())
        (shards / ".metadata").write_bytes(pickle.dumps(change(metadata) or metadata))

    return attack


def _raw(content: bytes) -> Attack:
    return lambda shards: shards.joinpath(".metadata").write_bytes(content) and None  # type: ignore[func-returns-value]


def _place(**changes: Any) -> Attack:
    """An attack that changes where the first tensor lies."""

    def change(metadata: Metadata) -> None:
        index = next(iter(metadata.storage_data))
        metadata.storage_data[index] = dataclasses.replace(metadata.storage_data[index], **changes)

    return _metadata(change)


def _first(metadata: Metadata) -> Any:
    return metadata.state_dict_metadata["model.weight"]


def _chunk(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        _first(metadata).chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
        stored = next(iter(metadata.storage_data.values()))
        metadata.storage_data[MetadataIndex("model.weight", offsets)] = dataclasses.replace(stored)

    return change


def _overlap(metadata: Metadata) -> None:
    """As many elements as the tensor has, some of them twice."""
    _chunk((1, 0), (2, 3))(metadata)
    _first(metadata).chunks[0].sizes = torch.Size([2, 3])


def _grow(metadata: Metadata) -> None:
    size = torch.Size([1 << 40, 1 << 10])
    _first(metadata).size = size
    _first(metadata).chunks = [ChunkStorageMetadata(torch.Size([0, 0]), size)]


def _share(metadata: Metadata) -> None:
    """Ten thousand tensors of the same bytes."""
    index, info = next((key, value) for key, value in metadata.storage_data.items() if key.fqn == "model.weight")
    for number in range(10_000):
        metadata.state_dict_metadata[f"model.{number}"] = _first(metadata)
        metadata.storage_data[MetadataIndex(f"model.{number}", index.offset)] = info


def _negative(metadata: Metadata) -> None:
    _first(metadata).chunks[0].offsets = torch.Size([0, 0])
    object.__setattr__(_first(metadata).chunks[0], "sizes", (-4, -3))


def _entry(change: Callable[[bytes], bytes]) -> Attack:
    """An attack that puts another entry in place of the first tensor's."""

    def attack(shards: Path) -> None:
        metadata = pickle.loads((shards / ".metadata").read_bytes())
        index = next(key for key in metadata.storage_data if key.fqn == "model.weight")
        info = metadata.storage_data[index]
        entry = (shards / info.relative_path).read_bytes()[info.offset : info.offset + info.length]
        changed = change(entry)
        (shards / "__1_0.distcp").write_bytes(changed)
        metadata.storage_data[index] = _StorageInfo("__1_0.distcp", 0, len(changed))
        (shards / ".metadata").write_bytes(pickle.dumps(metadata))

    return attack


def _rezip(
    change: Callable[[str, bytes], bytes] = lambda name, data: data,
    method: int = zipfile.ZIP_STORED,
    twice: str | None = None,
) -> Callable[[bytes], bytes]:
    def rewrite(entry: bytes) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(entry)) as old, zipfile.ZipFile(stream, "w", method) as new:
            for name in old.namelist():
                new.writestr(name, change(name, old.read(name)))
                if twice is not None and name.endswith(twice):
                    new.writestr(name, old.read(name))
        return stream.getvalue()

    return rewrite


def _saved(value: Any) -> Callable[[bytes], bytes]:
    def save(_: bytes) -> bytes:
        stream = io.BytesIO()
        torch.save(value, stream)
        return stream.getvalue()

    return save


def _with_pickle(value: Any) -> Callable[[str, bytes], bytes]:
    return lambda name, data: pickle.dumps(value) if name.endswith("data.pkl") else data


def _link(target: str, name: str = "__0_0.distcp") -> Attack:
    def attack(shards: Path) -> None:
        outside = shards.parent.parent / "outside"
        shutil.move(shards / name, outside)
        (shards / name).symlink_to(target.format(outside=outside, name=name))

    return attack


def _pipe(shards: Path) -> None:
    (shards / "__0_0.distcp").unlink()
    os.mkfifo(shards / "__0_0.distcp")


def _linked_target(shards: Path) -> None:
    (shards.parent / "model.safetensors").symlink_to(shards.parent.parent / "elsewhere")


def _linked_staging(shards: Path) -> None:
    (shards.parent / ".converting-model.safetensors").symlink_to(shards.parent.parent / "elsewhere")


def _linked_shards(shards: Path) -> None:
    outside = shards.parent.parent / "outside"
    shutil.move(shards, outside)
    shards.symlink_to(outside)


def _rename(name: str) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        metadata.planner_data = None
        metadata.state_dict_metadata = {name: _first(metadata)}
        info = next(value for key, value in metadata.storage_data.items() if key.fqn == "model.weight")
        metadata.storage_data = {MetadataIndex(name, (0, 0)): info}

    return change


_EXPONENTIAL = (
    b"\x80\x04}(" + b")" + b"\x94h" + b"".join(bytes([i]) + b"\x86\x94h" for i in range(200)) + b"\xc8K\x01u."
)

ATTACKS: dict[str, tuple[Attack, str]] = {
    "metadata that runs a command": (_raw(pickle.dumps(Command())), "no data"),
    "metadata that runs a command in a tensor": (
        _metadata(lambda metadata: setattr(metadata, "planner_data", Command())),
        "no data",
    ),
    "metadata in an old protocol that runs a command": (_raw(pickle.dumps(Command(), protocol=0)), "no data"),
    "metadata with a jump in the memo": (_raw(b"\x80\x04Nr\xff\xff\xff\x7f0."), "no data"),
    "metadata with a length of exabytes": (
        _raw(b"\x80\x04\x8d" + b"\xff" * 7 + b"\x0f" + b"x."),
        ".metadata is damaged",
    ),
    "metadata with a key that takes years to hash": (_raw(_EXPONENTIAL), ".metadata is damaged"),
    "metadata that is cut": (
        lambda shards: os.truncate(shards / ".metadata", (shards / ".metadata").stat().st_size - 20),
        ".metadata is damaged",
    ),
    "metadata that is empty": (_raw(b""), ".metadata is damaged"),
    "metadata of many gigabytes": (lambda shards: os.truncate(shards / ".metadata", 1 << 36), "more than the"),
    "metadata of something else": (_raw(pickle.dumps({"a": 1})), "a Metadata belongs"),
    "metadata without tensors": (
        _metadata(lambda metadata: metadata.state_dict_metadata.clear()),
        "describes no tensors",
    ),
    "a path to the parent": (_place(relative_path="../outside"), "'../outside', which is no file"),
    "an absolute path": (_place(relative_path="/etc/passwd"), "'/etc/passwd', which is no file"),
    "a path of dots": (_place(relative_path=".."), "'..', which is no file"),
    "a path with a null byte": (_place(relative_path="a\0b"), "which is no file"),
    "a shard that is not there": (_place(relative_path="__9_0.distcp"), "__9_0.distcp is missing"),
    "a shard that is a link to the outside": (_link("{outside}"), "__0_0.distcp cannot be read"),
    "a shard that is a link to itself": (_link("{name}"), "__0_0.distcp cannot be read"),
    "metadata that are a link to the outside": (_link("{outside}", ".metadata"), ".metadata cannot be read"),
    "a shard that is a pipe": (_pipe, "no regular file"),
    "shards that are a link": (_linked_shards, "is a link"),
    "a target that is a link": (_linked_target, "is a link"),
    "a temporary file that is a link": (_linked_staging, "cannot be written"),
    "a negative offset": (_place(offset=-1), "no count"),
    "a negative length": (_place(length=-1), "no count"),
    "an offset that is no number": (_place(offset="0"), "no count"),
    "an offset beyond the end": (_place(offset=1 << 50), "an entry ends at"),
    "a negative size": (_metadata(_negative), "belongs"),
    "a tensor of exabytes": (_metadata(_grow), "another shape"),
    "many tensors of the same bytes": (_metadata(_share), "lie on each other"),
    "a chunk twice": (_metadata(_chunk((0, 0), (4, 3))), "hold 24 elements, the tensor has 12"),
    "chunks that lie on each other": (
        _metadata(_overlap),
        "lie on each other",
    ),
    "a chunk outside of its tensor": (
        _metadata(lambda metadata: setattr(_first(metadata).chunks[0], "sizes", torch.Size([5, 3]))),
        "lies outside",
    ),
    "a chunk of other dimensions": (
        _metadata(lambda metadata: setattr(_first(metadata).chunks[0], "sizes", torch.Size([12]))),
        "other dimensions",
    ),
    "a chunk that is missing": (_metadata(lambda metadata: _first(metadata).chunks.clear()), "hold 0 elements"),
    "a chunk that is stored nowhere": (_metadata(lambda metadata: metadata.storage_data.clear()), "stored nowhere"),
    "a compressed tensor": (_place(transform_descriptors=["zstd"]), "compressed"),
    "another dtype": (
        _metadata(lambda metadata: setattr(_first(metadata).properties, "dtype", torch.float64)),
        "torch.FloatStorage",
    ),
    "a dtype that safetensors lacks": (
        _metadata(lambda metadata: setattr(_first(metadata).properties, "dtype", torch.complex128)),
        "'torch.complex128'",
    ),
    "a dtype that is a function": (
        _metadata(lambda metadata: setattr(_first(metadata).properties, "dtype", torch.load)),
        "torch",
    ),
    "a shard that is cut": (lambda shards: os.truncate(shards / "__0_0.distcp", 100), "an entry ends at"),
    "a shard of zeros": (_entry(lambda entry: bytes(len(entry))), "not a zip file"),
    "a shard that runs a command": (_entry(_rezip(_with_pickle(Command()))), "no data"),
    "a shard of an object": (_entry(_saved({"weight": torch.ones(4, 3)})), "holds no tensor"),
    "a shard of another shape": (_entry(_saved(torch.ones(3, 4))), "another shape"),
    "a shard of another dtype": (_entry(_saved(torch.ones(4, 3).half())), "HalfStorage"),
    "a shard whose strides leave its bytes": (
        _entry(_rezip(lambda name, data: data.replace(b"K\x03K\x01\x86", b"K\x7fK\x01\x86"))),
        "strides",
    ),
    "a compressed shard": (_entry(_rezip(method=zipfile.ZIP_DEFLATED)), "is compressed"),
    "a zip bomb": (
        _entry(
            _rezip(lambda name, data: bytes(1 << 24) if name.endswith("data/0") else data, method=zipfile.ZIP_DEFLATED)
        ),
        "is compressed",
    ),
    "a shard with too many bytes": (
        _entry(_rezip(lambda name, data: data + data if name.endswith("data/0") else data)),
        "or not 48",
    ),
    "a shard with a name twice": (_entry(_rezip(twice="data/0")), "stands twice"),
    "a shard with altered bytes": (
        _entry(lambda entry: entry.replace(struct.pack("<f", 7.0), struct.pack("<f", 8.0))),
        "CRC-32",
    ),
    "a shard of big-endian numbers": (
        _entry(_rezip(lambda name, data: b"big" if name.endswith("byteorder") else data)),
        "little-endian",
    ),
    "a name that is no text": (_metadata(lambda metadata: metadata.state_dict_metadata.update({1: 2})), "no text"),
    "a name that is no UTF-8": (_metadata(_rename("model.\ud800")), "surrogates"),
    "a name that means something else": (_metadata(_rename("__metadata__")), "cannot be stored"),
}
