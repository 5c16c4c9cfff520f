"""Networks shared by tests: some written for SB3, and some without kinks."""

from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class TwoTowers(nn.Module):
    """Separate hidden layers for policy and value, with the attributes that SB3 asks for."""

    def __init__(self, feature_dim: int, latent_dim_pi: int = 24, latent_dim_vf: int = 24):
        super().__init__()
        self.latent_dim_pi, self.latent_dim_vf = latent_dim_pi, latent_dim_vf
        self.policy_tower = nn.Sequential(nn.Linear(feature_dim, latent_dim_pi), nn.ReLU())
        self.value_tower = nn.Sequential(nn.Linear(feature_dim, latent_dim_vf), nn.ReLU())

    def forward(self, features):
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features):
        return self.policy_tower(features)

    def forward_critic(self, features):
        return self.value_tower(features)


class TowerPolicy(ActorCriticPolicy):
    """A policy class written for SB3."""

    def __init__(self, observation_space, action_space, lr_schedule, *args, **kwargs):
        kwargs["ortho_init"] = False
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

    def _build_mlp_extractor(self):
        self.mlp_extractor = TwoTowers(self.features_dim)


def without_kinks(model):
    """The same model with smooth activations in place of ReLUs, such as the networks for images have.

    With those, two equally right results of training are not always close: among the ten million inputs of ReLUs in
    one ``train()`` some are within rounding of 0, where the rounding decides whether a sample has a gradient there. On
    some processors SB3 then differs from SB3 that adds in another order by 1e-4 in single weights. Without kinks all
    agree within 1e-7.
    """
    for module in list(model.policy.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.SiLU())
    return model


class Batched(BaseFeaturesExtractor):
    """An extractor with buffers."""

    def __init__(self, observation_space):
        super().__init__(observation_space, observation_space.shape[0])
        self.norm = nn.BatchNorm1d(observation_space.shape[0])

    def forward(self, observations):
        return self.norm(observations)
