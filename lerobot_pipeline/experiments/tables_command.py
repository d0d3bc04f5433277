"""`lerobot-pipeline tables`: the paper's table, the comparisons, and the provenance of both."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lerobot_pipeline.config.reader import read_config
from lerobot_pipeline.config.tables import TablesConfig
from lerobot_pipeline.errors import EXIT_DONE, RunFailure
from lerobot_pipeline.experiments import crate, records, tables
from lerobot_pipeline.experiments.html import table_page
from lerobot_pipeline.experiments.methods import load_methods
from lerobot_pipeline.experiments.reading import read_experiment_file
from lerobot_pipeline.experiments.runs import expand
from lerobot_pipeline.files import write_json, write_text


def run(arguments: list[str]) -> int:
    """Write `summary`, `comparisons` (CSV, Markdown, LaTeX, HTML), `provenance` (CSV, JSON) and the RO-Crate."""
    config = read_config(TablesConfig, arguments)
    file = read_experiment_file(config.config_files, config.results)
    runs, results = expand(file), Path(file.results)
    output_dir = results / "tables"
    methods = load_methods(runs)
    found = [records.run_record(each) for each in runs]
    wrong = records.judged_other_weights(found)
    if wrong:
        raise RunFailure(f"{wrong[0]}: its evaluation judged other weights than train.json names; evaluate it again")
    summary, comparisons = tables.summary(methods), tables.comparisons(methods)
    _write(output_dir, "summary", summary, tables.readable_summary(summary))
    _write(output_dir, "comparisons", comparisons, tables.readable_comparisons(comparisons))
    write_json(output_dir / "provenance.json", found)
    provenance = pd.DataFrame([records.flat_record(each) for each in found])
    write_text(output_dir / "provenance.csv", provenance.to_csv(index=False))
    write_text(output_dir / "provenance.html", table_page("Provenance", tables.readable_provenance(found)))
    shared = sorted([*output_dir.glob("*.*"), *results.glob("*/figures/*.*")])
    write_json(results / crate.FILE_NAME, crate.describe(results, found, shared))
    print(tables.readable_summary(summary).to_markdown(index=False, disable_numparse=True))
    return EXIT_DONE


def _write(output_dir: Path, name: str, exact: pd.DataFrame, readable: pd.DataFrame) -> None:
    write_text(output_dir / f"{name}.csv", exact.to_csv(index=False))
    write_text(output_dir / f"{name}.md", readable.to_markdown(index=False, disable_numparse=True) + "\n")
    latex = readable.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis="columns")
    write_text(output_dir / f"{name}.tex", latex.to_latex(hrules=True))
    write_text(output_dir / f"{name}.html", table_page(name.capitalize(), readable))
