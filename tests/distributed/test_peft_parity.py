"""Training adapters is the same training under every layout; only adapters and fully trained modules move."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lerobot_pipeline.backend.dtensors import local_part
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.checkpoint.weights import stored_names
from lerobot_pipeline.config.request import read_train_request
from lerobot_pipeline.config.rules import PEFT_METHODS
from lerobot_pipeline.data.loading import load_datasets
from lerobot_pipeline.training import assembly
from lerobot_pipeline.training.adapting import adapt
from lerobot_pipeline.training.session import make_plan

from .adapting import EFFECTIVE_BATCH, LORA, adapter_flags, make_base, stored_adapter, train
from .comparing import OPTIMIZERS, TOLERANCE, differences
from .layouts import LAYOUTS
from .ranks import RankPool
from .recording import SummedGradients, record_training
from .test_sharding import BF16_TOLERANCE

UPDATES = 4
IGNORED = r"--accelerator.fsdp.ignored_modules=.*\.(action_head|encoder\.layers\.0\.linear2)"


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


@pytest.mark.parametrize("method", PEFT_METHODS[1:])
@pytest.mark.parametrize("layout", ["FSDP2 2", pytest.param("HSDP 2x2", marks=pytest.mark.long)])
@pytest.mark.long
def test_every_method_trains_as_in_one_process(
    method: str, layout: str, exact_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    keys = [f"--peft.method_type={method}", "--peft.r=3", '--peft.target_modules=["linear1", "linear2"]']
    flags = [*adapter_flags(exact_act, make_base(exact_act, tmp_path / "base"), keys), *OPTIMIZERS["sgd"], "--steps=4"]
    reference = train("single", [*flags, f"--output_dir={tmp_path / 'one'}"], request)[0]
    recording = train(layout, [*flags, f"--output_dir={tmp_path / 'many'}"], request)[0]
    found = differences(recording, reference)
    assert max(found.values()) <= TOLERANCE, found


@pytest.mark.parametrize("layout", ["FSDP2 2", pytest.param("HSDP 2x2", marks=pytest.mark.long)])
def test_modules_below_the_wrapper_can_be_kept_whole(
    layout: str, lora: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = [*lora, *OPTIMIZERS["sgd"], f"--steps={UPDATES}"]
    reference = train("single", [*flags, f"--output_dir={tmp_path / 'one'}"], request)[0]
    recording = train(layout, [*flags, IGNORED, f"--output_dir={tmp_path / 'many'}"], request)[0]
    found = differences(recording, reference)
    assert max(found.values()) <= TOLERANCE, found


@pytest.mark.parametrize("layout", [pytest.param(name, marks=pytest.mark.long) for name in list(LAYOUTS)])
def test_bf16_stays_near_full_precision_with_float32_adapters(
    layout: str, lora: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = [*lora, *OPTIMIZERS["sgd"], f"--steps={UPDATES}"]
    reference = train("single", [*flags, f"--output_dir={tmp_path / 'one'}"], request)[0]
    bf16 = ["--accelerator.mixed_precision=bf16", f"--output_dir={tmp_path / 'many'}"]
    found = differences(train(layout, [*flags, *bf16], request)[0], reference)
    assert all(found[name] <= tolerance for name, tolerance in BF16_TOLERANCE.items()), found
    assert found["loss"] > 1e-6, "bfloat16 must leave a trace, or it was not used"
    assert {tensor.dtype for tensor in stored_adapter(tmp_path / "many").values()} == {torch.float32}


def test_a_planted_fault_is_found_in_adapters_too(lora: list[str], tmp_path: Path, two_ranks: RankPool) -> None:
    sgd = ["--optimizer.type=sgd", "--optimizer.lr=0.1", "--optimizer.grad_clip_norm=0", f"--steps={UPDATES}"]
    reference = record_training([*lora, *sgd, f"--batch_size={EFFECTIVE_BATCH}", f"--output_dir={tmp_path / 'one'}"])
    flags = [*lora, *sgd, f"--batch_size={EFFECTIVE_BATCH // 2}", "--parallelism.dp_shard=2"]
    faulty = two_ranks.run(record_training, [*flags, f"--output_dir={tmp_path / 'two'}"], SummedGradients)[0]
    assert differences(faulty, reference)["weights"] > 10 * TOLERANCE


def prepare_on_bf16_base(arguments: list[str]) -> tuple[set[str], set[str], list[str]]:
    """Lay adapters out on a bfloat16 base; return the dtypes of what is trained and frozen, and what is gathered."""
    plan = make_plan(read_train_request(arguments))
    runtime = Runtime.from_config(plan.config)
    try:
        data = load_datasets(plan.config, plan.dataset_root)
        bare = adapt(plan.config, None, lambda: assembly._build_policy(plan.config, data).to(torch.bfloat16))
        policy, _ = runtime.prepare(bare, lambda module: assembly._make_optimizer(plan.config, module))
        dtypes: dict[bool, set[str]] = {True: set(), False: set()}
        for parameter in policy.parameters():
            dtypes[parameter.requires_grad].add(str(local_part(parameter).dtype))
        gathered = runtime.gather_weights(policy, only_trainable=True)
        assert gathered is not None
        if runtime.is_main:
            assert set(stored_names(policy).values()) <= gathered.keys()
        return dtypes[True], dtypes[False], sorted(gathered)
    finally:
        runtime.close()


def test_a_unit_trains_in_one_dtype_on_a_bf16_base(exact_act: list[str], tmp_path: Path, two_ranks: RankPool) -> None:
    mixed = [*LORA[:2], "--peft.target_modules=[linear1]", "--peft.full_training_modules=[linear2]"]
    base = make_base(exact_act, tmp_path / "base")
    flags = [*adapter_flags(exact_act, base, mixed), "--parallelism.dp_shard=2", "--batch_size=2", "--steps=1"]
    with pytest.raises(RuntimeError, match=r"bfloat16 and float32, but a unit has one dtype; turn mixed precision on"):
        two_ranks.run(prepare_on_bf16_base, flags)
    only_adapters = [*adapter_flags(exact_act, base, mixed[:-1]), *flags[-3:]]
    trained, frozen, _ = two_ranks.run(prepare_on_bf16_base, only_adapters)[0]
    assert (trained, frozen) == ({"torch.float32"}, {"torch.bfloat16"}), "adapters in float32 on a bf16 base are fine"
    trained, frozen, gathered = two_ranks.run(prepare_on_bf16_base, [*flags, "--accelerator.mixed_precision=bf16"])[0]
    assert (trained, frozen) == ({"torch.float32"}, {"torch.bfloat16"})
    assert gathered
    assert not [name for name in gathered if "base_layer" in name], "the frozen base is not gathered for a checkpoint"
