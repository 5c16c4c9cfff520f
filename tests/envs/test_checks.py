"""What environments return is checked, and their mistakes are errors that name the environment and say what to do."""

import copy
import pickle
import re
from functools import partial
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, VECTOR, RandomEnv, TwoNumbers
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, TimeLimit, TransformObservation
from parametrization import sample
from resumable_envs import FORKED
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper, VecNormalize, VecTransposeImage

from ppo_plus import PPO_Plus, Resumable, SupervisedVecEnv, make_vec
from ppo_plus.envs.checks import InvalidOutput, check_obs, check_reward, check_shape
from ppo_plus.envs.lean_vec_env import LeanVecEnv

BOX = spaces.Box(-np.inf, np.inf, (2,))
KIND = spaces.Discrete(3)
BOTH = spaces.Dict(near=BOX, far=spaces.Tuple([KIND, BOX]))
FINE = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("obs", "space", "message"),
    [
        (np.zeros(3, np.float32), BOX, r"an observation of shape \(3,\), but its space Box.* has \(2,\)"),
        (FINE * np.nan, BOX, "an observation that is not finite: array"),
        (np.array([np.inf, 0], np.float32), BOX, "an observation that is not finite"),
        (np.full(2, 1e300), BOX, "an observation that is too large for single precision"),
        (1.5, KIND, "an observation of dtype float64, whose values int64 of its space cannot represent"),
        (np.array(["a", "b"]), BOX, "an observation of dtype <U1"),
        ([[1], [1, 2]], BOX, r"an observation that is not an array \(.*\): return arrays, such as obs.detach"),
        (FINE, BOTH, "an observation without 'near'"),
        ({"near": FINE, "far": [1]}, BOTH, r"an observation\['far'\] that is not a tuple of 2 parts"),
        ({"near": FINE, "far": (1, FINE * np.nan)}, BOTH, r"an observation\['far'\]\[1\] that is not finite"),
    ],
)
def test_what_it_does_not_contain_is_invalid(obs, space, message):
    with pytest.raises(InvalidOutput, match=f"^env returned {message}"):
        check_obs(obs, space)


def test_rewards_are_finite_in_single_precision():
    assert check_reward(np.float32(1.5)) == 1.5
    with pytest.raises(InvalidOutput, match="a reward that is not finite: nan"):
        check_reward(np.nan)
    with pytest.raises(InvalidOutput, match="a reward that is too large for single precision: -1e[+]39"):
        check_reward(-1e39)


# --- `LeanVecEnv` returns what `DummyVecEnv` returns, and later steps change nothing of it ----------------------------


PAIR = spaces.Tuple([spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(4)])


class Reusing(RandomEnv):
    """Returns the same arrays and dicts in each step."""

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        self.obs = obs
        self.info = {"options": options, "nested": {"t": [0]}, "array": np.zeros(2), "count": 0, "text": "a"}
        return self.obs, self.info

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        if isinstance(self.obs, np.ndarray):
            self.obs[...] = obs
        else:
            self.obs = obs
        self.info["nested"]["t"][0] += 1
        self.info["array"] += 1
        self.info["count"] += 1
        return self.obs, reward, terminated, truncated, self.info


def made(cls, action_space, observation_space):
    env = cls([lambda: Reusing(action_space, observation_space, max_steps=4) for _ in range(3)])
    env.seed(5)
    env.set_options([{"level": i} for i in range(3)])
    return env


@pytest.mark.parametrize("observations", [*(OBSERVATIONS[k] for k in ("box", "discrete_start", "dict")), PAIR], ids=str)
@pytest.mark.parametrize("actions", ["box", "mixed"])
def test_everything_is_what_a_dummy_vec_env_returns(observations, actions):
    lean, dummy = (made(cls, ACTIONS[actions], observations) for cls in (LeanVecEnv, DummyVecEnv))
    found, before = [(lean.reset(), lean.reset_infos)], []
    expected = [(dummy.reset(), dummy.reset_infos)]
    for _ in range(12):
        before.append(copy.deepcopy(found[-1]))
        action = [lean.action_space.sample() for _ in range(3)]
        action = action if actions == "mixed" else np.array(action)
        found.append(lean.step(action))
        expected.append(dummy.step(action))
        for one, other in zip(found[-1], expected[-1], strict=True):
            np.testing.assert_equal(one, other)
            assert type(one) is type(other)
        np.testing.assert_equal(lean.reset_infos, dummy.reset_infos)
        for name in ("buf_dones", "buf_rews", "buf_infos", "buf_obs"):
            np.testing.assert_equal(getattr(lean, name), getattr(dummy, name))
    # The infos of a reset are the environment's, also in SB3.
    np.testing.assert_equal(found[1:-1], before[1:])
    np.testing.assert_equal(found[0][0], before[0][0])


def test_ppo_plus_and_make_vec_take_it():
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16)
    assert type(model.env) is type(make_vec("CartPole-v1")) is LeanVecEnv
    assert isinstance(model.env, DummyVecEnv)
    pictures = PPO_Plus("CnnPolicy", RandomEnv(ACTIONS["discrete"], spaces.Box(0, 255, (36, 36, 3), np.uint8)))
    assert isinstance(pictures.env, VecTransposeImage) and type(pictures.env.venv) is LeanVecEnv


CURRICULA = {
    "single": lambda env: env,
    "resumable": lambda env: LeanVecEnv([lambda: Resumable(Monitor(env))]),
    "subproc": lambda env: FORKED([lambda: Resumable(Monitor(env))]),
    "supervised": lambda env: SupervisedVecEnv([lambda: Monitor(env)], start_method="fork"),
    "sync": lambda env: SyncVectorEnv([lambda: TimeLimit(env, 9)]),
}


@pytest.mark.parametrize("kind", CURRICULA)
def test_an_attribute_is_set_where_it_is(kind):
    class Level(RandomEnv):
        level = 1.0

        def reward(self, action):
            return self.level

    env = PPO_Plus("MlpPolicy", CURRICULA[kind](Level(ACTIONS["discrete"])), n_steps=8, batch_size=8, device="cpu").env
    (env if kind != "sync" else env.env).set_attr("level", 7.0)
    env.reset()
    assert env.step(np.zeros(1, int))[1] == 7.0
    if kind != "sync":
        assert env.get_attr("level") == [7.0]
    env.close()


# --- mistakes of environments are errors that name the environment, what it returned and what is expected -------------


#: How an environment is handed over: alone, and within what others wrap around it.
WRAPPED = {
    "alone": lambda env: env,
    "wrapper": lambda env: TimeLimit(env, 9),
    "vec": lambda env: DummyVecEnv([lambda: env]),
    "monitored": lambda env: DummyVecEnv([lambda: Monitor(env)]),
    "normalized": lambda env: VecNormalize(DummyVecEnv([lambda: TimeLimit(env, 9)])),
}


#: In a vector environment of ours and in one of the user, in wrappers.
FEW = {name: WRAPPED[name] for name in ("alone", "normalized")}


class NoInfo(RandomEnv):
    """The old gym's ``reset``, from the second one on if ``late``."""

    late = False

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return (obs, info) if self.late and self.n_resets == 1 else obs


class NoInfoLater(NoInfo):
    late = True


class NoSeed(RandomEnv):
    def reset(self):
        return super().reset()


class OneDone(RandomEnv):
    """The old gym's ``step``."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class OtherShape(RandomEnv):
    """Returns ``other`` at one of its observations.

    :param other: the wrong observation
    :param at: at which step; 0: at reset
    """

    def __init__(self, other, at, observation_space=VECTOR):
        super().__init__(ACTIONS["discrete"], observation_space, max_steps=3, p_end=0.0)
        self.other, self.at = other, at

    def observe(self):
        return self.other if self.n_steps == self.at else super().observe()


def learn(env, policy="MlpPolicy"):
    PPO_Plus(policy, env, n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(16)


@pytest.mark.parametrize("wrap", FEW.values(), ids=FEW)
@pytest.mark.parametrize(
    ("env_class", "message"),
    [
        (NoInfo, "too many values to unpack"),
        (NoInfoLater, "too many values to unpack"),
        (NoSeed, "unexpected keyword argument 'seed'"),
        (OneDone, "expected 5, got 4"),
    ],
)
def test_errors_of_the_old_interface_name_the_environment(env_class, message, wrap):
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        learn(wrap(env_class(ACTIONS["discrete"])))
    assert raised.value.__notes__[0].startswith(f"It was environment 0, <{env_class.__name__} instance>, ")


def test_old_observations_that_can_be_unpacked_are_errors_too():
    with pytest.raises(ValueError, match="env returned .* as info: return a dict"):
        learn(NoInfo(ACTIONS["discrete"], spaces.Box(-1, 1, (2,))))


# Also what NumPy would broadcast.
@pytest.mark.parametrize(
    ("size", "at"),
    [(3, 0), (3, 2), (3, 3), (1, 0), (1, 2), (1, 3)],
    ids=["reset", "step", "end", "broadcast reset", "broadcast step", "broadcast end"],
)
@pytest.mark.parametrize("wrap", FEW.values(), ids=FEW)
def test_an_observation_of_another_shape_raises_with_both_shapes(wrap, size, at):
    env = OtherShape(np.zeros(size, np.float32), at)
    message = rf"env returned an observation of shape \({size},\), .* has \(5,\): fix one of them"
    with pytest.raises(ValueError, match=message):
        learn(wrap(env))
    assert env.n_steps == at


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({}, " without 'choice'"),
        ({"vector": np.zeros(5)}, " without 'choice'"),
        (np.zeros(5), " without 'choice'"),
        ({**OBSERVATIONS["dict"].sample(), "vector": np.zeros(4)}, r"\['vector'\] of shape \(4,\), .* has \(5,\)"),
    ],
)
def test_missing_parts_of_an_observation_are_named(other, message):
    with pytest.raises(ValueError, match=f"env returned an observation{message}"):
        learn(OtherShape(other, 0, OBSERVATIONS["dict"]), "MultiInputPolicy")


def test_of_several_environments_it_is_the_one_that_is_named():
    env = FlattenObservation(OtherShape(np.zeros(2), 0, spaces.Box(-1, 1, (3, 4))))
    env = TransformObservation(env, lambda obs: obs[:1], env.observation_space)
    fine = RandomEnv(ACTIONS["discrete"], env.observation_space)
    with pytest.raises(ValueError, match=r"env returned .* shape \(1,\), .* has \(12,\)") as raised:
        learn(DummyVecEnv([lambda: fine, lambda: env]))
    assert raised.value.__notes__ == ["It was environment 1, <OtherShape instance>, unseeded, step 0."]


@pytest.mark.parametrize("at", [1, 3], ids=["step", "end"])
@pytest.mark.parametrize(("run", "kind"), [("learn", "single"), ("evaluate", "vec")])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (np.zeros((1, 5)), r"of shape \(1, 5\), but its space Box\(.* has \(5,\): fix one of them"),
        (
            th.ones(5, requires_grad=True),
            r"that is not an array \(.*requires grad.*\): return arrays, such as obs.detach",
        ),
    ],
    ids=["row", "gradient"],
)
def test_it_is_the_same_error_everywhere(other, message, kind, run, at):
    env = OtherShape(other, at)
    env = DummyVecEnv([lambda: env]) if kind == "vec" else env
    with pytest.raises(ValueError, match=f"(?s)env returned an observation {message}"):
        if run == "learn":
            learn(env)
        else:
            PPO_Plus("MlpPolicy", RandomEnv(ACTIONS["discrete"]), n_steps=8, batch_size=8).evaluate(2, env)


#: Observations that are not arrays of their spaces' shapes, and the step that returns them.
AS_GOOD = [
    (spaces.Box(-1, 1, (1,)), 0.5, 0),
    (VECTOR, [0.5] * 5, 1),
    (spaces.Box(-1, 1, (2, 2)), ((0.5, 0.1), [0.2, 0.3]), 3),
    (VECTOR, th.zeros(5), 3),
    (spaces.Dict(a=VECTOR), {"a": (0.5,) * 5}, 1),
    (PAIR, [(0.1, 0.2, 0.3), 3], 3),
]
TAKING = {
    **FEW,
    "resumable": lambda env: DummyVecEnv([lambda: Resumable(env)]),
    "processes": lambda env: SupervisedVecEnv([lambda: env], start_method="fork"),
}


@pytest.mark.parametrize(("space", "other", "at"), AS_GOOD, ids=str)
@pytest.mark.parametrize("kind", TAKING)
def test_a_single_number_and_other_kinds_of_arrays_are_as_good(space, other, at, kind):
    if isinstance(space, spaces.Tuple) and kind == "normalized":
        pytest.skip("VecNormalize takes no tuples")
    policy = "MultiInputPolicy" if space.shape is None else "MlpPolicy"
    learn(TAKING[kind](OtherShape(other, at, space)), policy)


def test_final_observations_from_sb3s_processes_may_be_lists():
    learn(SubprocVecEnv([lambda: OtherShape([0.5] * 5, 3)], start_method="fork"))


def test_a_subclass_that_stores_observations_itself_is_unchecked():
    class Repeats(DummyVecEnv):
        def _save_obs(self, env_idx, obs):
            super()._save_obs(env_idx, np.broadcast_to(obs, VECTOR.shape))

    learn(Repeats([lambda: OtherShape(0.0, 0)]))


def test_callbacks_find_and_exchange_the_environments_themselves():
    made = [RandomEnv(ACTIONS["discrete"]) for _ in range(3)]
    env = DummyVecEnv([lambda: made[0], lambda: made[1]])

    class Exchange(BaseCallback):
        def _on_step(self):
            assert env.envs == made[:2]
            if self.n_calls == 5:
                made[1] = env.envs[1] = OtherShape(0.0, 1)
            return True

    with pytest.raises(ValueError, match="env returned an observation") as raised:
        PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=16, device="cpu").learn(64, callback=Exchange())
    assert re.fullmatch(r"It was environment 1, <.*OtherShape.*>, .*, step 5\.", raised.value.__notes__[0])
    assert env.envs == made[:2]


@pytest.mark.parametrize("make", [LeanVecEnv, DummyVecEnv])
def test_resets_get_what_those_of_sb3_get(make):
    class Noting(RandomEnv):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], {"given": kwargs}

    env = make([lambda: Resumable(Noting(ACTIONS["discrete"], p_end=1.0))])
    env.seed(5)
    env.set_options({"level": 3})
    given = []
    for call in (env.reset, lambda: env.step(np.zeros(1, int)), env.reset):
        call()
        given.append(env.reset_infos[0]["given"])
    assert given == [{"seed": 5, "options": {"level": 3}}, {}, {"seed": None}]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"])
def test_copies_of_an_environment_are_their_own(copied):
    env = DummyVecEnv([lambda: RandomEnv(ACTIONS["discrete"])])
    PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(8)
    other = copied(env)
    other.reset()
    other.step(np.zeros(1, int))
    assert (env.envs[0].n_steps, other.envs[0].n_steps) == (8, 9)


def test_methods_set_on_an_environment_are_called_and_stay():
    env = DummyVecEnv([lambda: RandomEnv(ACTIONS["discrete"])])
    n_steps, step_wait = [], env.step_wait

    def counted():
        n_steps.append(1)
        return step_wait()

    env.step_wait = counted
    PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(16)
    assert len(n_steps) == 16 and env.step_wait is counted


class VecOfOtherShape(DummyVecEnv):
    """A vectorized environment that returns too short rows from step ``at`` on; 0: from reset."""

    n_steps = at = 0

    def reset(self):
        return self.cut(super().reset())

    def step_wait(self):
        self.n_steps += 1
        obs, *rest = super().step_wait()
        return self.cut(obs), *rest

    def cut(self, obs):
        return obs[:, :3] if self.n_steps >= self.at else obs


@pytest.mark.parametrize("at", [0, 2])
def test_rows_of_another_shape_are_named_with_both_shapes(at):
    env = VecOfOtherShape([lambda: RandomEnv(ACTIONS["discrete"])] * 2)
    env.at = at
    with pytest.raises(ValueError, match=r"observation of shape \(2, 3\) for 2 environments, .* asks for \(2, 5\)"):
        learn(env)
    assert env.n_steps == at


def test_rows_of_one_number_are_numbers():
    check_shape(np.zeros((3, 1)), spaces.Discrete(2), 3)
    check_shape(np.zeros(3), spaces.Box(-1, 1, (1,)), 3)
    with pytest.raises(ValueError, match=r"observation\['a'\] of shape \(2,\) for 3 environments"):
        check_shape({"a": np.zeros(2)}, spaces.Dict(a=spaces.Discrete(2)), 3)


# --- rewards, dones and infos of any kind -----------------------------------------------------------------------------


class Returning(RandomEnv):
    """Returns a reward, a done and an info as ``change`` makes them."""

    def __init__(self, change):
        super().__init__(ACTIONS["discrete"], max_steps=5, p_end=0.0)
        self.change = change

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs, *self.change(1.0, terminated or truncated, info)


def train(change, wrap):
    env = wrap(Returning(lambda *results: (*change(*results[:2]), False, results[2])))
    return PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, gamma=0.5, device="cpu", seed=0).learn(16)


VEC = {name: WRAPPED[name] for name in ("vec", "normalized")}


NUMBERS = [np.float32(1), np.int64(1), 1, True, np.array(1.0)]
IN_ARRAYS = [np.array([1.0]), [1.0], np.array([[1]])]


# A `Monitor` takes no lists.
@pytest.mark.parametrize(
    ("reward", "kind"), sample([*product(NUMBERS, WRAPPED), *product(IN_ARRAYS, VEC)], 6), ids=repr
)
def test_rewards_of_one_number_are_accepted(reward, kind):
    trained = [train(lambda r, done, given=given: (given, done), WRAPPED[kind]) for given in (1.0, reward)]
    np.testing.assert_array_equal(*(model.rollout_buffer.rewards for model in trained))


@pytest.mark.parametrize("kind", VEC)
@pytest.mark.parametrize("convert", [int, np.float64, lambda done: np.array([done])])
def test_dones_of_any_kind_are_booleans(convert, kind):
    trained = [train(lambda r, done, to=to: (r, to(done)), VEC[kind]) for to in (bool, convert)]
    np.testing.assert_array_equal(*(model.rollout_buffer.advantages for model in trained))


@pytest.mark.parametrize("kind", VEC)
@pytest.mark.parametrize("reward", [np.array([1.0, 2.0]), None, "1", [], {}], ids=repr)
def test_other_rewards_raise_an_error_that_says_reward(reward, kind):
    with pytest.raises(ValueError, match="env returned .* as reward: return"):
        train(lambda r, done: (reward, done), WRAPPED[kind])


@pytest.mark.parametrize("kind", FEW)
def test_an_info_that_is_not_a_dict_raises_an_error(kind):
    env = WRAPPED[kind](Returning(lambda reward, done, info: (reward, done, False, None)))
    with pytest.raises(ValueError, match="returned None as info: return a dict"):
        PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=16, device="cpu").learn(16)


class Integers(VecEnvWrapper):
    """A vector environment whose dones are numbers, and rewards integers or columns."""

    def __init__(self, venv, dones, rewards):
        super().__init__(venv)
        self.as_dones, self.as_rewards = dones, rewards

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs, self.as_rewards(rewards), self.as_dones(dones), infos


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_vector_environments_may_return_dones_of_any_dtype(dtype):
    rollouts = []
    for to in (bool, dtype):

        def wrap(env, to=to):
            return Integers(
                DummyVecEnv([lambda: env]), lambda dones: dones.astype(to), lambda rewards: rewards[:, None]
            )

        rollouts.append(train(lambda r, done: (r, done), wrap).rollout_buffer)
    np.testing.assert_array_equal(rollouts[0].advantages, rollouts[1].advantages)
    assert rollouts[0].rewards.max() == 1


def test_rewards_of_another_shape_raise_an_error():
    def wrap(env):
        return Integers(DummyVecEnv([lambda: env]), lambda dones: dones, lambda rewards: np.tile(rewards, 3))

    with pytest.raises(ValueError, match=r"cannot reshape array of size 3 into shape \(1,\)"):
        train(lambda r, done: (r, done), wrap)


# --- spaces that are not supported, and episodes that others end -----------------------------------------------------


#: The ways in which environments come in.
ENTRIES = {
    "environment": lambda make: PPO_Plus("MlpPolicy", make()),
    "id": lambda make: PPO_Plus("MlpPolicy", "Unsupported-v0"),
    "dummy": lambda make: PPO_Plus("MlpPolicy", VecNormalize(DummyVecEnv([lambda: Monitor(make())]))),
    "sync": lambda make: PPO_Plus("MlpPolicy", SyncVectorEnv([make])),
    "lean": lambda make: LeanVecEnv([make]),
    "supervised": lambda make: SupervisedVecEnv([make], start_method="fork"),
    "make_vec": lambda make: make_vec("Unsupported-v0", 2),
    "processes": lambda make: make_vec(make, 2, vec_env="subproc", start_method="fork"),
}


UNSUPPORTED = {
    "unbounded": (partial(RandomEnv, spaces.Box(-np.inf, np.inf, (2,)), VECTOR), "infinite low and high"),
    "text": (
        partial(RandomEnv, ACTIONS["discrete"], spaces.Dict(image=VECTOR, mission=spaces.Text(9))),
        r"observation_space\['mission'\]=Text.* is not supported: .*minigrid.wrappers",
    ),
}


# SB3's vector environment has no message for texts, and Gymnasium's has no arrays of them.
@pytest.mark.parametrize(
    ("kind", "entry"),
    [each for each in product(UNSUPPORTED, ENTRIES) if each not in (("text", "dummy"), ("text", "sync"))],
)
def test_spaces_that_are_not_supported_have_the_same_message_everywhere(kind, entry):
    make, message = UNSUPPORTED[kind]
    gym.register("Unsupported-v0", make)
    try:
        with pytest.raises(ValueError, match=message):
            ENTRIES[entry](make)
    finally:
        del gym.registry["Unsupported-v0"]


@pytest.mark.slow
def test_an_observation_that_was_unpacked_in_a_worker_of_sb3_is_named():
    env = SubprocVecEnv([partial(TwoNumbers, ACTIONS["discrete"], VECTOR)])
    with pytest.raises(ValueError, match="env returned .* as info: return a dict"):
        PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=16, device="cpu").learn(16)
    env.close()


class Lives(RandomEnv):
    """A life of three steps; the next one, which the reset takes, ends the game."""

    def step(self, action):
        self.t = getattr(self, "t", 0) + 1
        return self.observation_space.sample(), 1.0, self.t % 4 == 0, False, {}


class EndOfLife(gym.Wrapper):
    """Episodes are lives, of which the reset may take a step, as SB3's EpisodicLifeEnv does."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or self.unwrapped.t % 4 == 3, truncated, info

    def reset(self, **kwargs):
        if getattr(self.unwrapped, "t", 0) % 4 == 3:
            self.env.step(self.action_space.sample())
        return self.env.reset(**kwargs)


def test_an_episode_that_the_reset_ends_is_written_once(tmp_path):
    env = LeanVecEnv([lambda: EndOfLife(Monitor(Lives(ACTIONS["discrete"], VECTOR), str(tmp_path)))])
    env.reset()
    for _ in range(6):
        env.step([0])
    env.close()
    lines = (tmp_path / "monitor.csv").read_text().splitlines()[2:]
    assert [line.split(",")[:2] for line in lines] == [["4.0", "4"]] * 2
