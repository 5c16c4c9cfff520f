"""Each answer of an environment is a value, its fault or an error of the caller, and no process is left running."""

import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from faulty_envs import ACTIONS, FAULTS, Failing, Masked, Unsendable, equal, fine_and, plain, supervised
from gymnasium import spaces
from process_states import is_alive
from stable_baselines3.common import monitor
from stable_baselines3.common.env_util import make_vec_env

from ppo_plus import EnvFault, SupervisedVecEnv, make_vec
from ppo_plus.envs.supervised import workers
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.envs.supervised.workers import CallerError, Fault, GuardedEnv

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
    env.answer("env_method", "set_wrapper_attr", ("ask", raised), {})
    found = env.answer("env_method", "ask", (), {}).error
    assert isinstance(error, type(found)) and str(error) in str(found) and "in raised" in found.__notes__[0]


def test_only_made_again_has_it_another_writer_of_monitors():
    """A module that is imported in the first call may derive a class from SB3's."""
    writers = []
    env = GuardedEnv(lambda: writers.append(monitor.ResultsWriter) or Failing())
    env.answer("make", False)
    env.answer("make", True)
    assert writers[0] is monitor.ResultsWriter is not writers[1]


def test_spaces_that_cannot_be_sent_name_the_environment():
    with pytest.raises(
        EnvFault, match="environment 0, not made yet, .*: returned what cannot be sent to another process: "
    ):
        SupervisedVecEnv([Unsendable])


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


# --- worker processes exchange messages, and none is left running -----------------------------------------------------


def test_unsendable_messages_raise_and_leave_nothing_open():
    env, whole = supervised(Failing), plain(Failing)
    env.reset(), whole.reset()
    with pytest.raises((AttributeError, TypeError), match="pickle|local object"):
        env.set_attr("level", lambda: None)
    assert not env._workers[0].waiting
    env._attributes[0].clear()
    assert equal(env.step([1]), whole.step([1]))
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
        env.timeout = 0.2
        with pytest.raises(EnvFault, match="gave no answer within 0.2 s"):
            env.step_wait()
    env.close()
    env.close()
    assert not multiprocessing.active_children()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors where Linux lists them")
def test_nothing_is_left_behind():
    supervised(Failing).close()  # starts what stays in this process, such as the tracker of shared memory
    at_first = descriptors()
    env = supervised(*[partial(Failing, "kill", p=0.3)] * 2, restarts=40)
    env.reset()
    before = descriptors()
    while env.n_restarts < 30:
        env.step(ACTIONS[:2])
    assert descriptors() == before and len(multiprocessing.active_children()) == 2
    env.close()
    assert descriptors() == at_first and not multiprocessing.active_children()


@pytest.mark.slow
def test_in_processes_as_they_are_started_by_default():
    env = make_vec_env(
        "CartPole-v1", 2, seed=0, vec_env_cls=SupervisedVecEnv, vec_env_kwargs={"restarts": 1, "timeout": 300}
    )
    env.reset()
    os.kill(env._workers[0].process.pid, signal.SIGKILL)
    with pytest.warns(UserWarning, match=r"environment 0, <.*CartPole-v1.*>, seed 0, step 1: died .*\(SIGKILL\)"):
        infos = env.step([0, 0])[3]
    assert RESTART in infos[0] and RESTART not in infos[1]
    assert np.isfinite(env.step([0, 0])[0]).all()
    env.close()


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


@pytest.mark.slow
def test_make_vec_spawns_where_nothing_else_is_to_be_had(as_on_windows):
    ours, theirs = (make_vec("CartPole-v1", 2, seed=0, **kind) for kind in ({"vec_env": "subproc", "n_workers": 1}, {}))
    assert ours._workers[0].context.get_start_method() == "spawn"
    assert equal(ours.reset(), theirs.reset())
    for _ in range(60):
        assert equal(ours.step(ACTIONS[:2]), theirs.step(ACTIONS[:2]))
    name = names_in(ours)[0]
    ours.close()
    assert not multiprocessing.active_children() and not Path("/dev/shm", name).exists()


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


@pytest.mark.slow
def test_a_script_without_a_guard_is_answered_with_the_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium\nfrom ppo_plus import SupervisedVecEnv\n"
        "SupervisedVecEnv([lambda: gymnasium.make('CartPole-v1')], start_method='spawn')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    last = done.stderr.splitlines()[-1]
    assert 'within if __name__ == "__main__":' in last and "restarts" not in last


MAKES = (
    "import gymnasium\nfrom ppo_plus import make_vec\n"
    "def make(_):\n    make_vec('CartPole-v1', 1, vec_env='subproc').close()\n"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "from_file", "reason"),
    [
        ("make(0)", False, "has to be a file that runs its code within"),
        (
            "import multiprocessing\nwith multiprocessing.Pool(1) as pool: pool.map(make, [0])",
            True,
            "a daemonic process",
        ),
    ],
    ids=["standard input", "pool"],
)
def test_where_no_process_can_start_the_error_says_so(call, from_file, reason, tmp_path):
    script, text = (
        tmp_path / "script.py",
        f'{MAKES}if __name__ == "__main__":\n    {call.replace(chr(10), chr(10) + "    ")}\n',
    )
    script.write_text(text)
    command = [sys.executable, script if from_file else "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert reason in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "end", ["", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"], ids=["exit", "killed"]
)
def test_no_process_outlives_the_one_that_did_not_close_it(end, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium, signal\nfrom ppo_plus import make_vec\n"
        "from stable_baselines3.common.vec_env import SubprocVecEnv\n"
        "def make():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as pygame, more or less\n"
        "    return gymnasium.make('CartPole-v1')\n"
        "envs = [make_vec(make, 2, vec_env='subproc', start_method='fork'), SubprocVecEnv([make], 'fork')]\n"
        "[env.reset() for env in envs]\n"
        "pids = [each.process.pid for each in envs[0]._workers] + [each.pid for each in envs[1].processes]\n"
        f"print(*pids, flush=True)\n{end}"
    )
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == (-signal.SIGKILL if end else 0)
    pids = [*map(int, done.stdout.split())]
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)):
        assert len(pids) == 3 and time.monotonic() < deadline
        time.sleep(0.05)


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
