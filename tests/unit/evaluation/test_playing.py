"""Several processes: who gets which device, and what becomes of an error in one of them."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lerobot.envs.configs import AlohaEnv

from lerobot_pipeline.backend.precision import Precision
from lerobot_pipeline.config.eval import EvalConfig, EvaluatedPolicyConfig
from lerobot_pipeline.errors import ConfigError, RunFailure, UsageError
from lerobot_pipeline.evaluation import playing
from lerobot_pipeline.evaluation.playing import open_players, worker_devices
from tests.unit.evaluation.dying import die


def test_several_gpus_are_given_out_in_turn_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "count_devices", lambda kind: 2 if kind == "cuda" else 1)
    assert worker_devices("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert worker_devices("cuda:1", 2) == ["cuda:1", "cuda:1"]
    assert worker_devices("cpu", 2) == ["cpu", "cpu"]


def test_an_error_of_wrong_use_comes_whole_out_of_another_process() -> None:
    for kind in (UsageError, ConfigError):
        error = pickle.loads(pickle.dumps(kind("env.type", "needs a package")))
        assert type(error) is kind
        assert (error.key, error.reason, str(error)) == ("env.type", "needs a package", "env.type: needs a package")


def test_a_process_that_dies_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # No more than a worker needs to start: a real config would have it import lerobot before it dies.
    config: Any = SimpleNamespace(eval=SimpleNamespace(num_processes=2))
    unused: Any = None
    monkeypatch.setattr(playing, "_start_worker", die)
    with (
        pytest.raises(RunFailure, match=r"--eval\.num_processes"),
        open_players(config, unused, Precision("no", torch.device("cpu")), None),
    ):
        pass


@pytest.mark.parametrize("obs_type", ["state", "pixels"])
def test_observations_of_aloha_that_lerobot_cannot_read_are_refused(obs_type: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"env\.obs_type: aloha offers pixels_agent_pos"):
        EvalConfig(env=AlohaEnv(obs_type=obs_type), policy=EvaluatedPolicyConfig(path="anything"), output_dir=tmp_path)
