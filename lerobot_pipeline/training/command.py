"""`lerobot-pipeline train`: one process, or each rank under torchrun or accelerate launch."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lerobot_pipeline.backend.launch import guard_environment, is_main_rank
from lerobot_pipeline.config.request import read_train_request
from lerobot_pipeline.errors import EXIT_DONE, EXIT_FAILED, PipelineError
from lerobot_pipeline.training.console import set_up_logging
from lerobot_pipeline.training.run_directory import ATTEMPT_VARIABLE, write_outcome

_WAIT_FOR_MAIN_RANK_S = 10.0


def run(arguments: list[str]) -> int:
    """Train as the flags say. How an attempt ends is recorded for the launcher, then told as every command tells it."""
    attempt = os.environ.get(ATTEMPT_VARIABLE) if is_main_rank() else None
    try:
        set_up_logging(is_main_rank())
        guard_environment()
        request = read_train_request(arguments)
        from lerobot_pipeline.training.session import train

        train(request)
    except BaseException as error:
        if attempt:
            exit_code = error.exit_code if isinstance(error, PipelineError) else EXIT_FAILED
            write_outcome(Path(attempt), exit_code, str(error) or type(error).__name__)
        if isinstance(error, PipelineError) and not is_main_rank():
            # Every rank finds the same fault; torchrun ends them all at the first exit, so let the main rank speak.
            time.sleep(_WAIT_FOR_MAIN_RANK_S)
        raise
    if attempt:
        write_outcome(Path(attempt), EXIT_DONE, "done")
    return EXIT_DONE
