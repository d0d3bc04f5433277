"""`lerobot-pipeline publish`: a checkpoint to a folder or to the Hub."""

from __future__ import annotations

from lerobot_pipeline.config.publish import PublishConfig
from lerobot_pipeline.config.reader import read_config
from lerobot_pipeline.errors import EXIT_DONE
from lerobot_pipeline.publishing.publish import Receipt, publish_checkpoint


def run(arguments: list[str]) -> int:
    """Publish as the flags say; prints the exact files, their digest and the outcome."""
    config = read_config(PublishConfig, arguments)
    print(_report(config, publish_checkpoint(config)))
    return EXIT_DONE


def _report(config: PublishConfig, receipt: Receipt) -> str:
    lines = [f"{file['sha256'][:12]}  {file['size']:>13,}  {file['path']}" for file in receipt["files"]]
    place = receipt["url"] or config.output_dir or config.repo_id
    if receipt["dry_run"]:
        outcome = f"dry run: nothing was written; these files would go to {place}"
    elif receipt["changed"]:
        outcome = f"published to {place}"
    else:
        outcome = f"nothing changed: {place} holds exactly this already"
    return "\n".join([*lines, f"digest {receipt['digest']}", f"weights {receipt['weights_digest']}", outcome])
