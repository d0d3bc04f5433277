"""A training session: decide what is trained and from where, assemble it, run the loop, write the result."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.backend.launch import is_main_rank, world_size
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.backend.signals import SignalListener
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.publication import remove_leftovers
from lerobot_pipeline.checkpoint.reader import Found, find_checkpoint, newest_checkpoint
from lerobot_pipeline.checkpoint.state import load_progress
from lerobot_pipeline.config.attempt import AttemptOptions
from lerobot_pipeline.config.building import build_train_config
from lerobot_pipeline.config.publish import PublishConfig, PublishedPolicyConfig
from lerobot_pipeline.config.reader import Tree, merge
from lerobot_pipeline.config.request import TrainRequest, decode_train, without_stored_only
from lerobot_pipeline.config.rules import check_training
from lerobot_pipeline.config.science import science_of
from lerobot_pipeline.config.train import TrainConfig
from lerobot_pipeline.data.loading import find_dataset
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.phases import Phase, phase
from lerobot_pipeline.publishing.publish import check_target, publish_checkpoint
from lerobot_pipeline.training.adapting import require_public_base
from lerobot_pipeline.training.assembly import assemble
from lerobot_pipeline.training.banner import log_banner
from lerobot_pipeline.training.interruption import StopRequest, StopVote, find_deadline
from lerobot_pipeline.training.loop import TrainingLoop
from lerobot_pipeline.training.run_directory import (
    Attempt,
    default_run_dir,
    require_same_optimizer,
    require_same_science,
    run_dir_of,
)
from lerobot_pipeline.training.run_lock import RunLock
from lerobot_pipeline.training.summary import summarize

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What this session will train, and the checkpoint that it goes on from."""

    config: TrainConfig
    science: dict[str, Any]
    found: Found | None
    dataset_root: Path
    """Where the dataset's files are; it was looked over there."""

    newest_seen: list[str]
    """Name of the run's newest checkpoint, whole or not, when the plan was made; empty without any."""

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return Path(self.config.output_dir or ".")

    @property
    def is_done(self) -> bool:
        """Whether the run already reached its end in an earlier session."""
        return self.found is not None and load_progress(self.found.state_dir).step >= self.config.steps


def train(request: TrainRequest, signals: SignalListener, attempt: Attempt) -> None:
    """Train what was asked for and write the summary. Collective: every rank calls it.

    Raises:
        Stopped: a signal or a deadline ended the run early, with everything saved.
    """
    plan = make_plan(request)
    if is_main_rank() and (publication := _publication(plan)) is not None:
        # A missing token, right or base is found now, not after days of training.
        require_public_base(plan.config)
        check_target(publication)
    with ExitStack() as held:
        with closing(Runtime.from_config(plan.config)) as runtime:
            vote = StopVote(StopRequest(signals), runtime)
            vote.stop_before_the_start()
            # A default name holds the time of day, which differs from rank to rank.
            plan.config.output_dir = Path(runtime.broadcast(str(plan.run_dir)))
            lock = _lock_run_dir(plan, runtime, request.attempt)
            if lock is not None:
                held.callback(lock.release)
                attempt.open_in(plan.run_dir)
                vote.request.deadline = find_deadline(request.attempt)
            plan = _as_it_stands_now(plan, runtime, request)
            if runtime.is_main:
                _prepare_run_dir(plan, runtime)
            runtime.barrier()
            if plan.is_done:
                logger.info("%s is trained to step %d already", plan.run_dir, plan.config.steps)
            else:
                _train_from_there(plan, runtime, vote, lock)
        if runtime.is_main:
            _conclude(plan, runtime, request)


def _train_from_there(plan: Plan, runtime: Runtime, vote: StopVote, lock: RunLock | None) -> None:
    with phase(Phase.ASSEMBLY):
        run = assemble(plan.config, runtime, plan.found, plan.dataset_root)
    vote.stop_before_the_start()
    log_banner(run)
    TrainingLoop(run, plan.science, vote, lock).train()


def make_plan(request: TrainRequest) -> Plan:
    """Find the checkpoint to go on from, and build the config of the run.

    Raises:
        UsageError: among others, where the run directory holds a run of another config.
    """
    values = request.values
    newest_seen = _newest_name(request)
    if request.config_path is not None:
        found: Found | None = find_checkpoint(request.config_path)
        assert found is not None
        values = _over_stored(found, values)
    else:
        found = _newest_in(values.get("output_dir"))
    config = build_train_config(values, request.requested_device)
    _, topology = Runtime.require_possible(config)
    if topology.is_sharded and config.checkpoint_format == "dcp" and config.policy and config.policy.push_to_hub:
        reason = "dcp leaves shards only, which are never published; use safetensors_dcp"
        raise UsageError("checkpoint_format", reason)
    if config.output_dir is None:
        config.output_dir = default_run_dir(config.job_name or "run")
    science = science_of(config.to_dict(), world_size())
    if found is not None:
        _require_whole_updates(found, config)
    if found is not None and request.config_path is None:
        require_same_science(found, science, Path(config.output_dir))
    elif found is not None:
        require_same_optimizer(found, science)
    return Plan(config, science, found, find_dataset(config), newest_seen)


def _require_whole_updates(found: Found, config: TrainConfig) -> None:
    """Refuse a changed accumulation that would leave the last gradients without their update, and so unsaved."""
    accumulation = config.accelerator.gradient_accumulation.steps
    left = config.steps - load_progress(found.state_dir).step
    if left > 0 and left % accumulation:
        fitting = config.steps - left % accumulation + accumulation
        raise UsageError(
            "steps",
            f"{left} are left to step {config.steps}, no multiple of accelerator.gradient_accumulation.steps="
            f"{accumulation}, so the last gradients would be lost; use {fitting}",
        )


def _conclude(plan: Plan, runtime: Runtime, request: TrainRequest) -> None:
    """Write the summary and publish, where that was asked for. Main rank only."""
    if request.summary is not None:
        command = ["lerobot-pipeline", *sys.argv[1:]]
        files.write_json(
            request.summary, summarize(plan.run_dir, plan.config, runtime, request.science_digest, command)
        )
    publication = _publication(plan, request.summary)
    if publication is not None and _reached_step(plan.run_dir) < plan.config.steps:
        logger.warning("stopped before the last step: not published yet")
    elif publication is not None:
        logger.info("published %s", publish_checkpoint(publication)["url"])


def _reached_step(run_dir: Path) -> int:
    # Whether it is whole is asked by whoever reads it; hashing every byte here would only do that twice.
    steps = layout.step_dirs(run_dir)
    return int(steps[-1].name) if steps else 0


def _publication(plan: Plan, train_summary: Path | None = None) -> PublishConfig | None:
    """Return what is published at the end of the run, or None: nothing is, unless it was asked for."""
    policy = plan.config.policy
    if policy is None or not policy.push_to_hub:
        return None
    return PublishConfig(
        policy=PublishedPolicyConfig(path=plan.run_dir / layout.CHECKPOINTS / layout.LAST),
        target="hub",
        repo_id=policy.repo_id,
        private=policy.private is not False,
        license=policy.license,
        train_summary=train_summary,
    )


def _over_stored(found: Found, values: Tree) -> Tree:
    if (values.get("policy") or {}).get("path"):
        raise UsageError(
            "policy.path", "cannot be given with --resume=true, which goes on with the checkpoint's own weights"
        )
    stored = decode_train(without_stored_only(files.read_json(found.pretrained_dir / layout.TRAIN_CONFIG)))
    # It was about the attempt that it ended.
    stored.pop("stop_at_step", None)
    # The run goes on where its checkpoint lies, even if the directory was moved since.
    if "peft" in values and merge(stored, values)["peft"] != stored.get("peft"):
        raise UsageError("peft", "cannot be changed with --resume=true, which goes on with the checkpoint's adapter")
    stored["output_dir"] = str(found.step_dir.resolve().parent.parent)
    merged = merge(stored, {key: value for key, value in values.items() if key != "resume"})
    check_training(merged, complete=True)
    return merged


def _newest_name(request: TrainRequest) -> list[str]:
    given = request.values.get("output_dir")
    run_dir = run_dir_of(request.config_path) if request.config_path is not None else given and Path(given)
    return [path.name for path in layout.step_dirs(run_dir)][-1:] if run_dir else []


def _newest_in(output_dir: str | None) -> Found | None:
    if output_dir is None:
        return None
    path = Path(output_dir)
    if path.exists() and not path.is_dir():
        raise UsageError("output_dir", f"{path} is a file; name a directory")
    return newest_checkpoint(path)


def _lock_run_dir(plan: Plan, runtime: Runtime, options: AttemptOptions) -> RunLock | None:
    """Make and lock the run directory on the main rank. Collective: a refusal is every rank's.

    Raises:
        UsageError: the directory cannot be made, or another process trains there.
    """
    lock, refusal = None, None
    if runtime.is_main:
        try:
            plan.run_dir.mkdir(parents=True, exist_ok=True)
            lock = RunLock.take(plan.run_dir, options.override_lock)
        except OSError as error:
            refusal = ("output_dir", f"{plan.run_dir} cannot be made: {error.strerror}")
        except UsageError as error:
            refusal = (error.key, error.reason)
    refusal = runtime.broadcast(refusal)
    if refusal is not None:
        raise UsageError(*refusal)
    return lock


def _as_it_stands_now(plan: Plan, runtime: Runtime, request: TrainRequest) -> Plan:
    """Return a plan that knows what whoever held the lock before has saved after the first one was made. Collective."""
    newest = runtime.broadcast([path.name for path in layout.step_dirs(plan.run_dir)][-1:])
    if all(runtime.gather(plan.newest_seen == newest)):
        return plan
    anew = make_plan(request)
    anew.config.output_dir = plan.run_dir
    return anew


def _prepare_run_dir(plan: Plan, runtime: Runtime) -> None:
    remove_leftovers(plan.run_dir)
    if plan.found is not None:
        for line in plan.found.passed_over:
            logger.warning("passed over a damaged checkpoint: %s", line)
        logger.info("going on from %s", plan.found.step_dir)
    if plan.config.checkpoint_format != "safetensors" and not runtime.topology.is_sharded:
        logger.warning(
            "checkpoint_format %s is for sharded runs; writing model.safetensors", plan.config.checkpoint_format
        )
