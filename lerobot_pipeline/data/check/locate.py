"""Find a dataset: a directory, LeRobot's local home, or the Hub through LeRobot's own cache."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lerobot_pipeline.data.check.stored import INFO_PATH
from lerobot_pipeline.data.check.version import SUPPORTED_VERSION
from lerobot_pipeline.errors import RunFailure, UsageError


def locate_dataset(repo_id: str | None, root: Path | None, revision: str | None = None) -> Path:
    """The directory of a dataset; a dataset of the Hub that is not in the cache is downloaded first.

    Raises `UsageError` where there is none, and `RunFailure` when the Hub answers with a fault of its own.
    """
    if root is not None:
        if not root.is_dir():
            reason = "is not a directory" if root.exists() else "does not exist"
            raise UsageError("dataset.root", f"{root} {reason}; give the directory that holds meta/, data/ and videos/")
        return root
    if not repo_id:
        raise UsageError("dataset.repo_id", "no dataset given; use --dataset.repo_id=user/name or --dataset.root=DIR")
    local = _lerobot_home() / repo_id
    # The second condition is LeRobot's: it reads such a mirror of the Hub no more, since it cannot tell its revision.
    if (local / INFO_PATH).is_file() and not (local / ".cache" / "huggingface" / "download").exists():
        return local
    return _from_hub(repo_id, [revision] if revision else [SUPPORTED_VERSION, "main"])


def _lerobot_home() -> Path:
    return Path(os.environ.get("HF_LEROBOT_HOME", Path(constants.HF_HOME) / "lerobot")).expanduser()


def _from_hub(repo_id: str, revisions: list[str]) -> Path:
    cache_dir = _lerobot_home() / "hub"
    for revision in revisions:
        try:
            return Path(snapshot_download(repo_id, repo_type="dataset", revision=revision, cache_dir=cache_dir))
        except (RevisionNotFoundError, LocalEntryNotFoundError) as error:
            failure: Exception = error
        except HFValidationError:
            raise UsageError("dataset.repo_id", f"{repo_id!r} is no name on the Hub; it looks like user/name") from None
        except GatedRepoError:
            raise UsageError("dataset.repo_id", f"{repo_id} is gated; ask for access on its page") from None
        except RepositoryNotFoundError:
            raise UsageError(
                "dataset.repo_id", f"{repo_id} is not on the Hub, or this token may not read it; check name and login"
            ) from None
        except HfHubHTTPError as error:
            raise RunFailure(f"dataset.repo_id: {repo_id}: the Hub answered: {error}") from None
    if isinstance(failure, RevisionNotFoundError):
        raise UsageError(
            "dataset.revision", f"{repo_id} has no revision {' or '.join(revisions)}; see its page"
        ) from None
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
    raise UsageError(
        "dataset.repo_id",
        f"{repo_id} ({' or '.join(revisions)}) is not in the local cache and {why}; "
        "go online once to download it, or give --dataset.root=DIR",
    )
