"""`lerobot-pipeline resolve`: the runs of an experiment file, and each run's resolved config."""

from __future__ import annotations

import json

from lerobot_pipeline.config.reader import read_config
from lerobot_pipeline.config.resolve import ResolveConfig
from lerobot_pipeline.errors import EXIT_DONE, UsageError
from lerobot_pipeline.experiments.reading import read_experiment_file
from lerobot_pipeline.experiments.runs import Run, expand
from lerobot_pipeline.files import write_json


def run(arguments: list[str]) -> int:
    """List the runs, or write one run's `config.json` or `launch.json`."""
    config = read_config(ResolveConfig, arguments)
    runs = expand(read_experiment_file(config.config_files, config.results))
    if config.run is None:
        for each in runs:
            print(f"{each.experiment_slug}/{each.name}")
        return EXIT_DONE
    chosen = _choose(runs, config.run)
    content = chosen.config() if config.part == "science" else chosen.launch_config()
    digest = chosen.digest if config.part == "science" else chosen.launch_digest
    if config.digest not in (None, digest):
        raise UsageError(
            config.run, "the experiment file changed after the workflow was planned; start snakemake again"
        )
    if config.output is None:
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        write_json(config.output, content)
    return EXIT_DONE


def _choose(runs: list[Run], name: str) -> Run:
    for each in runs:
        if f"{each.experiment_slug}/{each.name}" == name:
            return each
    raise UsageError("run", f"no run is named {name!r}; without --run the runs are listed")
