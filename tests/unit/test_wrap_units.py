"""Wrap units: who names them, what is refused, and tied weights that two of them would hold."""

from __future__ import annotations

from typing import ClassVar

import pytest
from torch import Tensor, nn

from lerobot_pipeline.backend.sharding import FSDPConfig, MixedPrecisionPolicyConfig
from lerobot_pipeline.backend.wrap_units import find_wrap_units, require_untied
from lerobot_pipeline.errors import ConfigError, UsageError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)
        return output


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)


class Declaring(Policy):
    _fsdp_wrap_modules: ClassVar[list[str]] = ["Block"]


class Wrapper(nn.Module):
    """Holds a policy as PEFT does."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = policy


def test_the_flag_goes_before_the_declaration_and_that_before_the_registry() -> None:
    assert list(find_wrap_units(Declaring(), "act", ["Linear"], None).modules) == [
        "blocks.0.inner",
        "blocks.1.inner",
        "head",
    ]
    assert find_wrap_units(Declaring(), "act", None, None).source == "Declaring._fsdp_wrap_modules"
    with pytest.raises(UsageError, match="no module is a ACTEncoderLayer"):
        find_wrap_units(Policy(), "act", None, None)


def test_a_declaration_is_found_through_a_wrapper() -> None:
    units = find_wrap_units(Wrapper(Declaring()), "unknown", None, None)
    assert list(units.modules) == ["base_model.model.blocks.0", "base_model.model.blocks.1"]


def test_no_units_at_all_are_refused() -> None:
    with pytest.raises(UsageError, match="declares no wrap units; name the class"):
        find_wrap_units(Policy(), "unknown", None, None)
    with pytest.raises(UsageError, match="the root alone would shard nothing"):
        find_wrap_units(Policy(), "unknown", None, 10_000)


def test_a_module_whose_forward_is_never_called_is_refused() -> None:
    with pytest.raises(UsageError, match="blocks is a ModuleList, whose forward is never called"):
        find_wrap_units(Policy(), "unknown", ["ModuleList"], None)


def test_units_by_size_count_what_no_smaller_unit_took() -> None:
    # A block has 20 parameters, all of them in its linear layer; embedding and head have 20 each.
    assert set(find_wrap_units(Policy(), "unknown", None, 20).modules) == {
        "blocks.0.inner",
        "blocks.1.inner",
        "embedding",
        "head",
    }


def test_tied_weights_in_two_units_are_refused_by_both_names() -> None:
    policy = Declaring()
    policy.head.weight = policy.embedding.weight
    require_untied(policy, find_wrap_units(policy, "unknown", None, None))  # both in the root: fine
    with pytest.raises(UsageError, match=r"embedding\.weight and head\.weight are one tied parameter but in two units"):
        require_untied(policy, find_wrap_units(policy, "unknown", ["Linear"], None))


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"wrap_modules": ["A"], "min_num_params": 3}, "min_num_params"),
        ({"min_num_params": 0}, "min_num_params"),
        ({"ignored_modules": "("}, "ignored_modules"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"accelerator.fsdp.{key}"):
        FSDPConfig(**wrong)  # type: ignore[arg-type]


def test_float16_needs_the_loss_scaler() -> None:
    with pytest.raises(ConfigError, match="float16 needs the loss scaler"):
        MixedPrecisionPolicyConfig(param_dtype="float16").check("bf16")
    MixedPrecisionPolicyConfig(param_dtype="float16").check("fp16")
