"""Where a run's dataset is, and what identifies it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lerobot_pipeline.config.flags import schema_of
from lerobot_pipeline.config.reader import Tree
from lerobot_pipeline.config.values import to_typed
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.experiments.schema import DatasetSection
from lerobot_pipeline.files import digest_value


@dataclass(frozen=True)
class Dataset:
    """A dataset as an experiment asks for it."""

    section: DatasetSection
    directory: Path
    """`<results>/datasets/<name>-<digest>`: what the workflow knows about it, and its frames if it was collected."""

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.directory.name

    @property
    def repo_id(self) -> str:
        """What LeRobot calls the dataset."""
        return self.section.repo_id or f"local/{_short_name(self.section)}"

    @property
    def root(self) -> Path | None:
        """Directory of its files; None where the Hub's cache holds it."""
        if self.section.source == "simulator":
            return self.directory / "data"
        return Path(self.section.root) if self.section.root else None

    def science(self) -> Tree:
        """Return what of the dataset decides a run's numbers: its origin, never where `results` is."""
        return self.section.model_dump(exclude_none=True, exclude_defaults=True)

    def train_keys(self) -> Tree:
        """Return the dataset's keys for `train`."""
        root = {"root": str(self.root)} if self.root else {}
        revision = {"revision": self.section.revision} if self.section.revision else {}
        return {"dataset": {"repo_id": self.repo_id, **root, **revision}}


def dataset_of(section: DatasetSection, results: Path, key: str) -> Dataset:
    """Return the dataset of a section; two sections that say the same share one.

    Raises:
        UsageError: keys that `collect` would refuse, or that the workflow chooses itself; `key` is the section's.
    """
    chosen = {"output_dir", "num_workers"} & section.collect.keys()
    if chosen:
        raise UsageError(f"{key}.collect.{min(chosen)}", "is chosen by the workflow; remove it")
    collect = to_typed(schema_of("collect"), section.collect, f"{key}.collect")
    section = section.model_copy(update={"collect": collect})
    digest = digest_value(section.model_dump(exclude_none=True))[:8]
    return Dataset(section, results / "datasets" / f"{_short_name(section)}-{digest}")


def _short_name(section: DatasetSection) -> str:
    if section.source == "local":
        name = Path(str(section.root)).name
    else:
        name = (section.repo_id or "simulated").rpartition("/")[2]
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)[:40] or "dataset"
