"""The JSON schema of experiment files, for editors; `python -m lerobot_pipeline.experiments.json_schema` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot_pipeline.experiments.schema import ExperimentFile
from lerobot_pipeline.files import write_json

SCHEMA_FILE = Path(__file__).parents[2] / "workflow" / "schemas" / "experiments.schema.json"


def schema() -> dict[str, Any]:
    """Return the schema, generated from the pydantic models."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ExperimentFile.model_json_schema()}


if __name__ == "__main__":
    write_json(SCHEMA_FILE, schema())
