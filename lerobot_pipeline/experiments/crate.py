"""The results as an RO-Crate: a catalogue, readable by machines, of what was made, from what, and by which command.

Format: RO-Crate 1.1, https://www.researchobject.org/ro-crate/specification/1.1/
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lerobot_pipeline import __version__
from lerobot_pipeline.files import digest_file

FILE_NAME = "ro-crate-metadata.json"
RUN_FILES = ("config.json", "train.json", "policy.json", "eval.json", "publish.json", "metrics.jsonl")
_MEDIA_TYPES = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".tex": "application/x-tex",
}
_SOFTWARE = "#lerobot-pipeline"


def describe(results: Path, records: Sequence[Mapping[str, Any]], shared_files: Iterable[Path]) -> dict[str, Any]:
    """Return the crate's metadata for the directory `results`.

    Args:
        records: one for each run, as `records.run_record` makes them.
        shared_files: tables and figures, below `results`.
    """
    run_files = {
        record["run"]: _files(results, [results / record["run"] / name for name in RUN_FILES]) for record in records
    }
    tables = _files(results, shared_files)
    entities = [*tables, *(entity for files in run_files.values() for entity in files)]
    actions = [_action(record, run_files[record["run"]]) for record in records]
    names = ", ".join(dict.fromkeys(str(record["experiment"]) for record in records))
    return {
        "@context": "https://w3id.org/ro/crate/1.1/context",
        "@graph": [
            {
                "@id": FILE_NAME,
                "@type": "CreativeWork",
                "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
                "about": {"@id": "./"},
            },
            {
                "@id": "./",
                "@type": "Dataset",
                "name": f"Results of {names}",
                "description": f"{len(records)} training runs with their evaluations, tables and figures.",
                "datePublished": datetime.now(UTC).date().isoformat(),
                "license": {"@id": "#license"},
                "hasPart": [{"@id": entity["@id"]} for entity in entities],
                "mentions": [{"@id": action["@id"]} for action in actions],
            },
            {"@id": "#license", "@type": "CreativeWork", "name": "No licence has been stated for these results."},
            {"@id": _SOFTWARE, "@type": "SoftwareApplication", "name": "lerobot-pipeline", "version": __version__},
            *_datasets(records),
            *actions,
            *entities,
        ],
    }


def _files(results: Path, paths: Iterable[Path]) -> list[dict[str, Any]]:
    return [
        {
            "@id": path.relative_to(results).as_posix(),
            "@type": "File",
            "name": path.name,
            "encodingFormat": _MEDIA_TYPES.get(path.suffix, "application/octet-stream"),
            "contentSize": str(path.stat().st_size),
            "sha256": digest_file(path),
        }
        for path in paths
        if path.is_file()
    ]


def _action(record: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "@id": f"#run-{record['science_digest']}",
        "@type": "CreateAction",
        "name": f"Train and evaluate {record['run']}",
        "description": "\n".join(shlex.join(command) for command in record["commands"]) or "No command was recorded.",
        "instrument": {"@id": _SOFTWARE},
        "object": {"@id": _dataset_id(record)},
        "result": [{"@id": file["@id"]} for file in files],
    }


def _datasets(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = {_dataset_id(record): record["dataset"] for record in records}
    return [
        {
            "@id": identifier,
            "@type": "Dataset",
            "name": str(dataset.get("repo_id") or dataset.get("root") or "collected in a simulator"),
            "version": str(dataset.get("revision") or dataset.get("digest") or "not recorded"),
        }
        for identifier, dataset in found.items()
    ]


def _dataset_id(record: Mapping[str, Any]) -> str:
    dataset = record["dataset"]
    return f"#dataset-{dataset.get('digest') or record['dataset_name']}"
