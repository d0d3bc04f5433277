"""Named moments of a run, announced as audit events: what happens when a process ends exactly there can be tested.

An event costs nothing where nobody listens. Names: `import`, `assembly`, `batch`, `step`, `evaluation`, `save`.
"""

from __future__ import annotations

import sys

PHASE_EVENT = "lerobot_pipeline.phase"


def enter_phase(name: str) -> None:
    """Announce that a phase begins here."""
    sys.audit(PHASE_EVENT, name)
