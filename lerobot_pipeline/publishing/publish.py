"""The two entries: check a target before hours of training, and publish a checkpoint to it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lerobot_pipeline.config.publish import PublishConfig
from lerobot_pipeline.errors import ConfigError
from lerobot_pipeline.files import write_json
from lerobot_pipeline.publishing.folder import check_folder, write_folder
from lerobot_pipeline.publishing.hub import HubRepository, Pushed
from lerobot_pipeline.publishing.staging import Publication, stage

Receipt = dict[str, Any]
"""`publish.json`: target, repo_id, commit, url, files, digest, weights_digest, dry_run, changed."""


def check_target(config: PublishConfig) -> None:
    """Raise `UsageError` unless the target can be written: directory, or token, repository and rights.

    Changes nothing, and does not look at the policy, which may not exist yet.
    """
    if config.target == "hub":
        _repository(config).check()
    else:
        check_folder(_output_dir(config))


def publish_checkpoint(config: PublishConfig) -> Receipt:
    """Publish `config.policy` and return the receipt (also written to `config.summary`). One process calls it.

    Raises `UsageError` for a checkpoint, an evaluation or a target that will not do; `RunFailure` when the Hub fails.
    In every such case the target is as it was.
    """
    if not config.dry_run:
        check_target(config)
    with tempfile.TemporaryDirectory(prefix="lerobot-pipeline-publish-") as directory:
        publication = stage(config, Path(directory))
        receipt = _receipt(config, publication, None if config.dry_run else _write(config, publication))
    if config.summary is not None:
        write_json(config.summary, receipt)
    return receipt


def _write(config: PublishConfig, publication: Publication) -> Pushed | bool:
    if config.target == "hub":
        return _repository(config).push(publication)
    return write_folder(publication, _output_dir(config))


def _receipt(config: PublishConfig, publication: Publication, outcome: Pushed | bool | None) -> Receipt:
    pushed = outcome if isinstance(outcome, Pushed) else None
    return {
        "target": config.target,
        "repo_id": config.repo_id,
        "commit": pushed.commit if pushed else None,
        "url": pushed.url if pushed else None,
        "files": publication.describe_files(),
        "digest": publication.digest,
        "weights_digest": publication.weights_digest,
        "dry_run": config.dry_run,
        "changed": pushed.changed if pushed else bool(outcome),
    }


def _repository(config: PublishConfig) -> HubRepository:
    if config.repo_id is None:
        raise ConfigError("repo_id", "target=hub needs the repository; give --repo_id=<user>/<name>")
    return HubRepository(config.repo_id, config.private)


def _output_dir(config: PublishConfig) -> Path:
    if config.output_dir is None:
        raise ConfigError("output_dir", "target=folder needs the directory to write; give --output_dir=<directory>")
    return config.output_dir
