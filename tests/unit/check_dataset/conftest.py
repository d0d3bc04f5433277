"""A sound dataset, and a copy of it to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_dataset import write_dataset


@pytest.fixture(scope="session")
def sound_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("datasets") / "sound")


@pytest.fixture
def dataset(sound_dataset: Path, tmp_path: Path) -> Path:
    """A copy of the sound dataset, to be damaged."""
    return shutil.copytree(sound_dataset, tmp_path / "dataset")
