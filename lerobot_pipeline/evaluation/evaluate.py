"""One evaluation from its config to `eval.json`: load, play, describe, write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import draccus
from lerobot.envs.configs import EnvConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lerobot_pipeline.backend.devices import resolve_device
from lerobot_pipeline.backend.precision import Precision, require_supported
from lerobot_pipeline.config.eval import EvalConfig
from lerobot_pipeline.evaluation.playing import load_evaluated, num_environments, open_players
from lerobot_pipeline.evaluation.policies import EvaluatedPolicy
from lerobot_pipeline.evaluation.policy_files import PolicyFiles
from lerobot_pipeline.evaluation.results import (
    RESULT_NAME,
    SCHEMA,
    aggregate,
    describe_episode,
    result_name,
    write_summary,
)
from lerobot_pipeline.evaluation.rollouts import Episode, split_into_batches
from lerobot_pipeline.evaluation.videos import save_video
from lerobot_pipeline.files import fresh_directory, write_json
from lerobot_pipeline.provenance import collect_provenance, scrub


def evaluate(config: EvalConfig, files: PolicyFiles | None, command: list[str]) -> tuple[dict[str, Any], Path]:
    """Play the episodes, and write `eval.json` and the videos to a directory of their own.

    Args:
        files: the policy's checked files; None for a baseline that has none.
        command: the command line, for the provenance.

    Returns:
        The content of `eval.json`, and its directory.

    Raises:
        UsageError: a policy made for another environment, an absent device, a precision that the device has not.
    """
    device = resolve_device(config.policy.device)
    precision = Precision(config.accelerator.mixed_precision, device)
    require_supported(precision.mixed_precision, device)
    # Worker processes have policies of their own; this one is for what is told about it.
    policy = load_evaluated(config, files, str(device) if config.eval.num_processes == 1 else "cpu")
    settings = _describe_settings(config, precision)
    name = result_name(policy.type, config.env.type, {"weights": policy.weights_digest, "evaluation": settings})
    with fresh_directory(config.output_dir / name) as directory:
        episodes, entries = _play(config, policy, precision, files, directory)
        result = {
            "schema": SCHEMA,
            "policy": {
                "path": scrub(files.name) if files else None,
                "type": policy.type,
                "weights_digest": policy.weights_digest,
            },
            "env": settings["env"],
            "episodes": entries,
            "aggregate": aggregate(episodes),
            "provenance": {
                "weights_digest": policy.weights_digest,
                "policy_revision": files.revision if files else None,
                "dataset": policy.learned_from,
                "seeds": [episode.seed for episode in episodes],
                **{key: value for key, value in settings.items() if key != "env"},
                **collect_provenance(command),
            },
        }
        write_json(directory / RESULT_NAME, result)
    if config.summary is not None:
        write_summary(config.summary, result, config.output_dir / name)
    return result, config.output_dir / name


def _describe_settings(config: EvalConfig, precision: Precision) -> dict[str, Any]:
    """Return what the outcome depends on beside the weights."""
    env = draccus.encode(config.env, EnvConfig)
    declared = ("features", "features_map")
    return {
        "env": {key: value for key, value in sorted(env.items()) if key not in declared},
        "seed": config.seed,
        "n_episodes": config.eval.n_episodes,
        "batch_size": num_environments(config),
        "device": precision.device.type,
        "mixed_precision": precision.mixed_precision,
        "num_videos": config.eval.videos,
    }


def _play(
    config: EvalConfig, policy: EvaluatedPolicy, precision: Precision, files: PolicyFiles | None, directory: Path
) -> tuple[list[Episode], list[dict[str, Any]]]:
    seeds = list(range(config.seed, config.seed + config.eval.n_episodes))
    episodes: list[Episode] = []
    entries: list[dict[str, Any]] = []
    with open_players(config, policy, precision, files) as (tasks, play), _progress(len(tasks) * len(seeds)) as tell:
        batches = [batch for task in tasks for batch in split_into_batches(task, seeds, num_environments(config))]
        for episode in chain.from_iterable(play(batches)):
            video = None
            if episode.frames:
                outcome = "success" if episode.success else "failure"
                video = f"videos/{episode.task.replace('/', '-')}-seed-{episode.seed}-{outcome}.mp4"
                save_video(episode, directory / video, tasks[episode.task])
                episode.frames.clear()
            episodes.append(episode)
            entries.append(describe_episode(episode, video))
            tell(episodes)
    return episodes, entries


@contextmanager
def _progress(num_episodes: int) -> Iterator[Callable[[list[Episode]], None]]:
    """Show a bar with an ETA on a terminal; elsewhere write a line after each tenth of the episodes."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_watched = sys.stderr.isatty()
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not is_watched)
    task = bar.add_task("playing", total=num_episodes)

    def tell(episodes: list[Episode]) -> None:
        played, successes = len(episodes), sum(episode.success for episode in episodes)
        bar.update(task, completed=played, description=f"playing, success {successes}/{played}")
        if not is_watched and played * 10 // num_episodes > (played - 1) * 10 // num_episodes:
            print(f"episode {played}/{num_episodes}, success {successes}/{played}", file=sys.stderr, flush=True)

    with bar:
        yield tell
