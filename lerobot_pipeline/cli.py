"""The one command, `lerobot-pipeline <sub-command>`. Imports nothing heavy before it must."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from lerobot_pipeline import __version__
from lerobot_pipeline.errors import EXIT_DONE, EXIT_FAILED, EXIT_WRONG_USE, PipelineError

COMMANDS: dict[str, tuple[str, str]] = {
    "verify": (
        "lerobot_pipeline.verification.command:run",
        "check this machine: device, precision, processes, video, Hub",
    ),
    "collect": ("lerobot_pipeline.data.collection.command:run", "make PushT demonstrations with a planning expert"),
    "check-dataset": ("lerobot_pipeline.data.check.command:run", "check a dataset file by file, and offer repairs"),
    "train": (
        "lerobot_pipeline.training.command:run",
        "train a policy (one process, or under torchrun / accelerate launch)",
    ),
    "launch": (
        "lerobot_pipeline.training.launch_command:run",
        "start `train` on this topology, forward signals, return 0/1/2/75",
    ),
    "convert-dcp": (
        "lerobot_pipeline.conversion.command:run",
        "merge the DCP shards of a checkpoint's weights into one safetensors file",
    ),
    "eval": ("lerobot_pipeline.evaluation.command:run", "roll a policy out in a simulator: JSON, intervals, videos"),
    "publish": ("lerobot_pipeline.publishing.command:run", "publish a checkpoint to a folder or to the Hub"),
    "resolve": (
        "lerobot_pipeline.experiments.resolve_command:run",
        "write a run's resolved config (the workflow calls this)",
    ),
    "tables": ("lerobot_pipeline.experiments.tables_command:run", "tables over the runs of an experiment"),
    "figures": ("lerobot_pipeline.experiments.figures_command:run", "figures over the runs of an experiment"),
}
"""Sub-command -> (module:function taking argv and returning an exit code, one line of help)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code: 0 done, 1 failed, 2 wrong use, 75 stopped whole."""
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        # The reader of our output went away (`... | head`); python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return EXIT_DONE
    if arguments[0] == "--version":
        print(f"lerobot-pipeline {__version__}")
        return EXIT_DONE
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
        return _tell(command, f"unknown command; {hint}", EXIT_WRONG_USE)
    debug = "--debug" in rest
    rest = [argument for argument in rest if argument != "--debug"]
    if "-h" in rest or "--help" in rest:
        from lerobot_pipeline.config.help import command_help

        print(command_help(command, COMMANDS[command][1], rest), flush=True)
        return EXIT_DONE
    return _run(command, rest, debug)


def _run(command: str, arguments: list[str], debug: bool) -> int:
    module_name, function_name = COMMANDS[command][0].split(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        return int(function(arguments))
    except PipelineError as error:
        if debug:
            traceback.print_exc()
        return _tell(command, str(error), error.exit_code)
    except KeyboardInterrupt:
        return _tell(command, "interrupted", 130)
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _tell(command, f"{type(error).__name__}: {error} (--debug shows where)", EXIT_FAILED)


def _tell(command: str, message: str, exit_code: int) -> int:
    line = " ".join(message.split())
    print(f"lerobot-pipeline {command}: {line}", file=sys.stderr)
    return exit_code


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: lerobot-pipeline <command> [--key=value ...]",
            "",
            *lines,
            "",
            "`lerobot-pipeline <command> --help` lists a command's keys; `--debug` adds the traceback to an error.",
        ]
    )
