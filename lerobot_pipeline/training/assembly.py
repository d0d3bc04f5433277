"""Assembling a run from its config: data, policy, processors, optimizer, schedule, and what a checkpoint restores."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from lerobot.policies.factory import make_policy, make_pre_post_processors
from lerobot.utils.random_utils import set_seed
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lerobot_pipeline import files
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.backend.signals import end_workers_at_exit
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.forms import has_weights, load_tensors, load_weights
from lerobot_pipeline.checkpoint.optimizer import load_optimizer
from lerobot_pipeline.checkpoint.reader import Found
from lerobot_pipeline.checkpoint.state import (
    Progress,
    load_metric_window,
    load_progress,
    load_random_state,
    load_state,
    restore_random_state,
)
from lerobot_pipeline.checkpoint.weights import stored_tensors
from lerobot_pipeline.config.policy_files import SHARDS
from lerobot_pipeline.config.train import TrainConfig
from lerobot_pipeline.data.loading import Batch, TrainingData, load_datasets, make_stream, make_training_loader
from lerobot_pipeline.data.order import MicroBatches, SampleStream
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.training.adapting import adapt
from lerobot_pipeline.training.ema import EMA
from lerobot_pipeline.training.metrics import MetricWindow

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """Everything that the loop works with."""

    config: TrainConfig
    runtime: Runtime
    data: TrainingData
    policy: nn.Module
    """The policy as the layout prepared it; `runtime.unwrap` gives LeRobot's own."""

    preprocessor: Any
    postprocessor: Any
    optimizer: Optimizer
    scheduler: LRScheduler | None
    ema: EMA | None
    window: MetricWindow
    """Metrics since the last log."""

    stream: SampleStream
    batches: Iterator[Batch]
    progress: Progress

    @property
    def bare_policy(self) -> Any:
        """LeRobot's policy itself."""
        return self.runtime.unwrap(self.policy)

    @property
    def samples_per_step(self) -> int:
        """Samples that all ranks together consume in a loop step."""
        return self.config.batch_size * self.runtime.topology.world_size


def assemble(config: TrainConfig, runtime: Runtime, found: Found | None, dataset_root: Path) -> Run:
    """Build a run, from scratch or from a checkpoint. Collective.

    Args:
        found: the checkpoint to go on from, or None to start anew.
        dataset_root: where the dataset's files are.
    """
    seed = 0 if config.seed is None else config.seed
    _seed_everything(config, seed)
    data = load_datasets(config, dataset_root)
    later_from = found.pretrained_dir if found is not None else _sharded_start(config, runtime)
    bare_policy = _make_policy(config, data, found, is_filled_later=later_from is not None)
    preprocessor, postprocessor = _make_processors(config, data, bare_policy, runtime.device, found)
    policy, optimizer = runtime.prepare(bare_policy, partial(_make_optimizer, config))
    if later_from is not None:
        load_weights(runtime.unwrap(policy), later_from)
    scheduler = config.scheduler.build(optimizer, config.steps) if config.scheduler is not None else None
    ema = EMA(runtime.unwrap(policy), config.ema.decay) if config.ema.enable else None
    progress = _restore(config, runtime, policy, optimizer, scheduler, ema, found)
    window = MetricWindow()
    if found is not None:
        window.restore(load_metric_window(found.state_dir, runtime.rank, runtime.topology.world_size))
    stream = make_stream(data.train, seed, getattr(config.policy, "drop_n_last_frames", 0) or 0)
    batches = MicroBatches(stream, config.batch_size, runtime.rank, runtime.topology.world_size, progress.cursor)
    loader = make_training_loader(config, data.train, batches, runtime.device)
    run = Run(
        config=config,
        runtime=runtime,
        data=data,
        policy=policy,
        preprocessor=preprocessor,
        postprocessor=postprocessor,
        optimizer=optimizer,
        scheduler=scheduler,
        ema=ema,
        window=window,
        stream=stream,
        batches=iter(loader),
        progress=progress,
    )
    end_workers_at_exit()
    # Last of all, since building a policy draws random numbers too.
    _set_random_state(runtime, seed, found)
    return run


def _seed_everything(config: TrainConfig, seed: int) -> None:
    set_seed(seed)
    torch.backends.cudnn.deterministic = config.cudnn_deterministic
    torch.backends.cudnn.benchmark = not config.cudnn_deterministic


def _sharded_start(config: TrainConfig, runtime: Runtime) -> Path | None:
    """Return the directory whose shards fill a new sharded run, each rank reading its own part; None without one."""
    assert config.policy is not None
    start = config.policy.pretrained_path
    if not runtime.topology.is_sharded or config.policy.use_peft or start is None:
        return None
    return Path(start) if (Path(start) / SHARDS).is_dir() else None


def _make_policy(config: TrainConfig, data: TrainingData, found: Found | None, is_filled_later: bool) -> Any:
    assert config.policy is not None
    if config.policy.use_peft:
        return adapt(config, None if found is None else found.pretrained_dir, partial(_build_policy, config, data))
    if not is_filled_later:
        return _build_policy(config, data)
    start_from = config.policy.pretrained_path
    # A checkpoint's weights come once the policy is laid out; what training began with need not be at hand again.
    config.policy.pretrained_path = None
    policy = _build_policy(config, data)
    config.policy.pretrained_path = start_from
    return policy


def _build_policy(config: TrainConfig, data: TrainingData) -> Any:
    assert config.policy is not None
    try:
        return make_policy(config.policy, ds_meta=data.meta, rename_map=config.rename_map)
    except URLError as error:
        # torchvision fetches a backbone's weights from the network, whatever HF_HUB_OFFLINE says.
        key = "policy.pretrained_backbone_weights"
        reason = f"they cannot be downloaded here ({error.reason}); give --{key}=null to start from random ones"
        raise UsageError(key, reason) from error
    except (ValueError, ImportError, FileNotFoundError) as error:
        raise UsageError("policy", f"{config.policy.type} cannot be built: {error}") from error


def _make_processors(
    config: TrainConfig, data: TrainingData, policy: Any, device: torch.device, found: Found | None
) -> tuple[Any, Any]:
    policy_config = policy.config
    device_override = {"device_processor": {"device": device.type}}
    if found is not None:
        # What the checkpoint normalises with is part of the policy, whatever the dataset's statistics are by now.
        return make_pre_post_processors(
            policy_config, pretrained_path=str(found.pretrained_dir), preprocessor_overrides=device_override
        )
    if policy_config.pretrained_path is None:
        return make_pre_post_processors(policy_config, dataset_stats=data.meta.stats, dataset_meta=data.meta)
    features = {**policy_config.input_features, **policy_config.output_features}
    normalization = {"norm_map": policy_config.normalization_mapping, "stats": data.meta.stats}
    return make_pre_post_processors(
        policy_config,
        pretrained_path=str(policy_config.pretrained_path),
        pretrained_revision=policy_config.pretrained_revision,
        dataset_stats=data.meta.stats,
        dataset_meta=data.meta,
        preprocessor_overrides={
            **device_override,
            "normalizer_processor": {"features": features, **normalization},
            "rename_observations_processor": {"rename_map": config.rename_map},
        },
        postprocessor_overrides={
            "unnormalizer_processor": {"features": policy_config.output_features, **normalization}
        },
    )


def _make_optimizer(config: TrainConfig, policy: Any) -> Optimizer:
    assert config.optimizer is not None
    parameters = policy.get_optim_params() if config.use_policy_training_preset else policy.parameters()
    optimizer = config.optimizer.build(parameters)
    if not isinstance(optimizer, Optimizer):
        raise UsageError(
            "optimizer.type", f"{config.optimizer.type} makes several optimizers; choose one that makes one"
        )
    return optimizer


def _restore(
    config: TrainConfig,
    runtime: Runtime,
    policy: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    ema: EMA | None,
    found: Found | None,
) -> Progress:
    accumulation = config.accelerator.gradient_accumulation.steps
    world_size = runtime.topology.world_size
    if found is None:
        return Progress(0, 0, world_size, config.batch_size, accumulation)
    saved = load_progress(found.state_dir)
    load_optimizer(runtime.unwrap(policy), optimizer, found.state_dir, runtime.topology.is_sharded)
    for sentence in load_state(found.state_dir, scheduler, runtime.scaler):
        logger.warning("%s", sentence)
    if ema is not None:
        _restore_ema(ema, runtime.unwrap(policy), found)
    if (saved.dp_world_size, saved.batch_size) != (world_size, config.batch_size):
        logger.warning(
            "saved by %d ranks x batch %d, resumed by %d x %d: the sample order goes on exactly, random draws do not",
            saved.dp_world_size,
            saved.batch_size,
            world_size,
            config.batch_size,
        )
    return Progress(saved.step, saved.cursor, world_size, config.batch_size, accumulation, saved.skipped_updates)


def _restore_ema(ema: EMA, policy: nn.Module, found: Found) -> None:
    directory = found.step_dir / layout.EMA_MODEL
    if has_weights(directory):
        own = policy.state_dict() | ema.named_averages()
        averaged = {id(average) for average in ema.averages.values()}
        stored = stored_tensors(policy, own)
        load_tensors(policy, {name: tensor for name, tensor in stored.items() if id(tensor) in averaged}, directory)
        ema.num_updates = int(files.read_json(found.state_dir / layout.TRAINING_STEP)["ema_updates"])
    else:
        logger.warning("the checkpoint holds no average: it starts anew from the restored weights")


def _set_random_state(runtime: Runtime, seed: int, found: Found | None) -> None:
    stored = load_random_state(found.state_dir, runtime.rank) if found is not None else None
    if stored is not None:
        restore_random_state(stored)
    else:
        # Each rank draws its own dropout masks and noise.
        step = 0 if found is None else load_progress(found.state_dir).step
        set_seed((seed + 1_000_003 * runtime.rank + 7919 * step) % 2**32)
