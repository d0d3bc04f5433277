"""What is about to be trained, told once at the start."""

from __future__ import annotations

import logging

from lerobot_pipeline.checkpoint.weights import ADAPTER, is_adapted
from lerobot_pipeline.training.assembly import Run

logger = logging.getLogger(__name__)


def log_banner(run: Run) -> None:
    """Log device, precision, batch factors, updates and epochs."""
    for line in banner_lines(run):
        logger.info("%s", line)


def banner_lines(run: Run) -> list[str]:
    """Return the banner, a line a topic."""
    config, runtime, progress = run.config, run.runtime, run.progress
    accumulation = progress.accumulation_steps
    total_samples = run.samples_per_step * config.steps
    described = runtime.describe()
    parameters = described["parameters"]
    tf32 = described["tf32"]
    assert config.policy is not None
    how = "detected" if config.requested_device is None else "as asked"
    epochs = run.stream.epoch_of(total_samples)
    lines = [
        f"run directory {config.output_dir}",
        f"{config.policy.type}{_adapted(run)}: {parameters['trainable']:,} of {parameters['total']:,} parameters are "
        f"trained ({100 * parameters['trainable'] / parameters['total']:.3g} %)",
        f"{config.dataset.repo_id}: {run.data.train.num_episodes} episodes, {run.stream.num_samples} samples an epoch",
        f"{described['layout']} on {described['device_name']} ({described['device']}, {how}), mixed precision "
        f"{described['mixed_precision']}, TF32 matmul {_on(tf32['matmul'])} cuDNN {_on(tf32['cudnn'])}",
        f"effective batch {progress.effective_batch_size} = batch_size {progress.batch_size} x dp_world_size "
        f"{progress.dp_world_size} x accumulation {accumulation}; {run.samples_per_step} samples a step",
        f"{config.steps} steps = {config.steps // accumulation} updates = {epochs:.2f} epochs"
        + (f"; going on at step {progress.step}, sample {progress.cursor}" if progress.step else ""),
    ]
    if described["allowed_environment"]:
        lines.append(f"allowed by the environment: {described['allowed_environment']}")
    return lines


def _adapted(run: Run) -> str:
    if not is_adapted(run.bare_policy):
        return ""
    adapter = run.bare_policy.peft_config[ADAPTER]
    return f" with {adapter.peft_type.value} on {adapter.base_model_name_or_path}"


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"
