"""Shards are read as data: a file that would run something, or that leads elsewhere, ends in one line."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from lerobot_pipeline.checkpoint.dcp_metadata import METADATA, read_metadata
from lerobot_pipeline.checkpoint.shards import load_shards, save_shards
from lerobot_pipeline.errors import RunFailure

STATE = {
    "uneven": torch.arange(21.0).reshape(7, 3),
    "scalar": torch.tensor(3),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "flag": torch.tensor([True]),
    "empty": torch.zeros(0, 3),
    "groups": [{"lr": 0.1, "betas": (0.9, 0.95), "foreach": None}],
}


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.trace}",)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    directory = tmp_path / "shards"
    save_shards({"model": STATE}, directory)
    return directory


def _rewrite(directory: Path, change: Callable[[Metadata], Any]) -> None:
    path = directory / METADATA
    metadata = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(change(metadata) or metadata))


def test_what_torch_writes_is_read_as_torch_reads_it(shards: Path) -> None:
    contents, theirs = read_metadata(shards), pickle.loads((shards / METADATA).read_bytes())
    assert {name: tensor.shape for name, tensor in contents.tensors.items()} == {
        name: tuple(entry.size) for name, entry in theirs.state_dict_metadata.items() if hasattr(entry, "size")
    }
    assert contents.paths == theirs.planner_data
    places = {(info.relative_path, info.offset, info.length) for info in theirs.storage_data.values()}
    assert {(place.file, place.offset, place.length) for _, place in contents.places} == places
    assert contents.others.keys() == {
        name for name, entry in theirs.state_dict_metadata.items() if not hasattr(entry, "size")
    }
    assert contents.others
    loaded: dict[str, Any] = {
        "model": {name: torch.zeros_like(value) for name, value in STATE.items() if isinstance(value, torch.Tensor)}
        | {"groups": [{"lr": 0.0, "betas": (), "foreach": 1}]}
    }
    load_shards(loaded, shards)
    for name, value in STATE.items():
        stored = loaded["model"][name]
        assert torch.equal(stored, value) if isinstance(value, torch.Tensor) else stored == value


def test_hostile_metadata_runs_nothing(shards: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (shards / METADATA).write_bytes(pickle.dumps(Hostile(trace)))
    with pytest.raises(RunFailure, match=r"not what DCP writes.*it refers to '(posix|os)\.system'"):
        read_metadata(shards)
    assert not trace.exists()
    pickle.loads((shards / METADATA).read_bytes())
    assert trace.exists(), "the file must be one that does run"


def test_a_hostile_entry_of_a_shard_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    directory = tmp_path / "shards"
    save_shards({"model": {"lr": Hostile(trace)}}, directory)
    with pytest.raises(RunFailure, match=r"cannot be read .* unsupported GLOBAL (posix|os)\.system") as refusal:
        load_shards({"model": {"lr": 0}}, directory)
    assert "\n" not in str(refusal.value)
    assert not trace.exists()


def _with_paths(path: str) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = path

    return change


def _without_chunk(metadata: Metadata) -> None:
    metadata.state_dict_metadata["model.uneven"].chunks.clear()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_with_paths("../__0_0.distcp"), r"points to '\.\./__0_0\.distcp'"),
        (_with_paths("/etc/passwd"), "points to '/etc/passwd'"),
        (_with_paths("__9_0.distcp"), r"__9_0\.distcp is missing"),
        (_without_chunk, r"the chunks of 'model\.uneven' hold 0 elements, the tensor has 21"),
        (lambda metadata: {"a": 1}, "something else where a Metadata belongs"),
        (lambda metadata: dataclasses.replace(metadata, storage_data=None), "does not say where"),
    ],
    ids=["parent", "absolute", "missing", "uncovered", "other", "placeless"],
)
def test_metadata_that_does_not_describe_these_shards_is_refused(
    change: Callable[[Metadata], Any], reason: str, shards: Path
) -> None:
    _rewrite(shards, change)
    with pytest.raises(RunFailure, match=reason) as refusal:
        read_metadata(shards)
    assert "\n" not in str(refusal.value)


def test_missing_and_cut_files_are_named(shards: Path) -> None:
    shard = shards / "__0_0.distcp"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(RunFailure, match=r"__0_0\.distcp has \d+ bytes, too few for"):
        read_metadata(shards)
    metadata = (shards / METADATA).read_bytes()
    (shards / METADATA).write_bytes(metadata[:-1])
    with pytest.raises(RunFailure, match=r"\.metadata is not what DCP writes"):
        read_metadata(shards)
    (shards / METADATA).unlink()
    with pytest.raises(RunFailure, match=r"\.metadata is missing"):
        read_metadata(shards)
