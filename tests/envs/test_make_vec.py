"""`make_vec` picks the fastest vector environment, which does not change the task."""

import copy
import importlib.util
import time

import gymnasium as gym
import numpy as np
import pytest
from envs import ACTIONS, RandomEnv
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.vec_env import DummyVecEnv

from ppo_plus import PPO_Plus, SupervisedVecEnv, make_vec
from ppo_plus.envs import make_vec as making
from ppo_plus.envs.make_vec import VERIFIED, make_envpool, make_gymnasium, pick, step_seconds
from ppo_plus.envs.vec_env import EnvPoolVecEnv, GymVectorEnv

needs_envpool = pytest.mark.skipif(not importlib.util.find_spec("envpool"), reason="EnvPool is not installed")
IN_ENVPOOL = [env_id for env_id, kind in VERIFIED.items() if kind == "envpool"]
#: Environments that are compared side by side.
N = 4


class Timed(gym.Env):
    """Takes its time for a step, or fails in it.

    :param seconds: for each step; negative: it raises
    """

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds):
        self.seconds = seconds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if self.seconds < 0:
            raise RuntimeError("fails")
        time.sleep(self.seconds)
        return np.zeros(1, np.float32), 0.0, False, False, {}


# --- the same task -----------------------------------------------------------------------------------------------


def classic_state(env_id, obs):
    """The state of classic control that has this observation."""
    if env_id == "Pendulum-v1":
        return np.array([np.arctan2(obs[1], obs[0]), obs[2]])
    if env_id == "Acrobot-v1":
        return np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]])
    return np.array(obs, dtype=float)


def mujoco_state(env_id, obs, info, nq, nv):
    """Positions and velocities that have this observation, at the start of an episode."""
    if env_id == "Reacher-v5":
        joints = [np.arctan2(obs[2], obs[0]), np.arctan2(obs[3], obs[1])]
        return [*joints, *obs[4:6]], [*obs[6:8], 0, 0]
    if env_id == "InvertedDoublePendulum-v5":
        return [obs[0], np.arctan2(obs[1], obs[3]), np.arctan2(obs[2], obs[4])], obs[5:8]
    unseen = [info[key] for key in ("x_position", "y_position") if key in info][: nq + nv - len(obs)]
    return [*unseen, *obs[: nq - len(unseen)]], obs[nq - len(unseen) :]


def put(env, obs, info):
    """Put Gymnasium's environment where an observation was made; it was reset before, as for its step limit."""
    single = env.unwrapped
    if hasattr(single, "model"):
        mujoco = pytest.importorskip("mujoco", reason="MuJoCo is not installed")
        nq, nv = single.model.nq, single.model.nv
        qpos, qvel = mujoco_state(env.spec.id, obs, info, nq, nv)
        mujoco.mj_resetData(single.model, single.data)
        single.set_state(np.array(qpos, dtype=float), np.array(qvel, dtype=float))
    else:
        single.state = classic_state(env.spec.id, obs)


def compare(vec_env, env_id, n_steps, renewed_every=None, **kwargs):
    """Step environments that are stepped all at once beside single ones, with the same actions from the same states.

    :param vec_env: an adapter, in its vector environment's autoreset mode "next step"
    :param n_steps: how often
    :param renewed_every: after how many steps the single ones are put into the state of the others again, since these
        simulations are chaotic and differ in rounding; ``None``: at the start of each episode only
    :param kwargs: arguments of the single environments
    :return: largest difference of observations and of rewards, relative to 1 + their size; how many episodes have
        ended by a terminal state, and by the time limit
    """
    singles = [gym.make(env_id, **kwargs) for _ in range(N)]
    assert (vec_env.observation_space, vec_env.action_space) == (
        singles[0].observation_space,
        singles[0].action_space,
    )
    vec_env.action_space.seed(0)
    obs, infos = vec_env.reset(), vec_env.reset_infos
    for single, *there in zip(singles, obs, infos, strict=True):
        single.reset()
        put(single, *there)
    worst, ends, ages = np.zeros(2), np.zeros(2, int), np.zeros(N, int)
    for _ in range(n_steps):
        actions = np.array([vec_env.action_space.sample() for _ in range(N)])
        resetting = vec_env.resetting.copy()
        new_obs, rewards, dones, infos = vec_env.step(actions)
        for i, single in enumerate(singles):
            if resetting[i]:
                single.reset()
                put(single, new_obs[i], vec_env.reset_infos[i])
                ages[i] = 0
                continue
            ages[i] += 1
            mine, reward, terminated, truncated, _ = single.step(actions[i])
            for j, (ours, theirs) in enumerate(((mine, new_obs[i]), (reward, rewards[i]))):
                worst[j] = max(worst[j], np.max(np.abs(ours - theirs) / (1 + np.abs(ours))))
            assert dones[i] == (terminated or truncated)
            if dones[i]:
                # Where both fall on one step, EnvPool tells of the limit alone.
                both = terminated and truncated and isinstance(vec_env, EnvPoolVecEnv)
                assert infos[i]["TimeLimit.truncated"] == (truncated and (both or not terminated))
                ends += [terminated, truncated]
            elif renewed_every and ages[i] % renewed_every == 0:
                put(single, new_obs[i], infos[i])
    for env in (vec_env, *singles):
        env.close()
    return *worst, *ends


@needs_envpool
@pytest.mark.parametrize("env_id", IN_ENVPOOL)
def test_envpools_task_is_gymnasiums(env_id):
    if env_id.endswith("-v5"):
        pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    limit = gym.spec(env_id).max_episode_steps
    vec_env = make_envpool(env_id, N, 3, {})
    assert vec_env.env.config["max_episode_steps"] == limit
    # The state is seen in whole and without bounds in those that need it: their episodes are long.
    renewed = 5 if env_id in ("HalfCheetah-v5", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1") else None
    obs, rewards, n_terminated, n_truncated = compare(vec_env, env_id, 220, renewed)
    assert obs < 1e-4 and rewards < 1e-4
    # Some of their episodes end: of those with random actions by themselves, or here by a short time limit.
    short = make_envpool(env_id, N, 4, {"max_episode_steps": 12})
    obs, rewards, _, n_truncated = compare(short, env_id, 60, None, max_episode_steps=12)
    assert obs < 1e-4 and rewards < 1e-4 and n_truncated > 0


@needs_envpool
@pytest.mark.parametrize("env_id", IN_ENVPOOL)
def test_episodes_start_in_the_same_places(env_id):
    """Means and spreads of the first observations are those of Gymnasium's, as far as chance allows."""
    if env_id.endswith("-v5"):
        pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    pool, single = make_envpool(env_id, 8, 0, {}), gym.make(env_id)
    theirs = np.concatenate([pool.reset() for _ in range(50)])
    single.reset(seed=0)
    ours = np.array([single.reset()[0] for _ in range(len(theirs))])
    spread = ours.std(axis=0)
    # Five standard errors of a mean's difference; a standard deviation is known to a fifth.
    assert (np.abs(theirs.mean(0) - ours.mean(0)) <= 5 * spread * np.sqrt(2 / len(ours)) + 1e-6).all()
    assert (np.abs(theirs.std(0) - spread) <= 0.2 * spread + 1e-6).all()


@pytest.mark.parametrize("kwargs", [{}, {"max_episode_steps": 15}])
def test_gymnasiums_own_vector_form_is_the_same_task(kwargs):
    vec_env = make_gymnasium("CartPole-v1", N, 3, kwargs)
    obs, rewards, n_terminated, n_truncated = compare(vec_env, "CartPole-v1", 200, **kwargs)
    assert obs < 1e-4 and rewards == 0 and n_terminated > 10
    assert (n_truncated > 10) == bool(kwargs)


# --- the rule ------------------------------------------------------------------------------------------------------


def slow():
    return Timed(2e-3)


def never():
    raise AssertionError("nothing is to be measured")


def test_one_environment_is_stepped_here():
    assert pick("CartPole-v1", 1, never).kind == "dummy"


def test_cartpole_uses_gymnasiums_vector_form():
    found = pick("CartPole-v1", 8, never)
    assert found.kind == "gymnasium" and "verified to be the same task" in found.why


def test_step_time_decides_if_single_environments_are_needed():
    found = pick("CartPole-v1", 8, slow, single="env_wrapper", cores=2)
    assert found.kind == "subproc" and "env_wrapper" in found.why
    assert pick("CartPole-v1", 8, slow, single="env_wrapper", cores=1).kind == "dummy"
    assert pick("Any-v0", 2, lambda: Timed(0), cores=2).kind == "dummy"


def test_an_environment_that_fails_at_once_gets_a_process():
    assert step_seconds(lambda: Timed(-1)) == float("inf")
    assert pick("Any-v0", 2, lambda: Timed(-1), cores=1).kind == "subproc"


@pytest.mark.parametrize(
    ("installed", "version", "kind", "why"),
    [
        (True, "1.2.9", "envpool", "same task"),
        (True, "2.0.0", "subproc", "EnvPool 2.0.0 is not verified"),
        (False, "", "subproc", "not installed"),
    ],
)
def test_envpool_is_taken_where_it_is_installed_and_was_compared(monkeypatch, installed, version, kind, why):
    class Package:
        __version__ = version

    monkeypatch.setattr(making, "find_spec", lambda name: Package if installed else None)
    monkeypatch.setattr(making, "import_module", lambda name: Package)
    found = pick("HalfCheetah-v5", 8, slow, cores=8)
    assert found.kind == kind and why in found.why
    assert "too few" in pick("HalfCheetah-v5", 2, slow, cores=8).why


def test_another_environment_under_a_known_name_is_recognized(monkeypatch):
    monkeypatch.setitem(gym.registry, "CartPole-v1", EnvSpec("CartPole-v1", entry_point=slow))
    found = pick("CartPole-v1", 8, slow, cores=2)
    assert found.kind == "subproc" and "another environment is registered" in found.why


@needs_envpool
def test_a_time_limit_that_was_registered_reaches_envpool(monkeypatch):
    spec = copy.deepcopy(gym.spec("Pendulum-v1"))
    spec.max_episode_steps = 7
    monkeypatch.setitem(gym.registry, "Pendulum-v1", spec)
    env = make_vec("Pendulum-v1", 4, seed=0)
    env.reset()
    assert [env.step(np.zeros((4, 1)))[2].all() for _ in range(7)] == [False] * 6 + [True]


def test_processes_that_torchrun_starts_share_the_cores(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = making.usable_cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(alone))
    assert making.usable_cores() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(2 * alone))
    assert making.usable_cores() == 1


# --- made ----------------------------------------------------------------------------------------------------------


def test_make_vec_makes_what_is_picked(monkeypatch):
    env = make_vec("CartPole-v1", 8, seed=1)
    assert isinstance(env, GymVectorEnv) and env.num_envs == 8
    np.testing.assert_array_equal(env.reset(), make_vec("CartPole-v1", 8, seed=1).reset())
    assert isinstance(make_vec("CartPole-v1"), DummyVecEnv)
    with pytest.raises(ValueError, match="n_envs=0 must be at least 1"):
        make_vec("CartPole-v1", 0)


def test_make_vec_is_the_same_in_processes_or_not(monkeypatch):
    monkeypatch.setattr(making, "step_seconds", lambda make: 1.0)
    monkeypatch.setattr(making, "usable_cores", lambda: 2)
    apart = make_vec("CartPole-v1", 2, seed=1, sutton_barto_reward=True)
    assert isinstance(apart, SupervisedVecEnv)
    monkeypatch.setattr(making, "step_seconds", lambda make: 0.0)
    here = make_vec("CartPole-v1", 2, seed=1, sutton_barto_reward=True)
    assert isinstance(here, DummyVecEnv)
    np.testing.assert_array_equal(apart.reset(), here.reset())
    apart.close()


@needs_envpool
def test_a_model_trained_in_envpool_acts_in_gymnasium(tmp_path):
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    env = make_vec("HalfCheetah-v5", 4, seed=0)
    assert isinstance(env, EnvPoolVecEnv)
    model = PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=32, n_epochs=1, device="cpu", compile=False).learn(32)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", env=gym.make("HalfCheetah-v5"), device="cpu")
    loaded.evaluate(n_eval_episodes=1)


def test_make_vec_takes_env_kwargs_as_sb3_does():
    for given in ({"env_kwargs": {"sutton_barto_reward": True}}, {"sutton_barto_reward": True}):
        (env, *_) = make_vec("CartPole-v1", 2, **given).envs
        assert env.unwrapped._sutton_barto_reward


@pytest.mark.parametrize("n_envs", [1, 2])
def test_spaces_that_are_not_supported_are_named(n_envs):
    gym.register("Words-v0", lambda: RandomEnv(ACTIONS["discrete"], gym.spaces.Text(3)))
    try:
        with pytest.raises(ValueError, match="observation_space=Text.* is not supported: use Box"):
            make_vec("Words-v0", n_envs)
    finally:
        del gym.registry["Words-v0"]
