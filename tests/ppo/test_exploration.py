"""Noise is held and renewed as the arguments say, for every action space."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, VECTOR, StillEnv, equal_actions, vec
from gymnasium import spaces
from models import weights
from parametrization import in_turn
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from training import make

from ppo_plus import ColoredNoise, MlpPolicy, NoiseProcess, StateDependentNoise

# Many environments, in up to three groups: that new noise makes the same three-way choice in a whole group of sixteen
# has a probability of 3**-16, and the seed is fixed.
N_NOISY = 48


class Actions(BaseCallback):
    def __init__(self):
        super().__init__()
        self.actions, self.starts = [], []

    def _on_step(self):
        self.actions.append(self.locals["actions"].copy())
        self.starts.append(self.model._last_episode_starts.copy())
        return True


def explore(kind, n_updates=2, n_steps=8, max_steps=None, observation_space=VECTOR, **kwargs):
    """The actions of a policy that sees one and the same observation and does not learn: ``(steps, envs, dims)``."""
    lengths = [None if max_steps is None else max_steps[i % len(max_steps)] for i in range(N_NOISY)]
    action_space = ACTIONS["box" if kind == "box_squashed" else kind]
    env = DummyVecEnv([lambda n=n: StillEnv(action_space, observation_space, n, p_end=0.0) for n in lengths])
    policy_kwargs = {"squash_output": True} if kind == "box_squashed" else {}
    kwargs = {"use_sde": True} | kwargs
    model = make(
        env=env, n_steps=n_steps, n_epochs=1, batch_size=64, learning_rate=0.0, policy_kwargs=policy_kwargs, **kwargs
    )
    callback = Actions()
    model.learn(n_updates * n_steps * N_NOISY, callback)
    return np.array(callback.actions), np.array(callback.starts)


def changes(actions):
    """Steps at which any environment's action differs from the step before."""
    return [t for t in range(1, len(actions)) if np.any(actions[t] != actions[t - 1])]


#: One action space of each kind.
FAMILIES = ["box", "box_squashed", "discrete_start", "multibinary_2d", "mixed"]
EXPLORATIONS = [{}, {"use_sde": True}, {"exploration": ColoredNoise(1.0, horizon=64)}]


@pytest.mark.parametrize(
    ("kind", "kwargs", "expected"),
    [
        *((kind, {}, [8]) for kind in FAMILIES),
        *((kind, {"sde_sample_freq": 3}, [3, 6, 8, 11, 14]) for kind in FAMILIES),
        *((kind, {"use_sde": False}, list(range(1, 16))) for kind in FAMILIES),
    ],
)
def test_noise_is_kept_and_resampled_as_the_arguments_say(kind, kwargs, expected):
    """For a rollout, for as many steps of one, or in each step."""
    actions, _ = explore(kind, **kwargs)
    assert changes(actions) == expected


@pytest.mark.parametrize("kind", FAMILIES)
def test_noise_is_resampled_only_at_episode_starts(kind):
    actions, starts = explore(kind, sde_sample_freq="episode", max_steps=(3, 5, 100))
    for parity, length in enumerate((3, 5, 100)):
        # Episodes run on from one rollout into the next.
        assert changes(actions[:, parity::3]) == list(range(length, 16, length))
    for t in range(1, 16):
        assert np.array_equal(actions[t][~starts[t]], actions[t - 1][~starts[t]])


@pytest.mark.parametrize("kind", FAMILIES)
def test_environments_do_not_share_noise(kind):
    # All of them see the one observation that there is.
    actions, _ = explore(kind, n_updates=1, observation_space=spaces.Discrete(1))
    assert len(np.unique(actions[0], axis=0)) > 1


@pytest.mark.parametrize(("kind", "exploration"), in_turn(FAMILIES, EXPLORATIONS))
def test_reset_noise_resamples_the_noise_of_predict(kind, exploration):
    env = vec(ACTIONS["box" if kind == "box_squashed" else kind], n_envs=N_NOISY)
    policy_kwargs = {"squash_output": True} if kind == "box_squashed" else {}
    model = make(env=env, policy_kwargs=policy_kwargs, **exploration)
    obs = env.reset()
    model.policy.reset_noise(N_NOISY)
    first, second = model.predict(obs)[0], model.predict(obs)[0]
    assert equal_actions(first, second) == ("use_sde" in exploration)
    model.policy.reset_noise(N_NOISY)
    assert not equal_actions(model.predict(obs)[0], second)


def test_predict_resamples_noise_where_episodes_start():
    model = make(env=vec(ACTIONS["box"], n_envs=3), use_sde=True)
    obs = model.get_env().reset()
    before = model.predict(obs)[0]
    after = model.predict(obs, episode_start=np.array([False, True, False]))[0]
    assert np.array_equal(before[[0, 2]], after[[0, 2]])
    assert not np.array_equal(before[1], after[1])


def test_predicting_does_not_disturb_the_noise_of_training():
    class Predict(Actions):
        def _on_step(self):
            state = th.get_rng_state()
            self.model.predict(self.locals["new_obs"][:1])
            self.model.policy.reset_noise(3)
            th.set_rng_state(state)
            return super()._on_step()

    results = []
    for callback in (Actions(), Predict()):
        make(env=vec(ACTIONS["box"]), use_sde=True).learn(16, callback)
        results.append(np.array(callback.actions))
    np.testing.assert_array_equal(*results)


def act_alike(obs, *policies):
    """Whether policies choose the same actions thrice."""
    actions = []
    for policy in policies:
        th.manual_seed(5)
        actions.append([policy.predict(obs)[0] for _ in range(3)])
    return all(map(equal_actions, *actions))


@pytest.mark.parametrize(("kind", "exploration"), in_turn(FAMILIES, EXPLORATIONS))
def test_a_policy_that_is_saved_by_itself_or_copied_acts_alike(kind, exploration, tmp_path):
    env = vec(ACTIONS["box" if kind == "box_squashed" else kind])
    policy_kwargs = {"squash_output": True} if kind == "box_squashed" else {}
    policy = make(env=env, policy_kwargs=policy_kwargs, n_epochs=1, **exploration).learn(16).policy
    obs = env.reset()
    policy.save(tmp_path / "policy.pt")
    assert act_alike(obs, policy, MlpPolicy.load(tmp_path / "policy.pt", device="cpu"))
    assert act_alike(obs, policy, copy.deepcopy(policy))


@dataclass(frozen=True)
class NoNoise(NoiseProcess):
    """A process of one's own, which does nothing."""

    def init(self, n_envs, latent_dim, noise_dim, device="cpu"):
        return {"zeros": th.zeros(n_envs, noise_dim, device=device)}

    def sample(self, carry, features, log_std):
        return carry["zeros"], carry


@pytest.mark.parametrize("kind", ["box", "multibinary"])
def test_a_custom_noise_process_decides_the_actions(kind):
    model = make(env=vec(ACTIONS[kind]), exploration=NoNoise(), sde_sample_freq="episode", learning_rate=0.0).learn(16)
    obs = th.from_numpy(model.rollout_buffer.observations).flatten(0, 1)
    mode = model.policy.get_distribution(obs).mode().detach().numpy()
    # Without noise an action is the mean, or for a coin its likelier side; two rows and sixteen are added differently.
    np.testing.assert_allclose(model.rollout_buffer.actions.reshape(mode.shape), mode, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class OneNumber(NoiseProcess):
    """The same noise for all components, which would shift all logits alike."""

    def sample(self, carry, features, log_std):
        return th.randn(len(features), 1), carry


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_noise_of_another_shape_is_an_error(kind):
    with pytest.raises(ValueError, match=r"OneNumber\(\): sample returned noise of shape \(1, 1\), not \(1, "):
        make(env=vec(ACTIONS[kind], n_envs=1), exploration=OneNumber()).learn(16)


def test_an_exploration_object_of_gsde_is_use_sde():
    runs = [{"use_sde": True}, {"exploration": StateDependentNoise()}]
    first, second = (weights(make(env=vec(ACTIONS["box"]), **run).learn(32)) for run in runs)
    assert th.equal(first, second)
