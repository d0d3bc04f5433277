"""Policies without a language model. Nothing is patched: they are built from their configs alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.policies.small_policy import ACTION, ACTION_DIM, IMAGE, STATE, STATE_DIM, Sample, SmallPolicy, builds, draws
from tests.policies.small_policy import features as small_features

ENV, ENV_DIM = "observation.environment_state", 7


@builds("act")
def act() -> SmallPolicy:
    """ACT with a camera. One action a chunk, since its loss divides by the batch's valid actions."""
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    config = ACTConfig(
        **small_features(image=32),
        chunk_size=1,
        n_action_steps=1,
        dim_model=32,
        n_heads=2,
        dim_feedforward=33,
        n_encoder_layers=2,
        n_vae_encoder_layers=1,
        latent_dim=4,
        dropout=0.0,
        pretrained_backbone_weights=None,
    )

    def sample(index: int) -> Sample:
        draw = draws(index)
        return {
            IMAGE: draw(3, 32, 32).sigmoid(),
            STATE: draw(STATE_DIM),
            ACTION: draw(1, ACTION_DIM),
            "action_is_pad": torch.zeros(1, dtype=torch.bool),
        }

    return SmallPolicy(ACTPolicy(config), sample, _without_actions, idle_in_action=("model.vae_encoder.*",))


@builds("diffusion")
def diffusion() -> SmallPolicy:
    """Diffusion with a camera and group normalization: batch statistics would depend on how a batch is cut."""
    return _diffusion(use_group_norm=True, image=32)


@builds("diffusion with batch norm", is_variant=True)
def diffusion_with_batch_norm() -> SmallPolicy:
    """Diffusion as LeRobot has it by default, with 20 BatchNorm layers."""
    return _diffusion(use_group_norm=False, image=64)


def _diffusion(use_group_norm: bool, image: int) -> SmallPolicy:
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    config = DiffusionConfig(
        **small_features(image=image),
        horizon=8,
        n_action_steps=4,
        down_dims=(16, 32),
        n_groups=4,
        diffusion_step_embed_dim=16,
        spatial_softmax_num_keypoints=4,
        num_inference_steps=2,
        pretrained_backbone_weights=None,
        use_group_norm=use_group_norm,
    )

    def sample(index: int) -> Sample:
        draw = draws(index)
        return {
            IMAGE: draw(2, 3, image, image).sigmoid(),
            STATE: draw(2, STATE_DIM),
            ACTION: draw(8, ACTION_DIM).tanh(),
            "action_is_pad": torch.zeros(8, dtype=torch.bool),
        }

    return SmallPolicy(DiffusionPolicy(config), sample, _newest_observation)


@builds("vqbet")
def vqbet() -> SmallPolicy:
    """VQ-BeT in its second phase: the first learns codes by running averages over what a rank sees."""
    from lerobot.policies.vqbet.configuration_vqbet import VQBeTConfig
    from lerobot.policies.vqbet.modeling_vqbet import VQBeTPolicy

    config = VQBeTConfig(
        **small_features(image=32),
        n_obs_steps=2,
        crop_shape=None,
        pretrained_backbone_weights=None,
        use_group_norm=True,
        spatial_softmax_num_keypoints=4,
        vqvae_n_embed=4,
        vqvae_embedding_dim=8,
        vqvae_enc_hidden_dim=8,
        gpt_block_size=20,
        gpt_input_dim=16,
        gpt_output_dim=16,
        gpt_hidden_dim=16,
        gpt_n_layer=2,
        gpt_n_head=2,
        offset_loss_weight=10.0,
    )
    policy = VQBeTPolicy(config)
    codes = policy.vqbet.action_head.vqvae_model
    codes.discretized.fill_(True)
    codes.vq_layer.freeze_codebook.fill_(True)

    def sample(index: int) -> Sample:
        draw = draws(index)
        return {
            IMAGE: draw(2, 3, 32, 32).sigmoid(),
            STATE: draw(2, STATE_DIM),
            ACTION: draw(8, ACTION_DIM).tanh(),
        }

    return SmallPolicy(policy, sample, _newest_observation)


@builds("tdmpc")
def tdmpc() -> SmallPolicy:
    """TD-MPC on environment states."""
    from lerobot.policies.tdmpc.configuration_tdmpc import TDMPCConfig
    from lerobot.policies.tdmpc.modeling_tdmpc import TDMPCPolicy

    config = TDMPCConfig(
        **small_features(env=ENV_DIM),
        horizon=3,
        n_action_repeats=1,
        state_encoder_hidden_dim=16,
        latent_dim=8,
        mlp_dim=16,
        cem_iterations=2,
        n_gaussian_samples=8,
        n_pi_samples=4,
        n_elites=4,
    )

    def sample(index: int) -> Sample:
        draw = draws(index)
        return {
            STATE: draw(4, STATE_DIM),
            ENV: draw(4, ENV_DIM),
            ACTION: draw(3, ACTION_DIM).tanh(),
            "next.reward": draw(3),
            "next.reward_is_pad": torch.zeros(3, dtype=torch.bool),
            "observation.state_is_pad": torch.zeros(4, dtype=torch.bool),
            "action_is_pad": torch.zeros(3, dtype=torch.bool),
            "index": torch.tensor(index),
        }

    def observe(batch: Sample) -> Sample:
        return {key: batch[key][:, 0] for key in (STATE, ENV)}

    return SmallPolicy(
        TDMPCPolicy(config),
        sample,
        observe,
        idle_in_training=("model_target._[drpV]*",),
        idle_in_action=("model_target.*", "model._V"),
    )


@builds("gaussian_actor")
def gaussian_actor() -> SmallPolicy:
    """The actor of SAC, on states and a camera; its forward returns actions, so the test brings a loss."""
    from lerobot.policies.gaussian_actor.configuration_gaussian_actor import GaussianActorConfig
    from lerobot.policies.gaussian_actor.modeling_gaussian_actor import GaussianActorPolicy

    config = GaussianActorConfig(**small_features(image=64), latent_dim=16, image_encoder_hidden_dim=8)

    def sample(index: int) -> Sample:
        draw = draws(index)
        return {IMAGE: draw(3, 64, 64).sigmoid(), STATE: draw(STATE_DIM), ACTION: draw(ACTION_DIM).tanh()}

    def loss(policy: nn.Module, batch: Sample) -> Tensor:
        outputs = policy({key: batch[key] for key in (IMAGE, STATE)})
        distance = (outputs["action"] - batch[ACTION]).square().mean()
        return distance + 0.01 * outputs["log_prob"].mean()

    # The actor sees the images of an encoder that it shares with the critics without training it.
    detached = ("encoder_critic.post_encoders.*",)
    return SmallPolicy(GaussianActorPolicy(config), sample, _without_actions, loss, unconnected=detached)


def _without_actions(batch: Sample) -> Sample:
    return {key: batch[key] for key in (IMAGE, STATE)}


def _newest_observation(batch: Sample) -> Sample:
    return {key: batch[key][:, -1] for key in (IMAGE, STATE)}
