"""Each answer of an environment is a value, its fault or an error of the caller, and no process is left running."""

import errno
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from faulty_envs import ACTIONS, FAULTS, Failing, Masked, equal, fine_and, plain, supervised
from gymnasium import spaces
from process_states import is_alive
from stable_baselines3.common.env_util import make_vec_env

from ppo_plus import EnvFault, SupervisedVecEnv
from ppo_plus.envs.supervised import workers
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.envs.supervised.workers import Fault, GuardedEnv

pytestmark = pytest.mark.usefixtures("no_process_stays")


def test_it_answers_and_raises_nothing():
    env = GuardedEnv(partial(Failing, "raise", 0), 0)
    name, made = pickle.loads(env.answer("make", False))
    assert name == "<Failing instance>" and made == (Failing.observation_space, Failing.action_space)
    obs, info = pickle.loads(env.answer("reset", {"seed": 105}))
    assert equal(obs, Failing().reset(seed=105)[0]) and info == {}
    fault = pickle.loads(env.answer("reset", {"seed": 5}))
    assert isinstance(fault, Fault) and fault.reason == FAULTS["raise"] and "boom" in str(fault.cause)
    refusal = pickle.loads(env.answer("env_method", "get_wrapper_attr", ("depth",), {}))
    assert isinstance(refusal, AttributeError)


@pytest.mark.parametrize("error", [KeyError("k"), OSError("odd"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")])
def test_elsewhere_an_error_is_one_of_pythons_own(error):
    def raised():
        raise error

    env = GuardedEnv(Failing, 0)
    env.answer("make", False)
    env.answer("env_method", "set_wrapper_attr", ("ask", raised), {})
    found = pickle.loads(env.answer("env_method", "ask", (), {}))
    assert isinstance(error, type(found)) and str(error) in str(found) and "in raised" in found.__notes__[0]


def test_one_that_hung_says_so_again():
    env = supervised(*fine_and("hang"), timeout=0.5)
    env.reset()
    with pytest.raises(EnvFault, match="gave no answer within 0.5 s"):
        while True:
            env.step(ACTIONS)
    time.sleep(0.5)  # its process has ended
    with pytest.raises(EnvFault, match="was ended because it hung"):
        env.reset()
    env.close()


def test_only_errors_of_masks_among_methods_are_faults(monkeypatch):
    env = supervised(*fine_and("mask", cls=Masked), restarts=1)
    env.reset()
    assert equal(env.env_method("action_masks"), [np.array([True, True])] * 3)
    assert env.n_restarts == 1
    assert RESTART in env.step(ACTIONS)[3][1]
    with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
        env.env_method("due", mask=1)
    late = type("Late", (), {"__module__": __name__})
    monkeypatch.setitem(globals(), "Late", late)
    with pytest.raises((AttributeError, ImportError)):
        env.set_attr("task", late())  # the processes do not know the class
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


# --- worker processes exchange messages, and none is left running -----------------------------------------------------


def test_shared_memory_that_is_full_is_an_error_and_leaves_nothing(monkeypatch):
    def full(descriptor, start, size):
        names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        raise OSError(errno.ENOSPC, "No space left on device")

    names = []
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"/dev/shm has no room for [\d,]+ bytes .Docker: --shm-size") as raised:
        supervised(Failing)
    assert raised.value.errno == errno.ENOSPC and not Path(names[0]).exists()


def test_environments_of_a_process_share_one_block_and_one_file():
    inherited = len(os.listdir("/proc/self/fd"))
    env = supervised(*[Failing] * 64, n_workers=1)
    assert env.get_attr("n_files")[0] < inherited + 40
    env.close()


def test_what_is_received_may_be_written_into():
    class ReadOnly(Failing):
        def step(self, action):
            *result, info = super().step(action)
            info["seen"] = np.zeros(2)
            info["seen"].flags.writeable = False
            return *result, info

    env = supervised(ReadOnly)
    env.reset()
    env.step([0])[3][0]["seen"][:] = 1.0
    env.close()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_answers_that_were_not_read_are_not_taken_for_later_ones(seconds, monkeypatch):
    class Slow(Failing):
        def step(self, action):
            time.sleep(seconds)
            return super().step(action)

    monkeypatch.setattr(workers, "CLOSING", 0.1 if seconds else workers.CLOSING)
    env, whole = supervised(Slow), plain(Failing)
    env.reset(), whole.reset()
    env.step_async([1])
    # Here Ctrl-C came.
    whole.step([1])
    assert equal(env.get_attr("n"), [1])
    assert equal(env.step([0])[0], whole.step([0])[0])
    env.close()


def test_large_unread_answers_do_not_block_closing():
    class Large(Failing):
        observation_space = spaces.Box(-np.inf, np.inf, (1_000_000,))

        def observe(self):
            return np.zeros(1_000_000, np.float32)

    env = supervised(Large, Large)
    env.reset()
    env.step_async(ACTIONS[:2])
    env.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("asked", [False, True])
def test_closing_does_not_wait_for_one_that_hangs(asked, monkeypatch):
    monkeypatch.setattr("ppo_plus.envs.supervised.workers.CLOSING", 0.2)
    env = supervised(*fine_and("hang", 1), timeout=None)
    env.reset()
    env.step_async(ACTIONS)
    if asked:
        env._workers[1]._seconds = 0.2
        with pytest.raises(EnvFault, match="gave no answer within 0.2 s"):
            env.step_wait()
    env.close()
    env.close()
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors where Linux lists them")
def test_nothing_is_left_behind():
    supervised(Failing).close()  # starts what stays in this process, such as the tracker of shared memory
    at_first = descriptors()
    env = supervised(*[partial(Failing, "kill", p=0.3)] * 2, restarts=40)
    env.reset()
    before = descriptors()
    while env.n_restarts < 8:
        env.step(ACTIONS[:2])
    assert descriptors() == before and len(multiprocessing.active_children()) == 2
    env.close()
    assert descriptors() == at_first and not multiprocessing.active_children()


@pytest.fixture
def as_on_windows(monkeypatch):
    """Processes can only be spawned, and shared memory has no tracker that one could start."""
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    monkeypatch.delattr("multiprocessing.resource_tracker.ensure_running")


def names_in(env):
    """The names of the shared memory, under which Linux lists it until it is unlinked."""
    return [worker.arrays.memory.name for worker in env._workers]


@pytest.mark.slow
def test_spawned_processes_return_the_same_and_are_restarted(as_on_windows):
    class Talkative(Failing):
        def step(self, action):
            *result, info = super().step(action)
            return *result, info | {"n": self.n} | ({"text": "x"} if self.n % 3 == 0 else {})

    ours = SupervisedVecEnv([Talkative] * 3, restarts=1, report=[].append, n_workers=2)
    theirs = plain(*[Talkative] * 3)
    assert [worker.context.get_start_method() for worker in ours._workers] == ["spawn"] * 2
    ours.seed(5)
    assert equal(ours.reset(), theirs.reset())
    for _ in range(20):
        assert equal(ours.step(ACTIONS), theirs.step(ACTIONS))
        assert equal(ours.reset_infos, theirs.reset_infos)
    names = names_in(ours)
    os.kill(ours._workers[0].process.pid, signal.SIGKILL)
    assert [RESTART in info for info in ours.step(ACTIONS)[3]] == [True, True, False]
    assert not any(RESTART in info for info in ours.step(ACTIONS)[3])
    names += names_in(ours)
    ours.close()
    assert not multiprocessing.active_children() and not any(Path("/dev/shm", name).exists() for name in names)


def test_without_polling_processes_sleep_until_the_next_step(monkeypatch):
    # Windows has no `select.poll`.
    monkeypatch.delattr("select.poll")
    ours, theirs = supervised(Failing), plain(Failing)
    assert equal(ours.reset(), theirs.reset())
    for _ in range(10):
        assert equal(ours.step([1]), theirs.step([1]))
    ours.close()


class GlobalDraws(Failing):
    """Draws from NumPy's global generator, as old environments do."""

    def draw(self):
        return float(np.random.rand()), random.random()


def test_forked_workers_draw_other_numbers():
    draws = []
    for _ in range(2):
        np.random.seed(1)
        env = SupervisedVecEnv([GlobalDraws] * 2, start_method="fork")
        draws.append(env.env_method("draw"))
        env.close()
    assert draws[0] == draws[1] and len({*draws[0]}) == 2


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="looks where Linux has shared memory")
@pytest.mark.parametrize(
    "end", [pytest.param("", marks=pytest.mark.slow), "os.kill(os.getpid(), signal.SIGKILL)\n"], ids=["exit", "killed"]
)
def test_no_process_and_no_memory_outlives_the_one_that_did_not_close_it(end, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium, os, signal\nfrom ppo_plus import make_vec\n"
        "from stable_baselines3.common.vec_env import SubprocVecEnv\n"
        "def make():\n"
        "    return gymnasium.make('CartPole-v1', render_mode='rgb_array')\n"
        "envs = [make_vec(make, 2, vec_env='subproc', start_method='fork'), SubprocVecEnv([make], 'fork')]\n"
        "[(env.reset(), env.get_images()) for env in envs]  # pygame draws\n"
        "workers = envs[0]._workers\n"
        "print(*[each.arrays.memory.name for each in workers])\n"
        "print(*[each.process.pid for each in workers], envs[1].processes[0].pid, flush=True)\n" + end
    )
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == (-signal.SIGKILL if end else 0)
    names, pids = (line.split() for line in done.stdout.splitlines())
    deadline = time.monotonic() + 10
    while any(map(is_alive, map(int, pids))):
        assert len(pids) == 3 and time.monotonic() < deadline
        time.sleep(0.05)
    assert len(names) == 2 and not any(Path("/dev/shm", name).exists() for name in names)


def test_one_that_hung_in_the_interrupted_step_is_replaced():
    env = supervised(*fine_and("hang"), restarts=1, timeout=0.5)
    env.reset()
    for _ in range(2):
        env.step(ACTIONS)
    env.step_async(ACTIONS)
    # Here Ctrl-C came.
    env.reset()
    assert env.n_restarts == 1 and not env.step(ACTIONS)[2].any()
    env.close()
