"""A publication as a directory: the Hub repository's exact content, written as a whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lerobot_pipeline.errors import RunFailure, UsageError
from lerobot_pipeline.files import digest_file, fresh_directory, list_files
from lerobot_pipeline.publishing.card import is_card_of_ours
from lerobot_pipeline.publishing.policy_files import CARD, is_publishable
from lerobot_pipeline.publishing.staging import Publication


def check_folder(output_dir: Path) -> None:
    """Raise `UsageError` unless `output_dir` is new, empty or an older publication: it is replaced as a whole."""
    if output_dir.is_symlink() or (output_dir.exists() and not output_dir.is_dir()):
        raise UsageError("output_dir", f"{output_dir} is no directory; name one that publish may write")
    if not output_dir.exists():
        _require_writable(output_dir.absolute())
        return
    names = sorted(entry.name for entry in output_dir.iterdir())
    foreign = [name for name in names if not is_publishable(name) or (output_dir / name).is_dir()]
    if names and not foreign and not is_card_of_ours(output_dir / CARD):
        # A checkpoint's own directory holds the same names, but no card: it must not be taken for a publication.
        foreign = names
    if foreign:
        raise UsageError(
            "output_dir",
            f"{output_dir} holds {foreign[0]!r}, which publish did not write and would delete; name another directory",
        )


def write_folder(publication: Publication, output_dir: Path) -> bool:
    """Make `output_dir` hold exactly the publication. Returns False, and touches nothing, if it already does."""
    check_folder(output_dir)
    if _holds(output_dir, publication):
        return False
    with fresh_directory(output_dir) as directory:
        _copy(publication, directory)
    return True


def _require_writable(output_dir: Path) -> None:
    ancestor = next(parent for parent in output_dir.parents if parent.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise UsageError("output_dir", f"{output_dir} cannot be made below {ancestor}; name a directory that can")


def _holds(output_dir: Path, publication: Publication) -> bool:
    if not output_dir.is_dir():
        return False
    present = {path.relative_to(output_dir).as_posix(): digest_file(path) for path in list_files(output_dir)}
    return present == {file.path: file.sha256 for file in publication.files}


def _copy(publication: Publication, destination: Path) -> None:
    for file in publication.files:
        shutil.copyfile(publication.directory / file.path, destination / file.path)
        # The staged file may be a link into a checkpoint: what was scanned must be what is published.
        if digest_file(destination / file.path) != file.sha256:
            raise RunFailure(f"{file.path} changed while it was copied; nothing was published, run this again")
