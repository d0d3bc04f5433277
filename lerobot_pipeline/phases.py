"""Named moments of a run, told to whoever listens.

Each phase is announced when it begins and when it has ended, as Python's audit event `EVENT` with the phase's name and
"begin" or "end". Nobody listening costs nothing; a test that kills a run at each of these moments, or a tracer, listens
with `sys.addaudithook`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

EVENT = "lerobot_pipeline.phase"


class Phase(StrEnum):
    """Every phase that is announced. Those of a save run in the writing thread where saving is asynchronous."""

    IMPORT = "import"
    """Importing torch and lerobot."""

    ASSEMBLY = "assembly"
    """Building a run, from scratch or from a checkpoint."""

    STEP = "step"
    """A micro-batch, from loading it to its metrics."""

    BATCH = "batch"
    """Loading and preparing it."""

    BACKWARD = "step.backward"
    UPDATE = "step.update"
    """Clipping, the optimizer's step, the schedule's."""

    LOG = "log"
    EVALUATION = "evaluation"
    """Held-out loss, or rollouts in a simulator."""

    SAVE = "save"
    """What training waits for: all of a save, or where it is asynchronous, until the copies are made."""

    GATHER_STATE = "save.gather_state"
    COPY_TO_HOST = "save.copy_to_host"
    MAKE_STAGING = "save.make_staging"
    WRITE_WEIGHT_SHARDS = "save.write_weight_shards"
    WRITE_AVERAGE_SHARDS = "save.write_average_shards"
    WRITE_OPTIMIZER = "save.write_optimizer"
    WRITE_WEIGHTS = "save.write_weights"
    WRITE_AVERAGE = "save.write_average"
    WRITE_STATE = "save.write_state"
    AGREE = "save.agree"
    """Ranks tell each other whether their part succeeded."""

    WRITE_MANIFEST = "save.write_manifest"
    SYNC = "save.sync"
    """Flushing files and directories to disk."""

    SET_ASIDE = "save.set_aside"
    """Renaming a damaged checkpoint that has the new one's name."""

    RENAME = "save.rename"
    """The moment from which the checkpoint is there."""

    LINK = "save.link"
    """Pointing `last` at it."""

    DELETE = "delete"
    """Renaming a checkpoint that is not kept, then removing it."""


@contextmanager
def phase(which: Phase) -> Iterator[None]:
    """Announce a phase around the body; one that raises has no end."""
    sys.audit(EVENT, str(which), "begin")
    yield
    sys.audit(EVENT, str(which), "end")
