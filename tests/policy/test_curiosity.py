"""Random network distillation: what is new is rewarded, of every kind of observation."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, vec
from parametrization import part
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from stream_envs import counting

from ppo_plus import PPO_Plus, RandomNetworkDistillation


def make(observation="box", policy="MlpPolicy", env=None, **kwargs):
    env = vec(ACTIONS["discrete"], OBSERVATIONS[observation]) if env is None else env
    streams = [RandomNetworkDistillation()]
    kwargs = {"n_steps": 16, "batch_size": 16, "seed": 0, "device": "cpu"} | kwargs
    return PPO_Plus(policy, env, streams=streams, **kwargs)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_it_reads_every_kind_of_observation(observation):
    policy = "MultiInputPolicy" if observation.startswith("dict") else "MlpPolicy"
    model = make(observation, policy)
    part = model.policy.streams.parts[0]
    target = [weight.clone() for weight in part.target.parameters()]
    model.learn(64)
    assert 0 < model.logger.name_to_value["train/curiosity_loss"] < np.inf
    assert all(map(th.equal, target, part.target.parameters()))
    assert (model.rollout_buffer.stream_buffers[0].rewards > 0).all()


class Corridor(gym.Env):
    """Six places in a row, one after another; the last one ends the episode."""

    observation_space, action_space = gym.spaces.Box(0.0, 1.0, (6,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self._here(), {}

    def step(self, action):
        self.place += 1
        return self._here(), 0.0, self.place == 5, False, {}

    def _here(self):
        return np.eye(6, dtype=np.float32)[self.place]


@pytest.mark.parametrize("policy", part(["MlpPolicy", "MlpLruPolicy"], ["MlpPolicy"]))
def test_the_last_observation_of_an_episode_is_learned_like_the_others(policy):
    env = DummyVecEnv([Corridor] * 2)
    model = make(env=env, policy=policy, n_steps=50, batch_size=50, n_epochs=4, learning_rate=1e-3)

    def errors():
        with th.no_grad():
            return model.policy.streams.parts[0].rewards(None, None, th.eye(6))

    model.learn(100)
    first = errors()
    model.learn(2_000)
    # The place that an episode begins at follows no other, and is never rewarded.
    assert (errors()[1:] < first[1:] / 2).all()


class Pretrained(BaseFeaturesExtractor):
    def __init__(self, space, backbone):
        super().__init__(space, 8)
        self.backbone = backbone

    def forward(self, obs):
        return self.backbone(obs)


def test_what_extractors_are_given_is_the_policys_and_the_target_is_fixed():
    backbone = th.nn.Sequential(th.nn.Linear(6, 8), th.nn.BatchNorm1d(8))
    before = backbone[0].weight.detach().clone()
    extractor = {"features_extractor_class": Pretrained, "features_extractor_kwargs": {"backbone": backbone}}
    model = make(env=DummyVecEnv([Corridor] * 2), policy_kwargs={**extractor, "ortho_init": False})
    target = model.policy.streams.parts[0].target
    assert th.equal(backbone[0].weight, before) and all(weight.requires_grad for weight in backbone.parameters())
    model.policy.set_training_mode(True)
    outputs = target(inputs := th.ones(3, 6))
    model.learn(64).policy.set_training_mode(True)
    assert not th.equal(backbone[0].weight, before) and th.equal(target(inputs), outputs)


def test_pieces_of_a_rollout_may_have_no_transitions(monkeypatch):
    monkeypatch.setattr("ppo_plus.rollout.streams.AT_ONCE", 8)
    make(env=gym.make_vec("Pendulum-v1", 4, max_episode_steps=3), n_steps=8).learn(32)


def test_it_reads_boxes_that_cannot_be_sampled():
    most = np.finfo(np.float64).max
    observations = gym.spaces.Dict(a=gym.spaces.Box(-most, most, (2,), np.float64), b=gym.spaces.Discrete(3, start=5))
    env = vec(ACTIONS["discrete"], observations)
    assert len(make(env=env, policy="MultiInputPolicy").policy.streams.parts) == 1


def test_moments_are_in_the_order_that_files_have():
    """Sorted by name, whatever the order in the space."""
    boxes = {"velocity": gym.spaces.Box(-1, 1, (3,)), "angle": gym.spaces.Box(-1, 1, (2,))}
    model = make(env=vec(ACTIONS["discrete"], gym.spaces.Dict(boxes)), policy="MultiInputPolicy")
    assert [*model.policy.streams.parts[0].normalizer.shapes] == ["angle", "velocity"]


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sums():
    model = make(env=counting(2), learning_rate=0.0, n_steps=64, batch_size=64)
    model.learn(128)
    part, buffer = model.policy.streams.parts[0], model.rollout_buffer
    obs = buffer.stored("observations")
    with th.no_grad():
        raw = part.rewards(None, None, obs[1:].flatten(0, 1)).view(63, 2)
    # But for the last steps of episodes, the next observation is the one that is stored next.
    inside = buffer.stored("episode_starts")[1:] == 0
    rewards = buffer.stream_buffers[0].stored("rewards")
    th.testing.assert_close((rewards[:-1] * part.std.float())[inside], raw[inside], rtol=1e-4, atol=1e-6)
    sums = th.zeros(2)
    discounted = []
    for row in rewards * part.std.float():
        sums = row + 0.99 * sums
        discounted.append(sums)
    assert part.std.item() == pytest.approx(th.stack(discounted).std(correction=0).item(), rel=1e-3)
    # The moments are those of next observations, whose first number is larger by 1.
    numbers = obs[..., 0].double() + 1
    assert part.normalizer.count == 128
    assert part.normalizer.mean[0].item() == pytest.approx(numbers.mean().item())
    assert part.normalizer.var[0].item() == pytest.approx(numbers.var(correction=0).item())


@pytest.mark.slow
def test_new_observations_are_rewarded_and_large_errors_at_the_start_do_not_make_later_rewards_tiny():
    model = make(env=counting(2), n_steps=64, batch_size=32, learning_rate=3e-3)
    part, errors, rewards = model.policy.streams.parts[0], [], []
    for rollouts in (1, 8):
        model.learn(128 * rollouts, reset_num_timesteps=False)
        normalized = model.rollout_buffer.stream_buffers[0].rewards
        errors.append(normalized.mean() * part.std.item())
        rewards.append(normalized.std())
    assert errors[1] < errors[0] / 20
    assert rewards[1] > rewards[0] / 5, (errors, rewards)
    with th.no_grad():
        seen, new = (part.rewards(None, None, th.tensor([obs])).item() for obs in ([3.0, 0.0], [-20.0, 4.0]))
    assert seen < new / 5
