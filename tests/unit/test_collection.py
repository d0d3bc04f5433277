"""Demonstrations: deterministic, seen as lerobot's environment shows them, whole or not at all; the shipped set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.envs.configs import PushtEnv
from lerobot.envs.factory import make_env
from lerobot.envs.utils import close_envs, preprocess_observation

from lerobot_pipeline import cli, files
from lerobot_pipeline.config.collect import CollectConfig
from lerobot_pipeline.data.collection import command, expert
from lerobot_pipeline.data.collection.block import Block, to_block_frame, to_world_frame
from lerobot_pipeline.data.collection.command import collect
from lerobot_pipeline.data.collection.episode import ENVIRONMENT, OBSERVATION_TYPES, record_episode
from lerobot_pipeline.data.collection.world import PlanningWorld, WorldState
from lerobot_pipeline.data.collection.writer import DemonstrationWriter

SHIPPED = Path(__file__).parents[2] / "data" / "pusht_state_demo"
SHORT_SEED = 100_002
"""The seed of an episode that the expert solves in about 3 s, as it does the one after it."""


def load(root: Path) -> LeRobotDataset:
    return LeRobotDataset("local/demonstrations", root=root, video_backend="pyav")


def columns(dataset: LeRobotDataset, *names: str) -> list[Any]:
    table = dataset.hf_dataset.with_format("numpy")
    return [np.asarray(table[name][:]) for name in names]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes, recorded one after the other."""
    output = tmp_path_factory.mktemp("collection") / "one_worker"
    collect(CollectConfig(output_dir=output, num_episodes=2, seed=SHORT_SEED))
    return output


@pytest.fixture(scope="module", params=["state", "pixels"])
def short_dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """One episode, cut off after eight frames, of each kind of observation."""
    root = tmp_path_factory.mktemp("short") / request.param
    with DemonstrationWriter(root, request.param, name="local/short") as writer:
        writer.add(record_episode(SHORT_SEED, request.param, max_steps=8))
    return request.param, root


def _digests(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): files.digest_file(path) for path in files.list_files(root)}


def test_same_seeds_give_the_same_files_whatever_the_number_of_workers(collected: Path, tmp_path: Path) -> None:
    output = tmp_path / "two_workers"
    assert (
        cli.main(["collect", f"--output_dir={output}", "--num_episodes=2", f"--seed={SHORT_SEED}", "--num_workers=2"])
        == 0
    )
    assert _digests(output) == _digests(collected)


def test_another_seed_gives_another_episode() -> None:
    one, other = (record_episode(seed, "state", max_steps=4) for seed in (SHORT_SEED, SHORT_SEED + 1))
    assert not np.array_equal(one.actions, other.actions)


def test_observations_have_the_names_shapes_and_values_of_lerobots_environment(
    short_dataset: tuple[str, Path],
) -> None:
    kind, root = short_dataset
    environments = make_env(PushtEnv(obs_type=OBSERVATION_TYPES[kind]), n_envs=1)
    seen, _ = environments["pusht"][0].reset(seed=[SHORT_SEED])
    close_envs(environments)
    recorded = {key: value for key, value in load(root)[0].items() if key.startswith("observation.")}
    evaluated = {key: value[0] for key, value in preprocess_observation(seen).items()}
    assert recorded.keys() == evaluated.keys()
    for key, value in evaluated.items():
        torch.testing.assert_close(recorded[key], value, rtol=0, atol=1e-6)


def test_features_say_what_is_stored(short_dataset: tuple[str, Path]) -> None:
    kind, root = short_dataset
    features = load(root).meta.features
    stored = {key: (feature["dtype"], tuple(feature["shape"])) for key, feature in features.items()}
    seen = {
        "state": {"observation.environment_state": ("float32", (16,))},
        "pixels": {"observation.image": ("image", (96, 96, 3))},
    }[kind]
    expected = {
        "observation.state": ("float32", (2,)),
        "action": ("float32", (2,)),
        "next.reward": ("float32", (1,)),
        "next.success": ("bool", (1,)),
        "next.done": ("bool", (1,)),
        **seen,
    }
    assert {key: stored[key] for key in expected} == expected
    assert load(root).meta.fps == 10


def test_nothing_stands_beside_meta_and_data(short_dataset: tuple[str, Path]) -> None:
    assert {path.name for path in short_dataset[1].iterdir()} == {"meta", "data"}


def test_a_cut_off_episode_is_done_and_no_success(short_dataset: tuple[str, Path]) -> None:
    done, success = columns(load(short_dataset[1]), "next.done", "next.success")
    assert done.tolist() == [False] * 7 + [True]
    assert not success.any()


def assert_replays(dataset: LeRobotDataset, seeds: list[int], episodes: list[int], late_by: int = 0) -> None:
    """Play recorded actions again: every frame must show what the simulator shows before its action.

    `late_by` plants a fault: it takes observations from so many frames later.
    """
    state, corners = columns(dataset, "observation.state", "observation.environment_state")
    state, corners = np.roll(state, -late_by, axis=0), np.roll(corners, -late_by, axis=0)
    actions, rewards, success, owner = columns(dataset, "action", "next.reward", "next.success", "episode_index")
    environment = gymnasium.make(ENVIRONMENT, obs_type=OBSERVATION_TYPES["state"], disable_env_checker=True)
    for episode in episodes:
        observation, _ = environment.reset(seed=seeds[episode])
        for frame in np.flatnonzero(owner == episode):
            np.testing.assert_allclose(state[frame], observation["agent_pos"], atol=1e-2)
            np.testing.assert_allclose(corners[frame], observation["environment_state"], atol=1e-2)
            observation, reward, solved, _, _ = environment.step(actions[frame])
            assert rewards[frame] == pytest.approx(reward, abs=1e-3)
            assert success[frame] == solved
    environment.close()


def test_frames_are_seen_before_their_action_and_replay_to_the_same_end(collected: Path) -> None:
    assert_replays(load(collected), [SHORT_SEED, SHORT_SEED + 1], [0, 1])


def test_replay_notices_frames_that_are_seen_after_their_action(collected: Path) -> None:
    with pytest.raises(AssertionError):
        assert_replays(load(collected), [SHORT_SEED, SHORT_SEED + 1], [0], late_by=1)


def test_the_record_names_command_seeds_and_versions_but_no_place(collected: Path) -> None:
    record = files.read_json(collected / command.COLLECTION_FILE)
    assert record["command"] == [
        "lerobot-pipeline",
        "collect",
        "--num_episodes=2",
        f"--seed={SHORT_SEED}",
        "--obs=state",
    ]
    assert [episode["seed"] for episode in record["episodes"]] == [SHORT_SEED, SHORT_SEED + 1]
    assert {"lerobot", "gym-pusht", "numpy"} <= record["versions"].keys()
    assert str(collected.parent) not in (collected / command.COLLECTION_FILE).read_text()


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--num_episodes=0", "num_episodes"),
        ("--num_workers=0", "num_workers"),
        ("--seed=-1", "seed"),
        ("--obs=sound", "obs"),
    ],
)
def test_wrong_use_is_refused_in_one_line(
    flag: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["collect", f"--output_dir={tmp_path / 'new'}", flag]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"lerobot-pipeline collect: {told}:")
    assert message.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_directory_that_holds_something_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    assert cli.main(["collect", f"--output_dir={tmp_path}"]) == 2
    assert "output_dir" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_on_second(seed: int, kind: Any) -> Any:
        if seed > SHORT_SEED:
            raise OSError("planted")
        return record_episode(seed, kind, max_steps=4)

    monkeypatch.setattr(command, "record_episode", fail_on_second)
    with pytest.raises(OSError, match="planted"):
        collect(CollectConfig(output_dir=tmp_path / "half", num_episodes=2, seed=SHORT_SEED))
    assert list(tmp_path.iterdir()) == []


def test_the_expert_moves_no_faster_than_it_may_and_stays_inside_the_walls() -> None:
    environment = gymnasium.make(ENVIRONMENT, disable_env_checker=True)
    environment.reset(seed=SHORT_SEED)
    state = WorldState.of(environment.unwrapped)
    actions = np.concatenate([[state.agent_position], expert.Expert(seed=0).plan(state)])
    assert len(actions) == expert.STEPS_PER_PLAN + 1
    assert np.linalg.norm(np.diff(actions, axis=0), axis=-1).max() <= 20.0 + 1e-9
    assert actions.min() > 5
    assert actions.max() < 506


def test_the_planner_foresees_what_the_simulator_does() -> None:
    environment = gymnasium.make(ENVIRONMENT, obs_type=OBSERVATION_TYPES["state"], disable_env_checker=True)
    environment.reset(seed=SHORT_SEED)
    state = WorldState.of(environment.unwrapped)
    # Straight at the block: the forecast has to be right about the contact, not just about standing still.
    actions = np.linspace(state.agent_position, state.block_position, 12)
    poses = PlanningWorld().roll(state, actions[None])[0]
    for action in actions:
        environment.step(action.astype(np.float32))
    block = environment.unwrapped.block
    assert np.linalg.norm(poses[-1, :2] - poses[0, :2]) > 10
    np.testing.assert_allclose(poses[-1], [*block.position, block.angle], atol=0.5)


def test_block_geometry_agrees_with_the_simulator() -> None:
    environment = gymnasium.make(ENVIRONMENT, obs_type=OBSERVATION_TYPES["state"], disable_env_checker=True)
    observation, _ = environment.reset(seed=SHORT_SEED)
    state = WorldState.of(environment.unwrapped)
    pose = np.array([*state.block_position, state.block_angle])
    block = Block(PlanningWorld().block_corners)
    np.testing.assert_allclose(block.place(pose).ravel(), observation["environment_state"])
    np.testing.assert_allclose(to_world_frame(block.corners, pose), block.place(pose))
    np.testing.assert_allclose(to_block_frame(block.place(pose), pose), block.corners, atol=1e-9)


def test_distance_from_the_block_is_zero_inside_and_grows_along_the_normals() -> None:
    block = Block(PlanningWorld().block_corners)
    points, normals = block.contacts(spacing=18.0)
    np.testing.assert_allclose(block.distance(points), 0.0)
    free = block.distance(points + 5.0 * normals) > 0
    np.testing.assert_allclose(block.distance(points + 5.0 * normals)[free], 5.0)
    # The edge that the two rectangles share leads into the block, everything else out of it.
    assert 0 < (~free).sum() < len(points) / 4


def test_the_shipped_record_agrees_with_the_shipped_frames() -> None:
    record = files.read_json(SHIPPED / command.COLLECTION_FILE)
    dataset = load(SHIPPED)
    owner, rewards, success, done = columns(dataset, "episode_index", "next.reward", "next.success", "next.done")
    assert dataset.num_episodes == len(record["episodes"])
    for episode in record["episodes"]:
        frames = owner == episode["episode_index"]
        assert frames.sum() == episode["num_frames"]
        assert success[frames].any() == episode["success"]
        assert done[frames].sum() == 1
        assert rewards[frames].max() == pytest.approx(min(episode["max_coverage"] / 0.95, 1), abs=1e-5)
    assert record["num_success"] == sum(episode["success"] for episode in record["episodes"])


def test_the_shipped_demonstrations_are_good_small_and_apart_from_evaluation() -> None:
    episodes = files.read_json(SHIPPED / command.COLLECTION_FILE)["episodes"]
    assert [episode["seed"] for episode in episodes] == list(range(100_000, 100_000 + len(episodes)))
    assert len(episodes) >= 50
    assert np.mean([episode["success"] or episode["max_coverage"] > 0.8 for episode in episodes]) >= 0.9
    assert sum(path.stat().st_size for path in files.list_files(SHIPPED)) < 2_000_000


def test_shipped_episodes_replay_in_the_simulator() -> None:
    seeds = [episode["seed"] for episode in files.read_json(SHIPPED / command.COLLECTION_FILE)["episodes"]]
    assert_replays(load(SHIPPED), seeds, [0, len(seeds) // 2, len(seeds) - 1])
