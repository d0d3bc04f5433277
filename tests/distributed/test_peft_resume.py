"""An adapter comes back bit for bit, wrapped once, under any layout."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lerobot_pipeline.checkpoint.manifest import write_manifest
from lerobot_pipeline.checkpoint.reader import find_checkpoint

from .adapting import adapter_flags, make_base, stored_adapter, train
from .layouts import LAYOUTS

ADAM = ["--optimizer.type=adamw", "--optimizer.lr=1e-2", "--optimizer.eps=1e-5"]
STILL = ["--optimizer.type=adamw", "--optimizer.lr=0"]
"""A learning rate of zero leaves weights as they were restored, whatever the update."""
QUICK = [("single", "FSDP2 2"), ("FSDP2 2", "single")]
PAIRS = [
    pair if pair in QUICK else pytest.param(*pair, marks=pytest.mark.long)
    for pair in itertools.product(LAYOUTS, LAYOUTS)
]


def _mark(step_dir: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Put numbers of their own into every element of the adapters of a checkpoint, and return them."""
    marked = {}
    for model in ("pretrained_model", "pretrained_model_ema"):
        path = step_dir / model / "adapter_model.safetensors"
        old = load_file(path)
        generator = torch.Generator().manual_seed(len(model))
        marked[model] = {name: torch.randn(old[name].shape, generator=generator) for name in sorted(old)}
        save_file(marked[model], path, metadata={"format": "pt"})
    write_manifest(step_dir)
    return marked


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_an_adapter_comes_back_bit_for_bit_under_another_layout(
    first: str, second: str, exact_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_dir = tmp_path / "run"
    lora = [*adapter_flags(exact_act, make_base(exact_act, tmp_path / "base")), *STILL, "--ema.enable=true"]
    flags = [*lora, "--steps=2", f"--output_dir={run_dir}", "--seed=3"]
    train(first, [*flags, "--stop_at_step=1"], request)
    marked = _mark(find_checkpoint(run_dir).step_dir)
    resumed = train(second, flags, request)
    found = find_checkpoint(run_dir)
    assert found.step_dir.name == "000002"
    saved = stored_adapter(run_dir)
    assert saved.keys() == marked["pretrained_model"].keys()
    for name, tensor in marked["pretrained_model"].items():
        assert torch.equal(saved[name], tensor), name
    # The second update's decay is (1 + 2) / (10 + 2).
    for name, average in stored_adapter(run_dir, "pretrained_model_ema").items():
        expected = marked["pretrained_model_ema"][name] / 4 + saved[name] * 3 / 4
        assert torch.allclose(average, expected, atol=1e-6), name
    assert {name.count("base_model.") for name in resumed[0].weights} == {1}
    assert {name.count("base_layer.") for name in resumed[0].weights} == {0, 1}


def test_a_run_that_is_interrupted_ends_in_the_same_bits(
    exact_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lora = [*adapter_flags(exact_act, make_base(exact_act, tmp_path / "base")), *ADAM, "--ema.enable=true", "--steps=4"]
    train("single", [*lora, f"--output_dir={tmp_path / 'whole'}"], request)
    train("single", [*lora, f"--output_dir={tmp_path / 'parts'}", "--stop_at_step=2"], request)
    train("single", [*lora, f"--output_dir={tmp_path / 'parts'}"], request)
    for model in ("pretrained_model", "pretrained_model_ema"):
        whole, parts = stored_adapter(tmp_path / "whole", model), stored_adapter(tmp_path / "parts", model)
        assert all(torch.equal(whole[name], parts[name]) for name in whole)
    step_dir = find_checkpoint(tmp_path / "whole").step_dir
    assert {path.name for path in (step_dir / "pretrained_model").iterdir()} >= {
        "adapter_model.safetensors",
        "adapter_config.json",
        "config.json",
        "train_config.json",
        "policy_preprocessor.json",
        "policy_postprocessor.json",
    }
    assert not (step_dir / "pretrained_model" / "model.safetensors").exists()
    listed = {entry["path"] for entry in json.loads((step_dir / "manifest.json").read_text())["files"]}
    assert "pretrained_model/adapter_model.safetensors" in listed
