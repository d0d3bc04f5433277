"""docs/policies.md names every policy that LeRobot registers, and says of each what was tested."""

from __future__ import annotations

from pathlib import Path

import lerobot.policies  # noqa: F401  (registers LeRobot's policies)
from lerobot.configs.policies import PreTrainedConfig

from lerobot_pipeline.backend.policy_units import REGISTRY

from . import builders  # noqa: F401  (registers them)
from .small_policy import BUILDERS

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def _rows() -> dict[str, list[str]]:
    cells = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells if row[0] != "policy"}


def _registered() -> set[str]:
    own = PreTrainedConfig.get_known_choices()
    return {name for name, config in own.items() if config.__module__.startswith("lerobot.")}


def test_every_policy_of_lerobot_has_units_and_a_row() -> None:
    assert set(REGISTRY) == _registered()
    assert set(_rows()) == _registered()


def test_a_row_says_what_was_tested_or_why_not() -> None:
    page = PAGE.read_text()
    for policy_type, (is_built, _, _, _, result, patched) in _rows().items():
        assert is_built == ("yes" if policy_type in BUILDERS else "no"), policy_type
        if policy_type in BUILDERS:
            assert result.startswith("yes"), policy_type
            assert patched.startswith("nothing") == (not BUILDERS[policy_type].patched), policy_type
        else:
            assert result == "not tested"
            assert f"- **{policy_type}** " in page, f"{policy_type} needs its reason"
