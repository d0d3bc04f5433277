"""`lerobot-pipeline eval`: roll a policy out in a simulator, and write what happened with where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lerobot_pipeline.config.flags import schema_of
from lerobot_pipeline.config.reader import decode, parse_flags, typed
from lerobot_pipeline.config.values import require_keys
from lerobot_pipeline.errors import EXIT_DONE
from lerobot_pipeline.evaluation.policy_files import find_policy_files


def run(arguments: list[str]) -> int:
    """Evaluate one policy or baseline. Returns the exit code."""
    schema = schema_of("eval")
    values = typed(schema, parse_flags(arguments))
    require_keys(schema, values, "")
    # Importing lerobot takes ten seconds; a policy that is not there or not whole is found before.
    asked = values.get("policy", {})
    files = find_policy_files(asked["path"], asked.get("pretrained_revision")) if asked.get("path") else None

    from lerobot_pipeline.config.eval import EvalConfig
    from lerobot_pipeline.evaluation.evaluate import evaluate

    config = decode(EvalConfig, values)
    result, result_dir = evaluate(config, files, ["lerobot-pipeline", "eval", *arguments])
    _print_result(result, result_dir)
    return EXIT_DONE


def _print_result(result: dict[str, Any], result_dir: Path) -> None:
    table = Table(title=f"{result['policy']['type']} on {result['env']['type']}", title_justify="left")
    for heading in ("measure", "mean", "95 % interval", "episodes"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for measure, summary in result["aggregate"].items():
        low, high = summary["interval"]
        table.add_row(measure, f"{summary['mean']:.3f}", f"{low:.3f} to {high:.3f}", str(summary["n"]))
    console = Console()
    console.print(table)
    console.print(f"written: {result_dir}", soft_wrap=True, highlight=False)
