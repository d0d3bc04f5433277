"""The model card: results, data, command, in a form that the Hub and people read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from lerobot_pipeline.config.publish import PublishConfig
from lerobot_pipeline.files import read_json, write_json
from lerobot_pipeline.publishing.publish import publish_checkpoint
from tests.publishing_helpers import REPO_ID, refusal


def test_card_carries_results_data_and_command(
    to_folder: Callable[..., PublishConfig], evaluation: Path, train_summary: Path
) -> None:
    config = to_folder(evaluation=evaluation, train_summary=train_summary, repo_id=REPO_ID, license="apache-2.0")
    publish_checkpoint(config)
    card = ModelCard.load(config.output_dir / "README.md")
    data = card.data
    assert (data.library_name, data.license, data.datasets) == ("lerobot", "apache-2.0", "lab/pusht")
    assert {"lerobot", "robotics", "act"} <= set(data.tags)
    success = next(result for result in data.eval_results if result.metric_type == "success_rate")
    assert (success.metric_value, success.dataset_type, data.model_name) == (0.74, "pusht", REPO_ID)
    assert success.metric_args == {"num_episodes": 50, "interval_95": [0.604, 0.841], "interval_method": "wilson"}
    assert "| Success rate | 0.740 | 0.604 to 0.841 | 50 | wilson |" in card.text
    assert "| Maximum coverage | 0.901 | 0.860 to 0.940 | 50 | bootstrap |" in card.text
    assert "\nlerobot-pipeline train --dataset.root=results/data --policy.type=act\n" in card.text
    for fact in ("ab" * 20, "cd" * 32, "| torch | 2.11.0 |", "| Final loss | 0.125 |", f'place = "{REPO_ID}"'):
        assert fact in card.text


def test_card_is_valid_markdown_tables_and_python(
    to_folder: Callable[..., PublishConfig], evaluation: Path, train_summary: Path
) -> None:
    config = to_folder(evaluation=evaluation, train_summary=train_summary)
    publish_checkpoint(config)
    text = ModelCard.load(config.output_dir / "README.md").text
    python = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(python) == 1
    compile(python[0], "card", "exec")
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        rows = table.splitlines()
        assert len(rows) >= 3, table
        assert len({row.count("|") for row in rows}) == 1, table
        assert set(rows[1]) <= set("|-:"), table
    assert "None" not in text
    assert "\n\n\n" not in text


def test_card_quotes_the_command_that_measured(to_folder: Callable[..., PublishConfig], evaluation: Path) -> None:
    command = ["/opt/venv/bin/lerobot-pipeline", "eval", "--env.type=pusht", "--seed=3"]
    write_json(evaluation, read_json(evaluation) | {"provenance": {"command": command}})
    config = to_folder(evaluation=evaluation)
    publish_checkpoint(config)
    assert "\nlerobot-pipeline eval --env.type=pusht --seed=3\n" in (config.output_dir / "README.md").read_text()


def test_card_without_evaluation_says_so(to_folder: Callable[..., PublishConfig]) -> None:
    config = to_folder()
    publish_checkpoint(config)
    card = ModelCard.load(config.output_dir / "README.md")
    assert card.data.eval_results is None
    assert card.data.license is None
    assert "without an evaluation" in card.text


def test_results_of_other_weights_are_refused(to_folder: Callable[..., PublishConfig], evaluation: Path) -> None:
    value = read_json(evaluation)
    value["policy"]["weights_digest"] = "0" * 64
    write_json(evaluation, value)
    assert "evaluation: is about weights 000000000000" in refusal(to_folder(evaluation=evaluation))


def test_final_loss_is_not_claimed_for_another_checkpoint(
    to_folder: Callable[..., PublishConfig], train_summary: Path
) -> None:
    write_json(train_summary, read_json(train_summary) | {"weights_digest": "0" * 64})
    config = to_folder(train_summary=train_summary)
    publish_checkpoint(config)
    text = (config.output_dir / "README.md").read_text()
    assert "Final loss" not in text
    assert "Effective batch size" in text


@pytest.mark.parametrize("content", ["{", "[]", '{"policy": {}}', None])
def test_unreadable_evaluation_is_refused(
    to_folder: Callable[..., PublishConfig], tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    assert refusal(to_folder(evaluation=path)).startswith("evaluation: ")
