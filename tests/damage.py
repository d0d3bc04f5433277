"""Every damage of every file of a checkpoint, one at a time, and the commands that must see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lerobot_pipeline.cli import main


def each_damage(directory: Path) -> Iterator[Path]:
    """Damage one file after another, in several ways each, and yield its path; all is put back before the next."""
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    assert len(paths) > 10
    for path in paths:
        original = path.read_bytes()
        for version in _versions(original):
            if version is None:
                path.unlink()
            else:
                path.write_bytes(version)
            yield path
            path.write_bytes(original)


def _versions(original: bytes) -> set[bytes | None]:
    """A byte altered at either end and in the middle, cut, grown, its halves swapped, and gone."""
    middle = len(original) // 2
    altered = [
        original[:position] + bytes([original[position] ^ 1]) + original[position + 1 :]
        for position in {0, middle, len(original) - 1}
        if original
    ]
    return {*altered, original[:-1], original + b"\0", original[middle:] + original[:middle], None} - {original}


def require_seen_by_every_reader(step_dir: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fail unless every command that reads a checkpoint refuses each damage of it, in one line with the file's name.

    Args:
        step_dir: the only checkpoint of its run, so that there is none to go back to.
        out: a directory that the commands would write, and that must not be there afterwards.
    """
    commands = {
        "resume": ["train", "--resume=true", f"--config_path={step_dir}"],
        "eval": ["eval", f"--policy.path={step_dir}", "--env.type=pusht", f"--output_dir={out / 'eval'}"],
        "convert": ["convert-dcp", f"--checkpoint_dir={step_dir}"],
        "publish": ["publish", f"--policy.path={step_dir}", f"--output_dir={out / 'published'}"],
    }
    capsys.readouterr()
    for path in each_damage(step_dir):
        assert {name: main(arguments) for name, arguments in commands.items()} == dict.fromkeys(commands, 2)
        told = capsys.readouterr().err.splitlines()
        assert len(told) == len(commands), told
        assert all(path.name in line for line in told), told
    assert not out.exists()
