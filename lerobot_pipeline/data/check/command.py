"""`lerobot-pipeline check-dataset`."""

from __future__ import annotations

from lerobot_pipeline import files
from lerobot_pipeline.config.check_dataset import CheckDatasetConfig
from lerobot_pipeline.config.reader import read_config
from lerobot_pipeline.data.check.locate import locate_dataset
from lerobot_pipeline.data.check.report import content_digest, faults, make_report, print_table
from lerobot_pipeline.data.check.sequence import run_checks
from lerobot_pipeline.data.check.stored import StoredDataset, Strictness, naming_flags
from lerobot_pipeline.data.check.trainable import refusal
from lerobot_pipeline.errors import EXIT_DONE


def run(arguments: list[str]) -> int:
    """Check a dataset, and write a repaired copy if that is asked for. Raises `UsageError` for a faulty dataset."""
    config = read_config(CheckDatasetConfig, arguments)
    return check_dataset(config)


def check_dataset(config: CheckDatasetConfig) -> int:
    """Check, repair, print, report. With a repair, table and report are those of the repaired copy."""
    dataset = _open(config)
    if config.repair is not None and config.output_dir is not None:
        from lerobot_pipeline.data.check.repair import write_repaired

        write_repaired(dataset, config.repair, config.output_dir)
        dataset = StoredDataset(config.output_dir, f"--dataset.root={config.output_dir}", dataset.strictness)
    outcomes = list(run_checks(dataset))
    digest = content_digest(dataset)
    print_table(outcomes, f"dataset {dataset.root}", digest)
    if config.json is not None:
        files.write_json(config.json, make_report(dataset, outcomes, digest))
    if found := faults(outcomes):
        raise refusal(config.output_dir or config.dataset.root, config.dataset.repo_id, found)
    return EXIT_DONE


def _open(config: CheckDatasetConfig) -> StoredDataset:
    asked = config.dataset
    strictness = Strictness(
        tolerance_s=config.tolerance_s,
        statistics=tuple(config.statistics),
        sample_frames=config.sample_frames,
        episodes=None if asked.episodes is None else tuple(asked.episodes),
    )
    root = locate_dataset(asked.repo_id, asked.root, asked.revision)
    return StoredDataset(root, naming_flags(asked.repo_id, asked.root, asked.revision), strictness)
