"""What is said about a checked dataset: a table to read, a JSON report, and the one line of a fault."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.sequence import Outcome
from lerobot_pipeline.data.check.stored import StoredDataset
from lerobot_pipeline.data.digest import content_files, dataset_digest
from lerobot_pipeline.provenance import installed_versions

_COLOURS = {"ok": "green", "warning": "yellow", "fault": "red", "not made": "bright_black"}
_PACKAGES = ("lerobot-pipeline", "lerobot", "pyarrow", "av")


def faults(outcomes: Sequence[Outcome]) -> list[Finding]:
    """The faults, the most fundamental first."""
    return [finding for outcome in outcomes for finding in outcome.findings if finding.is_fault]


def fault_line(found: Sequence[Finding]) -> str:
    """The first fault with its fix, the second in short, and how many more there are."""
    line = found[0].line()
    if len(found) > 1:
        line += f" (also {found[1].short()}"
        line += f"; +{len(found) - 2} more, see --json)" if len(found) > 2 else ")"
    return line


def print_table(outcomes: Sequence[Outcome], title: str, digest: str | None) -> None:
    """Print what each check came to."""
    table = Table(title=title, title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("found", overflow="fold")
    for outcome in outcomes:
        found = "\n".join(finding.line() for finding in outcome.findings) or outcome.looks_at
        if outcome.blocked_by:
            found = f"needs a sound result of: {outcome.blocked_by}"
        table.add_row(outcome.title, f"[{_COLOURS[outcome.status]}]{outcome.status}[/]", escape(found))
    console = Console()
    console.print(table)
    if digest:
        console.print(f"content digest {digest}", soft_wrap=True, highlight=False)


def make_report(dataset: StoredDataset, outcomes: Sequence[Outcome], digest: str | None) -> dict[str, Any]:
    """The report as JSON holds it. What a broken description does not say is null."""
    try:
        info = dataset.info if isinstance(dataset.info, dict) else {}
    except (OSError, ValueError):
        info = {}
    features = info.get("features") if isinstance(info.get("features"), dict) else {}
    return {
        "ok": not faults(outcomes),
        "findings": [asdict(finding) for outcome in outcomes for finding in outcome.findings],
        "checks": {outcome.title: outcome.status for outcome in outcomes},
        "digest": digest,
        "commit": dataset.commit,
        "codebase_version": _json_or_null(info.get("codebase_version")),
        "num_episodes": _json_or_null(info.get("total_episodes")),
        "num_frames": _json_or_null(info.get("total_frames")),
        "fps": _json_or_null(info.get("fps")),
        "features": {
            name: {"dtype": _json_or_null(feature.get("dtype")), "shape": _sizes(feature.get("shape"))}
            for name, feature in (features or {}).items()
            if isinstance(feature, dict)
        },
        "strictness": asdict(dataset.strictness),
        "versions": installed_versions(_PACKAGES),
    }


def content_digest(dataset: StoredDataset) -> str | None:
    """The digest of the dataset's content; None where there is none, or a file cannot be read."""
    try:
        return dataset_digest(dataset.root) if content_files(dataset.root) else None
    except OSError:
        return None


def _json_or_null(value: Any) -> Any:
    # Python reads NaN and infinity from a damaged file, but JSON has neither.
    is_plain = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_plain else None


def _sizes(shape: Any) -> list[Any] | None:
    return [_json_or_null(size) for size in shape] if isinstance(shape, list) else None
