"""The manifest of a checkpoint: name, size and SHA-256 of each of its files, written last."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint.layout import MANIFEST, TRAINING_STATE, TRAINING_STEP

_FORMAT = 1


def write_manifest(root: Path, known: Iterable[dict[str, Any]] = ()) -> None:
    """Describe every file below `root` as it stands.

    Args:
        known: entries of files that need not be read again, as `describe_files` returned them.
    """
    entries = {entry["path"]: entry for entry in known}
    unknown = [path for path in files.list_files(root) if path.relative_to(root).as_posix() not in {MANIFEST, *entries}]
    _write(root, [*entries.values(), *describe_files(root, unknown)])


def describe_files(root: Path, paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the manifest's entries of files below `root`: path, size and SHA-256. Reads every byte."""
    return [
        {"path": path.relative_to(root).as_posix(), "size": path.stat().st_size, "sha256": files.digest_file(path)}
        for path in paths
    ]


def amend_manifest(root: Path, added: Iterable[Path], removed: Iterable[Path]) -> None:
    """Describe further files, and no longer those that are, or lie below, `removed`. Reads the added ones only.

    Raises `OSError`, `ValueError` or `KeyError` where there is no manifest to amend.
    """
    gone = [path.relative_to(root) for path in removed]
    kept = [
        entry
        for entry in files.read_json(root / MANIFEST)["files"]
        if not any(Path(entry["path"]).is_relative_to(path) for path in gone)
    ]
    _write(root, [*kept, *describe_files(root, added)])


def has_manifest(step_dir: Path) -> bool:
    """Whether a manifest belongs to a checkpoint: there is one, or the checkpoint says that there should be."""
    if (step_dir / MANIFEST).exists():
        return True
    try:
        return "manifest" in files.read_json(step_dir / TRAINING_STATE / TRAINING_STEP)
    except (OSError, ValueError):
        return False


def find_damage(root: Path) -> list[str]:
    """Return what differs from the manifest, one line a file that names it; empty where nothing does.

    Reads every byte. A missing or altered manifest is damage too.
    """
    path = root / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
        manifest = json.loads(text)
        listed = {entry["path"]: entry for entry in manifest["files"]}
    except FileNotFoundError:
        return [f"{MANIFEST} is missing"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        return [f"{MANIFEST} cannot be read: {error}"]
    if text != _render(manifest) or manifest.get("digest") != files.digest_value(manifest["files"]):
        return [f"{MANIFEST} was altered"]
    return [fault for name, entry in sorted(listed.items()) if (fault := _fault_of(root / name, name, entry))]


def listed_digest(root: Path, name: str) -> str | None:
    """Return the SHA-256 that the manifest holds for a file, or None where there is no manifest or no such file."""
    try:
        entries = files.read_json(root / MANIFEST)["files"]
    except (OSError, ValueError, KeyError):
        return None
    return next((str(entry["sha256"]) for entry in entries if entry["path"] == name), None)


def _write(root: Path, entries: list[dict[str, Any]]) -> None:
    listed = sorted(entries, key=lambda entry: str(entry["path"]))
    manifest = {"format": _FORMAT, "files": listed, "digest": files.digest_value(listed)}
    files.write_text(root / MANIFEST, _render(manifest))


def _render(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def _fault_of(path: Path, name: str, entry: dict[str, Any]) -> str | None:
    if not path.is_file():
        return f"{name} is missing"
    size = path.stat().st_size
    if size != entry["size"]:
        return f"{name} has {size} bytes, not {entry['size']}"
    return None if files.digest_file(path) == entry["sha256"] else f"{name} was altered"
