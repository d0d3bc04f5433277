"""The short form of the check, for commands that are about to use a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.locate import locate_dataset
from lerobot_pipeline.data.check.report import fault_line
from lerobot_pipeline.data.check.sequence import run_checks
from lerobot_pipeline.data.check.stored import StoredDataset, Strictness, naming_flags
from lerobot_pipeline.errors import UsageError


def require_trainable(
    root: Path | None,
    repo_id: str | None,
    tolerance_s: float = 1e-4,
    *,
    revision: str | None = None,
    episodes: Sequence[int] | None = None,
) -> Path:
    """Refuse a dataset that cannot be trained on, and return the directory of one that can.

    Looks at the structure only: footers, counts, order, timestamps, statistics, video headers. Nothing is decoded or
    hashed, and no observation is read. A dataset that is only on the Hub is downloaded, as LeRobot would.

    Raises:
        UsageError: the first fault, with its fix.
    """
    path = locate_dataset(repo_id, root, revision)
    strictness = Strictness(tolerance_s=tolerance_s, episodes=None if episodes is None else tuple(episodes))
    dataset = StoredDataset(path, naming_flags(repo_id, root, revision), strictness)
    found = (finding for outcome in run_checks(dataset, is_deep=False) for finding in outcome.findings)
    first = next((finding for finding in found if finding.is_fault), None)
    if first is not None:
        raise refusal(root, repo_id, [first])
    return path


def refusal(root: Path | None, repo_id: str | None, found: Sequence[Finding]) -> UsageError:
    """The faults as the error that ends a command: key, dataset, fault, fix."""
    key, value = ("dataset.root", root) if root is not None else ("dataset.repo_id", repo_id)
    return UsageError(key, f"{value}: {fault_line(found)}")
