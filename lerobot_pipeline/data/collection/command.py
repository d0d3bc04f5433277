"""`lerobot-pipeline collect`: demonstrations of PushT by the planning expert, as a LeRobot dataset."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lerobot_pipeline import files
from lerobot_pipeline.config.collect import CollectConfig
from lerobot_pipeline.config.reader import read_config
from lerobot_pipeline.data.collection.episode import ENVIRONMENT, MAX_STEPS, OBSERVATION_TYPES, Episode, record_episode
from lerobot_pipeline.errors import EXIT_DONE
from lerobot_pipeline.provenance import installed_versions

COLLECTION_FILE = Path("meta", "collection.json")
"""Where a dataset keeps how it was made."""


def run(arguments: list[str]) -> int:
    """Collect demonstrations and print how well they went. Returns the exit code."""
    config = read_config(CollectConfig, arguments)
    collection = collect(config)
    Console().print(_summary(config, collection))
    return EXIT_DONE


def collect(config: CollectConfig) -> dict[str, Any]:
    """Write the dataset that `config` describes, whole or not at all, and return its collection record."""
    # lerobot takes seconds to import: a wrong flag is answered before, and the workers never need it.
    from lerobot_pipeline.data.collection.writer import TASK, DemonstrationWriter

    output = config.output_dir
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as staging:
        root = Path(staging, "dataset")
        records = []
        with DemonstrationWriter(root, config.obs, name=f"local/{output.name}") as writer:
            for index, episode in enumerate(_with_progress(_record_all(config), config.num_episodes)):
                writer.add(episode)
                records.append(_episode_record(index, episode))
        collection = _collection_record(config, TASK, records)
        files.write_json(root / COLLECTION_FILE, collection)
        root.replace(output)
    return collection


def _record_all(config: CollectConfig) -> Iterator[Episode]:
    """Record every episode, in the order of the seeds."""
    seeds = range(config.seed, config.seed + config.num_episodes)
    record = partial(record_episode, kind=config.obs)
    if config.num_workers == 1:
        yield from map(record, seeds)
        return
    with ProcessPoolExecutor(config.num_workers, mp_context=multiprocessing.get_context("spawn")) as workers:
        yield from workers.map(record, seeds)


def _with_progress(episodes: Iterator[Episode], total: int) -> Iterator[Episode]:
    """Yield the episodes, with a bar on a terminal and nothing in a batch job's log."""
    columns = (TextColumn("collect"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[solved]} solved"))
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar, num_solved = progress.add_task("collect", total=total, solved=0), 0
        for episode in episodes:
            num_solved += episode.success
            progress.update(bar, advance=1, solved=num_solved)
            yield episode


def _episode_record(index: int, episode: Episode) -> dict[str, Any]:
    return {
        "episode_index": index,
        "seed": episode.seed,
        "num_frames": episode.num_frames,
        "max_coverage": round(float(episode.coverages.max()), 6),
        "final_coverage": round(float(episode.coverages[-1]), 6),
        "success": episode.success,
    }


def _collection_record(config: CollectConfig, task: str, episodes: list[dict[str, Any]]) -> dict[str, Any]:
    """How the dataset was made. Only what decides its bytes: no path, no time, no number of workers."""
    flags = {"num_episodes": config.num_episodes, "seed": config.seed, "obs": config.obs}
    return {
        "command": ["lerobot-pipeline", "collect", *(f"--{key}={value}" for key, value in flags.items())],
        "environment": {
            "id": ENVIRONMENT,
            "obs_type": OBSERVATION_TYPES[config.obs],
            "max_steps": MAX_STEPS,
        },
        "task": task,
        "versions": installed_versions(),
        "num_success": sum(episode["success"] for episode in episodes),
        "mean_max_coverage": round(float(np.mean([episode["max_coverage"] for episode in episodes])), 6),
        "episodes": episodes,
    }


def _summary(config: CollectConfig, collection: dict[str, Any]) -> Table:
    episodes = collection["episodes"]
    coverages = [episode["max_coverage"] for episode in episodes]
    table = Table(title=f"Demonstrations in {config.output_dir}", show_header=False)
    table.add_row("episodes", str(len(episodes)))
    table.add_row("frames", str(sum(episode["num_frames"] for episode in episodes)))
    table.add_row("seeds", f"{episodes[0]['seed']} to {episodes[-1]['seed']}")
    table.add_row("solved", f"{collection['num_success']} ({collection['num_success'] / len(episodes):.0%})")
    table.add_row("largest coverage", f"mean {collection['mean_max_coverage']:.3f}, lowest {min(coverages):.3f}")
    return table
