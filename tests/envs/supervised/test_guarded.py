"""Every answer of an environment is a value, its fault, or an error of the caller."""

import errno
from functools import partial

import numpy as np
import pytest
from faulty_envs import ACTIONS, FAULTS, Failing, Masked, equal, fine_and, supervised
from stable_baselines3.common.env_util import make_vec_env

from ppo_plus import SupervisedVecEnv
from ppo_plus.envs.supervised.guarded import CallerError, Fault, GuardedEnv
from ppo_plus.envs.supervised.vec_env import RESTART

pytestmark = pytest.mark.usefixtures("no_process_stays")


def test_it_answers_and_raises_nothing():
    env = GuardedEnv(partial(Failing, "raise", 2))
    name, made = env.answer("make", False)
    assert name == "<Failing instance>" and made == (Failing.observation_space, Failing.action_space)
    obs, info = env.answer("reset", {"seed": 5})
    assert equal(obs, Failing().reset(seed=5)[0]) and info == {}
    assert env.answer("step", 1)[2:] == (False, {"TimeLimit.truncated": False}, None)
    fault = env.answer("step", 1)
    assert isinstance(fault, Fault) and fault.reason == FAULTS["raise"] and "boom" in str(fault.cause)
    refusal = env.answer("env_method", "get_wrapper_attr", ("depth",), {})
    assert isinstance(refusal, CallerError) and isinstance(refusal.error, AttributeError)


@pytest.mark.parametrize("error", [KeyError("k"), OSError("odd"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")])
def test_elsewhere_an_error_is_one_of_pythons_own(error):
    def raised():
        raise error

    env = GuardedEnv(Failing)
    env.answer("make", False)
    env.answer("set_attr", "ask", raised)
    found = env.answer("env_method", "ask", (), {}).error
    assert isinstance(error, type(found)) and str(error) in str(found) and "in raised" in found.__notes__[0]


def test_only_errors_of_masks_among_methods_are_faults():
    env = supervised(*fine_and("mask", cls=Masked), restarts=1)
    env.reset()
    assert equal(env.env_method("action_masks"), [np.array([True, True])] * 3)
    assert env.n_restarts == 1
    assert RESTART in env.step(ACTIONS)[3][1]
    with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
        env.env_method("due", mask=1)
    assert env.n_restarts == 1
    assert equal(
        env.env_method("action_masks"), [np.array([False, True]), np.array([True, True]), np.array([False, True])]
    )
    env.close()


def test_monitors_append_and_leave_the_cut_episode_out(tmp_path):
    kwargs = {"restarts": 1, "report": [].append, "start_method": "fork"}
    make = partial(make_vec_env, Failing, 1, seed=5, monitor_dir=str(tmp_path), vec_env_kwargs=kwargs)
    env = make(env_kwargs={"fault": "raise", "at": 11}, vec_env_cls=SupervisedVecEnv)
    env.reset()
    ends = [info["episode"]["l"] for _ in range(30) for info in env.step([0])[3] if "episode" in info]
    # A whole one, then after two steps of the second a fault in its third, then whole ones.
    assert ends == [8, 8, 8] and env.n_restarts == 1
    lines = (tmp_path / "0.monitor.csv").read_text().splitlines()
    assert [line[:2] for line in lines[:2]] == ["#{", "r,"] and [line.split(",")[1] for line in lines[2:]] == ["8"] * 3
    env.close()


@pytest.mark.parametrize("error", [MemoryError("big"), OSError(errno.ENOSPC, "No space left on device")])
def test_full_disks_and_lack_of_memory_are_not_faults(error):
    class Poor(Failing):
        def step(self, action):
            raise error

    env = supervised(Failing, Poor, restarts=5)
    env.reset()
    with pytest.raises(type(error), match=str(error.args[-1])) as raised:
        env.step(ACTIONS[:2])
    assert env.n_restarts == 0 and getattr(raised.value, "errno", None) == getattr(error, "errno", None)
    env.close()
