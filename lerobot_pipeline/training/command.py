"""`lerobot-pipeline train`: one process, or each rank under the launcher, torchrun or accelerate launch."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lerobot_pipeline.backend.launch import guard_environment, is_main_rank, rank_of_this_process
from lerobot_pipeline.backend.signals import SignalListener, launcher_of_this_rank
from lerobot_pipeline.config.request import read_train_request
from lerobot_pipeline.errors import EXIT_DONE, PipelineError
from lerobot_pipeline.phases import Phase, phase
from lerobot_pipeline.training.console import set_up_logging
from lerobot_pipeline.training.run_directory import ATTEMPT_VARIABLE, Attempt, Outcome

_WAIT_FOR_MAIN_RANK_S = 10.0


def run(arguments: list[str]) -> int:
    """Train as the flags say. How an attempt ends is recorded for the launcher, then told as every command tells it."""
    directory = os.environ.get(ATTEMPT_VARIABLE)
    attempt = Attempt(Path(directory) if directory else None, rank_of_this_process())
    signals = SignalListener(launcher_of_this_rank())
    with signals.listening():
        try:
            set_up_logging(is_main_rank())
            guard_environment()
            request = read_train_request(arguments)
            with phase(Phase.IMPORT):
                from lerobot_pipeline.training.session import train

            train(request, signals, attempt)
        except BaseException as error:
            attempt.end(Outcome.of(error))
            if isinstance(error, PipelineError) and not is_main_rank():
                # Mostly every rank finds the same fault, and one line is enough.
                if directory:
                    # The launcher reads the record, and says what only this rank has found.
                    return error.exit_code
                # torchrun ends all at the first exit, so let the main rank speak.
                time.sleep(_WAIT_FOR_MAIN_RANK_S)
            raise
        attempt.end(Outcome(EXIT_DONE, "done"))
    return EXIT_DONE
