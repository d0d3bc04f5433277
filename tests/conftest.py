"""What every test may use: offline mode, the real data beside the project where it is present, and tiny datasets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.ranks import RankPool

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads of several processes that spin for the same two cores cost a hundredfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_SMALL_DISK = "24m"

PROJECT = Path(__file__).parents[1]
SHARED_DATA = PROJECT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real robot data; skips where a clone of the project stands alone."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data is not here: {SHARED_DATA} does not exist")
    return SHARED_DATA


@pytest.fixture(scope="session")
def state_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LeRobot dataset without images: 4 episodes of 15 frames, smooth random states and actions, fixed by a seed."""
    return _make_state_dataset(tmp_path_factory.mktemp("datasets") / "state", environment_size=5)


@pytest.fixture(scope="session")
def pusht_state_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with as many numbers in a state as PushT shows."""
    return _make_state_dataset(tmp_path_factory.mktemp("datasets") / "pusht_state", environment_size=16)


def _make_state_dataset(root: Path, environment_size: int) -> Path:
    import numpy as np
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
        "observation.environment_state": {"dtype": "float32", "shape": (environment_size,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    dataset = LeRobotDataset.create(
        "tests/state", fps=10, features=features, root=root, use_videos=False, video_backend="pyav"
    )
    generator = np.random.default_rng(0)
    for _ in range(4):
        walk = np.cumsum(generator.normal(size=(15, 4 + environment_size)), axis=0).astype(np.float32)
        for row in walk:
            frame = {"observation.state": row[:2], "observation.environment_state": row[2:-2], "action": row[-2:]}
            dataset.add_frame(frame | {"task": "wander"})
        dataset.save_episode()
    dataset.finalize()
    return root


@pytest.fixture(scope="session")
def tiny_act(state_dataset: Path) -> list[str]:
    """Flags that train a tiny ACT on the state dataset, the same on every machine."""
    return [
        "--policy.type=act",
        "--policy.device=cpu",
        "--policy.dim_model=16",
        "--policy.n_heads=2",
        "--policy.dim_feedforward=32",
        "--policy.n_encoder_layers=1",
        "--policy.n_vae_encoder_layers=1",
        "--policy.chunk_size=4",
        "--policy.n_action_steps=4",
        '--policy.normalization_mapping={"STATE": "MEAN_STD", "ENV": "MEAN_STD", "ACTION": "MEAN_STD"}',
        "--dataset.repo_id=tests/state",
        f"--dataset.root={state_dataset}",
        "--num_workers=0",
        "--log_freq=1",
        "--save_freq=0",
    ]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for a few checkpoints of tiny policies; skips where none may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="session")
def two_ranks() -> RankPool:
    """Two gloo ranks."""
    return RankPool(2)


@pytest.fixture(scope="session")
def four_ranks() -> RankPool:
    """Four gloo ranks."""
    return RankPool(4)
