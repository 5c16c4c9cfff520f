"""The adapters behave like SB3's DummyVecEnv, in every autoreset mode."""

import warnings
from collections import defaultdict
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, RandomEnv
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformReward
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from tensor_envs import TensorTwin

from ppo_plus import PPO_Plus, as_vec_env
from ppo_plus.envs.checks import AUTORESET
from ppo_plus.envs.vec_env import GymVectorEnv, rows_of

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]
BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)


class Walk(gym.Env):
    """A random walk that ends at random: by termination, by truncation, or by both at once.

    Observation, reward and end depend on the action and on the seed, so that any slip shows.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, observation_space=BOX, action_space=None, end=0.15, limit=12, render_mode=None):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.end, self.limit, self.render_mode = end, limit, render_mode
        self.bonus = 0.0
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.position = self.np_random.normal(size=3) + (options or {}).get("shift", 0.0)
        return self.observation(), {"first": float(self.position[0])}

    def step(self, action):
        self.steps += 1
        total = float(np.sum(spaces.flatten(self.action_space, action)))
        self.position += 0.1 * total + self.np_random.normal(size=3)
        reward = float(self.position.sum()) + self.bonus
        terminated, truncated = (self.np_random.random(2) < self.end).tolist()
        info = {"steps": self.steps, "position": self.position.copy(), "nested": {"sum": total}}
        if self.steps % 2:
            info["odd"] = "yes"
        return self.observation(), reward, terminated, truncated or self.steps >= self.limit, info

    def observation(self):
        def part(space):
            if isinstance(space, spaces.Dict):
                return {key: part(sub) for key, sub in space.items()}
            if isinstance(space, spaces.Discrete):
                return int(space.start + abs(self.position[0]) * 10 % space.n)
            if space.dtype == np.uint8:
                return np.full(space.shape, abs(self.position[0]) * 10 % 255, np.uint8)
            return np.resize(self.position, space.shape).astype(space.dtype)

        return part(self.observation_space)

    def add(self, number, to=0):
        return to + number + self.bonus

    def render(self):
        return np.full((4, 6, 3), self.steps, np.uint8)


def vector(n, mode, kind=SyncVectorEnv, wrap=lambda env: env, kwargs=None, **env_kwargs):
    return kind([lambda: wrap(Walk(**env_kwargs))] * n, autoreset_mode=mode, **(kwargs or {}))


def dummy(n, **env_kwargs):
    return DummyVecEnv([lambda: Monitor(Walk(**env_kwargs)) for _ in range(n)])


def actions_for(space, counts):
    """The action of each environment at its own step number, the same whichever way the environment is run."""
    actions = []
    for i, count in enumerate(counts):
        space.seed(1000 * i + int(count))
        actions.append(space.sample())
    return actions if isinstance(space, (spaces.Dict, spaces.Tuple)) else np.stack(actions)


def rows(obs, i):
    return {key: value[i] for key, value in obs.items()} if isinstance(obs, dict) else obs[i]


def transitions(env, n_steps, seed=3):
    """What each environment went through, rows that are no transitions left out; and which rows those were."""
    env.seed(seed)
    obs = env.reset()
    found, garbage = defaultdict(list), []
    counts = np.zeros(env.num_envs, dtype=int)
    for _ in range(n_steps):
        actions = actions_for(env.action_space, counts)
        new_obs, rewards, dones, infos = env.step(actions)
        assert rewards.dtype == np.float32 and dones.dtype == bool and len(infos) == env.num_envs
        garbage.append([info.get(AUTORESET, False) for info in infos])
        for i, info in enumerate(infos):
            if AUTORESET in info:
                assert info == {AUTORESET: True} and dones[i] and rewards[i] == 0.0
                continue
            counts[i] += 1
            info = {"TimeLimit.truncated": False, **info}
            info.get("episode", {}).pop("t", None)
            next_obs = info.pop("terminal_observation") if dones[i] else rows(new_obs, i)
            found[i].append((rows(obs, i), actions[i], rewards[i], dones[i], next_obs, info))
        obs = new_obs
    env.close()
    return found, np.array(garbage)


def assert_same(left, right):
    assert type(left) is type(right) or not isinstance(left, (dict, list, tuple)), (left, right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(left, right)
        if isinstance(left, np.ndarray):
            # A final observation that is a number comes as an array without dimensions.
            assert left.dtype == np.asarray(right).dtype


def assert_same_as_dummy(env, n_steps=60, seed=3, **env_kwargs):
    """Every environment has the transitions that it has in a DummyVecEnv, in the same order."""
    found, garbage = transitions(env, n_steps, seed)
    expected, _ = transitions(dummy(env.num_envs, **env_kwargs), n_steps, seed)
    for i in range(env.num_envs):
        assert len(found[i]) == n_steps - garbage[:, i].sum()
        assert_same(found[i], expected[i][: len(found[i])])
    assert any(done for *_, done, _, _ in found[0]) or n_steps < 20
    return found, garbage


# --- the same trajectories as DummyVecEnv ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_same_trajectories_as_dummy(kind, mode):
    found, garbage = assert_same_as_dummy(GymVectorEnv(vector(3, mode, kind)))
    # Garbage follows every end, and nothing else.
    ended = [[done for *_, done, _, _ in found[i]] for i in range(3)]
    if mode == AutoresetMode.NEXT_STEP:
        assert garbage.any()
        for i in range(3):
            rebuilt = [row for done in ended[i] for row in ([False, True] if done else [False])]
            assert rebuilt[: len(garbage)] == garbage[:, i].tolist()
    else:
        assert not garbage.any()
    # All kinds of ends have occurred.
    assert {info["TimeLimit.truncated"] for i in range(3) for *_, done, _, info in found[i] if done} == {True, False}


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    mode=st.sampled_from(MODES),
    end=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    limit=st.integers(1, 5),
    copy=st.booleans(),
)
def test_same_trajectories_with_short_episodes(n, seed, mode, end, limit, copy):
    env = GymVectorEnv(vector(n, mode, kwargs={"copy": copy}, end=end, limit=limit))
    assert_same_as_dummy(env, n_steps=14, seed=seed, end=end, limit=limit)


DICT = spaces.Dict(
    image=spaces.Box(0, 255, (2, 2, 3), np.uint8),
    one=spaces.Discrete(4),
    z=spaces.Box(-np.inf, np.inf, (2,), np.float64),
)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (DICT, SyncVectorEnv),
        (DICT, partial(AsyncVectorEnv, shared_memory=False)),
        (spaces.Discrete(5, start=2), SyncVectorEnv),
        (spaces.Box(0, 255, (4, 4, 1), np.uint8), SyncVectorEnv),
    ],
    ids=str,
)
def test_other_observations(space, kind):
    env = GymVectorEnv(vector(2, AutoresetMode.SAME_STEP, kind, observation_space=space))
    assert env.observation_space == space
    assert_same_as_dummy(env, observation_space=space)


@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_arrive_as_they_are(kind):
    space = ACTIONS[kind]
    assert_same_as_dummy(GymVectorEnv(vector(2, AutoresetMode.SAME_STEP, action_space=space)), 30, action_space=space)


# --- statistics, infos, buffers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_evaluate_policy(mode):
    model = PPO("MlpPolicy", dummy(1), n_steps=8, batch_size=8, device="cpu", seed=0)

    def evaluate(env):
        env.seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return evaluate_policy(model, env, n_eval_episodes=13, return_episode_rewards=True)

    env = GymVectorEnv(vector(3, mode))
    assert env.env_is_wrapped(Monitor) == [True] * 3
    found, expected = evaluate(env), evaluate(dummy(3))
    assert len(found[0]) == 13
    # Rows without a transition shift the order between environments, but not what is in it.
    assert sorted(zip(*found, strict=True)) == sorted(zip(*expected, strict=True))


@pytest.mark.parametrize(("kind", "mode"), [(SyncVectorEnv, MODES[0]), (AsyncVectorEnv, MODES[1])])
def test_monitors_inside_are_believed(kind, mode):
    class Odd(Monitor):
        """Reports every other episode only, as one does that lasts several lives."""

        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            if len(self.episode_returns) % 2:
                info.pop("episode", None)
            return obs, reward, terminated, truncated, info

    env = GymVectorEnv(vector(2, mode, kind, wrap=Odd))
    found, _ = transitions(env, 60)
    ended = [info for i in found for *_, done, _, info in found[i] if done]
    # A time limit around a monitor ends an episode that it does not know of.
    assert all("episode" in info for info in ended if info["TimeLimit.truncated"])
    lives = [info for info in ended if not info["TimeLimit.truncated"]]
    assert 0 < sum("episode" in info for info in lives) < 0.7 * len(lives)


def silent(env):
    return gym.wrappers.TransformReward(gym.wrappers.RecordEpisodeStatistics(env), lambda reward: 0.0)


def silent_vector(mode):
    return TransformReward(RecordEpisodeStatistics(vector(2, mode)), np.zeros_like)


@pytest.mark.parametrize("make", [partial(vector, 2, wrap=silent), silent_vector])
@pytest.mark.parametrize("mode", MODES)
def test_statistics_that_the_environment_reports_are_kept(mode, make):
    found, _ = transitions(GymVectorEnv(make(mode=mode)), 60)
    episodes = [info["episode"] for i in range(2) for *_, info in found[i] if "episode" in info]
    assert len(episodes) > 4 and all(episode["r"] != 0.0 for episode in episodes)


@pytest.mark.parametrize("mode", MODES)
def test_reset_clears_the_statistics(mode):
    env = GymVectorEnv(vector(1, mode, end=0.0, limit=4))
    for n_before in (2, 4):
        env.reset()
        for _ in range(n_before):
            env.step(np.zeros(1, int))
        env.reset()
        lengths = []
        while not lengths:
            infos = env.step(np.zeros(1, int))[3]
            assert AUTORESET not in infos[0]
            lengths += [info["episode"]["l"] for info in infos if "episode" in info]
        assert lengths == [4]


@pytest.mark.parametrize("mode", MODES)
def test_infos_belong_to_whoever_gets_them(mode):
    env = GymVectorEnv(vector(3, mode))
    env.reset()
    before = []
    for _ in range(30):
        infos = env.step(np.zeros(3, int))[3]
        assert not any("mine" in info for info in infos + env.reset_infos)
        assert len({id(info) for info in infos + before}) == 3 + len(before)
        for info in infos:
            info["mine"] = True
            info.get("position", np.zeros(1))[:] = np.nan
        before = infos


@pytest.mark.parametrize(("kind", "space"), [(SyncVectorEnv, BOX), (AsyncVectorEnv, DICT)])
@pytest.mark.parametrize("mode", MODES)
def test_returned_observations_never_change(kind, mode, space):
    env = GymVectorEnv(vector(2, mode, kind, kwargs={"copy": False}, observation_space=space))
    kept, snapshots = [env.reset()], []
    for _ in range(25):
        snapshots.append([np.array(value) for value in (kept[-1].values() if space is DICT else [kept[-1]])])
        obs, _, _, infos = env.step(np.zeros(2, int))
        kept.append(obs)
        for info in infos:
            if "terminal_observation" in info:
                final = info["terminal_observation"]
                assert not np.shares_memory(final["z"] if space is DICT else final, obs["z"] if space is DICT else obs)
    env.close()
    for obs, snapshot in zip(kept, snapshots, strict=False):
        for value, copy in zip(obs.values() if space is DICT else [obs], snapshot, strict=True):
            np.testing.assert_array_equal(value, copy)


@pytest.mark.parametrize("mode", MODES)
def test_infos_of_resets(mode):
    env = GymVectorEnv(vector(2, mode))
    env.reset()
    assert all(info.keys() == {"first"} for info in env.reset_infos)
    firsts, n_ends = {info["first"] for info in env.reset_infos}, 0
    for _ in range(30):
        infos = env.step(np.zeros(2, int))[3]
        assert not any("first" in info for info in infos)
        n_ends += sum(AUTORESET in info if mode == AutoresetMode.NEXT_STEP else "episode" in info for info in infos)
        firsts |= {info["first"] for info in env.reset_infos}
    assert len(firsts) == 2 + n_ends > 4


# --- seeds, options, access to what is inside ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_callbacks_count_each_episode_once(mode):
    env = vector(2, mode, end=0.0, limit=3)
    callback = StopTrainingOnMaxEpisodes(4)
    model = PPO_Plus("MlpPolicy", env, n_steps=64, batch_size=64, device="cpu").learn(1000, callback=callback)
    assert callback.n_episodes == 8
    resets = 2 * 3 if mode == AutoresetMode.NEXT_STEP else 0
    assert model.num_timesteps == 2 * 4 * 3 + resets


@pytest.mark.parametrize("mode", MODES)
def test_seeds_and_options_are_used_once(mode):
    env = GymVectorEnv(vector(2, mode))
    assert env.seed(7) == [7, 8]
    first, second = env.reset(), env.reset()
    env.seed(7)
    again = env.reset()
    np.testing.assert_array_equal(first, again)
    assert (first != second).all() and (first[0] != first[1]).all()
    env.set_options({"shift": 100.0})
    assert (env.reset() > 50).all() and (env.reset() < 50).all()


def test_options_must_agree():
    env = GymVectorEnv(vector(2, AutoresetMode.SAME_STEP))
    env.set_options([{"shift": 1.0}, {}])
    with pytest.raises(ValueError, match="options=.*must be the same"):
        env.reset()


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_access_to_the_environments(kind):
    env = GymVectorEnv(vector(3, AutoresetMode.SAME_STEP, kind))
    assert env.env_method("limit") == [12] * 3
    assert env.has_attr("limit") and env.has_attr("add") and env.has_attr("render_mode")
    env.set_attr("bonus", 10.0)
    assert env.get_attr("bonus") == [10.0] * 3 and env.get_attr("bonus", [1]) == [10.0]
    assert env.env_method("add", 1, to=5) == [16.0] * 3
    assert not env.has_attr("nonsense")
    with pytest.raises(AttributeError, match="nonsense"):
        env.env_method("nonsense")
    with pytest.raises(AttributeError, match="nonsense"):
        env.get_attr("nonsense")
    with pytest.raises(ValueError, match="all its environments at once"):
        env.env_method("add", 0, indices=1)
    # Nothing of this has hurt it.
    env.reset()
    env.step(np.zeros(3, int))
    env.close()


def test_wrappers_around_vector_environments():
    env = as_vec_env(RecordEpisodeStatistics(vector(2, AutoresetMode.SAME_STEP)))
    assert env.env_method("limit") == [12, 12]
    flat = gym.wrappers.vector.FlattenObservation(vector(2, AutoresetMode.NEXT_STEP, observation_space=DICT))
    assert as_vec_env(flat).reset().shape == (2, 12 + 4 + 2)


def test_reading_an_attribute_calls_nothing():
    env = as_vec_env(vector(2, AutoresetMode.SAME_STEP, end=0.0))
    env.reset()
    env.step(np.zeros(2, int))
    assert all(map(callable, env.get_attr("reset")))
    assert env.get_attr("steps") == [1, 1]


def test_rendering():
    env = GymVectorEnv(vector(2, AutoresetMode.SAME_STEP, end=0.0, render_mode="rgb_array"))
    assert env.render_mode == "rgb_array" and env.metadata["render_fps"] == 7
    env.reset()
    env.step(np.zeros(2, int))
    assert [image.shape for image in env.get_images()] == [(4, 6, 3)] * 2
    assert env.render().max() == 1
    env.close()


# --- environments that are vectors by themselves ---------------------------------------------------------------------


def test_native_vector_environment():
    env = as_vec_env(
        gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point", max_episode_steps=30)
    )
    assert isinstance(env, GymVectorEnv) and env.autoreset is AutoresetMode.NEXT_STEP
    env.seed(0)
    first = env.reset()
    env.seed(0)
    np.testing.assert_array_equal(env.reset(), first)
    rng, lengths, before = np.random.default_rng(0), np.zeros(4, int), np.zeros(4, bool)
    for _ in range(120):
        obs, rewards, dones, infos = env.step(rng.integers(0, 2, 4))
        for i, info in enumerate(infos):
            assert (AUTORESET in info) == before[i]
            if before[i]:
                assert rewards[i] == 0.0 and np.abs(obs[i]).max() <= 0.05
                continue
            lengths[i] += 1
            if dones[i]:
                assert info["episode"]["r"] == info["episode"]["l"] == lengths[i]
                assert info["TimeLimit.truncated"] == (lengths[i] == 30 and abs(obs[i, 2]) < 0.2095)
                np.testing.assert_array_equal(info["terminal_observation"], obs[i])
                lengths[i] = 0
        before = dones & ~before
    assert env.get_attr("render_mode") == [None] * 4
    assert not env.has_attr("action_masks")
    env.close()


class Fixed(VectorEnv):
    """Returns what it is told to."""

    def __init__(self, metadata, final_obs=None):
        self.metadata, self.num_envs, self.final_obs = metadata, 2, final_obs
        self.single_observation_space, self.single_action_space = BOX, spaces.Discrete(2)
        self.obs = np.ones((2, 3), np.float32)

    def reset(self, seed=None, **options):
        self.options = options
        return self.obs, {}

    def render(self):
        self.n_renders = getattr(self, "n_renders", 0) + 1

    def step(self, actions):
        self.obs += 1
        infos = {} if self.final_obs is None else {"final_obs": self.final_obs}
        infos["fps"] = 30
        infos["pair"] = ("left", "right")
        return self.obs, np.ones(2), np.array([True, False]), np.zeros(2, bool), infos


def test_other_ways_to_give_infos():
    env = GymVectorEnv(Fixed({"autoreset_mode": AutoresetMode.SAME_STEP}, final_obs=np.full((2, 3), 7.0)))
    first = env.reset()
    _, _, dones, infos = env.step(np.zeros(2, int))
    assert first.max() == 1.0 and dones.tolist() == [True, False]
    np.testing.assert_array_equal(infos[0]["terminal_observation"], [7.0] * 3)
    assert rows_of({"joints": {0: np.zeros(2)}}, 2) == [{"joints": {0: 0.0}}] * 2
    assert infos[1] == {"fps": 30, "pair": "right"} and env.reset_infos[0] == {"fps": 30, "pair": "left"}


def test_arrays_of_other_libraries_become_those_of_numpy():
    assert rows_of({"cost": th.arange(2)}, 2) == [{"cost": 0}, {"cost": 1}]
    env = as_vec_env(TransformReward(vector(2, AutoresetMode.SAME_STEP), th.tensor))
    env.reset()
    assert type(env.step(np.zeros(2, int))[1]) is np.ndarray


class Masking(Fixed):
    def action_masks(self):
        return np.array([[True, False], [False, True]])

    def step(self, actions):
        assert actions.tolist() == [0, 1]
        *rest, infos = super().step(actions)
        return *rest, {"final_observation": infos.pop("final_obs")} | infos


@pytest.mark.parametrize("wrapped", [lambda env: env, VectorWrapper])
def test_masks_of_all_environments_are_used_and_the_old_name_of_last_observations_is_read(wrapped):
    env = Masking({"autoreset_mode": AutoresetMode.SAME_STEP}, final_obs=np.full((2, 3), 7.0))
    model = PPO_Plus("MlpPolicy", wrapped(env), n_steps=16, batch_size=16, compile=False).learn(32)
    assert model.env.env_method("action_masks", indices=[1])[0].tolist() == [False, True]


def test_options_are_passed_where_there_are_any():
    env = GymVectorEnv(Fixed({"autoreset_mode": AutoresetMode.NEXT_STEP}))
    env.set_options({"shift": 1.0})
    for options in ({"options": {"shift": 1.0}}, {}):
        env.reset()
        assert env.env.options == options


def test_an_end_in_a_row_that_resets_is_none():
    env = GymVectorEnv(Fixed({"autoreset_mode": AutoresetMode.NEXT_STEP}))
    env.reset()
    infos = [env.step(np.zeros(2, int))[3][0] for _ in range(3)]
    assert "episode" in infos[0] and infos[1:] == [{AUTORESET: True}] * 2
    assert "episode" not in env.reset_infos[0]


# --- what the adapters share: actions become a batch, and there are no single environments ---------------------------


class Spy(SyncVectorEnv):
    """Remembers the actions that it is given."""

    def step(self, actions):
        self.given = actions
        return super().step(actions)


def spied(space):
    env = as_vec_env(Spy([lambda: RandomEnv(space)] * 2))
    env.reset()
    return env


@pytest.mark.parametrize(
    ("space", "actions", "dtype", "shape"),
    [
        (spaces.Box(-1, 1, (2,), np.float64), np.ones((2, 2), np.float32), np.float64, (2, 2)),
        (spaces.Discrete(3), np.ones((2, 1), np.int32), np.int64, (2,)),
    ],
)
def test_actions_get_the_dtype_that_the_environment_wants(space, actions, dtype, shape):
    env = spied(space)
    env.step(actions)
    assert (env.env.given.dtype, env.env.given.shape) == (dtype, shape)


def test_structured_actions_come_as_a_list_or_a_batch():
    env = spied(ACTIONS["tuple"])
    kinds, places = np.array([0, 2]), np.array([[0.5, 1.5], [-1.0, 0.0]], np.float32)
    for actions in ([(0, places[0]), (2, places[1])], (kinds, places)):
        env.step(actions)
        np.testing.assert_array_equal(env.env.given[0], kinds)
        np.testing.assert_array_equal(env.env.given[1], places)


def test_there_are_no_single_environments():
    env = as_vec_env(TensorTwin(3, ACTIONS["discrete"]))
    for access in (lambda: env.get_attr("t"), lambda: env.set_attr("t", 0), lambda: env.env_method("reset")):
        with pytest.raises(AttributeError, match="single environments"):
            access()
    assert env.get_attr("render_mode") == [None] * 3 and not env.has_attr("action_masks")
    assert env.env_is_wrapped(Monitor, indices=[0, 2]) == [True, True]
    masked = as_vec_env(TensorTwin(3, ACTIONS["discrete"], "method"))
    assert np.stack(masked.env_method("action_masks")).shape == (3, 3)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_unsupported_environments():
    with pytest.raises(ValueError, match=r'metadata\["autoreset_mode"\]=None'):
        GymVectorEnv(Fixed({}))
    with pytest.raises(ValueError, match="must be SAME_STEP or NEXT_STEP"):
        GymVectorEnv(vector(1, AutoresetMode.DISABLED))
    with pytest.raises(ValueError, match=r'has ended an episode without infos\["final_obs"\]'):
        env = GymVectorEnv(Fixed({"autoreset_mode": AutoresetMode.SAME_STEP}))
        env.reset()
        env.step(np.zeros(2, int))
    with pytest.raises(ValueError, match="shared_memory=False"):
        GymVectorEnv(vector(1, AutoresetMode.NEXT_STEP, AsyncVectorEnv, kwargs={"shared_memory": False}))
