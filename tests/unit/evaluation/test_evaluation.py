"""Evaluation: results carry every episode and where it came from, and are replaced whole."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from lerobot.envs.configs import PushtEnv
from lerobot.envs.factory import make_env, make_env_pre_post_processors
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors
from lerobot.scripts.lerobot_eval import rollout
from safetensors.torch import load_file, save_file

from lerobot_pipeline.config.eval import (
    DemonstrationsConfig,
    InferencePrecisionConfig,
)
from lerobot_pipeline.evaluation.baselines import NearestDemonstration
from lerobot_pipeline.evaluation.policies import load_policy, load_policy_config
from lerobot_pipeline.evaluation.policy_files import find_policy_files
from lerobot_pipeline.evaluation.results import aggregate
from lerobot_pipeline.evaluation.rollouts import Actor, Episode, open_environments, play_batch, split_into_batches
from lerobot_pipeline.files import digest_file, fresh_directory
from tests.publishing_helpers import contents
from tests.unit.evaluation.evaluating import EPISODE_STEPS, STATE_OBSERVATIONS, evaluate_policy, make_config


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
        (batch,) = split_into_batches("pusht/0", seeds, 4)
        ours = play_batch(envs["pusht/0"], actor, batch)
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
    assert [path.name for path in (result_dir / "videos").iterdir()] == ["pusht-0-seed-1000-failure.mp4"]
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


def test_vectorised_and_sequential_episodes_agree(shared_data: Path, tmp_path: Path) -> None:
    demonstrations = DemonstrationsConfig(repo_id="lerobot/pusht", root=str(shared_data / "pusht_image_slice_v30"))
    results = [
        evaluate_policy(
            make_config(
                tmp_path,
                None,
                baseline="nearest_demonstration",
                dataset=demonstrations,
                eval={"n_episodes": 5, "batch_size": batch_size},
            )
        )[0]
        for batch_size in (1, 2, 5)
    ]
    assert results[0]["episodes"] == results[1]["episodes"] == results[2]["episodes"]
    assert results[0]["aggregate"] == results[2]["aggregate"]


def test_several_processes_give_the_result_of_one(checkpoint: Path, tmp_path: Path) -> None:
    playing = {"n_episodes": 5, "batch_size": 2, "videos": 3}
    alone, directory = evaluate_policy(make_config(tmp_path / "one", checkpoint, eval=playing))
    shared, other = evaluate_policy(make_config(tmp_path / "two", checkpoint, eval=playing | {"num_processes": 2}))
    assert shared == alone
    assert contents(other) == contents(directory)


def test_averaged_weights_are_evaluated_from_their_own_directory(damaged: Path, tmp_path: Path) -> None:
    average = Path(shutil.copytree(damaged, damaged.parent / "pretrained_model_ema"))
    weights = load_file(average / "model.safetensors")
    save_file({name: tensor * 0.5 for name, tensor in weights.items()}, average / "model.safetensors")
    paths = (damaged.parent, average)
    trained, averaged = (
        evaluate_policy(make_config(tmp_path, path, eval={"n_episodes": 1}))[0]["policy"]["weights_digest"]
        for path in paths
    )
    assert trained == digest_file(damaged / "model.safetensors")
    assert averaged == digest_file(average / "model.safetensors") != trained


def test_a_runs_summary_tells_the_dataset_of_the_weights_that_it_names(damaged: Path, tmp_path: Path) -> None:
    step_dir = tmp_path / "run" / "checkpoints" / "000010"
    step_dir.parent.mkdir(parents=True)
    damaged.parent.rename(step_dir)
    (step_dir.parent / "last").symlink_to(step_dir.name)
    (step_dir / "pretrained_model" / "train_config.json").write_text('{"dataset": {"repo_id": "a/b", "root": "/x"}}')
    files = find_policy_files(str(step_dir.parent / "last"))
    assert files.training_data() == {"repo_id": "a/b"}
    dataset = {"repo_id": "a/b", "revision": "v3.0", "digest": "0" * 64}
    summary = tmp_path / "run" / "train.json"
    summary.write_text(json.dumps({"weights_digest": files.weights_digest(), "dataset": dataset}))
    assert files.training_data() == dataset
    summary.write_text(json.dumps({"weights_digest": "another training's", "dataset": dataset}))
    assert files.training_data() == {"repo_id": "a/b"}
