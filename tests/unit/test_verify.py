"""Verify: each cause of a missing device is told apart, checks really do what they say, and one line sums it up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lerobot_pipeline.cli import main
from lerobot_pipeline.config.verify import RequiredDeviceConfig
from lerobot_pipeline.errors import ConfigError
from lerobot_pipeline.verification import process_checks
from lerobot_pipeline.verification.device_checks import check_device, check_precision, choose_device_type, matmul_error
from lerobot_pipeline.verification.diagnosis import diagnose
from lerobot_pipeline.verification.facts import AcceleratorFacts, DeviceFile, observe_accelerators
from lerobot_pipeline.verification.package_checks import check_plugins, check_versions, check_workflow
from lerobot_pipeline.verification.process_checks import Outcome, judge_gradients, judge_sum, run_workers
from lerobot_pipeline.verification.result import CheckResult, run_check
from lerobot_pipeline.verification.system_checks import check_hub_token, check_shared_memory
from lerobot_pipeline.verification.video_checks import check_video

NVIDIA = (DeviceFile(path="/dev/nvidia0", is_accessible=True),)
NVIDIA_DENIED = (DeviceFile(path="/dev/nvidia0", is_accessible=False),)
KFD = DeviceFile(path="/dev/kfd", is_accessible=True)
KFD_DENIED = DeviceFile(path="/dev/kfd", is_accessible=False)
RENDER = (DeviceFile(path="/dev/dri/renderD128", is_accessible=True),)
RENDER_DENIED = (DeviceFile(path="/dev/dri/renderD128", is_accessible=False),)

CUDA_BOX: dict[str, Any] = {"nvidia_files": NVIDIA, "nvidia_driver": "580.65.06", "pci_vendors": ("nvidia",)}
AMD_BOX: dict[str, Any] = {"kfd": KFD, "num_amd_gpus": 8, "dri_files": RENDER, "pci_vendors": ("amd",)}
INTEL_BOX: dict[str, Any] = {"dri_files": RENDER, "pci_vendors": ("intel",)}
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)."


@pytest.mark.parametrize(
    ("facts", "device_type", "cause", "told"),
    [
        ({}, "cuda", "no_device", "no NVIDIA or AMD card"),
        ({"torch_cuda": "13.0"}, "cuda", "no_device", "no NVIDIA or AMD card"),
        ({"pci_vendors": ("nvidia",), "torch_cuda": "13.0"}, "cuda", "driver_missing", "--gpus all"),
        ({"pci_vendors": ("amd",), "torch_hip": "6.4"}, "cuda", "driver_missing", "--device=/dev/kfd"),
        (CUDA_BOX, "cuda", "wrong_wheel", "built for CPU only"),
        ({**CUDA_BOX, "torch_hip": "6.4"}, "cuda", "wrong_wheel", "built for ROCm 6.4"),
        ({**CUDA_BOX, "torch_cuda": "13.0", "nvidia_driver": "535.104.05"}, "cuda", "old_driver", "580 or later"),
        ({**CUDA_BOX, "torch_cuda": "12.8", "nvidia_driver": "470.82"}, "cuda", "old_driver", "525 or later"),
        ({**CUDA_BOX, "torch_cuda": "12.8", "nvidia_driver": None, "error": TOO_OLD}, "cuda", "old_driver", "12.8"),
        ({**CUDA_BOX, "torch_cuda": "13.0", "nvidia_files": NVIDIA_DENIED}, "cuda", "permission", "/dev/nvidia0"),
        ({**CUDA_BOX, "torch_cuda": "13.0", "error": "unknown error 999"}, "cuda", "broken", "unknown error 999"),
        (
            {**CUDA_BOX, "torch_cuda": "13.0", "visibility": (("CUDA_VISIBLE_DEVICES", ""),)},
            "cuda",
            "hidden",
            "unset CUDA_VISIBLE_DEVICES",
        ),
        (AMD_BOX, "cuda", "wrong_wheel", "built for CPU only"),
        ({**AMD_BOX, "torch_cuda": "13.0"}, "cuda", "wrong_wheel", "swaps its torch unless"),
        ({**AMD_BOX, "torch_hip": "6.4", "kfd": KFD_DENIED}, "cuda", "permission", "groups render and video"),
        ({**AMD_BOX, "torch_hip": "6.4", "dri_files": RENDER_DENIED}, "cuda", "permission", "/dev/dri/renderD128"),
        ({**AMD_BOX, "torch_hip": "6.4", "dri_files": ()}, "cuda", "permission", "--device=/dev/dri"),
        (
            {**AMD_BOX, "torch_hip": "6.4", "visibility": (("HIP_VISIBLE_DEVICES", "-1"),)},
            "cuda",
            "hidden",
            "unset HIP_VISIBLE_DEVICES",
        ),
        ({**AMD_BOX, "torch_hip": "6.4"}, "cuda", "broken", "rocminfo"),
        ({}, "xpu", "no_device", "no Intel GPU"),
        (INTEL_BOX, "xpu", "wrong_wheel", "built for CPU only"),
        ({**INTEL_BOX, "torch_cuda": "13.0"}, "xpu", "wrong_wheel", "built for CUDA 13.0"),
        ({**INTEL_BOX, "torch_xpu": "20250101", "dri_files": ()}, "xpu", "driver_missing", "--device=/dev/dri"),
        ({**INTEL_BOX, "torch_xpu": "20250101", "dri_files": RENDER_DENIED}, "xpu", "permission", "group render"),
        ({}, "mps", "no_device", "Linux on x86_64"),
        ({"system": "Darwin", "machine": "arm64"}, "mps", "wrong_wheel", "macOS 14"),
    ],
)
def test_every_cause_of_a_missing_device_is_told_apart(
    facts: dict[str, Any], device_type: str, cause: str, told: str
) -> None:
    diagnosis = diagnose(AcceleratorFacts(**facts), device_type)
    assert diagnosis is not None
    assert diagnosis.cause == cause
    assert told in f"{diagnosis.detail} {diagnosis.fix}"
    assert "\n" not in diagnosis.detail + diagnosis.fix


def test_a_device_that_works_needs_no_diagnosis() -> None:
    assert diagnose(AcceleratorFacts(**CUDA_BOX, torch_cuda="13.0", available=("cuda", "cpu")), "cuda") is None


def test_an_accelerator_that_is_there_must_work_unless_the_cpu_was_asked_for() -> None:
    facts = AcceleratorFacts(**CUDA_BOX)
    assert choose_device_type(facts, None) == "cuda"
    failed = check_device(facts, None)
    assert (failed.status, failed.data["cause"]) == ("fail", "wrong_wheel")
    assert check_device(facts, "cpu").status == "ok"


def test_a_machine_without_accelerator_is_a_cpu_machine_and_no_fault() -> None:
    facts = AcceleratorFacts(pci_vendors=("intel", "other"))
    assert choose_device_type(facts, None) == "cpu"
    assert check_device(facts, None).status == "ok"


def test_the_matmul_check_sees_a_precision_that_is_not_the_one_asked_for() -> None:
    assert matmul_error("cpu", "float32") < 1e-5 < matmul_error("cpu", "bfloat16")


def test_this_machines_own_facts_fit_together() -> None:
    facts = observe_accelerators()
    assert "cpu" in facts.available
    assert facts.torch_version
    for device_type in facts.available:
        assert check_device(facts, device_type).status == "ok"
    precision = check_precision(facts, "cpu")
    assert precision.data == {"bf16": True, "fp16": False, "tf32": False}


def test_two_real_processes_agree_whatever_a_launcher_left_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "7", "MASTER_ADDR": "nowhere.invalid"}.items():
        monkeypatch.setenv(name, value)
    outcome = run_workers("gloo")
    for result in (judge_sum("gloo", outcome), judge_gradients("gloo", outcome)):
        assert result.status == "ok", result.detail
    assert result.data["largest_relative_error"] < 1e-6


def test_a_process_that_ends_badly_is_reported_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_checks, "_WORKER", "lerobot_pipeline.no_such_module")
    outcome = run_workers("gloo")
    assert judge_gradients("gloo", outcome).status == "skip"
    result = judge_sum("gloo", outcome)
    assert result.status == "fail"
    assert "no_such_module" in result.detail


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ({"sum": 3.0, "gradient_fault": None, "gradient_error": float("nan")}, "largest relative error nan"),
        ({"sum": 3.0, "gradient_fault": "RuntimeError: no", "gradient_error": None}, "breaks: RuntimeError: no"),
    ],
)
def test_gradients_that_cannot_be_right_fail(report: dict[str, Any], told: str) -> None:
    good = {"sum": 3.0, "gradient_fault": None, "gradient_error": 1e-8}
    result = judge_gradients("gloo", Outcome([], 1.0, [report, good]))
    assert result.status == "fail"
    assert told in result.detail
    assert judge_sum("gloo", Outcome([], 1.0, [good, good | {"sum": float("nan")}])).status == "fail"


def test_a_video_is_really_encoded_and_decoded() -> None:
    result = check_video()
    assert result.status == "ok", result.detail
    assert result.data["decoders"]["pyav"] or result.data["decoders"]["torchcodec"]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "an encoder made this process a real-time one"


def test_versions_are_held_against_what_lerobot_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_versions().status in ("ok", "warn")
    from lerobot_pipeline.verification import package_checks

    declared = {
        "lerobot-pipeline": ["lerobot[extra]>=0.6"],
        "lerobot": ["packaging<1", 'no-such-thing; extra=="extra"'],
    }
    monkeypatch.setattr(package_checks, "_declared_by", lambda package: declared.get(package, []))
    result = check_versions()
    assert result.status == "fail"
    assert result.data["missing"] == ["no-such-thing (for lerobot)"]
    assert result.data["outside"][0].startswith("packaging ")
    declared["lerobot"] = ["packaging<1"]
    assert check_versions().status == "warn"


def test_the_slurm_profile_needs_slurms_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_workflow("default").status == "ok"
    result = check_workflow("slurm")
    assert result.status == "fail"
    assert "sbatch" in result.detail


def test_plugins_are_listed_by_their_names() -> None:
    assert check_plugins().status == "ok"


def test_shared_memory_that_does_not_exist_is_skipped(tmp_path: Path) -> None:
    assert check_shared_memory(tmp_path / "nothing").status == "skip"


def test_a_token_is_seen_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = check_hub_token()
    assert result.data == {"present": True, "valid": None}
    assert "hf_" not in json.dumps(result.as_json())


def test_a_check_that_breaks_is_a_check_that_failed() -> None:
    def breaks() -> CheckResult:
        raise OSError("no such thing")

    result = run_check("disk", breaks)
    assert (result.name, result.status) == ("disk", "fail")
    assert "no such thing" in result.detail


def test_the_report_and_the_exit_code_say_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report_path = tmp_path / "environment.json"
    assert main(["verify", "--policy.device=cpu", f"--json={report_path}"]) == 0
    report = json.loads(report_path.read_text())
    assert report["status"] == "ok"
    statuses = {check["name"]: check["status"] for check in report["checks"]}
    looked_at = ("device", "video", "gloo all-reduce", "gradient parity", "versions")
    assert {statuses[name] for name in looked_at} <= {"ok", "warn"}
    printed = capfd.readouterr().out
    assert all(name in printed for name in statuses)
    assert os.uname().nodename not in report_path.read_text()


def test_a_missing_device_ends_with_one_line_that_names_it(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if "cuda" in observe_accelerators().available:
        pytest.skip("this machine has the device")
    report_path = tmp_path / "environment.json"
    assert main(["verify", "--policy.device=cuda", f"--json={report_path}"]) == 1
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("lerobot-pipeline verify: device: cuda: ")
    assert json.loads(report_path.read_text())["status"] == "fail"


def test_a_device_that_does_not_exist_anywhere_is_wrong_use(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--policy.device=gpu"]) == 2
    assert "policy.device: 'gpu' is no device" in capfd.readouterr().err
    with pytest.raises(ConfigError):
        RequiredDeviceConfig(device="cuda:x")
