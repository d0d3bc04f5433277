"""What every test may use: offline mode, and the real data beside the project where it is present."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PROJECT = Path(__file__).parents[1]
SHARED_DATA = PROJECT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real robot data; skips where a clone of the project stands alone."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data is not here: {SHARED_DATA} does not exist")
    return SHARED_DATA
