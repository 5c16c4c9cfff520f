"""The collector's own state: where the environments are, and what is carried from step to step."""

import copy
import pickle
import warnings
from functools import partial
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, VECTOR, Edited, MaskedEnv, vec
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from models import SMALL, spoil, weights
from parametrization import sample
from resumable_envs import FORKED
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecNormalize
from tensor_envs import twins
from training import At, Noting

from ppo_plus import PPO_Plus, Resumable, SupervisedVecEnv, as_vec_env
from ppo_plus.rollout.collector import Collector, Position, RolloutPlan, prepare_act


def collected(n_steps=5, **kwargs):
    env = vec(ACTIONS["discrete"])
    model = PPO_Plus(
        "MlpLstmPolicy", env, n_steps=n_steps, batch_size=n_steps, seed=0, device="cpu", policy_kwargs=SMALL, **kwargs
    )
    model.rollout_buffer.reset()
    act = prepare_act(model.policy, None, model.compilation)
    plan = RolloutPlan(model.policy, act, None, model.rollout_buffer, model.device, -1, n_steps)
    collector = Collector(plan, model.env, Position(), 0)
    for _ in range(n_steps):
        collector.step()
        collector.store(model.env)
    collector.finish()
    collector.estimate(model.rollout_buffer)
    return collector, plan, model


class Reusing(VecEnvWrapper):
    """Returns the same arrays in each step, as environments in shared memory do."""

    obs = results = None

    def _in_place(self, mine, new):
        if mine is None:
            return new
        mine[...] = new
        return mine

    def reset(self):
        self.obs = self._in_place(self.obs, self.venv.reset())
        return self.obs

    def step_wait(self):
        obs, *results, infos = self.venv.step_wait()
        self.obs = self._in_place(self.obs, obs)
        self.results = list(map(self._in_place, self.results or [None, None], results))
        return self.obs, *self.results, infos


@pytest.mark.parametrize("steps", [(), (5, 37, 64)])
def test_environments_may_return_the_same_arrays_in_each_step(steps):
    rollouts, seen = [], []
    for wrap in (lambda env: env, Reusing):
        env, looking = wrap(vec(ACTIONS["discrete"])), Noting("new_obs", "rewards", "dones")
        model = PPO_Plus("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
        rollouts.append(model.learn(128, [At(lambda model: model.evaluate(1), steps), looking]).rollout_buffer)
        seen.append(looking.seen)
    for name in ("observations", "rewards", "episode_starts", "advantages"):
        np.testing.assert_array_equal(*(getattr(rollout, name) for rollout in rollouts))
    assert rollouts[0].episode_starts.any()
    for own, reused in zip(*seen, strict=True):
        np.testing.assert_equal(own, reused)


class Anew(MaskedEnv):
    """Dict observations, masks, an info with an array, and a time limit that most episodes reach."""

    def __init__(self):
        space = spaces.Dict(vector=VECTOR, choice=spaces.Discrete(4))
        super().__init__(ACTIONS["discrete"], space, max_steps=3, p_end=0.1)

    def reset(self, **kwargs):
        obs, _ = super().reset(**kwargs)
        return obs, {"array": np.zeros(2)}

    def step(self, action):
        *results, _ = super().step(action)
        return *results, {"array": np.full(2, float(self.t))}


class InOne(Anew):
    """Writes all that it returns into the same arrays and the same dict."""

    def _in_one(self, name, value):
        mine = vars(self).setdefault(f"_{name}", value)
        for key, part in value.items() if isinstance(value, dict) else ():
            mine[key] = part if np.isscalar(part) else self._in_one(key, part)
        if isinstance(value, np.ndarray):
            mine[...] = value
        return mine

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return self._in_one("obs", obs), self._in_one("info", info)

    def step(self, action):
        obs, *results, info = super().step(action)
        return self._in_one("obs", obs), *results, self._in_one("info", info)

    def action_masks(self):
        return self._in_one("mask", super().action_masks())


class Bare(DummyVecEnv):
    """A subclass that changes nothing."""


KEPT = {
    "single": lambda make: make(),
    "DummyVecEnv": lambda make: DummyVecEnv([make]),
    "a subclass": lambda make: VecNormalize(Bare([lambda: Monitor(make())]), norm_obs=False),
    "SubprocVecEnv": lambda make: FORKED([lambda: Resumable(make())]),
    "SupervisedVecEnv": lambda make: SupervisedVecEnv([make], start_method="fork"),
    "next step": lambda make: SyncVectorEnv([make], autoreset_mode=AutoresetMode.NEXT_STEP),
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_an_environment_writes_into_again_is_kept(kind):
    """Also in a reset: the last observation of an episode is bootstrapped from, and is not the first of the next."""
    rollouts, arrays = [], []
    for make in (Anew, InOne):
        looking = Noting("infos")
        model = PPO_Plus(
            "MultiInputPolicy", KEPT[kind](make), n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu"
        )
        rollouts.append(model.learn(64, looking).rollout_buffer)
        arrays.append([[step["infos"][0].get("array") for step in steps] for steps in (looking.seen, looking.kept)])
        model.env.close()
    for name in ("masks", "rewards", "episode_starts", "advantages"):
        np.testing.assert_array_equal(*(getattr(rollout, name) for rollout in rollouts))
    for key, stored in rollouts[0].observations.items():
        np.testing.assert_array_equal(stored, rollouts[1].observations[key])
    np.testing.assert_equal(arrays[0][0], arrays[1][0])
    np.testing.assert_equal(arrays[1][0], arrays[1][1])
    assert rollouts[0].masks is not None and rollouts[0].episode_starts.sum() > 8


def test_final_observations_in_one_array_are_kept():
    final, advantages = np.zeros((2, 3), np.float32), []

    def overwrite(obs, rewards, dones, infos):
        for i in np.flatnonzero(dones):
            final[i] = infos[i]["terminal_observation"]
            infos[i]["terminal_observation"] = final[i]
        return obs, rewards, dones, infos

    for wrap in (lambda env: env, lambda env: Edited(env, overwrite)):
        env = wrap(make_vec_env(lambda: gym.make("Pendulum-v1", max_episode_steps=5), 2, seed=0))
        model = PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=1, seed=0, device="cpu")
        advantages.append(model.learn(32).rollout_buffer.advantages)
    np.testing.assert_array_equal(*advantages)


@pytest.mark.parametrize(
    "kind",
    [
        FORKED,
        partial(AsyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP, context="fork"),
        partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
        partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP, copy=False),
    ],
    ids=["sb3", "gym", "gym here", "gym here, not copied"],
)
def test_what_a_reset_overwrites_is_warned_of(kind):
    for make, warns in ((Anew, False), (InOne, True)):
        env = kind([make])
        model = PPO_Plus("MultiInputPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            model.learn(32)
        assert any("the observation that the next one begins with" in str(each.message) for each in seen) == warns
        model.env.close()


class More(Anew):
    """Observations have an entry that is not in the space."""

    def step(self, action):
        obs, *results = super().step(action)
        return obs | {"more": 0}, *results


def test_entries_of_final_observations_that_the_space_does_not_have_are_left_out():
    """In a rollout in which something else has used the environments, too."""
    env = SyncVectorEnv([More], autoreset_mode=AutoresetMode.SAME_STEP)
    model = PPO_Plus("MultiInputPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    model.learn(32, At(lambda model: model.evaluate(1), steps=[5]))
    assert model._n_updates == 1


def test_pickling_keeps_the_position_and_no_rollout():
    collector, _, model = collected()
    model.collector, model.position = collector, collector.position
    pickled = pickle.loads(pickle.dumps(model))
    copied = pickled.position
    np.testing.assert_array_equal(copied.obs, collector.position.obs)
    np.testing.assert_array_equal(copied.starts, collector.position.starts)
    for mine, other in zip(copied.carry.memory["actor"], collector.position.carry.memory["actor"], strict=True):
        assert th.equal(mine, other)
    assert pickled.collector is None


def test_episodes_restart_after_an_interruption():
    collector, plan, model = collected()
    collector.position.obs = None
    position = Collector(plan, model.env, collector.position, 5).position
    assert position.starts.all() and position.carry is None and position.obs is not None


class Stop(BaseCallback):
    """Ends training after some steps, and notes where the last one led."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def _on_step(self):
        self.led_to = copy.deepcopy((self.locals["new_obs"], self.locals["dones"]))
        return self.n_calls < self.at


@pytest.mark.parametrize("at", [3, 5])
@pytest.mark.parametrize("in_tensors", [False, True])
def test_training_continues_where_a_callback_stopped_it(in_tensors, at):
    env, stop = list(twins(ACTIONS["box"], 2, limit=5))[in_tensors], Stop(at)
    model = PPO_Plus("MlpLstmPolicy", as_vec_env(env), n_steps=8, batch_size=8, seed=0, device="cpu").learn(16, stop)
    model.learn(16, reset_num_timesteps=False)
    obs, dones = stop.led_to
    np.testing.assert_array_equal(model.rollout_buffer.observations[0], obs)
    np.testing.assert_array_equal(model.rollout_buffer.episode_starts[0], dones)
    assert dones.all() == (at == 5)


@pytest.mark.parametrize("in_tensors", [False, True])
def test_training_starts_new_episodes_after_an_error_between_a_step_and_its_record(in_tensors):
    def interrupt(model):
        raise KeyboardInterrupt

    env = list(twins(ACTIONS["box"], 2, limit=5))[in_tensors]
    model = PPO_Plus("MlpPolicy", as_vec_env(env), n_steps=8, batch_size=8, seed=0, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        model.learn(32, At(interrupt, [5]))
    model.learn(8, reset_num_timesteps=False)
    assert model.rollout_buffer.episode_starts[0].all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_tensors", "policy", "duplicate"),
    [(True, "MlpLstmPolicy", lambda model: pickle.loads(pickle.dumps(model))), (False, "MlpPolicy", copy.deepcopy)],
)
def test_copies_of_a_model_evaluate_and_learn_alike(in_tensors, policy, duplicate):
    env = next(reversed(list(twins(ACTIONS["box"], 2)))) if in_tensors else vec(ACTIONS["box"])
    model = PPO_Plus(policy, as_vec_env(env), n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu").learn(32)
    copies = [model, duplicate(model)]
    results = []
    for each in copies:
        th.manual_seed(1)
        np.random.seed(1)
        results.append(each.evaluate(2))
        each.learn(32, reset_num_timesteps=False)
    assert results[0] == results[1] and th.equal(weights(copies[0]), weights(copies[1]))


@pytest.mark.parametrize("missing", ["terminal_observation", "TimeLimit.truncated"])
def test_time_limits_that_infos_do_not_tell_give_one_warning(missing):
    def leave_out(obs, rewards, dones, infos):
        return obs, rewards, dones, [{key: info[key] for key in info if key != missing} for info in infos]

    env = Edited(vec(ACTIONS["discrete"], max_steps=5), leave_out)
    model = PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=16, seed=0, device="cpu")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        model.learn(128)
    (found,) = [str(each.message) for each in said if "time limit" in str(each.message)]
    assert "only one of 'TimeLimit.truncated'" in found and "set both" in found


@pytest.mark.parametrize(
    ("kind", "policy", "what"), sample(product(ACTIONS, ["", "gsde", "Lstm"], ["actor", "log_std", "critic"]), 10)
)
def test_a_policy_that_is_not_finite_takes_no_action(kind, policy, what):
    env = vec(ACTIONS[kind])
    name = f"Mlp{policy.replace('gsde', '')}Policy"
    model = PPO_Plus(name, env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", use_sde=policy == "gsde").learn(32)
    if what == "log_std" and not hasattr(model.policy, "log_std"):
        pytest.skip("no standard deviation")
    spoil(model.policy, what)
    before = weights(model)
    said = dict(actor="[1-9]\\d* of its .* weights are not finite", log_std="log_std is from 100 to 100", critic="1 of")
    message = f"the policy, not the environment.* at step 16, so no action was taken: .*{said[what]}"
    env.step_async = None
    with pytest.raises(FloatingPointError, match=message):
        model.learn(32, reset_num_timesteps=False)
    assert th.equal(before.nan_to_num(), weights(model).nan_to_num())


def test_alternatives_of_minus_infinity_are_never_chosen():
    class Forbidding(th.nn.Linear):
        def forward(self, x):
            return super().forward(x).index_fill(1, th.tensor([1]), -th.inf)

    env = vec(ACTIONS["discrete"])
    actor = {"actor": lambda n_in, n_out: Forbidding(n_in, n_out)}
    model = PPO_Plus("MlpPolicy", env, n_steps=32, batch_size=32, device="cpu", policy_kwargs=actor, compile=False)
    _, callback = model._setup_learn(64)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 32)
    actions = model.predict(np.zeros((100, 5), np.float32))[0]
    assert 1 not in actions and 1 not in model.rollout_buffer.actions


def test_steps_without_infos_are_collected():
    """Infos only where an episode ends, as SB3 accepts it, and new episodes after the fifth step."""
    models = []

    def silence(obs, rewards, dones, infos):
        return obs, rewards, dones, infos if dones.any() else []

    for wrap in (lambda env: env, lambda env: Edited(env, silence)):
        env = wrap(vec(ACTIONS["discrete"]))
        model = PPO_Plus("MlpPolicy", env, n_steps=32, batch_size=32, seed=0, device="cpu")
        models.append(model.learn(128, At(lambda model: setattr(model, "_last_obs", None), [5])))
    assert models[0].rollout_buffer.episode_starts.sum() > 2
    for ours, theirs in zip(*(model.policy.parameters() for model in models), strict=True):
        assert th.equal(ours, theirs)
