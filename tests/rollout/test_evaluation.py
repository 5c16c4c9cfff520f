"""``model.evaluate`` says how good the policy is and leaves training undisturbed."""

import copy
import math
import warnings
from functools import partial
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, VECTOR, Edited, FaultyEnv, RandomEnv, vec
from faulty_envs import Failing, supervised
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit
from models import make_model, weights
from parametrization import sample
from resumable_envs import FORKED
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize, VecTransposeImage
from stream_envs import STREAMS, Counting, counting
from training import At

from ppo_plus import EvalAfterUpdates, PPO_Plus, Stream, SupervisedVecEnv
from ppo_plus.rollout.evaluation import play


class CountingEnv(RandomEnv):
    """The reward of the ``k``-th step of an episode is ``k``; the ``k``-th observation is filled with ``k``."""

    def __init__(self, action_space=ACTIONS["discrete"], observation_space=VECTOR, max_steps=4, p_end=0.0):
        super().__init__(action_space, observation_space, max_steps, p_end)

    def observe(self):
        return np.full(self.observation_space.shape, self.t, self.observation_space.dtype)

    def reward(self, action):
        return float(self.t)


RETURN = 1 + 2 + 3 + 4


def make(env=None, **kwargs):
    env = vec(ACTIONS["discrete"], env_class=CountingEnv, max_steps=4) if env is None else env
    return make_model(env=env, **kwargs)


def test_memory_is_reset_at_episode_starts_alone_also_after_the_counted_episodes(monkeypatch):
    """SB3 does not update ``episode_starts`` after a row's last counted episode."""
    env = DummyVecEnv([partial(CountingEnv, max_steps=n) for n in (2, 3, 5)])
    model = make(env, policy="MlpGruPolicy")
    begun, dones = [], [np.ones(3, dtype=bool)]
    predict, step = model.predict, env.step_wait

    def predicted(obs, state, episode_start, **kwargs):
        begun.append(episode_start.copy())
        return predict(obs, state, episode_start, **kwargs)

    def stepped():
        returned = step()
        dones.append(returned[2])
        return returned

    monkeypatch.setattr(model, "predict", predicted)
    monkeypatch.setattr(env, "step_wait", stepped)
    model.evaluate(4)
    np.testing.assert_array_equal(begun, dones[:-1])


# --- what it returns -------------------------------------------------------------------------------------------------

OTHER_ENVIRONMENTS = {
    "own": lambda: None,
    "gym": CountingEnv,
    "monitor": lambda: Monitor(CountingEnv()),
    "vec": lambda: DummyVecEnv([CountingEnv]),
    "vec_of_monitors": lambda: DummyVecEnv([lambda: Monitor(CountingEnv())] * 3),
    "vec_normalize": lambda: VecNormalize(DummyVecEnv([CountingEnv])),
}


@pytest.mark.parametrize("kind", OTHER_ENVIRONMENTS)
def test_it_returns_mean_and_std_of_the_return_as_floats(kind):
    mean, std = make().evaluate(3, env=OTHER_ENVIRONMENTS[kind]())
    assert (mean, std) == (RETURN, 0.0)
    assert type(mean) is type(std) is float


def test_episodes_have_costs_and_success_and_may_have_sampled_actions(monkeypatch):
    class Summed(gym.Wrapper):
        """What the infos of an episode have in sum."""

        def reset(self, **kwargs):
            self.cost = self.energy = 0.0
            return self.env.reset(**kwargs)

        def step(self, action):
            *rest, info = self.env.step(action)
            self.cost, self.energy = self.cost + info["cost"], self.energy + info["reward_terms"]["energy"]
            if rest[2] or rest[3]:
                sums.append((self.cost, self.energy))
            return *rest, info | {"is_success": self.cost > 1}

    sums = []
    model = PPO_Plus("MlpPolicy", counting(2), streams=STREAMS, n_steps=16, batch_size=16, seed=0, device="cpu")
    env = DummyVecEnv([lambda: Monitor(Summed(Counting()))])
    episodes = model.evaluate(5, env, deterministic=False, return_episodes=True)
    assert [(each["cost"], each["energy"], each["is_success"]) for each in episodes] == [
        (cost, pytest.approx(energy), cost > 1) for cost, energy in sums
    ]
    assert [*episodes[0]] == ["return", "length", "cost", "energy", "is_success"] and all(energy for _, energy in sums)
    callback = EvalAfterUpdates(env, 32, n_eval_episodes=4, deterministic=False)
    sums.clear()
    logged = {}
    monkeypatch.setattr(Logger, "record", lambda _, name, value, **kwargs: logged.update({name: value}))
    model.learn(32, callback)
    assert logged["eval/mean_cost"] == np.mean([cost for cost, _ in sums])
    # Environments without them can be played in, too.
    plain = gym.wrappers.TransformReward(Counting(), float)
    plain.step = lambda action: (*Counting.step(plain.unwrapped, action)[:-1], {})
    assert [*model.evaluate(1, plain, return_episodes=True)[0]] == ["return", "length"]


def test_std_is_over_episodes():
    returns = iter(range(100))

    class Growing(CountingEnv):
        def reset(self, **kwargs):
            self.bonus = next(returns)
            return super().reset(**kwargs)

        def reward(self, action):
            return float(self.bonus)

    mean, std = make().evaluate(3, env=Growing(max_steps=1))
    assert (mean, std) == (1.0, pytest.approx(math.sqrt(2 / 3)))


@pytest.mark.parametrize("normalize", [{}, {"norm_obs": False}], ids=str)
def test_returns_are_in_the_rewards_of_the_innermost_environment(normalize):
    model = make(env=VecNormalize(vec(ACTIONS["discrete"], env_class=CountingEnv, max_steps=4), **normalize)).learn(32)
    assert model.evaluate(2) == (RETURN, 0.0)
    assert model.evaluate(2, env=CountingEnv()) == (RETURN, 0.0)
    assert model.evaluate(2, env=VecNormalize(DummyVecEnv([CountingEnv]))) == (RETURN, 0.0)


class ObservationIsReward(RandomEnv):
    """The reward is the action, and actions depend on whether the large observations are normalized."""

    def observe(self):
        return 2.0 + super().observe()

    def reward(self, action):
        return float(action)


@pytest.mark.parametrize("wrap", [lambda env: env, VecNormalize], ids=["bare", "normalized"])
def test_another_environment_uses_the_training_statistics(wrap):
    def env():
        return DummyVecEnv([lambda: ObservationIsReward(spaces.Discrete(50), max_steps=20)])

    def play(normalize_obs):
        """The same episode by hand."""
        played = env()
        played.seed(11)
        obs, total, done = played.reset(), 0.0, False
        while not done:
            action, _ = model.predict(normalize_obs(obs), deterministic=True)
            obs, reward, done, _ = played.step(action)
            total += reward[0]
        return total

    model = make(env=VecNormalize(env()), policy_kwargs={"ortho_init": False}).learn(64)
    other = wrap(env())
    other.seed(11)
    found = model.evaluate(1, env=other)
    assert found == (play(model.get_vec_normalize_env().normalize_obs), 0.0)
    # Seen as they are, the observations would lead to other actions.
    assert found != (play(lambda obs: obs), 0.0)


def test_images_are_evaluated_with_normalized_rewards():
    space = spaces.Box(0, 255, (36, 36, 3), np.uint8)

    def env():
        return vec(ACTIONS["discrete"], space, n_envs=1, env_class=CountingEnv)

    # Images are stacked or transposed by SB3 itself; VecNormalize is there for the rewards.
    model = make(env=VecNormalize(env(), norm_obs=False), policy="CnnPolicy", n_epochs=1).learn(8)
    assert model.evaluate(1, env=env()) == (RETURN, 0.0)
    transposed = make(env=VecNormalize(VecTransposeImage(env()), norm_obs=False), policy="CnnPolicy", n_epochs=1)
    assert transposed.learn(8).evaluate(1, env=env()) == (RETURN, 0.0)


STACKS = {
    "stack_of_normalized": lambda env: VecFrameStack(VecNormalize(env), 2),
    "normalized_stack": lambda env: VecNormalize(VecFrameStack(env, 2)),
}


def test_an_environment_with_stacked_frames_is_wrapped_as_in_training():
    def env():
        return vec(ACTIONS["discrete"], env_class=CountingEnv)

    for wrap in STACKS.values():
        assert make(env=wrap(env())).learn(16).evaluate(1, env=wrap(env())) == (RETURN, 0.0)
    other = VecFrameStack(env(), 2)
    assert make(env=STACKS["normalized_stack"](env())).learn(16).evaluate(1, env=other) == (RETURN, 0.0)
    with pytest.raises(ValueError, match="VecNormalize"):
        make(env=STACKS["stack_of_normalized"](env())).learn(16).evaluate(1, env=other)


# --- refusals --------------------------------------------------------------------------------------------------------


REFUSED = {
    "an environment": (Monitor(CountingEnv()), {}, "n_eval_episodes=<.* must be an integer"),
    "none": (0, {}, "n_eval_episodes=0"),
    "a fraction": (2.5, {}, "n_eval_episodes=2.5"),
    "text": ("3", {}, "n_eval_episodes='3'"),
    "other actions": (1, {"env": CountingEnv(ACTIONS["box"])}, "spaces do not match"),
    "other observations": (1, {"env": CountingEnv(observation_space=spaces.Box(-1, 1, (2,)))}, "spaces do not match"),
}


@pytest.mark.parametrize(("n", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_evaluated_raises_an_error(n, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make().evaluate(n, **options)


def test_a_model_without_an_environment_asks_for_one(tmp_path):
    make().save(tmp_path / "model")
    model = PPO_Plus.load(tmp_path / "model", device="cpu")
    with pytest.raises(ValueError, match="env=None"):
        model.evaluate()
    assert model.evaluate(1, env=CountingEnv()) == (RETURN, 0.0)


# --- it does not disturb ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normalized", "exploration"),
    sample(product([False, True], [{}, {"use_sde": True}, {"use_sde": True, "sde_sample_freq": "episode"}]), 4),
    ids=str,
)
def test_evaluating_another_environment_does_not_alter_training(normalized, exploration):
    def env_of():
        env = vec(ACTIONS["box"], max_steps=5)
        return VecNormalize(env) if normalized else env

    other = vec(ACTIONS["box"], n_envs=1, max_steps=5)
    evaluate = At(lambda model: model.evaluate(2, env=other), range(1, 40, 3), ("rollout_start", "rollout_end"))
    with_evaluation, without = (make(env_of(), **exploration).learn(64, callback) for callback in (evaluate, None))
    assert evaluate.n_calls == 32
    assert th.equal(weights(with_evaluation), weights(without))


def test_the_policy_stays_in_evaluation_mode_while_collecting():
    modes = []

    def evaluate(model):
        model.evaluate(1, env=CountingEnv())
        modes.append(model.policy.training)

    make(policy_kwargs={"actor": lambda i, o: th.nn.Sequential(th.nn.Dropout(), th.nn.Linear(i, o))}).learn(
        16, At(evaluate, range(1, 9))
    )
    assert modes == [False] * 8


class KeepBuffer(BaseCallback):
    """Copies each rollout."""

    def __init__(self):
        super().__init__()
        self.rollouts = []

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        names = ("observations", "rewards", "episode_starts", "values", "advantages")
        self.rollouts.append({name: getattr(buffer, name).copy() for name in names})

    def _on_step(self):
        return True


def rollout_with_evaluation_after(step, **kwargs):
    """One rollout of two CountingEnvs with episodes of four steps, and an evaluation after the given step.

    A CountingEnv says in its observation how many steps the episode has had.
    """
    keep = KeepBuffer()
    model = make(**kwargs)
    model.learn(16, [At(lambda model: model.evaluate(1), [step]), keep])
    return keep.rollouts[0]


def test_the_training_environment_is_reset_after_its_evaluation():
    # Without a future nothing is added to rewards where episodes are cut.
    rollout = rollout_with_evaluation_after(step=2, gamma=0.0)
    assert rollout["observations"][:, 0, 0].tolist() == [0, 1, 0, 1, 2, 3, 0, 1]
    assert rollout["rewards"][:, 0].tolist() == [1, 2, 1, 2, 3, 4, 1, 2]
    np.testing.assert_array_equal(rollout["episode_starts"], rollout["observations"][..., 0] == 0)


def test_an_episode_cut_by_an_evaluation_is_bootstrapped():
    class ValuesOfObservations(KeepBuffer):
        """The critic's view of the observations 0 to 4, before it learns."""

        def _on_rollout_end(self):
            obs = th.arange(5.0)[:, None].expand(5, 5)
            with th.no_grad():
                self.values = self.model.policy.predict_values(obs).flatten().tolist()
            super()._on_rollout_end()

    keep = ValuesOfObservations()
    make(gamma=0.9).learn(16, [At(lambda model: model.evaluate(1), [2]), keep])
    rewards = keep.rollouts[0]["rewards"][:, 0]
    assert rewards[1] == pytest.approx(2 + 0.9 * keep.values[2])
    # A time limit is treated in the same way.
    assert rewards[5] == pytest.approx(4 + 0.9 * keep.values[4])


def test_a_terminated_episode_is_not_bootstrapped():
    env = vec(ACTIONS["discrete"], env_class=CountingEnv, max_steps=None, p_end=1.0)
    rollout = rollout_with_evaluation_after(step=2, env=env)
    assert rollout["rewards"].tolist() == [[1, 1]] * 8


@pytest.mark.parametrize("hook", ["training_start", "rollout_start", "rollout_end", "training_end"])
def test_an_evaluation_between_rollouts_restarts_the_episodes(hook):
    keep = KeepBuffer()
    model = make(n_steps=6, batch_size=12)
    model.learn(24, [At(lambda model: model.evaluate(1), hooks=[hook]), keep])
    model.learn(12, keep, reset_num_timesteps=False)
    seen = np.concatenate([rollout["observations"][:, 0, 0] for rollout in keep.rollouts]).tolist()
    starts = np.concatenate([rollout["episode_starts"][:, 0] for rollout in keep.rollouts])
    anew, going_on = [0, 1, 2, 3, 0, 1], [2, 3, 0, 1, 2, 3]
    expected = {
        "training_start": [anew, going_on, anew],
        "rollout_start": [anew, anew, going_on],
        "rollout_end": [anew, anew, anew],
        "training_end": [anew, going_on, anew],
    }
    assert seen == sum(expected[hook], [])
    assert starts.tolist() == [step == 0 for step in seen]


def test_a_callback_that_evaluates_the_training_environment_restarts_the_episodes():
    keep, model = KeepBuffer(), make(n_steps=6, batch_size=12)
    model.learn(36, [EvalAfterUpdates(model.env, eval_freq=12, n_eval_episodes=1), keep])
    assert [rollout["observations"][:, 0, 0].tolist() for rollout in keep.rollouts] == [[0, 1, 2, 3, 0, 1]] * 3


def test_noise_is_resampled_after_an_evaluation():
    carries = []

    class Look(At):
        def _on_step(self):
            carries.append(self.model.position.carry.noise["theta"].clone())
            return super()._on_step()

    make(use_sde=True).learn(16, Look(lambda model: model.evaluate(1), [3]))
    same = [th.equal(a, b) for a, b in zip(carries, carries[1:], strict=False)]
    assert same == [True, True, False, True, True, True, True]


@pytest.mark.parametrize("inner", ["gym", "vec"])
def test_a_part_of_the_training_environment_is_recognized(inner):
    # What users hand over who kept the environment that they gave to the model.
    part = CountingEnv()
    env = part
    if inner == "vec":
        part = DummyVecEnv([CountingEnv])
        env = VecNormalize(part, norm_obs=False)
    keep = KeepBuffer()
    model = make(env=env, n_steps=6, batch_size=6).learn(6, keep)
    assert model.evaluate(1, env=part) == (RETURN, 0.0)
    model.learn(6, keep, reset_num_timesteps=False)
    assert keep.rollouts[1]["observations"][:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1]


def test_evaluation_does_not_count_as_training():
    model = make(env=Monitor(CountingEnv())).learn(16)
    before = model.num_timesteps, model._n_updates, list(model.ep_info_buffer)
    model.evaluate(3)
    assert (model.num_timesteps, model._n_updates, list(model.ep_info_buffer)) == before


def test_render_shows_the_environment():
    class Rendered(CountingEnv):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
        render_mode = "human"
        shown = 0

        def render(self):
            Rendered.shown += 1

    model = make(env=DummyVecEnv([Rendered]))
    model.evaluate(1)
    assert Rendered.shown == 0
    model.evaluate(1, render=True)
    assert Rendered.shown == 4


class Lives(gym.Wrapper):
    """As SB3's ``EpisodicLifeEnv``: an episode is a life of two steps, and the game continues in the next one."""

    t = 0

    def step(self, action):
        self.obs, reward, terminated, self.is_over, info = self.env.step(action)
        self.t += 1
        return self.obs, reward, self.t % 2 == 0, self.is_over, info

    def reset(self, **kwargs):
        return self.env.reset(**kwargs) if self.t == 0 or self.is_over else (self.obs, {})


class Falls(gym.Wrapper):
    """Terminates each episode at its fourth step."""

    def reset(self, **kwargs):
        self.t = 0
        return self.env.reset(**kwargs)

    def step(self, action):
        self.t += 1
        obs, reward, _, truncated, info = self.env.step(action)
        return obs, reward, self.t == 4, truncated, info


def limited(env):
    return TimeLimit(env, 4)


ENDED_OUTSIDE = {
    "a time limit": lambda make: limited(Monitor(make())),
    "make_vec_env": lambda make: make_vec_env(make, 2, wrapper_class=limited),
    "an end": lambda make: DummyVecEnv([lambda: Falls(Monitor(make()))]),
    "a limit within lives": lambda make: DummyVecEnv([lambda: Lives(limited(Monitor(make())))]),
    "supervised": lambda make: SupervisedVecEnv([lambda: Falls(Monitor(make()))], start_method="fork"),
    "same step": lambda make: SyncVectorEnv([lambda: limited(Monitor(make()))], autoreset_mode=AutoresetMode.SAME_STEP),
    "next step": lambda make: SyncVectorEnv([lambda: limited(Monitor(make()))]),
    "subproc": lambda make: FORKED([lambda: limited(Monitor(make()))]),
}


@pytest.mark.parametrize("kind", ENDED_OUTSIDE)
def test_an_episode_that_a_wrapper_around_the_monitor_ends_counts(kind, tmp_path):
    def make():
        return CountingEnv(max_steps=None)

    model = PPO_Plus("MlpPolicy", ENDED_OUTSIDE[kind](make), n_steps=16, batch_size=16, device="cpu")
    assert model.evaluate(3) == (RETURN, 0.0)
    callback = EvalAfterUpdates(ENDED_OUTSIDE[kind](make), eval_freq=16, n_eval_episodes=2)
    model.learn(32, callback)
    assert callback.last_mean_reward == RETURN
    # Processes of SB3's do not say when they reset their `Monitor`.
    if kind != "subproc":
        assert {(episode["r"], episode["l"]) for episode in model.ep_info_buffer} == {(RETURN, 4)}
    for env in (model.env, callback.eval_env):
        env.close()


class Costly(gym.Wrapper):
    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, info | {"cost": 1.0}


@pytest.mark.parametrize("wrap", [Monitor, lambda env: env], ids=["monitor", "plain"])
def test_an_episode_that_a_fault_interrupts_does_not_count(wrap):
    """Neither do its costs."""

    def make(fault=None):
        return wrap(Costly(Failing(fault, at=5)))

    streams = [Stream("cost")]
    model = PPO_Plus("MlpPolicy", supervised(make), n_steps=16, batch_size=16, device="cpu", streams=streams)
    env = supervised(make, partial(make, "raise"), restarts=1)
    episodes = play(model, env, 6, warn=False)
    assert env.n_restarts == 1 and [episode["length"] for episode in episodes] == [8] * 6
    assert [episode["cost"] for episode in episodes] == [8.0] * 6
    for each in (model.env, env):
        each.close()


def test_a_lost_life_is_no_episode_of_its_monitor(tmp_path):
    env = DummyVecEnv([lambda: Lives(Monitor(CountingEnv(max_steps=6), str(tmp_path / "0")))])
    model = PPO_Plus("MlpPolicy", env, n_steps=32, batch_size=32, device="cpu").learn(64)
    assert {episode["l"] for episode in model.ep_info_buffer} == {6} and len(model.ep_info_buffer) == 64 // 6
    assert model.rollout_buffer.episode_starts[::2].all()
    assert model.evaluate(2) == (21.0, 0.0)


class Own(VecEnv):
    """A vector environment with no more than what training needs."""

    def __init__(self):
        self.single = CountingEnv()
        super().__init__(1, self.single.observation_space, self.single.action_space)

    def reset(self):
        return self.single.reset()[0][None]

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        obs, reward, _, limited, _ = self.single.step(self.actions[0])
        info = {"TimeLimit.truncated": True, "terminal_observation": obs} if limited else {}
        obs = self.single.reset()[0] if limited else obs
        return obs[None], np.array([reward]), np.array([limited]), [info]

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        raise AttributeError(attr_name)

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False]

    set_attr = env_method = get_attr


class Curriculum(Edited):
    def level(self):
        return 1


@pytest.mark.parametrize("make", [Own, lambda: VecNormalize(Own()), lambda: Curriculum(Curriculum(Own()))])
def test_a_vec_env_of_your_own_is_evaluated(make):
    model = PPO_Plus("MlpPolicy", make(), n_steps=16, batch_size=16, device="cpu")
    ours, theirs = EvalAfterUpdates(make(), eval_freq=16), EvalCallback(make(), eval_freq=8)
    model.learn(32, [ours, theirs])
    assert ours.last_mean_reward == RETURN and np.isfinite(theirs.last_mean_reward)
    assert model.evaluate(2) == model.evaluate(2, make()) == (RETURN, 0.0)


class Told(CountingEnv):
    """Has an ``"episode"`` in each info, and returns the same dict each time if ``same``."""

    same, value = False, 3

    def step(self, action):
        *results, info = super().step(action)
        self.info = self.info if self.same and hasattr(self, "info") else info
        self.info.setdefault("episode", self.value)
        return *results, self.info


@pytest.mark.parametrize(
    ("kind", "value", "same"),
    [("single", 3, True), ("single", {"r": 5}, False), ("vec", "three", False), ("processes", {"number": 3}, True)],
    ids=str,
)
def test_an_episode_in_the_infos_is_the_environments_own(kind, value, same):
    env = Told()
    env.same, env.value = same, value
    wrap = dict(
        single=lambda: env, vec=lambda: DummyVecEnv([lambda: env]), processes=lambda: FORKED([lambda: Monitor(env)])
    )
    model = PPO_Plus("MlpPolicy", wrap[kind](), n_steps=16, batch_size=16, device="cpu").learn(32)
    assert [episode["l"] for episode in model.ep_info_buffer] == [4] * (0 if kind == "vec" else 8)
    assert model.evaluate(2) == (RETURN, 0.0)
    model.env.close()


def test_an_evaluation_that_does_not_end_gives_a_warning(monkeypatch):
    monkeypatch.setattr("ppo_plus.rollout.evaluation.LONG", 50)
    model = PPO_Plus("MlpPolicy", CountingEnv(), n_steps=16, batch_size=16, device="cpu")
    with pytest.warns(
        UserWarning, match="no episode of environment 0 has ended in 50 steps.*time limit: Monitor[(]Tim"
    ):
        model.evaluate(1, CountingEnv(max_steps=60))


def test_what_is_not_finite_raises_an_error():
    model = PPO_Plus("MlpPolicy", FaultyEnv("final", 99), n_steps=8, batch_size=8, device="cpu")
    with pytest.raises(FloatingPointError, match="(?s)observation.* is not finite"):
        model.evaluate(2, env=FaultyEnv("observation", 3))
    with pytest.raises(FloatingPointError, match="(?s)reward.* is not finite"):
        model.evaluate(2, env=FaultyEnv("reward", 3, np.inf))


# --- what keeps statistics -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_statistics_of_wrappers_do_not_change(fails, monkeypatch):
    rewards = NormalizeReward(NormalizeObservation(gym.make("CartPole-v1")))
    env = VecNormalize(DummyVecEnv([lambda: rewards]))

    def state():
        own = (rewards.return_rms.var, rewards.discounted_reward, rewards.env.obs_rms.mean)
        return copy.deepcopy((*own, env.obs_rms.mean, env.ret_rms.var, env.training, env.norm_reward))

    model = make(env, n_steps=32).learn(64)
    before = state()
    if fails:
        monkeypatch.setattr(model.policy, "predict", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.evaluate(2)
        monkeypatch.undo()
    else:
        assert model.evaluate(2)[0] > 0
    for new, old in zip(state(), before, strict=True):
        np.testing.assert_array_equal(new, old)
    model.learn(64)
    assert not np.array_equal(state()[2], before[2])  # counted again


def test_statistics_of_all_normalizations_do_not_change():
    inner = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    model = make(VecNormalize(inner, norm_obs=False), n_steps=32).learn(64)
    before = copy.deepcopy(inner.obs_rms.mean)
    assert model.evaluate(2)[0] % 0.5 == 0  # the environment's own rewards
    np.testing.assert_array_equal(inner.obs_rms.mean, before)


def test_a_monitor_does_not_record_evaluated_episodes(tmp_path):
    monitor = Monitor(gym.make("CartPole-v1"), str(tmp_path / "one"))
    model = make(DummyVecEnv([lambda: monitor]), n_steps=32).learn(64)

    def recorded():
        return (tmp_path / "one.monitor.csv").read_text(), monitor.total_steps, [*monitor.episode_returns]

    before = recorded()
    assert model.evaluate(2)[0] > 0 and recorded() == before
    model.learn(256)
    assert all(new > old for new, old in zip(recorded(), before, strict=True))


def test_other_statistics_in_an_environment_give_a_warning():
    def normalized():
        return NormalizeObservation(gym.make("CartPole-v1"))

    model = make(normalized(), n_steps=32).learn(64)
    other = normalized()
    with pytest.warns(UserWarning, match="statistics that differ from those of training"):
        model.evaluate(1, env=other)
    with pytest.warns(UserWarning, match="statistics that differ from those of training"):
        model.learn(32, EvalAfterUpdates(other, n_eval_episodes=1))
    other.obs_rms = copy.deepcopy(model.env.unwrapped.envs[0].get_wrapper_attr("obs_rms"))
    other.update_running_mean = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.evaluate(1, env=other)
