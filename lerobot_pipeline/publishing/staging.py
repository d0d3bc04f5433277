"""The staged publication: exactly the files that would leave, sanitised, scanned and digested."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lerobot_pipeline.config.policy_files import ADAPTER_CONFIG, POLICY_CONFIG, TRAIN_CONFIG
from lerobot_pipeline.config.publish import PublishConfig
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.files import digest_file, digest_value, read_json, write_json, write_text
from lerobot_pipeline.publishing.card import CardSources, render_card, template_words
from lerobot_pipeline.publishing.policy_files import CARD, PolicyFiles, find_policy_files
from lerobot_pipeline.publishing.sanitizing import sanitize
from lerobot_pipeline.publishing.scan import scan

_SHOWN_FINDINGS = 5


@dataclass(frozen=True)
class PublishedFile:
    """One file of a publication."""

    path: str
    """Name in the repository."""

    size: int
    """Bytes."""

    sha256: str
    """Digest of the content, hex."""


@dataclass(frozen=True)
class Publication:
    """What is published. `directory` holds the files (or links to unchanged ones), and nothing else."""

    directory: Path
    files: tuple[PublishedFile, ...]
    weights_digest: str
    """SHA-256 of the weights file as it is published."""

    @property
    def digest(self) -> str:
        """SHA-256 over all names and contents: equal digests are equal publications."""
        return digest_value({file.path: file.sha256 for file in self.files})

    def describe_files(self) -> list[dict[str, Any]]:
        """The files as plain values, for the receipt."""
        return [asdict(file) for file in self.files]


def stage(config: PublishConfig, directory: Path) -> Publication:
    """Fill the empty `directory` with the publication that `config` describes.

    Raises `UsageError` for a damaged checkpoint, results of other weights, or anything that the scan finds.
    """
    policy = find_policy_files(config.policy.path)
    for name in policy.names:
        _stage_file(policy.directory / name, directory / name, config.base_model)
    weights_digest = digest_file(policy.directory / policy.weights)
    sources = _card_sources(config, policy, directory, weights_digest)
    write_text(directory / CARD, render_card(sources))
    staged = sorted(directory.iterdir())
    _require_clean(staged, _public_names(sources))
    known = {policy.weights: weights_digest}
    files = tuple(
        PublishedFile(path.name, path.stat().st_size, known.get(path.name) or digest_file(path)) for path in staged
    )
    return Publication(directory, files, weights_digest)


def _stage_file(source: Path, destination: Path, base_model: str | None) -> None:
    # A link instead of a copy: weights may be many GB, and what is read through it is digested again on publication.
    if source.suffix == ".json":
        value = read_json(source)
        clean = sanitize(value, base_model)
        if clean != value:
            write_json(destination, clean)
            return
    destination.symlink_to(source.resolve())


def _card_sources(config: PublishConfig, policy: PolicyFiles, directory: Path, weights_digest: str) -> CardSources:
    evaluation = _read_summary("evaluation", config.evaluation)
    train_summary = _read_summary("train_summary", config.train_summary)
    if evaluation is not None:
        _require_same_weights(evaluation, weights_digest)
    return CardSources(
        repo_id=config.repo_id,
        license=config.license,
        base_model=config.base_model,
        is_adapter=policy.is_adapter,
        weights_digest=weights_digest,
        policy_config=read_json(directory / POLICY_CONFIG),
        train_config=read_json(directory / TRAIN_CONFIG),
        adapter_config=read_json(directory / ADAPTER_CONFIG) if policy.is_adapter else {},
        train_summary=train_summary or {},
        evaluation=evaluation or {},
    )


def _read_summary(key: str, path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        value = read_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(key, f"{path} cannot be read ({error}); give the JSON file that the command wrote") from error
    if not isinstance(value, dict):
        raise UsageError(key, f"{path} holds no JSON object; give the JSON file that the command wrote")
    return value


def _require_same_weights(evaluation: dict[str, Any], weights_digest: str) -> None:
    evaluated = evaluation.get("policy", {}).get("weights_digest")
    if evaluated != weights_digest:
        raise UsageError(
            "evaluation",
            f"is about weights {str(evaluated)[:12]}, but the weights to publish are {weights_digest[:12]}; "
            "evaluate this checkpoint, or leave the evaluation out",
        )


def _public_names(sources: CardSources) -> set[str]:
    """Words that are published on purpose: Hub names, the policy's type, the environment, the card's own words."""
    environment = sources.evaluation.get("env", {})
    named = [
        sources.repo_id,
        sources.base_model,
        sources.dataset.get("repo_id"),
        sources.policy_type,
        environment.get("type"),
        environment.get("task"),
    ]
    return {word for text in named if text for word in re.findall(r"\w+", str(text))} | template_words()


def _require_clean(staged: Collection[Path], public_names: set[str]) -> None:
    findings = scan(staged, public_names)
    if not findings:
        return
    shown = "; ".join(str(finding) for finding in findings[:_SHOWN_FINDINGS])
    more = f"; and {len(findings) - _SHOWN_FINDINGS} more" if len(findings) > _SHOWN_FINDINGS else ""
    raise UsageError(
        "policy.path", f"nothing was published, for it would show {shown}{more}; remove it from the checkpoint"
    )
