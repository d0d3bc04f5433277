"""Training adapters is the same training under every layout; only adapters and fully trained modules move."""

from __future__ import annotations

from pathlib import Path

import pytest

from .adapting import LAYOUTS, adapter_flags, make_base, stored_adapter, train
from .comparing import OPTIMIZERS, TOLERANCE, differences

UPDATES = 4


@pytest.fixture
def lora(exact_act: list[str], tmp_path: Path) -> list[str]:
    """Flags that train LoRA on a small trained ACT."""
    return adapter_flags(exact_act, make_base(exact_act, tmp_path / "base"))


@pytest.mark.parametrize("layout", list(LAYOUTS)[1:])
def test_adapters_train_as_in_one_process(
    layout: str, lora: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = [*lora, *OPTIMIZERS["sgd"], f"--steps={UPDATES}", "--ema.enable=true"]
    reference = train("single", [*flags, f"--output_dir={tmp_path / 'one'}"], request)[0]
    recording = train(layout, [*flags, f"--output_dir={tmp_path / 'many'}"], request)[0]
    found = differences(recording, reference)
    assert max(found.values()) <= TOLERANCE, found
    assert {name.split(".")[-3] for name in recording.gradients[0]} >= {"lora_A", "lora_B"}
    for model in ("pretrained_model", "pretrained_model_ema"):
        ours, theirs = stored_adapter(tmp_path / "many", model), stored_adapter(tmp_path / "one", model)
        assert ours.keys() == theirs.keys()
        assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) <= TOLERANCE
    assert not list((tmp_path / "many").rglob("model.safetensors"))
