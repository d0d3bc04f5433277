"""The errors that end a command, and the exit code that each one means."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_WRONG_USE = 2
EXIT_STOPPED = 75
"""Stopped whole; run again to go on (`EX_TEMPFAIL` of sysexits.h)."""


class PipelineError(Exception):
    """Base of the errors that are told to the user in one line, without a traceback."""

    exit_code = EXIT_FAILED


class UsageError(PipelineError):
    """Wrong use: `key` is what was given wrongly, `reason` says what is true and what to do."""

    exit_code = EXIT_WRONG_USE

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason

    def __reduce__(self) -> tuple[type[UsageError], tuple[str, str]]:
        # Without it an error of a worker process could not be told by the one that started it.
        return type(self), (self.key, self.reason)


class ConfigError(UsageError, ValueError):
    """A value that a config refuses; a `ValueError` too, so that dataclass decoders pass it on."""


class RunFailure(PipelineError):
    """The work itself failed (disk full, loss not finite, network down): exit 1."""


class Stopped(PipelineError):
    """Stopped on request with everything saved; running the same command again goes on."""

    exit_code = EXIT_STOPPED
