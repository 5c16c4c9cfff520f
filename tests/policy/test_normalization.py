"""Normalization inside the policy: as a ``VecNormalize`` that is updated per rollout, in one file, on every scale."""

import copy
import io

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from compiled import assert_trained_alike, needs_compiler
from envs import ACTIONS, OBSERVATIONS, VECTOR, Edited, vec
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, weights
from parametrization import part
from stable_baselines3 import PPO as SB3PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.vec_env import VecNormalize
from tensor_envs import twins
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from training import At, Recording

from ppo_plus import EvalAfterUpdates, PPO_Plus, as_vec_env
from ppo_plus.formulas.moments import Moments
from ppo_plus.policy.normalization import RunningMoments, ValueNormalizer
from ppo_plus.policy.policies import Features
from ppo_plus.saving.statistics import write_statistics
from ppo_plus.trees import tree_map

BOTH = {"normalize_observations": True, "normalize_values": True}
#: Numbers of very different sizes.
OFFSET, SCALE = np.array([1e4, -300.0, 0.01], np.float32), np.array([100.0, 5.0, 1e-3], np.float32)


class Scaled(gym.Env):
    """The best action is one of the numbers it observes; rewards are multiplied by ``reward_scale``."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, reward_scale=1.0):
        self.reward_scale = reward_scale

    def _observation(self):
        self.x = self.np_random.normal(size=3).astype(np.float32)
        return OFFSET + SCALE * self.x

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        reward = self.reward_scale * float(1 - (action[0] - np.tanh(self.x[0])) ** 2)
        return self._observation(), reward, False, self.t >= 20, {}


def make(env=None, policy="MlpPolicy", cls=PPO_Plus, **kwargs):
    arguments = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 0, "device": "cpu", "compile": False}
    return cls(policy, make_vec_env(Scaled, 2, seed=3) if env is None else env, **arguments | BOTH | kwargs)


class OwnStatistics(VecNormalize):
    """A ``VecNormalize`` whose statistics are set from outside, and that keeps what it has normalized."""

    def __init__(self, venv, **kwargs):
        super().__init__(venv, training=False, norm_reward=False, **kwargs)
        self.obs_rms.count = 0.0
        self.seen = []

    def normalize_obs(self, obs):
        self.seen.append(np.array(obs))
        return super().normalize_obs(obs)


class FromOutside(PPO_Plus):
    """Updates :class:`OwnStatistics` once per rollout, after the update."""

    def train(self):
        super().train()
        normalize = self.get_vec_normalize_env()
        # A row for each environment; final observations come alone.
        seen = [obs for obs in normalize.seen if obs.ndim == 2]
        rows, normalize.seen = np.concatenate(seen[-self.n_steps - 1 : -1]), seen[-1:]
        normalize.obs_rms.update(rows.astype(np.float64))
        # The next rollout begins with what the last step returned, by the new statistics.
        self._last_obs = normalize.normalize_obs(normalize.seen.pop())


def test_training_is_that_with_a_vec_normalize_that_is_updated_once_per_rollout():
    inside = make(normalize_values=False).learn(5 * 64)
    env = OwnStatistics(make_vec_env(Scaled, 2, seed=3))
    outside = make(env, cls=FromOutside, normalize_values=False, normalize_observations=False).learn(5 * 64)
    statistics = inside.policy.observation_normalizer
    np.testing.assert_allclose(statistics.mean, env.obs_rms.mean, rtol=1e-6)
    np.testing.assert_allclose(statistics.var, env.obs_rms.var, rtol=1e-4)
    assert statistics.count == 5 * 64
    th.testing.assert_close(weights(inside), weights(outside), rtol=0, atol=1e-4)
    # Without normalization, the weights would be others.
    assert not th.allclose(weights(inside), weights(make(**dict.fromkeys(BOTH, False)).learn(5 * 64)), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("reward_scale", part([1e-3, 1e4], [1e4]))
def test_the_critic_learns_on_every_scale_of_rewards(reward_scale):
    def explained(**kwargs):
        env = make_vec_env(Scaled, 2, seed=3, env_kwargs={"reward_scale": reward_scale})
        model = make(env, n_epochs=10, learning_rate=1e-3, gae_lambda=1.0, **kwargs).learn(20 * 64)
        error = model.rollout_buffer.returns - model.rollout_buffer.values
        return 1 - np.square(error).mean() / np.square(model.rollout_buffer.returns).mean()

    assert explained() > 0.9
    if reward_scale > 1:
        assert explained(normalize_values=False) < 0.1


def test_the_unit_of_rewards_changes_no_weight():
    def trained(reward_scale):
        env = make_vec_env(Scaled, 2, seed=3, env_kwargs={"reward_scale": reward_scale})
        return weights(make(env, normalize_values={"epsilon": 1e-30}, learning_rate=1e-3).learn(4 * 64))

    # A power of two, by which numbers are multiplied exactly; beside it, the epsilon of advantages is nothing.
    assert th.equal(trained(2.0**7), trained(2.0**14))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_moments_that_are_not_finite_are_not_added(bad):
    moments = RunningMoments((2,), 1e-8)
    moments.add(Moments.of(th.tensor([[1.0, 2.0], [3.0, 5.0]])))
    before = copy.deepcopy(moments.state_dict())
    moments.add(Moments.of(th.tensor([[bad, 2.0], [-bad, 2.0]], dtype=th.double)))
    assert all(th.equal(before[name], value) for name, value in moments.state_dict().items())


def test_values_that_follow_the_first_moments_are_not_clipped_around_0():
    def updated(**kwargs):
        return weights(make(make_vec_env(Scaled, 2, seed=3, env_kwargs={"reward_scale": 100.0}), **kwargs).learn(64))

    assert th.equal(updated(clip_range_vf=0.2), updated())


@given(st.integers(0, 2**31), st.floats(-1e5, 1e5), st.floats(1e-3, 1e5), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_rescaling_by_further_returns_changes_no_value(seed, offset, scale, n_times):
    rng = th.Generator().manual_seed(seed)
    last = nn.Linear(4, 1)
    normalizer = ValueNormalizer(last, 1, 1e-5)
    features = th.randn(20, 4, generator=rng)
    predictions, every = last(features), []
    assert not normalizer(predictions).any()
    for _ in range(n_times):
        before = normalizer(last(features))
        every.append(offset + scale * th.randn(50, generator=rng, dtype=th.double))
        if len(every) == 1:  # predictions are in units of the first returns
            before = (every[0].mean() + (every[0].var(correction=0) + 1e-5).sqrt() * predictions).float()
        normalizer.rescale([last], Moments.of(every[-1]))
        th.testing.assert_close(normalizer(last(features)), before, rtol=1e-4, atol=1e-4 * max(scale, abs(offset), 1.0))
    returns = th.cat(every)
    assert normalizer.mean.item() == pytest.approx(returns.mean().item(), rel=1e-9, abs=1e-9 * scale)
    assert normalizer.var.item() == pytest.approx(returns.var(correction=0).item(), rel=1e-6)


def test_values_are_in_units_of_the_reward_and_the_loss_is_in_units_of_the_returns():
    model = make(make_vec_env(Scaled, 2, env_kwargs={"reward_scale": 1000.0}), cls=Recording, clip_range_vf=0.3)
    model.learn(2 * 64)
    std = model.policy.value_normalizer.std.item()
    batch, coefficients, diagnostics = model.record[-1]
    assert std > 500
    assert coefficients.vf_coef.item() == pytest.approx(0.5 / std**2)
    assert coefficients.clip_range_vf.item() == pytest.approx(0.3 * std)
    # What is logged has the units of the reward, and the clip range of the argument.
    assert diagnostics["value_loss"] > 1e4 and batch.returns.abs().max() > 500
    assert model.logger.name_to_value["train/clip_range_vf"] == 0.3
    obs = th.as_tensor(model.rollout_buffer.observations[0])
    normalized = model.policy.value_net(model.policy.mlp_extractor.forward_critic(model.policy.extract_features(obs)))
    expected = model.policy.value_normalizer.mean + normalized.double() * std
    th.testing.assert_close(model.policy.predict_values(obs).double(), expected, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize(
    ("observation", "policy", "options", "shapes"),
    [
        ("box", "MlpPolicy", True, {"": (5,)}),
        ("box_int", "MlpPolicy", True, {"": (4,)}),
        ("dict", "MultiInputPolicy", True, {"vector": (5,)}),
        ("dict", "MultiInputLstmPolicy", {"keys": ["vector"], "clip": 2.0}, {"vector": (5,)}),
    ],
)
def test_only_numbers_are_normalized(observation, policy, options, shapes):
    env = vec(ACTIONS["box"], OBSERVATIONS[observation])
    model = make(env, policy, normalize_observations=options).learn(64)
    normalizer, buffer = model.policy.observation_normalizer, model.rollout_buffer
    assert normalizer.shapes == shapes and normalizer.count == 64
    rows = buffer.observations["vector"] if observation == "dict" else buffer.observations
    np.testing.assert_allclose(normalizer.mean, rows.reshape(64, -1).mean(axis=0, dtype=np.float64), rtol=1e-9)
    inputs = model.policy._preprocess(tree_map(lambda part: th.as_tensor(part[0]), buffer.observations))
    outputs = normalizer(inputs)
    if observation == "dict":
        assert all(outputs[key] is inputs[key] for key in inputs if key != "vector")
        inputs, outputs = inputs["vector"], outputs["vector"]
    bound = options["clip"] if isinstance(options, dict) else 10.0
    expected = ((inputs.double() - normalizer.mean) / (normalizer.var + 1e-8).sqrt()).clamp(-bound, bound)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_steps_that_only_reset_are_not_counted():
    model = make(as_vec_env(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"))).learn(64)
    buffer, policy = model.rollout_buffer, model.policy
    assert 0 < (~buffer.valid).sum()
    assert policy.observation_normalizer.count == policy.value_normalizer.count == buffer.valid.sum()
    np.testing.assert_allclose(policy.observation_normalizer.mean, buffer.observations[buffer.valid].mean(0), rtol=1e-5)
    np.testing.assert_allclose(policy.value_normalizer.mean, buffer.returns[buffer.valid].mean(), rtol=1e-5)


def test_rewards_that_a_callback_changes_count():
    def double(model):
        model.rollout_buffer.rewards *= 2
        model.rollout_buffer.compute_returns_and_advantage(th.zeros(2), np.zeros(2))

    model = make().learn(64, At(double, hooks=["rollout_end"]))
    np.testing.assert_allclose(model.policy.value_normalizer.mean, model.rollout_buffer.returns.mean(), rtol=1e-5)


@needs_compiler
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("policy", ["MlpPolicy", pytest.param("MlpGruPolicy", marks=pytest.mark.exhaustive)])
def test_compiled_training_is_the_same(policy):
    memory = SMALL if policy == "MlpGruPolicy" else {}
    eager, compiled = (
        make(policy=policy, compile=compile, clip_range_vf=0.2, policy_kwargs=memory).learn(128)
        for compile in (False, True)
    )
    assert_trained_alike(eager, compiled)
    for name in ("observation_normalizer.mean", "observation_normalizer.var", "value_normalizer.var"):
        th.testing.assert_close(
            eager.policy.state_dict()[name], compiled.policy.state_dict()[name], rtol=1e-3, atol=1e-5
        )


def test_training_in_tensors_is_that_in_numpy():
    models = [make(as_vec_env(env)).learn(3 * 96) for env in twins(ACTIONS["box"], 3)]
    states = [model.policy.state_dict() for model in models]
    assert states[0]["observation_normalizer.count"] == 3 * 96
    assert all(th.equal(states[0][name], states[1][name]) for name in states[0])


def test_one_file_has_everything(tmp_path):
    model = make().learn(256)
    model.save(tmp_path / "model")
    obs = OFFSET + SCALE * np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    other = make(seed=5)
    other.set_parameters(model.get_parameters())
    for each in (PPO_Plus.load(tmp_path / "model"), copy.deepcopy(model), other):
        np.testing.assert_array_equal(*(m.predict(obs, deterministic=True)[0] for m in (each, model)))
        th.testing.assert_close(*(m.policy.predict_values(th.as_tensor(obs)) for m in (each, model)))


def test_evaluation_and_predict_change_no_moments():
    model = make()
    evaluation = EvalAfterUpdates(make_vec_env(Scaled, 1), eval_freq=64, n_eval_episodes=1)
    model.learn(128, evaluation)
    before = copy.deepcopy(model.policy.state_dict())
    model.evaluate(2)
    model.evaluate(2, Scaled())
    model.predict(np.full(3, 1e6, np.float32))
    assert all(th.equal(value, model.policy.state_dict()[name]) for name, value in before.items())
    assert before["observation_normalizer.count"] == 128


# --- from VecNormalize ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("observation", "source"), [("box", None), ("box", "ours"), ("dict", "pickle")])
def test_statistics_of_a_vec_normalize_move_into_the_policy(tmp_path, observation, source):
    env = vec(ACTIONS["box"], OBSERVATIONS[observation])
    keys, policy = (["vector"], "MultiInputPolicy") if observation == "dict" else (None, "MlpPolicy")
    normalize = VecNormalize(env, clip_obs=1.5, epsilon=1e-4, norm_obs_keys=keys, norm_reward=False)
    model = make(normalize, policy, **dict.fromkeys(BOTH, False)).learn(128)
    rows = [model.observation_space.sample() for _ in range(20)]
    raw = {k: np.stack([row[k] for row in rows]) for k in rows[0]} if keys else np.stack(rows)
    before = model.predict(normalize.normalize_obs(raw), deterministic=True)[0]
    if source is not None:
        file = tmp_path / "statistics"
        write_statistics(normalize, file) if source == "ours" else normalize.save(str(file))
        model.save(tmp_path / "model")
        model, source = PPO_Plus.load(tmp_path / "model"), file
    assert model.absorb_normalization(source) is model
    np.testing.assert_allclose(model.predict(raw, deterministic=True)[0], before, rtol=0, atol=1e-6)
    # Saved, loaded and trained on in raw environments; its own VecNormalize has no further use.
    model.save(tmp_path / "absorbed")
    loaded = PPO_Plus.load(tmp_path / "absorbed", env=env)
    np.testing.assert_array_equal(loaded.predict(raw, deterministic=True)[0], model.predict(raw, deterministic=True)[0])
    count = model.policy.observation_normalizer.count.item()
    for each in (loaded, model) if source is None else (loaded,):
        each.learn(64)
        assert each.policy.observation_normalizer.count == count + 64
    with pytest.raises(ValueError, match="the policy normalizes already"):
        model.absorb_normalization(source)


def test_sb3_gets_a_vec_normalize_beside_the_model(tmp_path):
    env = vec(ACTIONS["box"], spaces.Dict(vector=VECTOR, choice=spaces.Discrete(3)))
    model = make(env, "MultiInputPolicy").learn(128)
    with pytest.warns(UserWarning) as said:
        model.to_sb3(tmp_path / "best.v1.zip")
    remedy = f"put its environment into VecNormalize.load({str(tmp_path / 'best.v1_vecnormalize.pkl')!r}, venv)"
    for text in ("it learns without normalize_values=True", remedy):
        assert [each.filename for each in said if text in str(each.message)] == [__file__]
    normalize = VecNormalize.load(str(tmp_path / "best.v1_vecnormalize.pkl"), env)
    theirs = SB3PPO.load(tmp_path / "best.v1.zip", env=normalize)
    with pytest.warns(UserWarning, match=r"best\.v1_vecnormalize\.pkl"):
        model.to_sb3(tmp_path / "best.v1")
    obs = env.observation_space.sample()
    seen = normalize.normalize_obs(obs)
    np.testing.assert_allclose(
        *(m.predict(o, deterministic=True)[0] for m, o in ((theirs, seen), (model, obs))), atol=1e-5
    )
    values = theirs.policy.predict_values(theirs.policy.obs_to_tensor(seen)[0])
    th.testing.assert_close(
        values, model.policy.predict_values(model.policy.obs_to_tensor(obs)[0]), rtol=1e-4, atol=1e-4
    )
    assert normalize.training
    theirs.learn(64)
    with pytest.raises(ValueError, match="pass a name of a file, beside which it can be written"):
        model.to_sb3(io.BytesIO())


def test_statistics_that_do_not_fit():
    with pytest.raises(ValueError, match="source=None does not normalize observations that the policy sees: pass a"):
        make(normalize_observations=False).absorb_normalization()
    other = VecNormalize(vec(ACTIONS["box"]))
    with pytest.raises(ValueError, match=r"has statistics of shapes {'': \(5,\)}, and the policy needs {'': \(3,\)}"):
        make(normalize_observations=False).absorb_normalization(other)


def test_a_vec_normalize_inside_other_wrappers_stays_there(tmp_path):
    normalize = VecNormalize(make_vec_env(Scaled, 2), norm_reward=False)
    model = make(Edited(normalize, lambda obs, *rest: (0.1 * obs, *rest)), **dict.fromkeys(BOTH, False)).learn(64)
    write_statistics(normalize, tmp_path / "statistics")
    for source in (None, normalize, tmp_path / "statistics"):
        with pytest.raises(ValueError, match="VecNormalize is inside Edited, and so cannot be a part of the policy"):
            model.absorb_normalization(source)
    assert model.policy.observation_normalizer is None and normalize.norm_obs


def test_images_in_a_vec_normalize_stay_there():
    space, policy = spaces.Dict(image=OBSERVATIONS["image"], vector=VECTOR), "MultiInputPolicy"
    normalize = VecNormalize(vec(ACTIONS["box"], space), norm_reward=False)
    model = make(normalize, policy, n_steps=8, batch_size=16, **dict.fromkeys(BOTH, False))
    with pytest.raises(ValueError, match="normalizes images, .*: keep VecNormalize, or train without it on images"):
        model.absorb_normalization()
    assert model.policy.observation_normalizer is None


@pytest.mark.parametrize(
    ("dtype", "mean", "loses"), [(np.float32, 1e6, False), (np.float64, 1e3, True), (np.int64, 2.0**26, True)]
)
def test_numbers_that_single_precision_cannot_tell_apart_are_an_error(dtype, mean, loses):
    space = spaces.Box(-(2**40), 2**40, (3,), dtype)
    normalize = VecNormalize(vec(ACTIONS["box"], space), norm_reward=False)
    model = make(normalize, **dict.fromkeys(BOTH, False), policy_kwargs={"ortho_init": False})
    rng = np.random.default_rng(0)
    rows = (mean + 3 * rng.normal(size=(500, 3))).astype(dtype)
    # A constant, as in Humanoid, loses nothing.
    rows[:, 2] = 8.90746214
    for row in rows:
        normalize.obs_rms.update(row[None])
    before = model.predict(normalize.normalize_obs(rows), deterministic=True)[0]
    if loses:
        with pytest.raises(
            ValueError, match=r"number [01] of observation \(.*64\) has mean .* and deviation .*: keep VecN"
        ):
            model.absorb_normalization()
    else:
        model.absorb_normalization()
        np.testing.assert_allclose(model.predict(rows, deterministic=True)[0], before, rtol=0, atol=1e-6)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"normalize_observations": "yes"}, "normalize_observations='yes' must be True, False, or a dict"),
        ({"normalize_observations": {"clips": 3}}, "unknown option 'clips': use some of epsilon, clip, keys"),
        ({"normalize_values": {"clip": 3}}, "unknown option 'clip': use some of epsilon"),
        ({"normalize_observations": {"clip": 0}}, r"normalize_observations: clip=0 must be a number in \(0"),
        ({"normalize_values": {"epsilon": -1}}, r"normalize_values: epsilon=-1 must be a number in \(0"),
        ({"normalize_observations": {"keys": []}}, r"names nothing to normalize: leave keys out"),
        (
            {"policy_kwargs": {"normalize_values": True}},
            r"policy_kwargs: normalize_values is an argument of PPO_Plus: .*\(..., normalize_values=True\)",
        ),
        ({"normalize_observations": {"keys": "vector"}}, "normalize_observations: keys='vector' must be a list"),
        ({"normalize_observations": {"keys": ["vector"]}}, "keys names 'vector', which has no numbers to normalize"),
        (
            {"policy_kwargs": {"critic": lambda i, o: nn.Sequential(nn.Linear(i, o), nn.Identity())}},
            r"Identity\(\) is not a torch.nn.Linear with a bias and .*: end policy_kwargs=dict\(critic=...\) with one",
        ),
        (
            {"policy_kwargs": {"critic": lambda i, o: nn.Sequential(nn.Tanh(), weight_norm(nn.Linear(i, o)))}},
            "is not a torch.nn.Linear with a bias and without weight_norm or the like",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(**arguments)


@pytest.mark.parametrize(
    ("observation", "policy", "keys", "message"),
    [
        ("image", "CnnPolicy", None, "observation_space=Box.* has no numbers to normalize .* leave it out"),
        ("discrete_start", "MlpPolicy", None, "has no numbers to normalize"),
        ("dict", "MultiInputPolicy", ["image"], r"keys names 'image', .*: use some of \['vector'\]"),
    ],
)
def test_nothing_to_normalize(observation, policy, keys, message):
    with pytest.raises(ValueError, match=message):
        make(vec(ACTIONS["box"], OBSERVATIONS[observation]), policy, normalize_observations={"keys": keys})


def test_a_vec_normalize_that_does_the_same_raises_an_error(tmp_path):
    def env(**kwargs):
        return VecNormalize(make_vec_env(Scaled, 2), **kwargs)

    twice = "normalize_observations=True and a VecNormalize with norm_obs=True would normalize twice"
    with pytest.raises(ValueError, match=twice):
        make(env(norm_reward=False))
    with pytest.raises(ValueError, match="normalize_values=True and a VecNormalize with norm_reward=True"):
        make(env(norm_obs=False))
    inner = env(norm_reward=False)
    with pytest.raises(ValueError, match=twice):
        make(VecNormalize(inner, norm_obs=False), normalize_values=False)
    # Each for another part, they go together.
    make(env(norm_obs=False), normalize_values=False).learn(64)
    model = make(env(norm_reward=False), normalize_observations=False).learn(64)
    assert model.policy.observation_normalizer is None
    model = make().learn(64)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=twice):
        PPO_Plus.load(tmp_path / "model", env=env())
    with pytest.raises(ValueError, match=twice):
        model.evaluate(1, env())
    with pytest.raises(ValueError, match=twice):
        model.set_env(env())
    with pytest.raises(ValueError, match=twice):
        model.learn(64, EvalCallback(env(training=False), verbose=0))


def test_an_encoder_that_nothing_is_normalized_for_is_an_error():
    class OfSB3(ActorCriticPolicy):
        def extract_features(self, obs, features_extractor=None):
            return self.features_extractor(preprocess_obs(obs, self.observation_space))

    class Ours(PPO_Plus.policy_aliases["MlpPolicy"]):
        def encode(self, obs):
            return Features(obs, obs)

    class Doubled(Ours):
        def encode(self, obs):
            features, _ = super(Ours, self).encode(obs)
            return Features(2 * features, 2 * features)

    for policy, name in ((OfSB3, "OfSB3.extract_features"), (Ours, "Ours.encode")):
        with pytest.raises(ValueError, match=f"normalize_observations does not reach {name}: call super"):
            make(policy=policy)
        model = make(VecNormalize(make_vec_env(Scaled, 2)), policy=policy, **dict.fromkeys(BOTH, False)).learn(64)
        with pytest.raises(ValueError, match=f"does not reach {name}"):
            model.absorb_normalization()
    make(policy=Doubled).learn(64)
