"""What `lerobot-pipeline convert-dcp` is told: which checkpoint, which way, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lerobot_pipeline.config.publish import require_repo_id
from lerobot_pipeline.errors import ConfigError


@dataclass(kw_only=True)
class ConvertConfig:
    """Merge the DCP shards of a sharded run's weights into one safetensors file; offline, one process, no GPU."""

    checkpoint_dir: Path
    """A checkpoint's step directory, `last`, a run directory (its last checkpoint), a `pretrained_model` directory, or
    a directory of shards."""

    delete_dcp: bool = False
    """Delete the weights' shards once the merged file was read again and holds what they hold."""

    push_to_hub: str | None = None
    """Publish the converted policy to this Hub repository, `user/name`, as `publish --target=hub` does. Shards never
    leave this machine."""

    to_dcp: bool = False
    """The way back: make shards of `model.safetensors`, so that every rank of a sharded run reads its own part."""

    summary: Path | None = None
    """Where the outcome is written (JSON): the weights files and their digests."""

    def __post_init__(self) -> None:
        if self.to_dcp and (self.delete_dcp or self.push_to_hub is not None):
            other = "delete_dcp" if self.delete_dcp else "push_to_hub"
            raise ConfigError(other, "is for merging shards, but --to_dcp=true makes them; leave one of the two out")
        if self.push_to_hub is not None:
            require_repo_id("push_to_hub", self.push_to_hub)
