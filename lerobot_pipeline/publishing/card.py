"""The model card: what the policy is, what it scored and how it was made, for people and for the Hub's index."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from lerobot_pipeline.config.publish import is_repo_id
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.publishing.sanitizing import BASE_KEY, public_command

_MARK = "lerobot-pipeline"
"""The tag by which a directory is known as a publication of ours."""

_METRIC_NAMES = {"success": "Success rate", "max_coverage": "Maximum coverage", "sum_reward": "Sum of rewards"}


@dataclass(frozen=True, kw_only=True)
class CardSources:
    """Everything the card is made from, already sanitised. Absent summaries are empty dictionaries."""

    repo_id: str | None
    license: str | None
    base_model: str | None
    is_adapter: bool
    weights_digest: str
    policy_config: dict[str, Any]
    train_config: dict[str, Any]
    adapter_config: dict[str, Any]
    train_summary: dict[str, Any]
    evaluation: dict[str, Any]

    @property
    def policy_type(self) -> str:
        """`act`, `diffusion`, ...; `policy` where the config names none."""
        return str(self.policy_config.get("type", "policy"))

    @property
    def dataset(self) -> dict[str, Any]:
        """`repo_id`, `revision`, `digest` of the training data, as far as known."""
        return self.train_summary.get("dataset") or self.train_config.get("dataset") or {}

    @property
    def name(self) -> str:
        """The title: the repository, or policy and data where there is none."""
        data = str(self.dataset.get("repo_id") or "").rpartition("/")[2]
        return self.repo_id or "-".join(filter(None, [self.policy_type, data]))

    @property
    def base(self) -> str | None:
        """Hub id of the policy that this one starts from, if any."""
        return self.base_model or self.adapter_config.get(BASE_KEY) or self.policy_config.get("pretrained_path")


@dataclass(frozen=True)
class Result:
    """One metric of the evaluation."""

    key: str
    name: str
    mean: float
    num_episodes: int
    interval: tuple[float, float] | None
    method: str

    @property
    def interval_text(self) -> str:
        """`0.62 to 0.84`, or a dash."""
        return f"{self.interval[0]:.3f} to {self.interval[1]:.3f}" if self.interval else "-"


def render_card(sources: CardSources) -> str:
    """Return the text of README.md. Equal sources give equal text: there is no date in it."""
    results = _results(sources.evaluation)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    text = environment.from_string(_template()).render(
        card_data=_metadata(sources, results).to_yaml(),
        sources=sources,
        results=results,
        environment=sources.evaluation.get("env", {}),
        features=_features(sources.policy_config),
        training=_training(sources),
        command=public_command(sources.train_summary.get("command") or []),
        evaluation_command=public_command(sources.evaluation.get("provenance", {}).get("command") or []),
        versions=sources.train_summary.get("versions") or {},
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def template_words() -> set[str]:
    """Words of the card's fixed text, which are on every card and tell nothing about a machine."""
    return set(re.findall(r"\w+", _template()))


def is_card_of_ours(path: Path) -> bool:
    """Whether `path` is a card that `render_card` wrote."""
    if not path.is_file():
        return False
    try:
        card = ModelCard(path.read_text(encoding="utf-8"), ignore_metadata_errors=True)
    except ValueError:
        return False
    return _MARK in (card.data.get("tags") or [])


def _template() -> str:
    return (files("lerobot_pipeline.publishing") / "model_card.md.jinja").read_text(encoding="utf-8")


def _metadata(sources: CardSources, results: list[Result]) -> ModelCardData:
    environment = sources.evaluation.get("env", {})
    kind, task = str(environment.get("type", "simulator")), environment.get("task")
    dataset = str(sources.dataset.get("repo_id"))
    return ModelCardData(
        library_name="lerobot",
        pipeline_tag="robotics",
        tags=["lerobot", "robotics", _MARK, sources.policy_type, *(["peft"] if sources.is_adapter else [])],
        license=sources.license,
        datasets=dataset if is_repo_id(dataset) else None,
        base_model=sources.base,
        model_name=sources.name,
        eval_results=[
            EvalResult(
                task_type="robotics",
                task_name="Robotics",
                dataset_type=kind,
                dataset_name=f"{kind} ({task})" if task else kind,
                metric_type=result.key,
                metric_name=result.name,
                metric_value=round(result.mean, 6),
                metric_args={
                    "num_episodes": result.num_episodes,
                    "interval_95": list(result.interval) if result.interval else None,
                    "interval_method": result.method,
                },
            )
            for result in results
        ]
        or None,
    )


def _results(evaluation: dict[str, Any]) -> list[Result]:
    if not evaluation:
        return []
    try:
        return [_result(key, value) for key, value in evaluation["aggregate"].items()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError("evaluation", f"has no readable aggregate ({error!r}); give an eval.json") from error


def _result(key: str, value: dict[str, Any]) -> Result:
    interval = value.get("interval")
    return Result(
        key="success_rate" if key == "success" else key,
        name=_METRIC_NAMES.get(key, key.replace("_", " ").capitalize()),
        mean=float(value["mean"]),
        num_episodes=int(value["n"]),
        interval=(float(interval[0]), float(interval[1])) if interval else None,
        method=str(value.get("method") or "-"),
    )


def _features(policy_config: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(input or output, name, type, shape) of every feature that the policy reads or writes."""
    groups = (("input", policy_config.get("input_features")), ("output", policy_config.get("output_features")))
    return [
        (group, name, str(feature.get("type", "")), " x ".join(map(str, feature.get("shape", []))))
        for group, features in groups
        for name, feature in (features or {}).items()
    ]


def _training(sources: CardSources) -> dict[str, Any]:
    """Label -> value. Step and loss are the run's last, so they are left out where other weights are published."""
    summary, config = sources.train_summary, sources.train_config
    is_last = summary.get("weights_digest") in (None, sources.weights_digest)
    loss = summary.get("final_loss") if is_last else None
    rows = {
        "Training step": summary.get("step") if is_last else None,
        "Effective batch size": summary.get("effective_batch_size"),
        "Final loss": None if loss is None else f"{loss:.6g}",
        "Seed": config.get("seed"),
        "Digest of the run's settings (SHA-256)": summary.get("science_digest"),
    }
    return {label: value for label, value in rows.items() if value is not None}
