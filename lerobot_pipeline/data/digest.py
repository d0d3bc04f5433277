"""One digest for the content of a dataset, wherever it lies: what provenance stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lerobot_pipeline import files

CONTENT_DIRS = ("meta", "data", "videos")
_NUM_READERS = 4


def content_files(root: Path) -> list[Path]:
    """The files that are a dataset's content: below meta/, data/ and videos/, hidden ones left out."""
    return [
        path
        for directory in CONTENT_DIRS
        for path in files.list_files(root / directory)
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]


def dataset_digest(root: Path) -> str:
    """SHA-256 (hex) over the relative names and the bytes of a dataset's content.

    Caches, README and `.gitattributes` do not count, so a copy elsewhere, or from the Hub, gives the same digest.
    Raises `OSError` when a file cannot be read.
    """
    paths = content_files(root)
    # hashlib lets other threads run while it hashes, so several files are read at once.
    with ThreadPoolExecutor(_NUM_READERS) as readers:
        digests = list(readers.map(files.digest_file, paths))
    names = [path.relative_to(root).as_posix() for path in paths]
    return files.digest_value(dict(zip(names, digests, strict=True)))
