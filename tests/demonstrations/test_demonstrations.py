"""Demonstrations: recorded, read from every kind of data set, cloned by every kind of policy."""

import copy
import re
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, POLICIES, VECTOR, KeyMaskedEnv, MaskedEnv, RandomEnv, vec
from faulty_envs import fine_and, supervised
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from models import make_model, make_recurrent, weights
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy as SB3Policy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from torch import optim

import ppo_plus
import ppo_plus.settings
from ppo_plus import PPO_Plus, record_demonstrations
from ppo_plus.demonstrations import cloning
from ppo_plus.demonstrations.reading import read_demonstrations
from ppo_plus.envs.checks import TIMEOUT
from ppo_plus.policy.distributions import make_distribution
from ppo_plus.trees import tree_leaves, tree_map

BOX, MASKABLE = ACTIONS["box"], ["discrete", "multidiscrete_2d", "multibinary", "mixed"]


class Follow(RandomEnv):
    """The reward of each step is the first number of its observation, and episodes have four steps."""

    def __init__(self, action_space=BOX, observation_space=VECTOR, terminates=True):
        super().__init__(action_space, observation_space, max_steps=None if terminates else 4, p_end=0.0)
        self.terminates = terminates

    def step(self, action):
        reward = float(np.ravel(self.last[0])[0])
        obs, _, _, truncated, info = super().step(action)
        return obs, reward, self.terminates and self.t == 4, truncated, info

    def observe(self):
        self.last = super().observe()
        return self.last


def linear(observation):
    """An action in the box for each observation, of five numbers."""
    return np.clip(np.asarray(observation, np.float64)[..., :2] / 4 + 0.1, -1, 1).astype(np.float32)


def pairs(n=512, seed=0):
    observations = np.random.default_rng(seed).uniform(-3, 3, (n, 5)).astype(np.float32)
    return dict(observations=observations, actions=linear(observations))


def error(model, data):
    """Mean absolute difference between the demonstrated and the most likely actions."""
    return np.abs(model.predict(data["observations"], deterministic=True)[0] - data["actions"]).mean()


def likelihood(model, dataset):
    """Mean log-probability of the actions of a data set, episode by episode, by a copy of the model."""
    model = copy.deepcopy(model)
    data = read_demonstrations(model, dataset)
    policy, starts = model.policy, None
    policy.set_training_mode(False)
    carry = None
    if policy.remembers:
        carry, starts = ppo_plus.Carry(policy.init_memory(1)), data["ends"].roll(1)
    with th.no_grad():
        _, params = policy.evaluate(data["observations"], carry, starts, data.get("action_masks"))
        return policy.distribution.log_prob(params, data["actions"]).mean().item()


# --- cloning ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "returns", [None, pytest.param(0.0, marks=pytest.mark.exhaustive), 100.0]
)  # equal returns leave nothing to the critic
def test_a_linear_expert_is_cloned_by_the_defaults(returns):
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(600, 5)).astype(np.float32)
    data = dict(observations=observations, actions=linear(observations))
    data |= {} if returns is None else dict(rewards=np.full(600, returns), terminations=np.ones(600))
    model = make_model(env=vec(BOX))
    assert error(model, data) > 0.2
    assert model.pretrain(data) is model
    assert error(model, data) < 0.03


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(ACTIONS)),
    st.sampled_from(["box", "box_int", "discrete_start", "multidiscrete_2d", "multibinary_2d"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_actions_of_a_known_policy_become_more_likely(kind, observation, squashes, as_list, seed):
    """In every space, as a list of actions and as arrays."""
    space = ACTIONS[kind]
    has_box = bool(make_distribution(space).gaussian_dim)
    policy_kwargs = dict(net_arch=[16], squash_output=squashes and has_box)
    env = vec(space, OBSERVATIONS[observation], n_envs=1)
    teacher, model = (make_model(env=env, policy_kwargs=policy_kwargs, seed=seed + i, n_steps=16) for i in range(2))
    with th.no_grad():
        teacher.policy.action_net.weight.mul_(100)
    data = record_demonstrations(teacher, env, 6, seed=seed)
    if as_list and space.shape is None:
        n = len(data["rewards"])
        data["actions"] = [tree_map(lambda rows, i=i: rows[i], data["actions"]) for i in range(n)]
    before = likelihood(model, data)
    model.pretrain(data, n_epochs=3, batch_size=16, learning_rate=3e-3)
    assert likelihood(model, data) > before + 0.02


@pytest.mark.parametrize("squashes", [False, True])
@pytest.mark.parametrize("kind", sorted(ACTIONS))
def test_internal_actions_are_those_of_the_environment(kind, squashes):
    space = ACTIONS[kind]
    if squashes and not make_distribution(space).gaussian_dim:
        pytest.skip("only a Box is squashed")
    distribution = make_distribution(space, squashes)
    space.seed(0)
    actions = [space.sample() for _ in range(64)]
    internal = distribution.from_env(tree_map(lambda *rows: np.stack(rows), *actions))
    assert internal.dtype == np.float32 and internal.shape == (64, distribution.action_dim)
    # Squashed, actions stay away from the bounds by a hundredth; beyond the half of one, integers change.
    tolerance = 1e-6 if not squashes else 1.0 if kind in ("box_int", "mixed") else 0.02
    for action, back in zip(actions, distribution.to_env(internal), strict=True):
        tree_map(partial(np.testing.assert_allclose, atol=tolerance), back, action)


def test_squashed_actions_at_a_bound_are_finite():
    distribution = make_distribution(BOX, squash_output=True)
    internal = distribution.from_env(np.array([[-1.0, 1.0]], np.float32))
    np.testing.assert_allclose(np.tanh(internal), [[-0.99, 0.99]], rtol=1e-5)


# --- every kind of policy --------------------------------------------------------------------------------------------


def remembered(seed=0, n_episodes=40):
    """Episodes of unequal length in which each action is whether the observation before was positive."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n_episodes):
        observations = rng.uniform(-1, 1, (rng.integers(1, 12), 1)).astype(np.float32)
        actions = np.concatenate([[0], observations[:-1, 0] > 0]).astype(np.int64)
        episodes.append(dict(observations=observations, actions=actions))
    return episodes


def accuracy(model, episodes):
    right, n = 0, 0
    for episode in episodes:
        state, start = None, np.ones(1, bool)
        for observation, action in zip(episode["observations"], episode["actions"], strict=True):
            chosen, state = model.predict(observation[None], state, start, deterministic=True)
            start = np.zeros(1, bool)
            right, n = right + int(chosen[0] == action), n + 1
    return right / n


@pytest.mark.slow
def test_memory_learns_from_whole_episodes():
    env = vec(spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32))
    model = make_recurrent(env=env)
    model.pretrain(remembered(), n_epochs=25, batch_size=24, learning_rate=1e-2, patience=None)
    assert accuracy(model, remembered(seed=1, n_episodes=20)) > 0.9
    forgets = make_model(env=env)
    forgets.pretrain(remembered(), n_epochs=25, learning_rate=1e-2)
    assert accuracy(forgets, remembered(seed=1, n_episodes=20)) < 0.7


def test_the_padding_of_short_episodes_counts_nowhere():
    """One step of all episodes is along the gradient of the mean over their transitions."""
    env = vec(spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32))
    memory = dict(optimizer_class=optim.SGD, optimizer_kwargs={})
    model = make_recurrent(env=env, memory=memory, max_grad_norm=1e9)
    before, policy = weights(model), copy.deepcopy(model.policy)
    data = read_demonstrations(model, remembered())
    carry = ppo_plus.Carry(policy.init_memory(1))
    _, params = policy.evaluate(data["observations"], carry, data["ends"].roll(1))
    (-policy.distribution.log_prob(params, data["actions"]).mean()).backward()
    gradient = th.cat([th.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in policy.parameters()])
    model.pretrain(remembered(), n_epochs=1, batch_size=10_000, learning_rate=1.0, validation_split=0.0)
    assert gradient.norm() > 1e-3
    np.testing.assert_allclose(before - weights(model), gradient, atol=1e-6)


@pytest.mark.parametrize("kind", MASKABLE)
@pytest.mark.parametrize("by_key", [False, True])
def test_masks_are_those_of_the_demonstrations(kind, by_key):
    env = vec(ACTIONS[kind], OBSERVATIONS["dict"], env_class=KeyMaskedEnv if by_key else MaskedEnv)
    kwargs = dict(policy="MultiInputPolicy", action_mask_key="mask" if by_key else None)
    kwargs["policy_kwargs"] = dict(actor_keys=["vector"], critic_keys=["vector"])
    data = record_demonstrations(make_model(env=env, **kwargs, seed=1), env, 6, seed=0)
    assert ("action_masks" in data) != by_key
    model = make_model(env=env, **kwargs)
    before = likelihood(model, data)
    model.pretrain(data, n_epochs=2, batch_size=8)
    assert likelihood(model, data) > before
    # Without its mask, an action is one of more alternatives.
    if not by_key:
        masks = data.pop("action_masks")
        assert likelihood(model, data) < likelihood(model, data | {"action_masks": masks})


def test_observations_are_normalized_inside():
    data = pairs()
    data["observations"] = 1000 + 100 * data["observations"]
    env = vec(BOX, spaces.Box(0, 2000, (5,), np.float32))
    model, raw = (make_model(env=env, normalize_observations=inside) for inside in (True, False))
    for each in (model, raw):
        each.pretrain(data, n_epochs=15)
    normalizer = model.policy.observation_normalizer
    assert normalizer.count == 512
    np.testing.assert_allclose(normalizer.mean, data["observations"].mean(axis=0, dtype=float), rtol=1e-6)
    np.testing.assert_allclose(normalizer.var, data["observations"].var(axis=0, dtype=float), rtol=1e-6)
    assert error(model, data) < 0.1 < error(raw, data)


@pytest.mark.parametrize("training", [True, False])
def test_observations_are_raw_before_a_vec_normalize(training):
    data = pairs()
    data["observations"] = 1000 + 100 * data["observations"]
    env = VecNormalize(vec(BOX, spaces.Box(0, 2000, (5,), np.float32)), training=training)
    model = make_model(env=env)
    model.pretrain(data, n_epochs=15)
    if not training:
        assert env.obs_rms.count < 1
        return
    np.testing.assert_allclose(env.obs_rms.mean, data["observations"].mean(axis=0, dtype=float), rtol=1e-3)
    normalized = data | {"observations": env.normalize_obs(data["observations"])}
    assert error(model, normalized) < 0.1
    assert model._trained_normalized


def test_a_policy_of_sb3_that_overrides_its_methods_learns():
    class Policy(SB3Policy):
        def evaluate_actions(self, obs, actions):
            return super().evaluate_actions(obs, actions)

    with pytest.warns(UserWarning, match="overrides"):
        model = make_model(policy=Policy, env=vec(BOX))
    model.pretrain(pairs(), n_epochs=25)
    assert error(model, pairs()) < 0.15


def test_images_may_have_channels_last():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (32, 36, 36, 3), dtype=np.uint8)
    data = dict(observations=images, actions=rng.integers(0, 3, 32))
    results = []
    for observations in (images, images.transpose(0, 3, 1, 2)):
        model = make_model(env=vec(spaces.Discrete(3), OBSERVATIONS["image"]), policy="CnnPolicy")
        model.pretrain(data | {"observations": observations}, n_epochs=1, batch_size=16)
        results.append(weights(model))
    assert th.equal(*results)


def test_a_vec_normalize_of_rewards_alone_may_be_inside_other_wrappers():
    env = VecFrameStack(VecNormalize(vec(spaces.Discrete(3), OBSERVATIONS["image"]), norm_obs=False), 2)
    model = make_model(env=env, policy="CnnPolicy")
    data = record_demonstrations(lambda obs: 0, env, 1)
    assert data["observations"].shape[1:] == env.observation_space.shape
    model.pretrain(data, n_epochs=1)


def test_a_vec_normalize_of_observations_is_the_outermost_wrapper_but_for_transposed_images():
    env = VecNormalize(vec(spaces.Discrete(3), OBSERVATIONS["dict"]), norm_obs_keys=["vector"])
    data = record_demonstrations(lambda obs: 0, env, 1)
    make_model(env=env, policy="MultiInputPolicy").pretrain(data, n_epochs=1)
    assert env.obs_rms["vector"].count > len(data["actions"])
    env = VecFrameStack(VecNormalize(vec(spaces.Discrete(3), OBSERVATIONS["box"])), 2)
    with pytest.raises(ValueError, match="outermost"):
        make_model(env=env).pretrain((np.zeros((4, 10)), np.zeros(4, int)), n_epochs=1)


# --- the critic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "normalizes"), [(0.1, False), (1000.0, True)])
def test_the_critic_learns_the_returns(scale, normalizes):
    """On any scale, without disturbing the actor."""
    episodes = []
    for seed in range(40):
        data = pairs(10, seed)
        data["observations"][:, 4] = np.linspace(-3, 3, 10)  # the time
        rewards = scale * (1 + data["observations"][:, 4].astype(float))
        episodes.append(data | dict(rewards=rewards, terminations=np.arange(10) == 9))
    model = make_model(env=vec(BOX), gamma=0.9, normalize_values=normalizes)
    model.pretrain(episodes, n_epochs=60, patience=None)
    data = {key: np.concatenate([episode[key] for episode in episodes]) for key in episodes[0]}
    values = model.policy.predict_values(th.from_numpy(data["observations"])).numpy(force=True)[:, 0]
    # All episodes have the same rewards.
    expected = 40 * [rewards[t:] @ 0.9 ** np.arange(10 - t) for t in range(10)]
    assert np.mean((expected - values) ** 2) < 0.1 * np.var(expected)
    assert error(model, data) < 0.1


def test_returns_end_with_episodes_and_are_bootstrapped_where_these_did_not_terminate():
    model = make_model(env=vec(BOX), gamma=0.5)
    ends = dict(terminations=[0, 0, 1, 0, 0, 0, 0, 0], truncations=[0, 0, 0, 0, 1, 0, 0, 0])
    data = read_demonstrations(model, pairs(8) | ends | dict(rewards=np.arange(8.0)))
    assert data["ends"].tolist() == [False, False, True, False, True, False, False, True]
    assert data["cut"].tolist() == [False, False, False, False, True, False, False, True]
    part = cloning._batch(model.policy, data, th.arange(8))
    cloning._estimate(model.policy, [part], 0.5)
    with th.no_grad():
        values = model.policy.predict_values(data["observations"])[:, 0].numpy()
    expected = [0 + 0.5 * 2, 1 + 0.5 * 2, 2, 3 + 0.5 * values[4], values[4]]
    expected[0] = 0 + 0.5 * expected[1]
    expected += [5 + 0.5 * 6 + 0.25 * values[7], 6 + 0.5 * values[7], values[7]]
    np.testing.assert_allclose(part[0].returns, expected, rtol=1e-5)


def test_the_critic_stays_where_returns_are_unknown():
    for missing in ("rewards", "terminations"):
        data = pairs(64) | dict(rewards=np.ones(64), terminations=np.arange(64) % 8 == 7)
        del data[missing]
        model = make_model(env=vec(BOX))
        before = model.policy.value_net.weight.detach().clone()
        model.pretrain(data)
        assert th.equal(model.policy.value_net.weight, before)


# --- the ends of training --------------------------------------------------------------------------------------------


def noise():
    """Actions that nothing predicts."""
    return pairs(96) | dict(actions=np.random.default_rng(1).uniform(-1, 1, (96, 2)).astype(np.float32))


def test_it_ends_early_and_keeps_the_best_weights(capsys):
    model, rest = make_model(env=vec(BOX)), make_model(env=vec(BOX))
    model.pretrain(noise(), n_epochs=200, learning_rate=1e-2, patience=3, progress_bar=True)
    # The bar counts epochs that another one follows.
    n_epochs = int(re.findall(r"(\d+)/200", capsys.readouterr().err)[-1]) + 1
    assert 3 < n_epochs < 100
    # The epochs after the best one change nothing.
    rest.pretrain(noise(), n_epochs=n_epochs - 3, learning_rate=1e-2, patience=None)
    assert th.equal(weights(model), weights(rest))
    rest.pretrain(noise(), n_epochs=10, learning_rate=1e-2, patience=None, validation_split=0.0)
    assert not th.equal(weights(model), weights(rest))


def test_whole_episodes_are_held_out():
    ends = th.arange(100) % 10 == 9
    learned, held_out = cloning._split({"actions": th.zeros(100, 1), "ends": ends}, 0.3)
    assert len(held_out) == 30 and sorted([*learned.tolist(), *held_out.tolist()]) == list(range(100))
    assert len(set((held_out // 10).tolist())) == 3
    learned, held_out = cloning._split({"actions": th.zeros(100, 1)}, 0.3)
    assert len(held_out) == 30 and len(set((held_out // 10).tolist())) > 3
    # Something is left to learn from.
    learned, held_out = cloning._split({"actions": th.zeros(1, 1)}, 0.99)
    assert len(learned) == 1 and not len(held_out)


def test_the_loss_of_held_out_transitions_does_not_depend_on_how_many_are_read_at_once(capsys, monkeypatch):
    losses = []
    for at_once in (1024, 7):
        monkeypatch.setattr(cloning, "AT_ONCE", at_once)
        make_model(env=vec(BOX)).pretrain(noise(), n_epochs=3, patience=None, progress_bar=True)
        losses.append(re.findall(r"validation_loss=(\S+?)[],]", capsys.readouterr().err)[-1])
    assert losses[0] == losses[1]


# --- what else it leaves ---------------------------------------------------------------------------------------------


def test_it_is_determined_by_the_seed_and_leaves_the_generators_alone():
    data, results = pairs(64), []
    for before in (1, 2):
        model = make_model(env=vec(BOX), policy_kwargs=dict(features_extractor_class=Dropped))
        th.manual_seed(before)
        np.random.seed(before)
        model.pretrain(data, n_epochs=2)
        results.append(weights(model))
        drawn = th.rand(1), np.random.rand()
        th.manual_seed(before)
        np.random.seed(before)
        assert drawn == (th.rand(1), np.random.rand())
    assert th.equal(*results)
    other = make_model(env=vec(BOX), policy_kwargs=dict(features_extractor_class=Dropped))
    other.seed = 5
    other.settings = ppo_plus.settings.Settings.of(other)
    other.pretrain(data, n_epochs=2)
    assert not th.equal(weights(other), results[0])


class Dropped(FlattenExtractor):
    """Draws numbers while it learns."""

    def forward(self, observations):
        return th.nn.functional.dropout(super().forward(observations), 0.1, self.training)


def scaled_adam(parameters, lr, ratio):
    return optim.Adam(parameters, lr * ratio)


@pytest.mark.parametrize(
    ("optimizer", "own"), [(optim.Adam, {}), (optim.Adagrad, {}), (optim.SGD, {}), (scaled_adam, {"ratio": 1.0})]
)
def test_the_optimizer_is_as_new(optimizer, own):
    kwargs = dict(env=vec(BOX), policy_kwargs=dict(optimizer_class=optimizer, optimizer_kwargs=own), learning_rate=7e-4)
    model, new = make_model(**kwargs), make_model(**kwargs)
    model.learn(16)
    model.pretrain(pairs(64), n_epochs=2)
    state, expected = (each.policy.optimizer.state_dict() for each in (model, new))
    assert state["param_groups"] == expected["param_groups"]
    assert th.utils._pytree.tree_all(
        lambda part: part,
        tree_map(lambda a, b: th.equal(th.as_tensor(a), th.as_tensor(b)), state["state"], expected["state"]),
    )
    model.learn(16)


@pytest.mark.parametrize("compile", [False, True])
def test_training_continues(compile, traced):
    """Compiled or not, before and after; new episodes begin."""
    model = make_model(env=vec(BOX), compile=compile)
    model.learn(32)
    resets = model.env.get_attr("n_resets")
    model.pretrain(pairs(64), n_epochs=1)
    before = weights(model)
    model.learn(32, reset_num_timesteps=False)
    assert model.num_timesteps == 64 and not th.equal(weights(model), before)
    assert bool(model.compiled) is compile
    assert all(now > was for now, was in zip(model.env.get_attr("n_resets"), resets, strict=True))


def test_a_pretrained_model_is_saved(tmp_path):
    model = make_model(env=vec(BOX), normalize_observations=True)
    model.pretrain(pairs()).save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model")
    assert error(loaded, pairs()) == error(model, pairs())
    # Without an environment, too.
    loaded.pretrain(pairs(seed=1), n_epochs=1)


# --- recording -------------------------------------------------------------------------------------------------------


def test_a_function_is_recorded():
    class Expert:
        env = Follow()  # models have such an attribute, too

        def __call__(self, obs):
            return linear(obs)

    data = record_demonstrations(Expert(), Expert.env, 3, seed=7)
    assert data["observations"].shape == (12, 5) and data["actions"].shape == (12, 2)
    np.testing.assert_array_equal(data["actions"], linear(data["observations"]))
    np.testing.assert_allclose(data["rewards"], data["observations"][:, 0], rtol=1e-6)
    assert np.flatnonzero(data["terminations"]).tolist() == [3, 7, 11] and not data["truncations"].any()
    again = record_demonstrations(linear, Follow(), 3, seed=7)
    assert all(np.array_equal(data[name], again[name]) for name in data)
    cut = record_demonstrations(linear, Follow(terminates=False), 3)
    assert np.flatnonzero(cut["truncations"]).tolist() == [3, 7, 11] and not cut["terminations"].any()


def test_an_episode_that_a_fault_interrupts_is_recorded_as_truncated():
    env = supervised(*fine_and("raise", at=5), restarts=1)
    data = record_demonstrations(lambda obs: 1, env, 6)
    env.close()
    lengths = np.diff(np.flatnonzero(data["terminations"] | data["truncations"]), prepend=-1)
    assert env.n_restarts == 1 and sorted(lengths) == [5, 8, 8, 8, 8, 8]
    assert data["truncations"][np.cumsum(lengths)[lengths == 5] - 1].all()


def test_monitors_of_the_training_environment_record_nothing(tmp_path):
    class Closed(Follow):
        n_closed = 0

        def close(self):
            Closed.n_closed += 1

    gym.register("Closed-v0", Closed)
    env = Monitor(Follow(), str(tmp_path / "log"))
    model = make_model(env=env)
    record_demonstrations(model, model.env, 3)
    assert len((tmp_path / "log.monitor.csv").read_text().splitlines()) == 2 and not env.get_episode_rewards()
    # An environment that is made of an id is closed.
    record_demonstrations(model, "Closed-v0", 1)
    assert Closed.n_closed == 1
    model.evaluate(1, "Closed-v0")
    assert Closed.n_closed == 2


def test_the_masks_are_recorded_beside_the_actions_of_a_function():
    env = MaskedEnv(ACTIONS["discrete"])
    data = record_demonstrations(lambda obs: int(np.flatnonzero(env.action_masks())[0]), env, 2, seed=0)
    assert data["action_masks"][np.arange(len(data["actions"])), data["actions"]].all()
    assert not data["action_masks"].all()


def test_the_episodes_of_several_environments_stay_in_order():
    """Also where a vector environment has steps that only reset."""
    single = record_demonstrations(linear, Follow(), 5, seed=3)
    for env in (
        vec(BOX, n_envs=2, env_class=Follow),
        gym.vector.SyncVectorEnv([Follow] * 2, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP),
    ):
        data = record_demonstrations(linear, env, 5, seed=3)
        assert len(data["rewards"]) == 20
        assert np.flatnonzero(data["terminations"]).tolist() == [3, 7, 11, 15, 19]
        np.testing.assert_allclose(data["rewards"], data["observations"][:, 0], rtol=1e-6)
        np.testing.assert_array_equal(data["observations"][:4], single["observations"][:4])


@pytest.mark.parametrize("kind", ["mixed", "discrete_start", "box_int"])
@pytest.mark.parametrize("observation", ["dict", "discrete_start"])
def test_recorded_demonstrations_are_read(kind, observation):
    env = vec(ACTIONS[kind], OBSERVATIONS[observation])
    model = make_model(env=env, policy=POLICIES.get(observation, "MlpPolicy"))
    data = record_demonstrations(model, env, 4, deterministic=False, seed=0)
    read = read_demonstrations(model, data)
    np.testing.assert_array_equal(read["actions"], model.policy.distribution.from_env(data["actions"]))
    leaves = zip(tree_leaves(read["observations"]), tree_leaves(data["observations"]), strict=True)
    assert all(np.array_equal(tensor.numpy(), array) for tensor, array in leaves)


@pytest.mark.parametrize("kind", ["single", "id", "dummy", "made", "gymnasium"])
@pytest.mark.parametrize("by_model", [True, False])
def test_tuple_observations_are_recorded_in_every_kind_of_environment(kind, by_model):
    space = spaces.Tuple((VECTOR, spaces.Discrete(3)))
    make = partial(Follow, BOX, space)
    gym.register("Tuple-v0", make)
    env = {
        "single": make,
        "id": lambda: "Tuple-v0",
        "dummy": lambda: DummyVecEnv([make, make]),
        "made": lambda: ppo_plus.make_vec(make, 2),
        "gymnasium": lambda: SyncVectorEnv([make, make]),
    }[kind]()
    model = make_model(env=env, policy="MultiInputPolicy")
    if kind == "made":
        by_model = True
    data = record_demonstrations(model if by_model else lambda row: linear(row[0]), env, 3, seed=0)
    assert data["observations"].keys() == {"0", "1"}
    model.pretrain(data, n_epochs=1)
    model.pretrain(data | {"observations": tuple(data["observations"].values())}, n_epochs=1)


def test_demonstrations_of_a_normalized_model_are_raw():
    env = VecNormalize(vec(BOX, env_class=Follow), gamma=0.5)
    model = make_model(env=env)
    model.learn(64)
    mean, count = env.obs_rms.mean.copy(), env.ret_rms.count
    data = record_demonstrations(model, env, 4)
    np.testing.assert_allclose(data["rewards"], data["observations"][:, 0], rtol=1e-6)
    assert np.array_equal(mean, env.obs_rms.mean) and count == env.ret_rms.count
    expected, _ = model.predict(env.normalize_obs(data["observations"]), deterministic=True)
    np.testing.assert_allclose(data["actions"], expected, atol=1e-5)
    assert model._last_obs is None
    with pytest.warns(UserWarning, match="does not normalize them"):
        record_demonstrations(model, vec(BOX), 1)


def test_a_model_of_sb3_and_one_with_memory_are_recorded():
    sb3 = PPO("MlpPolicy", Follow(), n_steps=8, batch_size=8, device="cpu")
    data = record_demonstrations(sb3, Follow(), 2)
    np.testing.assert_allclose(data["actions"], sb3.predict(data["observations"], deterministic=True)[0], atol=1e-6)
    model = make_recurrent("box")
    data = record_demonstrations(model, Follow(), 2)
    state, start = None, np.ones(1, bool)
    for observation, action, end in zip(data["observations"], data["actions"], data["terminations"], strict=True):
        expected, state = model.predict(observation[None], state, start, deterministic=True)
        np.testing.assert_allclose(action, expected[0], atol=1e-6)
        start = np.array([end])


@pytest.mark.parametrize("kind", ["single", "gymnasium", "inner"])
def test_recorded_in_what_it_trains_in_training_starts_new_episodes(kind):
    env = {"single": Follow, "gymnasium": lambda: SyncVectorEnv([Follow] * 2), "inner": lambda: vec(BOX)}[kind]()
    model = make_model(env=VecNormalize(env) if kind == "inner" else env).learn(64)
    with nullcontext() if kind != "inner" else pytest.warns(UserWarning, match="does not normalize them"):
        record_demonstrations(model, env, 1)
    assert model._last_obs is None


def test_what_cannot_be_recorded():
    masked = vec(ACTIONS["discrete"], env_class=MaskedEnv)
    with pytest.raises(TypeError, match="unexpected keyword argument 'action_masks'"):
        record_demonstrations(PPO("MlpPolicy", masked, n_steps=8, batch_size=8), masked, 1)
    for wrong in (lambda obs: (linear(obs), None), lambda obs: 1.0, lambda obs: linear(obs) * np.nan):
        with pytest.raises(ValueError, match="actions of the demonstrator|inhomogeneous"):
            record_demonstrations(wrong, Follow(), 1)


# --- data sets -------------------------------------------------------------------------------------------------------


def episodes(n=3):
    """Observations, one more than actions, actions and rewards of episodes of unequal length."""
    rng = np.random.default_rng(0)
    for i in range(n):
        observations = rng.uniform(-3, 3, (5 + i, 5)).astype(np.float32)
        yield observations, linear(observations[:-1]), rng.normal(size=4 + i)


def check(model, dataset, terminated):
    """A data set is read as those :func:`episodes`, of which some terminated."""
    data = read_demonstrations(model, dataset)
    observations, actions, rewards = zip(*episodes(), strict=True)
    np.testing.assert_array_equal(data["observations"], np.concatenate([part[:-1] for part in observations]))
    np.testing.assert_array_equal(data["actions"], np.concatenate(actions))
    np.testing.assert_allclose(data["rewards"], np.concatenate(rewards))
    assert data["ends"].nonzero().flatten().tolist() == [3, 8, 14]
    assert data["cut"].nonzero().flatten().tolist() == [
        row for row, end in zip([3, 8, 14], terminated, strict=True) if not end
    ]
    model.pretrain(dataset, n_epochs=1)


def test_a_dict_in_a_list_may_have_several_episodes():
    model = make_model(env=vec(BOX))
    rows = {"observations": np.zeros((6, *VECTOR.shape), np.float32), "actions": np.zeros((6, *BOX.shape), np.float32)}
    one = rows | {"rewards": np.ones(6), "terminations": [0] * 6, "truncations": [0, 0, 1, 0, 0, 0]}
    data = read_demonstrations(model, [one, one])
    assert data["ends"].tolist() == data["cut"].tolist() == 2 * [False, False, True, False, False, True]
    assert one["truncations"][-1] == 0


class Data:
    """As a data set of Minari."""

    def iterate_episodes(self):
        for i, (obs, acts, rews) in enumerate(episodes()):
            ends = np.arange(len(acts)) == len(acts) - 1
            columns = dict(observations=obs, actions=acts, rewards=rews, infos={})
            yield SimpleNamespace(**columns, terminations=ends & (i == 0), truncations=ends & (i > 0))


def test_episodes_as_objects_and_dicts():
    model = make_model(env=vec(BOX))
    infos = [None, [{}] * 4 + [{"TimeLimit.truncated": True}], [{}] * 6]
    # As imitation's, which need not be installed.
    trajectories = [
        SimpleNamespace(obs=obs, acts=acts, rews=rews, terminal=i < 2, infos=infos[i])
        for i, (obs, acts, rews) in enumerate(episodes())
    ]
    check(model, trajectories, [True, False, False])
    check(model, Data(), [True, False, False])
    dicts = [
        dict(observations=obs, actions=acts, rewards=rews, terminations=np.arange(len(acts)) == len(acts) - 1)
        for obs, acts, rews in episodes()
    ]
    check(model, dicts, [True, True, True])


ONE_OF = spaces.Discrete(3, start=2)
STEPS = dict(obs=pairs(6)["observations"], acts=np.array([2, 3, 4, 2, 3, 4]))
DONES, TIMEOUTS = np.array([0, 1, 0, 0, 1, 0], bool), np.array([0, 0, 0, 0, 1, 0], bool)
INFOS = np.array([{TIMEOUT: bool(over)} for over in TIMEOUTS])
EYE = np.eye(3)[STEPS["acts"] - 2]
#: What people have: the data set, and whether the ends of its episodes and their kinds are known.
COMMON = {
    "obs and acts": (STEPS, False, False),
    "a pair": ((STEPS["obs"], STEPS["acts"]), False, False),
    "pandas": (dict(obs=pd.DataFrame(STEPS["obs"]), acts=pd.Series(STEPS["acts"], index=range(9, 15))), False, False),
    "one-hot": (STEPS | dict(acts=EYE), False, False),
    "a column": (STEPS | dict(acts=STEPS["acts"][:, None]), False, False),
    "dones": (STEPS | dict(dones=DONES[:, None], rewards=np.ones((6, 1))), True, False),
    "dones and timeouts": (STEPS | dict(dones=DONES, timeouts=TIMEOUTS, rews=np.ones(6)), True, True),
    "D4RL": (
        dict(observations=STEPS["obs"], actions=STEPS["acts"], rewards=np.ones(6), next_observations=STEPS["obs"])
        | {"terminals": DONES & ~TIMEOUTS, "timeouts": TIMEOUTS, "infos/qpos": np.ones(6), "metadata/algorithm": "x"},
        True,
        True,
    ),
    # As its `flatten_trajectories` returns.
    "imitation": (
        SimpleNamespace(**STEPS, infos=INFOS, next_obs=STEPS["obs"], dones=DONES, rews=np.ones(6)),
        True,
        True,
    ),
    "imitation, minimal": (SimpleNamespace(**STEPS, infos=INFOS), False, False),
}


@pytest.mark.parametrize(("dataset", "knows_ends", "knows_returns"), COMMON.values(), ids=COMMON)
def test_what_people_have_is_read(dataset, knows_ends, knows_returns):
    data = read_demonstrations(make_model(env=vec(ONE_OF)), dataset)
    np.testing.assert_array_equal(data["observations"], STEPS["obs"])
    assert data["actions"].flatten().tolist() == (STEPS["acts"] - 2).tolist()
    assert ("ends" in data, "rewards" in data) == (knows_ends, knows_returns)
    if knows_ends:
        assert data["ends"].nonzero().flatten().tolist() == [1, 4, 5]
    if knows_returns:
        assert data["cut"].nonzero().flatten().tolist() == [4, 5]


def test_the_critic_stays_where_dicts_do_not_say_how_episodes_end():
    dicts = [dict(observations=obs, actions=acts, rewards=rews) for obs, acts, rews in episodes()]
    data = read_demonstrations(make_model(env=vec(BOX)), dicts)
    assert "rewards" not in data and data["ends"].nonzero().flatten().tolist() == [3, 8, 14]


@pytest.mark.parametrize("data", [b"", b"import gymnasium", b"PK no archive", b"array"])
def test_a_file_of_another_kind_is_named(data, tmp_path):
    path = tmp_path / "data.npz"
    if data == b"array":
        np.save(path.with_suffix(".npy"), np.zeros(3))
        path = path.with_suffix(".npy")
    else:
        path.write_bytes(data)
    with pytest.raises(ValueError, match=r"dataset='.*data.np.' must be an .npz file of arrays"):
        PPO_Plus("MlpPolicy", "CartPole-v1", device="cpu").pretrain(path)


def test_tensors_and_files(tmp_path):
    model, data = make_model(env=vec(BOX)), pairs(32)
    expected = read_demonstrations(model, data)
    path = tmp_path / "data.npz"
    np.savez(path, **data)
    for dataset in ({key: th.from_numpy(rows) for key, rows in data.items()}, np.load(path), path, str(path)):
        read = read_demonstrations(model, dataset)
        assert all(th.equal(read[key], expected[key]) for key in expected)


def changed(row, value, name="actions"):
    data = pairs(8)
    data[name][row] = value
    return data


ENDING = dict(rewards=np.zeros(4), terminations=np.arange(4) == 3)
WRONG = {
    "an action outside": (
        changed(5, [2.0, 0.0]),
        r"row 5 of dataset\['actions'\] is \[2\.0, 0\.0\]: it is not finite or not in Box",
    ),
    "NaN in an action": (changed(3, np.nan), r"row 3 of dataset\['actions'\] is \[nan, nan\]: it is not finite"),
    "infinity": (changed(2, np.inf, "observations"), r"row 2 of dataset\['observations'\] is .*: it is not finite"),
    "the shape of actions": (
        pairs(8) | dict(actions=np.zeros((8, 3))),
        r"dataset\['actions'\] has the shape \(8, 3\), and Box.* needs \(8, 2\)",
    ),
    "unequal rows": (pairs(3) | dict(actions=[[0, 0], [0], [0, 0]]), "inhomogeneous"),
    "too few observations": (
        pairs(8) | dict(observations=np.zeros((7, 5))),
        "dataset has {'observations': 7, 'actions': 8} rows: give as many of each",
    ),
    "a reward": (
        pairs(2) | dict(rewards=[0.0, np.inf]),
        r"row 1 of dataset\['rewards'\] is inf: it is not finite or not in Box",
    ),
    "an end": (pairs(2) | dict(terminations=[0, 2]), r"row 1 of dataset\['terminations'\] is 2: .* Discrete\(2\)"),
    "text": (pairs(2) | dict(actions=[["left", "up"]] * 2), "could not convert string to float"),
    "an unknown entry": (
        pairs(2) | dict(action=1),
        r"dataset has \['observations', 'actions', 'action'\]: it needs \['observations', 'actions'\], and may have",
    ),
    "no actions": (
        dict(observations=np.zeros((2, 5))),
        r"dataset has \['observations'\]: it needs \['observations', 'actions'\]",
    ),
    "nothing": (dict(observations=np.zeros((0, 5)), actions=np.zeros((0, 2))), "and at least one"),
    "no episode": ([], "dataset has no episodes"),
    "some rewards": ([pairs(4) | ENDING, pairs(4)], "only some of them have rewards"),
    "an episode": ([pairs(4), changed(3, 5.0)], r"row 3 of dataset\[1\]\['actions'\] is \[5\.0, 5\.0\]"),
    "lengths of an episode": (
        [pairs(4) | dict(observations=np.zeros((6, 5)))],
        r"dataset\[0\] has {'observations': 6, 'actions': 4} rows",
    ),
    "one end for all": (pairs(8) | dict(dones=True), r"rows: give as many"),
    "infos of others": (pairs(8) | dict(dones=np.zeros(8), infos=[{}] * 3), r"'infos': 3} rows: give as many"),
    "too many parts": ((*[np.zeros(2)] * 5, np.ones((2, 3))), "dataset has 6 parts: give .*, or a dict, which may"),
    "masks": (pairs(2) | dict(action_masks=np.ones((2, 3))), "entries"),
    "both names": (pairs(2) | dict(acts=1), r"has \['observations', 'actions', 'acts'\]: it needs .*, each once"),
    "None": (None, "dataset is None, and has no observations and actions: give dataset as a dict of"),
    "something else": ([3], r"dataset\[0\] is 3, and has no observations and actions: give dataset as a dict of"),
    "a frame": (pd.DataFrame({"x": [1.0], "action": [0]}), r"dataset\[0\] is 'x', and has no observations"),
}


@pytest.mark.parametrize(("dataset", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_named_with_its_row(dataset, message):
    model = make_model(env=vec(BOX), normalize_observations=True)
    before = weights(model)
    with pytest.raises(ValueError, match=message):
        model.pretrain(dataset)
    assert th.equal(weights(model), before)
    assert model.policy.observation_normalizer.count == 0


@pytest.mark.parametrize(
    ("kind", "action", "message"),
    [
        ("discrete_start", 0, r"is 0: it is not finite or not in Discrete\(3, start=-4\)"),
        ("discrete", 0.5, r"is 0\.5: it is not finite or not in"),
        ("box_int", np.array([0.5, 0.0]), "it is not finite or not in Box"),
        ("multidiscrete", np.array([0, 2, 0]), "it is not finite or not in MultiDiscrete"),
        ("multibinary", np.array([0, 2, 0, 0]), "it is not finite or not in MultiBinary"),
        ("tuple", (1, np.array([0.0, 3.0], np.float32)), r"row 2 of dataset\['actions'\]\['1'\] .* not in Box"),
        ("tuple", (1,), "mismatch"),
        ("mixed", {"kind": 0}, "mismatch"),
    ],
)
def test_actions_of_every_space_are_checked(kind, action, message):
    space = ACTIONS[kind]
    space.seed(0)
    actions = [space.sample() for _ in range(4)]
    actions[2] = action
    model = make_model(env=vec(space))
    with pytest.raises(ValueError, match=message):
        model.pretrain(dict(observations=np.zeros((4, 5)), actions=actions))


def test_a_masked_action_is_named_with_its_row():
    model = make_model(env=vec(ACTIONS["multidiscrete"]))
    masks = np.ones((4, 9), bool)
    data = dict(observations=np.zeros((4, 5)), actions=np.zeros((4, 3), int), action_masks=masks)
    model.pretrain(data, n_epochs=1)
    for row, wrong in ((3, masks & (np.arange(4) < 3)[:, None]), (2, masks ^ (np.arange(36).reshape(4, 9) == 21))):
        with pytest.raises(ValueError, match=rf"row {row} of dataset\['actions'\] is forbidden by its mask"):
            model.pretrain(data | {"action_masks": wrong})


def test_memory_needs_the_ends_of_episodes():
    with pytest.raises(
        ValueError, match="dataset has no terminations: a policy with memory learns from whole episodes"
    ):
        make_recurrent("box").pretrain(pairs(8))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (dict(n_epochs=0), "n_epochs=0 must be at least 1"),
        (dict(batch_size=0), "batch_size=0 must be at least 1"),
        (dict(learning_rate=0.0), r"learning_rate=0.0 must be a number in \(0, 3.*\]"),
        (dict(learning_rate=np.inf), r"learning_rate=inf must be a number in \(0, 3.*\]"),
        (dict(validation_split=1.0), "validation_split=1.0 must be a number in"),
        (dict(patience=0), "patience=0 must be at least 1, or None"),
    ],
)
def test_wrong_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        make_model(env=vec(BOX)).pretrain(pairs(8), **argument)


def test_weights_that_are_not_finite_are_an_error():
    with pytest.raises(FloatingPointError, match=r"not finite after an update with learning_rate=1e\+38: lower it"):
        make_model(env=vec(BOX)).pretrain(pairs(8), n_epochs=3, learning_rate=1e38)
