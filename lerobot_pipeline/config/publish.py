"""The settings of `publish`: which policy goes where, and what its card says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lerobot_pipeline.errors import ConfigError

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(kw_only=True)
class PublishedPolicyConfig:
    """The policy to publish."""

    path: Path
    """A checkpoint: its step directory, or the `pretrained_model` directory in it."""


@dataclass(kw_only=True)
class PublishConfig:
    """Publish a policy with its model card, to a folder or to the Hub. Nothing else of the checkpoint leaves."""

    policy: PublishedPolicyConfig
    """The policy to publish."""

    target: Literal["folder", "hub"] = "folder"
    """`folder` writes a directory with the exact content of the Hub repository; `hub` makes one commit there."""

    output_dir: Path | None = None
    """The directory that `target=folder` writes. An older publication in it is replaced as a whole."""

    repo_id: str | None = None
    """The repository on the Hub, `user/name`. Needed by `target=hub`; a folder's card uses it as its name."""

    private: bool = True
    """Whether a repository that is made is private. A public one is never written to with `true`."""

    license: str | None = None
    """Licence for the card, as the Hub spells it (`apache-2.0`, `mit`). Left out, the card says that none is stated."""

    base_model: str | None = None
    """Hub id of the policy that this one was trained from. Needed by an adapter whose base is a local directory."""

    evaluation: Path | None = None
    """The `eval.json` of this policy. Its results go into the card; other weights' results are refused."""

    train_summary: Path | None = None
    """The `train.json` of the run. The card takes the dataset, the command and the versions from it."""

    summary: Path | None = None
    """Where the receipt is written (JSON): commit, files with their digests, whether anything changed."""

    dry_run: bool = False
    """Stage and scan everything, print the exact list of files and their digest, publish nothing."""

    def __post_init__(self) -> None:
        if self.target == "folder" and self.output_dir is None:
            raise ConfigError("output_dir", "target=folder needs the directory to write; give --output_dir=<directory>")
        if self.target == "hub" and self.output_dir is not None:
            raise ConfigError("output_dir", "belongs to target=folder, but target is hub; leave one of them out")
        if self.target == "hub" and self.repo_id is None:
            raise ConfigError("repo_id", "target=hub needs the repository; give --repo_id=<user>/<name>")
        if self.repo_id is not None:
            require_repo_id("repo_id", self.repo_id)
        if self.base_model is not None:
            require_repo_id("base_model", self.base_model)
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise ConfigError(
                "license", f"{self.license!r} is no licence id of the Hub; write it like apache-2.0 or mit"
            )


def is_repo_id(text: str) -> bool:
    """Whether `text` is a well-formed `user/name` of the Hub. Nothing is asked on the network."""
    # huggingface_hub takes half a second to import, which `--help` must not pay.
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1


def require_repo_id(key: str, text: str) -> None:
    """Raise `ConfigError` for `key` unless `text` is a well-formed `user/name`."""
    if not is_repo_id(text):
        raise ConfigError(
            key,
            f"{text!r} is no Hub id; write <user>/<name> with letters, digits, '-', '_' or '.', at most 96 characters",
        )
