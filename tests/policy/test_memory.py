"""A kind of memory that is neither a recurrent layer nor has layers passes every check that memory passes."""

import copy
from itertools import product

import numpy as np
import pytest
import torch as th
from compiled import assert_trained_alike, needs_compiler
from envs import ACTIONS, OBSERVATIONS, MaskedEnv, vec
from parametrization import sample
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from tensor_envs import twins

from ppo_plus import (
    Carry,
    Checkpoints,
    Features,
    MultiInputPolicy,
    PPO_Plus,
    Resumable,
    WithMemory,
    as_vec_env,
    register,
)

STORED = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")


class LastObservations(WithMemory):
    """Remembers the features of the last three observations."""

    k = 3

    def memory_dim(self, features_dim):
        return self.k * features_dim

    def init_memory(self, n_envs):
        return th.zeros(n_envs, self.k, self.input_dims["actor"], device=self.device)

    def encode_step(self, obs, memory, episode_starts=None):
        if episode_starts is not None:
            memory = memory * ~episode_starts[:, None, None]
        memory = th.cat([memory[:, 1:], self.encode(obs).actor[:, None]], dim=1)
        return Features(memory.flatten(1), memory.flatten(1)), memory


class LastEntries(LastObservations, MultiInputPolicy):
    """The same for Dict observations."""


register(LastObservations, LastEntries)


def make(env=None, cls=PPO_Plus, policy=LastObservations, **kwargs):
    arguments = dict(n_steps=16, batch_size=16, n_epochs=2, sequence_length=8, seed=0, device="cpu", compile=False)
    env = vec(ACTIONS["discrete"]) if env is None else env
    return cls(policy, env, **arguments | kwargs | {"policy_kwargs": {"ortho_init": False}})


def test_sequences_equal_steps_across_episode_starts():
    model = make().learn(32)
    policy, buffer = model.policy, model.rollout_buffer
    batch = buffer.on_device()
    assert batch.episode_starts.view(-1, 8)[:, 1:].any()
    with th.no_grad():
        features = policy.encode_sequences(batch.observations, batch.carry.memory, batch.episode_starts)
        rows, memory, steps = th.arange(0, 32, 8), batch.carry.memory, []
        for t in range(8):
            found, memory = policy.encode_step(batch.observations[rows + t], memory, batch.episode_starts[rows + t])
            steps.append(found.actor)
    assert th.equal(features.actor, th.stack(steps, dim=1).flatten(0, 1))
    assert (features.actor.view(32, 3, -1)[:, 0] != 0).any()


class First(PPO_Plus):
    """Remembers the diagnostics of each update's first minibatch."""

    def train(self):
        self.is_first = True
        super().train()

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        if self.is_first:
            self.firsts = [*getattr(self, "firsts", []), losses.diagnostics]
        self.is_first = False
        return losses


@pytest.mark.parametrize(
    ("kind", "exploration", "recompute_advantages"),
    sample(
        product(
            ["box", "mixed", "multidiscrete"],
            [{}, {"use_sde": True, "sde_sample_freq": "episode"}],
            [False, True],
        ),
        5,
    ),
)
def test_kl_is_zero_on_the_first_minibatch(kind, exploration, recompute_advantages):
    env_class = MaskedEnv if kind == "multidiscrete" else None
    env = vec(ACTIONS[kind], **{} if env_class is None else {"env_class": env_class})
    model = make(env, First, recompute_advantages=recompute_advantages, **exploration).learn(64)
    assert len(model.firsts) == 2 and (model.rollout_buffer.masks is None) == (env_class is None)
    for diagnostics in model.firsts:
        assert abs(diagnostics["approx_kl"]) < 1e-5 and abs(diagnostics["kl"]) < 1e-5
        assert diagnostics["clip_fraction"] == 0


class Watch(BaseCallback):
    """Notes rewards and final observations by step and environment."""

    def _on_training_start(self):
        self.rewards, self.finals = [], {}

    def _on_step(self):
        self.rewards.append(self.locals["rewards"].copy())
        for i in np.flatnonzero(self.locals["dones"]):
            if self.locals["infos"][i]["TimeLimit.truncated"]:
                self.finals[self.n_calls - 1, i] = self.locals["infos"][i]["terminal_observation"]
        return True


def test_values_at_time_limits_depend_on_what_is_remembered():
    model, watch = make(vec(ACTIONS["discrete"], p_end=0.0, max_steps=7)), Watch()
    model.train = lambda: None
    model.learn(32, watch)
    buffer, policy = model.rollout_buffer, model.policy
    assert len(watch.finals) == 4
    for (step, i), final_obs in watch.finals.items():
        first = max(t for t in range(step + 1) if buffer.episode_starts[t, i])
        episode = [*buffer.observations[first : step + 1, i], final_obs]
        memory = policy.init_memory(1)
        with th.no_grad():
            for obs in episode:
                value = policy.predict_values(th.as_tensor(obs)[None], Carry(memory)).item()
                memory = policy.encode_step(th.as_tensor(obs)[None], memory)[1]
            forgotten = policy.predict_values(th.as_tensor(final_obs)[None]).item()
        assert abs(value - forgotten) > 1e-3
        assert buffer.rewards[step, i] == pytest.approx(watch.rewards[step][i] + model.gamma * value, abs=1e-5)


def test_training_in_tensors_is_that_in_numpy():
    models = []
    for env in twins(ACTIONS["box"], 3):
        models.append(make(as_vec_env(env), use_sde=True, sde_sample_freq="episode").learn(96))
    buffers = [model.rollout_buffer for model in models]
    for name in STORED:
        np.testing.assert_array_equal(*(getattr(buffer, name) for buffer in buffers), err_msg=name)
    weights = [model.policy.state_dict() for model in models]
    assert all(th.equal(weights[0][name], weights[1][name]) for name in weights[0])


@needs_compiler
@pytest.mark.usefixtures("traced")
def test_compiled_training_is_the_same():
    assert_trained_alike(*(make(compile=compile).learn(64) for compile in (False, True)))


def test_predict_returns_and_takes_the_state():
    model = make().learn(32)
    observations = np.stack([model.observation_space.sample() for _ in range(4)])
    _, state = model.predict(observations, deterministic=True)
    (window,) = state
    assert window.shape == (3, 4, 5) and not window[:2].any()
    np.testing.assert_array_equal(window[2], observations)
    _, (window,) = model.predict(observations + 1, state, np.array([False, True, False, False]))
    np.testing.assert_array_equal(window[1, [0, 2, 3]], observations[[0, 2, 3]])
    assert not window[:2, 1].any()
    with pytest.raises(ValueError, match=r"state has arrays of shapes \[\(3, 4, 5\)\], but 2 observations need"):
        model.predict(observations[:2], state)


@pytest.mark.slow
def test_an_exported_policy_remembers(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    from ppo_plus.saving.export.export import ExportedPolicy

    model = make(policy=LastEntries, env=vec(ACTIONS["box"], OBSERVATIONS["dict"])).learn(32)
    exported = ExportedPolicy(model.export(tmp_path / "policy.onnx"), model.action_space)
    state = theirs = None
    for _ in range(4):
        observations = model.observation_space.sample()
        obs = {key: np.asarray(value)[None] for key, value in observations.items()}
        actions, state = model.predict(obs, state, deterministic=True)
        others, theirs = exported.predict(obs, theirs)
        np.testing.assert_allclose(others, actions, rtol=1e-4, atol=1e-5)
    assert all(part[0].any() for part in state)


def cart_poles():
    return make_vec_env("CartPole-v1", 2, seed=5, wrapper_class=Resumable)


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    whole = make(cart_poles()).learn(128, Checkpoints(tmp_path / "whole", save_freq=32, minutes=None))

    class Stop(BaseCallback):
        def _on_step(self):
            if self.num_timesteps > 80:
                raise KeyboardInterrupt
            return True

    with pytest.raises(KeyboardInterrupt):
        make(cart_poles()).learn(128, [Checkpoints(tmp_path / "cut", save_freq=32, minutes=None), Stop()])
    resumed = PPO_Plus.resume(tmp_path / "cut", cart_poles(), device="cpu")
    assert 0 < resumed.num_timesteps < 128
    resumed.learn(128, Checkpoints(tmp_path / "cut", save_freq=32, minutes=None))
    for ours, theirs in zip(resumed.policy.parameters(), whole.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


def test_saved_loaded_and_copied_models_continue_alike(tmp_path):
    model = make().learn(32)
    model.save(tmp_path / "model")
    env = copy.deepcopy(model.env)
    loaded = PPO_Plus.load(tmp_path / "model", env=env, device="cpu", force_reset=False)
    models = [model, loaded, copy.deepcopy(model)]
    for each in models:
        th.manual_seed(5)
        np.random.seed(5)
        each.learn(32, reset_num_timesteps=False)
    for others in models[1:]:
        for ours, theirs in zip(others.policy.parameters(), model.policy.parameters(), strict=True):
            assert th.equal(ours, theirs)
