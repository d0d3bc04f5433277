"""Shards that were made to do harm end in one line: nothing runs, nothing is written elsewhere, nothing hangs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from .attacks import ATTACKS, CANARY, Command
from .conftest import save_shards
from .test_conversion import SHARDS, convert


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_checkpoint_ends_in_one_line(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model_dir = tmp_path / "model"
    state = {"weight": torch.arange(12.0).reshape(4, 3), "bias": torch.ones(5)}
    save_shards({"model": state}, model_dir / SHARDS)
    apply, reason = ATTACKS[attack]
    apply(model_dir / SHARDS)
    before = _tree(tmp_path)
    assert convert(model_dir, "--delete_dcp=true") in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lerobot-pipeline convert-dcp: ")
    assert reason in line
    assert not (tmp_path / CANARY).exists()
    assert _tree(tmp_path) == before


def test_the_commands_in_these_attacks_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Command()))
    assert (tmp_path / CANARY).exists()


def _tree(root: Path) -> list[tuple[str, int]]:
    return sorted((str(path.relative_to(root)), path.lstat().st_size) for path in root.rglob("*"))
