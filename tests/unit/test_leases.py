"""Runs side by side get different cards; a card comes back when its holder ends."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lerobot_pipeline.backend.leases import find_accelerators, leased_devices
from lerobot_pipeline.errors import UsageError

FOUR_CARDS = ("CUDA_VISIBLE_DEVICES", ["0", "1", "2", "3"])


def test_two_runs_never_share_a_card(tmp_path: Path) -> None:
    with (
        leased_devices(2, FOUR_CARDS, {}, tmp_path) as first,
        leased_devices(2, FOUR_CARDS, {}, tmp_path) as second,
    ):
        assert first == {"CUDA_VISIBLE_DEVICES": "0,1"}
        assert second == {"CUDA_VISIBLE_DEVICES": "2,3"}
    with leased_devices(4, FOUR_CARDS, {}, tmp_path) as later:
        assert later == {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}


def _hold(pipe: Connection, lock_dir: Path) -> None:
    with leased_devices(3, FOUR_CARDS, {}, lock_dir) as held:
        pipe.send(held)
        pipe.recv()


def test_a_killed_holder_gives_its_cards_back(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    holder = multiprocessing.get_context("spawn").Process(target=_hold, args=(theirs, tmp_path))
    holder.start()
    assert ours.recv() == {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    with leased_devices(1, FOUR_CARDS, {}, tmp_path) as free:
        assert free == {"CUDA_VISIBLE_DEVICES": "3"}
    holder.kill()
    holder.join()
    with leased_devices(4, FOUR_CARDS, {}, tmp_path) as all_of_them:
        assert all_of_them == {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}


def test_more_processes_than_cards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="5 processes want a card each"), leased_devices(5, FOUR_CARDS, {}, tmp_path):
        pass


def test_a_scheduler_has_chosen_already(tmp_path: Path) -> None:
    with leased_devices(2, FOUR_CARDS, {"SLURM_JOB_ID": "7"}, tmp_path) as held:
        assert held == {}
    assert not list(tmp_path.iterdir())


def test_cards_are_found_by_their_device_files(tmp_path: Path) -> None:
    devices, nodes = tmp_path / "dev", tmp_path / "nodes"
    devices.mkdir()
    assert find_accelerators({}, devices, nodes) is None
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    assert find_accelerators({}, devices, nodes) == ("CUDA_VISIBLE_DEVICES", ["0", "1"])
    assert find_accelerators({"CUDA_VISIBLE_DEVICES": "1"}, devices, nodes) == ("CUDA_VISIBLE_DEVICES", ["1"])
    for number, gpu_id in enumerate(("0", "51321", "51322")):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "gpu_id").write_text(f"{gpu_id}\n")
    assert find_accelerators({}, devices, nodes) == ("HIP_VISIBLE_DEVICES", ["0", "1"])
