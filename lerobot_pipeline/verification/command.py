"""`lerobot-pipeline verify`: does this machine work, and if not, why and what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lerobot_pipeline.config.reader import read_config
from lerobot_pipeline.config.verify import VerifyConfig
from lerobot_pipeline.errors import EXIT_DONE, RunFailure
from lerobot_pipeline.files import write_json
from lerobot_pipeline.provenance import collect_provenance
from lerobot_pipeline.verification.result import CheckResult, run_check

SCHEMA = 1
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def run(arguments: list[str]) -> int:
    """Check this machine, print a table and write the report. Returns the exit code.

    Raises:
        RunFailure: a check failed (with `--strict=true`: or warned); names the first one.
    """
    config = read_config(VerifyConfig, arguments)
    results = list(verify(config))
    _print_table(results)
    failing = {"fail", "warn"} if config.strict else {"fail"}
    failures = [result for result in results if result.status in failing]
    if config.json is not None:
        write_json(
            config.json,
            {
                "schema": SCHEMA,
                "status": "fail" if failures else "ok",
                "checks": [result.as_json() for result in results],
                "provenance": collect_provenance(["lerobot-pipeline", "verify", *arguments]),
            },
        )
    if failures:
        first, others = failures[0], len(failures) - 1
        also = f" (and {others} more)" if others else ""
        raise RunFailure(f"{first.name}: {first.detail}" + (f"; {first.fix}" if first.fix else "") + also)
    return EXIT_DONE


def verify(config: VerifyConfig) -> Iterator[CheckResult]:
    """Run every check and yield its result; the quick ones come first."""
    for name, check in _checks(config):
        with _told(name):
            result = run_check(name, check)
        yield result


def _checks(config: VerifyConfig) -> Iterator[tuple[str, Callable[[], CheckResult]]]:
    from lerobot_pipeline.verification import package_checks, system_checks

    yield "versions", package_checks.check_versions
    yield "workflow", lambda: package_checks.check_workflow(config.profile)
    yield "lerobot plugins", package_checks.check_plugins
    yield "shared memory", system_checks.check_shared_memory
    yield "disk", system_checks.check_disk
    yield "open files", system_checks.check_open_files
    yield "hub token", system_checks.check_hub_token

    from lerobot_pipeline.verification import device_checks, process_checks, video_checks
    from lerobot_pipeline.verification.facts import observe_accelerators

    facts = observe_accelerators()
    yield "device", lambda: device_checks.check_device(facts, config.policy.device)
    yield "precision", lambda: device_checks.check_precision(facts, config.policy.device)
    yield "video", video_checks.check_video
    processes = process_checks.ProcessChecks(facts)
    yield "gloo all-reduce", processes.gloo
    yield "accelerator all-reduce", processes.accelerator_library
    yield "gradient parity", processes.gradient_parity


def _told(name: str) -> AbstractContextManager[Any]:
    """Show what is being checked on a terminal; nothing elsewhere."""
    return Console(stderr=True).status(f"checking {name}") if sys.stderr.isatty() else nullcontext()


def _print_table(results: list[CheckResult]) -> None:
    table = Table(title="environment", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found, and what to do")
    for result in results:
        fix = f"\n[dim]{escape(result.fix)}[/dim]" if result.fix else ""
        style = _STYLES[result.status]
        table.add_row(result.name, f"[{style}]{result.status}[/{style}]", escape(result.detail) + fix)
    Console().print(table)
