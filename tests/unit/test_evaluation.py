"""Evaluation: episodes are the seeds' own, results carry their provenance, wrong use is told before work begins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.envs.configs import PushtEnv
from lerobot.envs.factory import make_env, make_env_pre_post_processors
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors
from lerobot.scripts.lerobot_eval import rollout
from safetensors.torch import load_file, save_file

from lerobot_pipeline.checkpoint.manifest import write_manifest
from lerobot_pipeline.config.eval import (
    DemonstrationsConfig,
    EvalConfig,
    EvaluatedPolicyConfig,
    InferencePrecisionConfig,
    RolloutConfig,
)
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.evaluation.baselines import NearestDemonstration
from lerobot_pipeline.evaluation.evaluate import evaluate
from lerobot_pipeline.evaluation.policies import load_policy, load_policy_config
from lerobot_pipeline.evaluation.policy_files import find_policy_files
from lerobot_pipeline.evaluation.results import aggregate, fresh_directory
from lerobot_pipeline.evaluation.rollouts import Actor, Episode, open_environments, play_episodes
from lerobot_pipeline.files import digest_file

EPISODE_STEPS = 12
STATE_OBSERVATIONS = "environment_state_agent_pos"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ACT for PushT's states, laid out as a checkpoint step directory."""
    step_dir = tmp_path_factory.mktemp("checkpoints") / "000010"
    shapes = {"observation.state": (2,), "observation.environment_state": (16,), "action": (2,)}
    types = {"observation.state": FeatureType.STATE, "observation.environment_state": FeatureType.ENV}
    config = ACTConfig(
        input_features={name: PolicyFeature(type=kind, shape=shapes[name]) for name, kind in types.items()},
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(2,))},
        normalization_mapping=dict.fromkeys(("STATE", "ENV", "ACTION"), NormalizationMode.MEAN_STD),
        chunk_size=4,
        n_action_steps=4,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        device="cpu",
        pretrained_backbone_weights=None,
    )
    torch.manual_seed(0)
    ACTPolicy(config).save_pretrained(step_dir / "pretrained_model")
    stats = {name: {"mean": torch.full(shape, 256.0), "std": torch.full(shape, 90.0)} for name, shape in shapes.items()}
    for processor in make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(step_dir / "pretrained_model")
    return step_dir


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint's `pretrained_model` that a test may spoil."""
    return Path(shutil.copytree(checkpoint / "pretrained_model", tmp_path / "000010" / "pretrained_model"))


def make_config(output_dir: Path, path: Path | None, obs_type: str = STATE_OBSERVATIONS, **changes: Any) -> EvalConfig:
    playing = {"n_episodes": 3, "batch_size": 1, "videos": 0} | changes.pop("eval", {})
    return EvalConfig(
        env=PushtEnv(obs_type=obs_type, episode_length=EPISODE_STEPS),
        policy=EvaluatedPolicyConfig(path=None if path is None else str(path), device="cpu"),
        eval=RolloutConfig(**playing),
        output_dir=output_dir,
        **changes,
    )


def evaluate_policy(config: EvalConfig) -> tuple[dict[str, Any], Path]:
    files = find_policy_files(config.policy.path) if config.policy.path else None
    return evaluate(config, files, ["lerobot-pipeline", "eval"])


def test_episodes_are_those_of_lerobots_own_rollout(checkpoint: Path) -> None:
    env_config = PushtEnv(obs_type=STATE_OBSERVATIONS, episode_length=EPISODE_STEPS)
    directory = checkpoint / "pretrained_model"
    policy = ACTPolicy.from_pretrained(directory)
    preprocess, postprocess = make_pre_post_processors(policy.config, pretrained_path=str(directory))
    before, after = make_env_pre_post_processors(env_config, policy.config)
    seeds = [1000, 1001, 1002, 1003]
    env = make_env(env_config, n_envs=4)["pusht"][0]
    theirs = rollout(env, policy, before, after, preprocess, postprocess, seeds=seeds)
    env.close()
    files = find_policy_files(str(checkpoint))
    evaluated = load_policy(files, load_policy_config(files, "cpu"), env_config)
    actor = Actor(policy=evaluated, preprocess=before, postprocess=after, autocast=nullcontext)
    with open_environments(env_config, batch_size=4) as envs:
        ours = list(play_episodes(envs["pusht/0"], "pusht/0", actor, seeds))
    assert [episode.sum_reward for episode in ours] == pytest.approx(theirs["reward"].sum(dim=1).tolist(), abs=1e-7)
    assert [episode.max_reward for episode in ours] == pytest.approx(theirs["reward"].max(dim=1).values.tolist())
    assert any(episode.sum_reward > 0 for episode in ours)


def test_result_has_every_episode_intervals_and_where_it_came_from(checkpoint: Path, tmp_path: Path) -> None:
    summary_path = tmp_path / "elsewhere" / "summary.json"
    result, result_dir = evaluate_policy(make_config(tmp_path, checkpoint, summary=summary_path, eval={"videos": 2}))
    stored = json.loads((result_dir / "eval.json").read_text())
    assert stored == json.loads(json.dumps(result))
    assert [episode["seed"] for episode in stored["episodes"]] == [1000, 1001, 1002]
    assert all(episode["num_steps"] == EPISODE_STEPS for episode in stored["episodes"])
    for measure in ("success", "sum_reward", "max_reward", "max_coverage"):
        figures = stored["aggregate"][measure]
        low, high = figures["interval"]
        assert low <= figures["mean"] <= high
        assert (figures["n"], figures["confidence"]) == (3, 0.95)
    assert stored["policy"]["type"] == "act"
    assert stored["provenance"]["weights_digest"] == stored["policy"]["weights_digest"]
    assert stored["provenance"]["device"] == "cpu"
    assert stored["provenance"]["versions"]["lerobot"]
    summary = json.loads(summary_path.read_text())
    assert (summary_path.parent / summary["result_dir"]).resolve() == result_dir.resolve()
    videos = [episode["video"] for episode in stored["episodes"]]
    assert videos[2] is None
    with av.open(str(result_dir / videos[0])) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == EPISODE_STEPS + 1
    assert frames[0][:22].min() < 100, "the caption is in the picture"


def test_evaluating_twice_gives_the_same_result_and_leaves_nothing_stale(checkpoint: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path, checkpoint, eval={"n_episodes": 2, "videos": 1})
    first, result_dir = evaluate_policy(config)
    (result_dir / "videos" / "stale.mp4").write_bytes(b"from another time")
    second, again = evaluate_policy(config)
    assert again == result_dir
    assert second == first
    assert [path.name for path in (result_dir / "videos").iterdir()] == ["pusht-0-seed-1000.mp4"]
    assert list(tmp_path.iterdir()) == [result_dir]


def test_other_weights_or_another_evaluation_go_to_another_directory(
    checkpoint: Path, damaged: Path, tmp_path: Path
) -> None:
    weights = load_file(damaged / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name] + 1}, damaged / "model.safetensors")
    results = tmp_path / "results"
    configs = [
        make_config(results, checkpoint, eval={"n_episodes": 1}),
        make_config(results, damaged, eval={"n_episodes": 1}),
        make_config(results, checkpoint, eval={"n_episodes": 1}, seed=7),
    ]
    assert len({evaluate_policy(config)[1] for config in configs}) == 3


def test_a_failed_evaluation_keeps_the_older_result_whole(tmp_path: Path) -> None:
    target = tmp_path / "result"
    with fresh_directory(target) as directory:
        (directory / "eval.json").write_text("old")
    with pytest.raises(IsADirectoryError), fresh_directory(target) as directory:
        directory.write_text("fails half way")
    assert (target / "eval.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_bf16_runs_the_policy_under_autocast(checkpoint: Path, tmp_path: Path) -> None:
    one = {"n_episodes": 1}
    full, _ = evaluate_policy(make_config(tmp_path, checkpoint, eval=one))
    half = InferencePrecisionConfig(mixed_precision="bf16")
    rounded, _ = evaluate_policy(make_config(tmp_path, checkpoint, eval=one, accelerator=half))
    assert rounded["provenance"]["mixed_precision"] == "bf16"
    assert rounded["episodes"][0]["sum_reward"] != full["episodes"][0]["sum_reward"]
    assert rounded["episodes"][0]["sum_reward"] == pytest.approx(full["episodes"][0]["sum_reward"], rel=0.2)


def test_aggregate_leaves_coverage_out_where_the_environment_does_not_tell_it() -> None:
    episode = Episode(task="other/0", seed=1)
    episode.add_step(reward=0.5, success=False, coverage=None)
    assert set(aggregate([episode])) == {"success", "sum_reward", "max_reward"}


def test_nearest_demonstration_replays_the_one_that_began_alike_and_holds_its_end() -> None:
    starts = torch.tensor([[0.0, 0.0], [100.0, 1.0]])
    episodes = [torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[7.0], [8.0]])]
    policy = NearestDemonstration(starts, episodes, ("observation.state",))
    # 40 is nearer to 0 than to 100, but its second number is the other demonstration's.
    observation = {"observation.state": torch.tensor([[5.0, 0.1], [40.0, 1.0]])}
    answers = [policy.select_action(observation)[:, 0].tolist() for _ in range(4)]
    assert answers == [[1.0, 7.0], [2.0, 8.0], [3.0, 8.0], [3.0, 8.0]]
    policy.reset()
    assert policy.select_action({"observation.state": torch.tensor([[90.0, 1.0]])}).tolist() == [[7.0]]


@pytest.mark.parametrize("baseline", ["untrained", "mean_action", "nearest_demonstration"])
def test_baselines_play_the_same_episodes_through_the_same_path(
    baseline: Any, checkpoint: Path, shared_data: Path, tmp_path: Path
) -> None:
    demonstrations = DemonstrationsConfig(repo_id="lerobot/pusht", root=str(shared_data / "pusht_image_slice_v30"))
    path = checkpoint if baseline == "untrained" else None
    config = make_config(tmp_path, path, baseline=baseline, dataset=demonstrations, eval={"n_episodes": 2})
    result, _ = evaluate_policy(config)
    assert result["policy"]["type"] == f"baseline/{baseline}"
    assert [episode["seed"] for episode in result["episodes"]] == [1000, 1001]
    assert evaluate_policy(config)[0] == result
    if path is None:
        assert len(result["provenance"]["dataset"]["digest"]) == 64


def remove_all(directory: Path) -> None:
    shutil.rmtree(directory.parent)


def truncate(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])


def point(directory: Path) -> None:
    (directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def keep_shards_only(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model_fsdp_0").mkdir()


def remove_normalizer_state(directory: Path) -> None:
    next(directory.glob("policy_preprocessor_step_*.safetensors")).unlink()


def lose_a_parameter(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    del weights["model.action_head.bias"]
    save_file(weights, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (remove_all, "is no directory here"),
        (truncate, "model.safetensors is damaged"),
        (point, "model.safetensors is a Git LFS pointer"),
        (lambda d: (d / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda d: (d / "config.json").unlink(), "config.json is missing"),
        (lambda d: (d / "config.json").write_text("{"), "config.json is damaged"),
        (lambda d: (d / "config.json").write_text('{"type": "no_such"}'), "'no_such' is not one of"),
        (lambda d: (d / "config.json").write_text('{"type": "act", "no_such": 1}'), "cannot be read by the installed"),
        (lambda d: (d / "policy_preprocessor.json").unlink(), "policy_preprocessor.json is missing"),
        (lambda d: (d / "policy_postprocessor.json").unlink(), "policy_postprocessor.json is missing"),
        (remove_normalizer_state, "normalizer_processor.safetensors is missing"),
        (keep_shards_only, "convert-dcp --checkpoint_dir="),
        (lose_a_parameter, "lacks 1 of the policy's parameters, the first is model.action_head.bias"),
    ],
)
def test_a_policy_that_is_not_whole_is_refused_by_the_name_of_its_file(
    spoil: Any, told: str, damaged: Path, tmp_path: Path
) -> None:
    spoil(damaged)
    with pytest.raises(UsageError, match=r"policy\.path: ") as caught:
        evaluate_policy(make_config(tmp_path / "results", damaged.parent, eval={"n_episodes": 1}))
    assert told in str(caught.value)
    assert not list(tmp_path.glob("results/*"))


def test_a_checkpoint_that_differs_from_its_manifest_is_refused(damaged: Path, tmp_path: Path) -> None:
    (damaged.parent / "training_state").mkdir()
    write_manifest(damaged.parent)
    config = make_config(tmp_path / "results", damaged.parent, eval={"n_episodes": 1})
    assert evaluate_policy(config)[0]["policy"]["weights_digest"] == digest_file(damaged / "model.safetensors")
    weights = load_file(damaged / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, damaged / "model.safetensors")
    with pytest.raises(UsageError, match=r"pretrained_model/model\.safetensors was altered"):
        evaluate_policy(config)


def test_a_policy_for_other_observations_is_refused_with_the_flag_that_helps(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate_policy(make_config(tmp_path, checkpoint, obs_type="pixels_agent_pos"))
    message = str(caught.value)
    assert message.startswith("env.obs_type: the policy needs observation.environment_state")
    assert f"--env.obs_type={STATE_OBSERVATIONS}" in message


def test_a_policy_for_another_robot_is_refused_by_its_shapes(damaged: Path, tmp_path: Path) -> None:
    values = json.loads((damaged / "config.json").read_text())
    values["input_features"]["observation.state"]["shape"] = [6]
    (damaged / "config.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match=r"observation.state of shape \(6,\), pusht has \(2,\)"):
        evaluate_policy(make_config(tmp_path, damaged))


@pytest.mark.parametrize("obs_type", ["foo", "pixels", "state"])
def test_observations_that_lerobot_cannot_read_are_refused(obs_type: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"env\.obs_type: pusht offers pixels_agent_pos or environment_state_agent_pos"
    ):
        make_config(tmp_path, checkpoint, obs_type=obs_type)


def test_a_device_that_is_asked_for_and_absent_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path, checkpoint)
    config.policy.device = "cuda:63"
    with pytest.raises(UsageError, match=r"policy\.device: cuda:63"):
        evaluate_policy(config)


def test_a_checkpoint_from_another_device_is_evaluated_on_this_one(damaged: Path, tmp_path: Path) -> None:
    values = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps({**values, "device": "cuda"}))
    result, _ = evaluate_policy(make_config(tmp_path / "results", damaged, eval={"n_episodes": 1}))
    assert result["provenance"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"eval": {"n_episodes": 0}}, "eval.n_episodes"),
        ({"eval": {"batch_size": 0}}, "eval.batch_size"),
        ({"eval": {"videos": 4}}, "eval.videos"),
        ({"seed": -1}, "seed"),
        ({"baseline": "mean_action"}, "dataset.repo_id"),
    ],
)
def test_impossible_settings_are_refused_by_their_key(changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        make_config(tmp_path, Path("anything"), **changes)
    assert caught.value.key == key


def test_a_policy_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"policy\.path: is missing"):
        make_config(tmp_path, None)


def test_a_hub_policy_that_cannot_be_reached_is_told_apart_from_a_missing_directory() -> None:
    with pytest.raises(UsageError, match="not in the Hub's cache"):
        find_policy_files("nobody/never-uploaded")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
