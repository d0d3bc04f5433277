"""Progress bars for work that takes long; silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import track


def follow[Item](items: Sequence[Item], label: str) -> Iterable[Item]:
    """Go through `items` with a bar and an ETA on a terminal, and without either in a batch job."""
    console = Console(stderr=True)
    return track(items, description=label, console=console, transient=True, disable=not sys.stderr.isatty())
