"""What is recorded about a run may be shown to anybody."""

from __future__ import annotations

import pytest

from lerobot_pipeline.provenance import scrub


@pytest.mark.parametrize(
    ("word", "recorded"),
    [
        ("--note=hf_abcdefgh", "--note=***"),
        ("--note=ghp_" + "a" * 36, "--note=***"),
        ("--note=wandb_v1_" + "b" * 20, "--note=***"),
        ("--tracker.api_key=x1", "--tracker.***"),
        ("--policy.path=/home/somebody/run/last", "--policy.path=.../run/last"),
    ],
)
def test_a_recorded_command_tells_no_secret_and_no_place(word: str, recorded: str) -> None:
    assert scrub(word) == recorded
