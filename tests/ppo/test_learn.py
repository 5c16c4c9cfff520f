"""Calls of ``learn``: on every vector environment, with copies, callbacks, exceptions and hooks."""

import copy
import io
import re
import types
import warnings
from contextlib import contextmanager
from functools import cache, partial

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, RandomEnv, vec
from gymnasium import spaces
from models import make_model, weights
from parametrization import EXHAUSTIVE
from stable_baselines3 import PPO
from stable_baselines3.common import on_policy_algorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from tensor_envs import twins
from training import At, CopiesInHooks, make

from ppo_plus import ColoredNoise, PPO_Plus, RandomNetworkDistillation, Stream, as_vec_env


@pytest.mark.parametrize("mode", [gym.vector.AutoresetMode.SAME_STEP, gym.vector.AutoresetMode.NEXT_STEP])
def test_gymnasium_vector_envs_give_the_rows_of_a_dummy_vec_env(mode):
    """Rows in which such an environment only resets take no part: what is left is what SB3 would have seen."""

    def episodes(env, n_rows):
        """Observations, actions and rewards of the first environment, split into episodes."""
        model = make(env=env, n_steps=n_rows, batch_size=8, policy_kwargs={"ortho_init": False})
        _, callback = model._setup_learn(10_000)
        th.manual_seed(0)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rows)
        buffer = model.rollout_buffer
        kept = np.ones(n_rows, bool) if buffer.valid is None else buffer.valid[:, 0]
        starts = buffer.episode_starts[kept, 0].astype(bool)
        assert sum(len(batch.actions) for batch in buffer.get(8)) == kept.sum()
        return kept, starts, buffer

    def one():
        return RandomEnv(ACTIONS["discrete"], max_steps=4)

    vector = gym.vector.SyncVectorEnv([one], autoreset_mode=mode)
    kept, starts, buffer = episodes(vector, 30)
    lengths = np.diff(np.flatnonzero(starts))
    assert lengths.max() == 4
    assert (~kept).any() == (mode == gym.vector.AutoresetMode.NEXT_STEP)
    # The value of the final observation was added to the reward of steps that the time limit ended.
    _, dummy_starts, dummy = episodes(DummyVecEnv([one]), 30)
    n = min(kept.sum(), 30)
    np.testing.assert_array_equal(starts[:n], dummy_starts[:n])
    np.testing.assert_array_equal(buffer.observations[kept][:n], dummy.observations[:n])


def test_a_gymnasium_vector_env_is_learned_from_and_evaluated():
    env = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    model = make(env=env, n_steps=32, batch_size=32, normalize_advantage="rollout").learn(512)
    assert model.rollout_buffer.valid is not None
    assert len(model.ep_info_buffer) > 0
    assert model.evaluate(2)[0] > 5
    assert model.evaluate(2, env=gym.make_vec("CartPole-v1", num_envs=2))[0] > 5


def pickled(model):
    return cloudpickle.loads(cloudpickle.dumps(model))


@pytest.mark.parametrize(
    ("kind", "duplicate"),
    [("arrays", pickled), ("tensors", copy.deepcopy), pytest.param("compiled", copy.deepcopy, marks=EXHAUSTIVE)],
)
def test_callbacks_copy_a_model_in_every_hook(kind, duplicate, request):
    if kind == "compiled":  # Inductor would take many seconds for each copy
        request.getfixturevalue("traced")
    env = as_vec_env(list(twins(ACTIONS["box"], 2))[kind == "tensors"])
    copying = CopiesInHooks(duplicate)
    model = make(env=env, compile=kind == "compiled", verbose=1).learn(32, [copying])
    assert len(copying.copies) == 5
    for twin in copying.copies.values():
        assert twin.call.callbacks == [] and twin.num_timesteps <= 32
        twin.evaluate(1)
        twin.learn(16, reset_num_timesteps=False)
        assert twin.env is not env
    assert th.equal(weights(duplicate(model)), weights(model))


def test_evaluation_within_stacked_frames_keeps_the_last_frames():
    env = VecFrameStack(vec(ACTIONS["discrete"], n_envs=1), 2)
    model = make(env=env, n_steps=8, policy_kwargs={"ortho_init": False})
    seen = []

    def evaluate(model):
        seen.append(model.collector.pending.new_obs.copy())
        model.evaluate(1)
        seen.append(model.collector.pending.new_obs)

    model.learn(8, At(evaluate, [4]))
    # The observation behind the transition that the evaluation cut off.
    np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize("step", [1, 8])
def test_the_environment_may_be_replaced_in_a_rollout(step):
    model = make()
    model.learn(32, At(lambda model: model.set_env(vec(ACTIONS["discrete"])), [step]))
    assert model.num_timesteps == 32


class Tiny(RandomEnv):
    """Its observations are too small for single precision."""

    def step(self, action):
        obs, *rest = super().step(action)
        return obs * 1e-310, *rest


@cache
def used_plainly(kind):
    return used(kind)


def used(kind):
    """The weights of a model that has been made, trained, loaded and used for all that a user does with one."""
    policy = "MlpLstmPolicy" if kind == "memory" else "MlpPolicy"
    env = VecNormalize(vec(ACTIONS["box"], spaces.Box(-1, 1, (2,), np.float64), env_class=Tiny))
    streams = [RandomNetworkDistillation()] if kind == "streams" else []
    options = dict(env=env, policy=policy, use_sde=kind == "gSDE", compile=kind == "compiled", streams=streams)
    model = make_model(**options).learn(32)
    assert np.isfinite(model.evaluate(1)).all()
    model.predict(env.reset())
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    learned = weights(PPO_Plus.load(file, env=env, device="cpu").learn(16))
    if kind != "streams":
        model.absorb_normalization().predict(env.reset())
    return learned


@contextmanager
def on_meta():
    th.set_default_device("meta")
    try:
        yield
    finally:
        th.set_default_device(None)


@contextmanager
def in_double():
    th.set_default_dtype(th.double)
    try:
        yield
    finally:
        th.set_default_dtype(th.float)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("plain", on_meta),
        ("streams", on_meta),
        ("plain", th.inference_mode),
        ("plain", partial(np.errstate, all="raise")),
        ("plain", partial(warnings.catch_warnings, action="error")),
        *((kind, in_double) for kind in ("gSDE", "memory")),
        pytest.param("compiled", in_double, marks=pytest.mark.slow),
        ("memory", th.no_grad),
    ],
)
def test_what_other_code_of_the_process_has_set_does_not_matter(kind, settings):
    expected = used_plainly(kind)
    with settings():
        assert th.equal(used(kind), expected)


def test_environments_that_a_callback_copies_at_the_start_are_their_own():
    class Copies(BaseCallback):
        def _init_callback(self):
            self.copied = copy.deepcopy(self.training_env)

        def _on_step(self):
            self.copied.reset()
            return True

    def trained(callback):
        return weights(make_model(env=DummyVecEnv([lambda: RandomEnv(ACTIONS["discrete"])] * 2)).learn(64, callback))

    assert th.equal(trained(Copies()), trained(None))


def test_a_callback_may_change_the_discounts_of_the_buffer():
    """As in SB3, where assigning ``model.gae_lambda`` changes nothing."""
    assign = At(lambda model: setattr(model.rollout_buffer, "gae_lambda", 0.5), hooks=["rollout_start"])
    one, other = make_model().learn(16, assign), make_model(gae_lambda=0.5).learn(16)
    np.testing.assert_array_equal(one.rollout_buffer.advantages, other.rollout_buffer.advantages)


def test_observations_that_a_vector_environment_changes_are_learned_from():
    class Half(DummyVecEnv):
        def _obs_from_buf(self):
            return super()._obs_from_buf() * 0 + 0.5

    model = make_model(env=Half([lambda: RandomEnv(ACTIONS["discrete"])] * 2)).learn(16)
    assert (model.rollout_buffer.observations == 0.5).all()


def test_a_callback_that_returns_nothing_gives_a_warning():
    model = make_model()
    with pytest.warns(UserWarning, match="the callback returned None, which ends training: return True"):
        model.learn(64, lambda locals_, globals_: None)
    assert model.num_timesteps == 2


def test_a_loop_by_hand_as_for_sb3_learns_or_says_what_to_call():
    model = make_model()
    with pytest.raises(RuntimeError, match="the rollout has 0 of 8 steps: call collect_rollouts before train"):
        model.train()
    _, callback = model._setup_learn(32)
    before = weights(model)
    assert model.collect_rollouts(model.env, callback, model.rollout_buffer, 8)
    model.train()
    assert not th.equal(weights(model), before)


@pytest.mark.parametrize("cls", [PPO, PPO_Plus])
def test_a_buffer_filled_by_hand_as_for_sb3_is_learned_from(cls):
    model = cls("MlpPolicy", vec(ACTIONS["discrete"]), n_steps=8, batch_size=8, device="cpu")
    model._setup_learn(32)
    before, buffer, starts = weights(model), model.rollout_buffer, np.ones(2, bool)
    obs = model.env.reset()
    with th.no_grad():
        for _ in range(8):
            actions, values, log_probs = model.policy(model.policy.obs_to_tensor(obs)[0])
            new_obs, rewards, dones, _ = model.env.step(actions.numpy())
            buffer.add(obs, actions.numpy().reshape(-1, 1), rewards, starts, values, log_probs)
            obs, starts = new_obs, dones
        values = model.policy.predict_values(model.policy.obs_to_tensor(obs)[0])
    buffer.compute_returns_and_advantage(last_values=values, dones=dones)
    model.train()
    assert not th.equal(weights(model), before) and "train/kl" not in model.logger.name_to_value


def test_forward_hooks_on_the_policy_itself_give_a_warning():
    model = make_model()
    seen = []
    hook = model.policy.register_forward_hook(lambda *_: seen.append("policy"))
    with pytest.warns(UserWarning, match="forward hooks on the policy itself are not called.*policy.mlp_extractor"):
        model.learn(16)
    hook.remove()
    model.policy.mlp_extractor.policy_net.register_forward_hook(lambda *_: seen.append("part"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(16)
    assert "part" in seen and "policy" not in seen


class Bandit(gym.Env):
    """Each episode is one step: action 1 is the better one."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), True, False, {}


def test_a_rollout_in_which_all_environments_only_reset_changes_nothing():
    model = make(env=gym.vector.SyncVectorEnv([Bandit] * 32), n_steps=1, batch_size=32, learning_rate=1e-2)
    model.learn(32)
    trained = weights(model)
    model.learn(32, reset_num_timesteps=False)
    assert th.equal(weights(model), trained)
    model.learn(32 * 60, reset_num_timesteps=False)
    assert model.predict(np.zeros(1, np.float32), deterministic=True)[0] == 1


def test_explained_variance_counts_what_is_learned_from():
    env = gym.vector.SyncVectorEnv([lambda: RandomEnv(ACTIONS["discrete"], max_steps=2)] * 2)
    model = make(env=env, n_steps=32).learn(64)
    buffer = model.rollout_buffer
    assert not buffer.valid.all()
    values, returns = buffer.values[buffer.valid], buffer.returns[buffer.valid]
    logged = model.logger.name_to_value["train/explained_variance"]
    assert logged == pytest.approx(1 - np.var(returns - values) / np.var(returns), abs=1e-5)


@pytest.mark.parametrize(
    ("hook", "n_steps", "policy"),
    [("rollout_start", 8, "Mlp"), ("step", 32, "Mlp"), ("step", 8, "MlpLstm"), ("rollout_end", 32, "MlpLstm")],
)
def test_a_callback_may_change_the_length_of_the_next_rollout(hook, n_steps, policy):
    lengths, change = [], At(lambda model: setattr(model, "n_steps", n_steps) is None, hooks=[hook])

    class Recording(PPO_Plus):
        def train(self):
            lengths.append(self.rollout_buffer.buffer_size)
            super().train()

    model = Recording(f"{policy}Policy", vec(ACTIONS["discrete"]), n_steps=16, batch_size=8, n_epochs=1, device="cpu")
    model.learn(2 * (16 + 2 * n_steps), change)
    assert lengths == [16, n_steps, n_steps]


def test_a_buffer_may_be_resized_as_in_sb3():
    returns = []
    for cls in (PPO, PPO_Plus):
        model = cls("MlpPolicy", "Pendulum-v1", n_steps=32, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(32)
        model.n_steps = model.rollout_buffer.buffer_size = 16
        model.rollout_buffer.reset()
        returns.append(model.learn(16, reset_num_timesteps=False).rollout_buffer.returns.reshape(16))
    np.testing.assert_allclose(*returns, rtol=1e-4)


def test_a_model_that_is_set_up_again_has_a_buffer_for_its_environments():
    model = make_model()
    model.env = PPO_Plus._wrap_env(vec(ACTIONS["discrete"], n_envs=3))
    model.n_envs = 3
    model._setup_model()
    assert model.learn(24).rollout_buffer.n_envs == 3


def test_the_message_of_an_early_stop_has_the_kl_that_stopped_it(capsys):
    make_model(verbose=1, n_steps=128, target_kl=0.001, n_epochs=10, learning_rate=1e-3).learn(1024)
    found = [float(kl) for kl in re.findall(r"reaching max kl: (\S+)", capsys.readouterr().out)]
    assert found and min(found) >= 0.0015


def test_a_seed_that_is_assigned_names_the_method_that_sets_it():
    model = make_model(seed=1)
    model.seed = 2
    with pytest.raises(ValueError, match="set it back, and call set_random_seed"):
        model.learn(16)
    model.seed = 1
    model.set_random_seed(2)
    model.learn(16)


class WithMasks(RandomEnv):
    def action_masks(self):
        return np.ones(self.action_space.n, dtype=bool)


class Copied(PPO_Plus):
    """With SB3's loop, which knows nothing of masks, memory and parameters."""

    collect_rollouts = types.FunctionType(
        on_policy_algorithm.OnPolicyAlgorithm.collect_rollouts.__code__, vars(on_policy_algorithm)
    )


@pytest.mark.parametrize("use_sde", [False, True])
def test_a_loop_copied_from_sb3_collects_the_same(use_sde):
    copied, own = (make_model(cls, vec(ACTIONS["box"]), use_sde=use_sde).learn(64) for cls in (Copied, PPO_Plus))
    # Values at time limits are added in another order.
    th.testing.assert_close(weights(copied), weights(own), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ({"policy": "MlpLstmPolicy"}, "memory"),
        ({"env": vec(ACTIONS["discrete"], env_class=WithMasks)}, "action masks"),
        ({"exploration": ColoredNoise()}, "exploration=ColoredNoise.*"),
        ({"recompute_advantages": True}, "recompute_advantages=True"),
        ({"streams": [Stream("cost")]}, "streams"),
        ({"env": "Pendulum-v1", "policy_kwargs": {"squash_output": True}}, "squash_output=True"),
        ({"env": gym.make_vec("CartPole-v1", 2)}, "the autoreset mode NEXT_STEP"),
    ],
)
def test_a_loop_copied_from_sb3_that_leaves_something_out_raises_an_error(arguments, missing):
    model = make_model(Copied, **{"env": vec(ACTIONS["box"])} | arguments)
    with pytest.raises(ValueError, match=f"^Copied.collect_rollouts does not support {missing}: call super"):
        model.learn(16)
