"""Environments that fail are named and replaced, and the others are not affected."""

import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch as th
from faulty_envs import ACTIONS, FAULTS, Failing, Masked, Structured, equal, fine_and, plain, supervised
from golden import Interrupt, Stop
from parametrization import sample
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from training import At, LogDumps

from ppo_plus import Checkpoints, EnvFault, PPO_Plus, Resumable, SupervisedVecEnv, make_vec
from ppo_plus.envs.normalization import are_finite
from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.generators import derived_seed
from ppo_plus.process import usable_cores

pytestmark = pytest.mark.usefixtures("no_process_stays")


def _next_seed(seed):
    return derived_seed([seed, 1])


# --- without a fault -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "n_workers"), [(Failing, 2), (Structured, 3)])
def test_without_a_fault_it_is_sb3s_dummy_vec_env(cls, n_workers):
    makes = [lambda: Monitor(cls())] * 3
    ours, theirs = supervised(*makes, n_workers=n_workers), DummyVecEnv(makes)
    theirs.seed(5)
    assert equal(ours.reset(), theirs.reset())
    for _ in range(20):
        assert equal(ours.step(ACTIONS), theirs.step(ACTIONS))
        assert equal(ours.reset_infos, theirs.reset_infos)
    assert ours.n_restarts == 0 and ours.n_steps == 20
    ours.set_attr("level", 3.0, [0, 2])
    for i in (0, 2):
        # SB3 would set it in the `Monitor`, where it has no effect.
        theirs.envs[i].unwrapped.level = 3.0
    assert ours.get_attr("level") == theirs.get_attr("level") == [3.0, 1.0, 3.0]
    assert ours.env_is_wrapped(Monitor) == theirs.env_is_wrapped(Monitor) == [True] * 3
    assert ours.env_method("get_total_steps", indices=1) == theirs.env_method("get_total_steps", indices=1) == [20]
    assert ours.has_attr("level") and not ours.has_attr("depth")
    with pytest.raises(AttributeError, match="depth"):
        ours.get_attr("depth")
    assert equal(ours.step(ACTIONS), theirs.step(ACTIONS))
    ours.close()


def test_options_are_for_one_reset_and_left_out_where_there_are_none():
    class Noting(Failing):
        def reset(self, *, seed=None, **given):
            return super().reset(seed=seed)[0], given

    env = supervised(Noting, partial(Noting, "raise", 3), n_workers=1, restarts=1)
    env.set_options([{"a": 1}, {}])
    env.reset()
    assert env.reset_infos == [{"options": {"a": 1}}, {}]
    env.reset()
    assert env.reset_infos == [{}, {}]
    for _ in range(9):
        env.step(ACTIONS[:2])
    assert env.n_restarts == 1 and env.reset_infos == [{}, {}]
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"restarts": -1}, "restarts=-1 must be at least 0"),
        ({"timeout": 0}, r"timeout=0 must be a number in \(0, 1e\+06\], or None"),
        ({"n_workers": 0}, r'n_workers \(or "auto", or None\)=0 must be at least 1'),
        ({"start_method": "x"}, "cannot find context for 'x'"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        SupervisedVecEnv([Failing], **kwargs)


@pytest.mark.parametrize("restarts", [0, 3])
def test_one_that_cannot_be_made_is_an_error_at_once(restarts):
    def make():
        raise ValueError("no simulator")

    with pytest.raises(ValueError, match="no simulator") as raised:
        supervised(Failing, make, restarts=restarts)
    assert "in make" in raised.value.__notes__[0]
    assert not multiprocessing.active_children()


# --- named -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_environment_seed_and_step(fault):
    env = supervised(*fine_and(fault))
    env.reset()
    env.step(ACTIONS)
    env.step(ACTIONS)
    message = f"environment 1, <Failing instance>, seed 6, step 3: {FAULTS[fault]}"
    with pytest.raises(EnvFault, match=f"^{re.escape(message)}.*With restarts=N .--restart-envs N. training") as raised:
        env.step(ACTIONS)
    if fault == "raise":
        assert re.search(r'(?s)Traceback .*in step\n.*raise ValueError\("boom"\)', str(raised.value.__cause__))
    if fault in ("kill", "exit", "hang"):
        with pytest.raises(EnvFault):
            env.step(ACTIONS)
    env.close()
    assert not multiprocessing.active_children()


def test_in_a_plain_dummy_vec_env_an_error_has_a_note():
    env = DummyVecEnv(fine_and("raise", 5))
    model = PPO_Plus("MlpPolicy", env, n_steps=4, batch_size=4, seed=20, compile=False)
    with pytest.raises(ValueError, match="boom") as raised:
        model.learn(100)
    assert raised.value.__notes__ == ["It was environment 1, <Failing instance>, seed 21, step 4."]


@pytest.mark.parametrize("normalized", [False, True])
def test_so_has_a_number_that_is_not_finite(normalized):
    env = DummyVecEnv(fine_and("nan", 5))
    env = VecNormalize(env) if normalized else env
    with pytest.raises(FloatingPointError, match="environment 1 at step 5") as raised:
        PPO_Plus("MlpPolicy", env, n_steps=4, batch_size=4, seed=20, compile=False).learn(100)
    assert raised.value.__notes__ == ["It was environment 1, <Failing instance>, seed 21, step 5."]


def test_supervised_it_is_the_same_kind_of_error():
    env = supervised(*fine_and("nan", 5))
    with pytest.raises(FloatingPointError, match="environment 1, .*, step 5: returned an observation") as raised:
        PPO_Plus("MlpPolicy", env, n_steps=4, batch_size=4, compile=False).learn(100)
    assert isinstance(raised.value, EnvFault)


# --- replaced --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fresh_environment_replaces_it_and_others_continue(fault):
    said = []
    env, whole = supervised(*fine_and(fault), said=said, restarts=1), plain(*[Failing] * 3)
    before, _ = env.reset(), whole.reset()
    for t in range(1, 20):
        (obs, rewards, dones, infos), expected = env.step(ACTIONS), whole.step(ACTIONS)
        for i in (0, 2):
            row = obs[i], rewards[i], dones[i], infos[i]
            assert equal(row, [part[i] for part in expected])
        if t < 3:
            assert equal(obs[1], expected[0][1])
        if t == 3:
            assert rewards[1] == 0 and dones[1]
            assert infos[1].pop(RESTART).startswith(FAULTS[fault])
            assert equal(infos[1], {"TimeLimit.truncated": True, "terminal_observation": before[1]})
            assert equal(obs[1], Failing().reset(seed=_next_seed(6))[0])
        else:
            assert RESTART not in infos[1] and dones[1] == (t in (11, 19))
        before = obs
    assert len(said) == env.n_restarts == 1 and "\n" not in said[0]
    assert said[0].startswith(f"environment 1, <Failing instance>, seed 6, step 3: {FAULTS[fault]}")
    assert said[0].endswith("restarted (1 of 1 restarts)")
    assert env.env_seeds == [5, _next_seed(6), 7]
    env.close()


def test_a_fault_in_a_reset_keeps_the_last_step_of_the_episode():
    class InReset(Failing):
        def step(self, action):
            fault, self.fault = self.fault, None
            result = super().step(action)
            self.fault = fault
            return result

    env, whole = supervised(*fine_and("raise", 8, InReset), restarts=1), plain(*[Failing] * 3)
    env.reset(), whole.reset()
    for _ in range(8):
        result, expected = env.step(ACTIONS), whole.step(ACTIONS)
    assert equal(result[1:3], expected[1:3]) and equal(result[3], expected[3]) and result[2].all()
    assert equal(result[0][1], Failing().reset(seed=_next_seed(6))[0])
    assert env.n_restarts == 1
    env.close()


def test_so_does_one_in_the_first_reset():
    env = supervised(*fine_and("raise", 0), restarts=1)
    assert equal(env.reset()[1], Failing().reset(seed=_next_seed(6))[0])
    with pytest.raises(EnvFault, match="environment 1, .*, seed 6, step 0: raised"):
        supervised(*fine_and("raise", 0)).reset()
    env.close()


def test_without_restarts_left_the_error_has_reason_and_number():
    env = supervised(*fine_and("raise", p=1.0), restarts=2)
    env.reset()
    env.step(ACTIONS)
    env.step(ACTIONS)
    seed = _next_seed(_next_seed(6))
    with pytest.raises(
        EnvFault, match=rf"seed {seed}, step 3: raised ValueError\('boom'\). All restarts=2 are used up"
    ):
        env.step(ACTIONS)
    env.close()


def test_restarts_that_fail_themselves_count(tmp_path):
    path = tmp_path / "times"
    path.write_text("")

    def make():
        path.write_text(path.read_text() + "x")
        if len(path.read_text()) in (2, 3):
            raise OSError("not yet")
        return Failing("raise", 1)

    said = []
    env = supervised(make, restarts=3, said=said)
    env.reset()
    env.step([0])
    assert [line.split(": ")[1] for line in said] == [FAULTS["raise"], *["raised OSError('not yet')"] * 2]
    assert env.n_restarts == 3 and path.read_text() == "xxxx"
    env.close()


def test_a_process_that_dies_between_steps_is_replaced():
    env, whole = supervised(*[Masked] * 3, restarts=1), plain(*[Masked] * 3)
    before, _ = env.reset(), whole.reset()
    os.kill(env._workers[1].process.pid, signal.SIGKILL)
    assert equal(env.env_method("action_masks"), whole.env_method("action_masks"))
    (obs, rewards, dones, infos), expected = env.step(ACTIONS), whole.step(ACTIONS)
    assert dones[1] and infos[1][RESTART] == FAULTS["kill"] and equal(infos[1]["terminal_observation"], before[1])
    assert equal(obs[1], Masked().reset(seed=_next_seed(6))[0])
    assert equal(obs[::2], expected[0][::2]) and equal(rewards[::2], expected[1][::2])
    # And while nobody asks.
    os.kill(env._workers[2].process.pid, signal.SIGKILL)
    with pytest.raises(EnvFault, match="environment 2, .*, seed 7, step 2: died with its process .SIGKILL.*restarts=1"):
        env.step(ACTIONS)
    env.close()


def test_what_cannot_be_sent_is_an_error_of_the_caller():
    class Locked(Failing):
        lock = threading.Lock()

    env = supervised(Locked, restarts=1)
    env.reset()
    with pytest.raises(TypeError, match="cannot pickle .*lock"):
        env.get_attr("lock")
    with pytest.raises((pickle.PicklingError, AttributeError)):
        env.set_attr("level", lambda: 0)
    assert env.n_restarts == 0
    os.kill(env._workers[0].process.pid, signal.SIGKILL)
    assert env.step([0])[2][0] and env.get_attr("level") == [1.0]
    env.close()


def test_what_was_set_is_set_again():
    env = supervised(*fine_and("raise"), restarts=1)
    env.reset()
    env.set_attr("level", 7.0, indices=[1])
    for _ in range(3):
        env.step(ACTIONS)
    assert env.n_restarts == 1 and env.get_attr("level") == [1.0, 7.0, 1.0]
    env.close()


def test_what_is_returned_may_be_changed_and_used_again():
    class Again(Failing):
        seen = np.zeros(3, np.float32)
        known = {"n": 0}  # noqa: RUF012

        def observe(self):
            self.seen[:] = self.n
            return self.seen

        def step(self, action):
            self.known["n"] += 1
            return (*super().step(action)[:4], self.known)

    env = supervised(partial(Again, "raise", 3), restarts=1)
    env.reset()
    (first, *_, infos), (second, *_) = env.step([0]), env.step([0])
    assert first.tolist() == [[1.0] * 3] and infos[0]["n"] == 1
    second[:] = 9.0
    assert env.step([0])[3][0]["terminal_observation"].tolist() == [2.0] * 3


def test_environments_of_a_process_may_write_into_the_same_array():
    class Sharing(Failing):
        seen = np.zeros(3, np.float32)

        def observe(self):
            self.seen[:] = self.np_random.normal(size=3)
            return self.seen

    env, whole = supervised(Sharing, Sharing, n_workers=1), plain(Failing, Failing)
    env.reset(), whole.reset()
    for _ in range(10):
        assert equal(env.step(ACTIONS[:2]), whole.step(ACTIONS[:2]))
    env.close()


# --- training --------------------------------------------------------------------------------------------------------


def model_in(env, policy="MlpPolicy", **kwargs):
    settings = {"n_steps": 8, "batch_size": 8, "n_epochs": 2, "seed": 3, "compile": False, "device": "cpu"}
    return PPO_Plus(policy, env, **settings | kwargs)


def test_a_fault_is_a_time_limit_for_learning():
    env = supervised(*fine_and("raise", 5), restarts=1, seed=3)
    buffer = model_in(env, gae_lambda=0.9, gamma=0.8).learn(24).rollout_buffer
    assert buffer.valid is None and sum(len(batch.actions) for batch in buffer.get(8)) == 24
    values, rewards, advantages = buffer.values[:, 1], buffer.rewards[:, 1], buffer.advantages[:, 1]
    # Where the step began is the final observation, whose value is the rest of the return.
    assert rewards[4] == pytest.approx(0.8 * values[4], abs=1e-5)
    expected = rewards[4] - values[4]
    assert advantages[4] == pytest.approx(expected, abs=1e-5)
    for t in (3, 2, 1, 0):
        expected = rewards[t] + 0.8 * values[t + 1] - values[t] + 0.8 * 0.9 * expected
        assert advantages[t] == pytest.approx(expected, abs=1e-5)
    assert buffer.episode_starts[:, 1].tolist() == [1, 0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("fault", ["nan", "infinite reward", "raise"])
def test_no_statistics_count_it(fault):
    env = VecNormalize(supervised(*fine_and(fault), restarts=1))
    model_in(env).learn(48)
    assert env.venv.n_restarts == 1 and are_finite(env)
    assert env.obs_rms.count == pytest.approx(3 * (16 + 1), abs=1e-3)


TRAINED = {
    "memory, masks, noise": (Masked, "MlpGruPolicy", {"sequence_length": 4, "use_sde": True}),
    "noise of episodes": (Failing, "MlpPolicy", {"use_sde": True, "sde_sample_freq": "episode"}),
    "structures": (Structured, "MultiInputPolicy", {}),
}


@pytest.mark.parametrize("case", TRAINED)
def test_training_continues_with_memory_masks_noise_and_dicts(case):
    cls, policy, kwargs = TRAINED[case]
    env = supervised(*[partial(cls, "raise", p=0.08)] * 3, restarts=1000)
    model = model_in(env, policy, **kwargs)
    model.learn(72, log_interval=1)
    assert env.n_restarts > 1 and model.num_timesteps == 72
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())
    env.close()


def test_an_episode_starts_there_for_the_memory():
    env = supervised(*fine_and("raise"), restarts=1)
    starts = []
    note = At(lambda model: starts.append(model._last_episode_starts.tolist()), steps=[4])
    model_in(env, "MlpLstmPolicy").learn(24, callback=note)
    assert starts == [[False, True, False]]


def test_restarts_are_logged_and_only_where_they_are_allowed():
    counts = []
    for restarts in (0, 2):
        logged = LogDumps()
        env = supervised(*fine_and("raise" if restarts else None, 12), restarts=restarts)
        model_in(env).learn(72, callback=logged)
        counts.append([each.get("faults/env_restarts") for each in logged.dumps])
    assert counts == [[None] * 3, [0, 1, 1]]


def test_evaluation_counts_whole_episodes_only():
    env = supervised(lambda: Monitor(Failing("raise", 11)), restarts=1)
    model = model_in(supervised(Failing))
    returns, lengths = evaluate_policy(model, env, 4, return_episode_rewards=True)
    assert lengths == [8] * 4 and len(returns) == 4 and env.n_restarts == 1


# --- going on in another process -------------------------------------------------------------------------------------


def faulty(fault):
    make = partial(Failing, fault, at=-1, p=0.05)
    env = supervised(*[lambda: Resumable(Monitor(make()))] * 3, restarts=500, n_workers=2)
    return VecFrameStack(VecNormalize(env), 2)


@pytest.mark.slow
@pytest.mark.parametrize("fault", sample(["kill", "nan"], 2))
def test_an_interrupted_run_with_faults_resumes_exactly(fault, tmp_path, monkeypatch):
    monkeypatch.setattr("ppo_plus.saving.checkpoint.checkpoint.SHARE", np.inf)
    whole = model_in(faulty(fault), use_sde=True)
    whole.learn(120, callback=Checkpoints(tmp_path / "whole"))
    n_restarts = whole.env.unwrapped.n_restarts
    assert n_restarts > 3

    checkpoints = Checkpoints(tmp_path / "cut")
    model = model_in(faulty(fault), use_sde=True)
    seen = []
    for after in (15, 28):
        with pytest.raises(Stop):
            model.learn(120, callback=[checkpoints, Interrupt(after)])
        checkpoints.write()
        model.env.close()
        checkpoints = Checkpoints(tmp_path / "cut")
        model = PPO_Plus.resume(tmp_path / "cut", faulty(fault), device="cpu")
        seen.append(model.env.unwrapped.n_restarts)
    assert 0 < seen[0] < seen[1] < n_restarts
    model.learn(120, callback=[checkpoints, Interrupt(-1)])
    assert model.env.unwrapped.n_restarts == n_restarts and model.env.unwrapped.n_steps == 40
    for name, value in whole.policy.state_dict().items():
        assert th.equal(model.policy.state_dict()[name], value)
    assert equal(get_state(model.env)["vec_layers"][-1], get_state(whole.env)["vec_layers"][-1])
    for each in (model, whole):
        each.env.close()


def test_one_that_was_replaced_between_two_steps_resumes():
    makes = [lambda: Resumable(Masked())] * 2
    env = supervised(*makes, restarts=1)
    env.reset()
    env.step(ACTIONS[:2])
    os.kill(env._workers[1].process.pid, signal.SIGKILL)
    env.env_method("action_masks")
    other = supervised(*makes, restarts=1)
    state = get_state(env)
    assert state["reason"] is None and set_state(other, state) is None
    first = [each.step(ACTIONS[:2]) for each in (env, other)]
    assert equal(*first) and RESTART in first[0][3][1]
    assert equal(*(each.step(ACTIONS[:2]) for each in (env, other)))
    env.close()


@pytest.mark.parametrize("fault", [None, "raise"])
def test_a_checkpoint_of_a_plain_one_resumes_supervised(fault):
    """Its first step may fail; fresh environments have their seeds."""
    make = partial(make_vec_env, Failing, 2, seed=5, wrapper_class=Resumable, env_kwargs={"fault": fault, "at": 2})
    plain = make(vec_env_cls=DummyVecEnv)
    plain.reset()
    plain.step(ACTIONS[:2])
    supervision = {"start_method": "fork", "restarts": 2, "report": list}
    ours = make(vec_env_cls=SupervisedVecEnv, vec_env_kwargs=supervision)
    assert set_state(ours, get_state(plain)) is None
    if fault is None:
        assert equal(ours.step(ACTIONS[:2]), plain.step(ACTIONS[:2]))
        return
    assert all(info[RESTART] and len(info["terminal_observation"]) == 3 for info in ours.step(ACTIONS[:2])[3])
    assert ours.env_seeds == [_next_seed(5), _next_seed(6)]


# --- several environments in a process --------------------------------------------------------------------------------


class Engine(Failing):
    """There can be one in each process, whose working folder and ``os.environ`` it changes."""

    running = False

    def __init__(self, folder, fails_in="make"):
        super().__init__()
        self.folder, self.fails_in = folder, fails_in
        self.start("make")

    def start(self, when):
        if self.fails_in == when:
            if Engine.running:
                raise RuntimeError("one engine per process")
            Engine.running = True
            os.environ["PORT"] = self.name = f"{os.getpid()} {id(self)}"
            (self.folder / self.name).mkdir()
            os.chdir(self.folder / self.name)

    def reset(self, **kwargs):
        self.start("reset")
        return super().reset(**kwargs)

    def is_alone(self):
        return self.name == os.environ["PORT"] == Path.cwd().name


APART = {
    "SupervisedVecEnv": lambda make, **kwargs: SupervisedVecEnv([make] * 3, **kwargs),
    "make_vec_env": lambda make, **kwargs: make_vec_env(make, 3, vec_env_cls=SupervisedVecEnv, vec_env_kwargs=kwargs),
    "make_vec": lambda make, **kwargs: make_vec(make, 3, vec_env="subproc", **kwargs),
}


@pytest.mark.parametrize("kind", APART)
def test_by_default_environments_share_no_process(kind, tmp_path):
    env = APART[kind](lambda: Engine(tmp_path), start_method="fork")
    assert env.env_method("is_alone") == [True] * 3
    env.close()


def test_errors_in_a_shared_process_name_the_option(tmp_path):
    env = supervised(*[lambda: Engine(tmp_path, "reset")] * 3, n_workers=2)
    with pytest.raises(EnvFault, match=r"environment 1, .*one engine per process.*n_workers=2, --env-workers"):
        env.reset()
    env.close()


@pytest.mark.parametrize(("n_workers", "cls"), [(1, Failing), (2, Masked), (3, Structured), (9, Failing)])
def test_however_many_share_a_process_the_numbers_are_the_same(n_workers, cls):
    ours, theirs = supervised(*[cls] * 5, n_workers=n_workers), plain(*[cls] * 5)
    assert ours.n_workers == min(n_workers, 5) == len(ours._workers)
    assert equal(ours.reset(), theirs.reset())
    for t in range(30):
        actions = np.array([(t + i) % 2 for i in range(5)])
        assert all(equal(a, b) for a, b in zip(ours.step(actions), theirs.step(actions), strict=True)), t
        # Another dtype is passed on unchanged.
        actions = actions.astype(np.int32)
        assert all(equal(a, b) for a, b in zip(ours.step(actions), theirs.step(actions), strict=True)), t
    assert ours.get_attr("n") == theirs.get_attr("n")
    ours.close()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="binds this process to a core")
def test_auto_is_a_process_for_each_core_but_not_more_than_environments():
    cores = os.sched_getaffinity(0)
    counts = []
    try:
        for part in (cores, [min(cores)]):
            os.sched_setaffinity(0, part)
            env = supervised(*[Failing] * 2, n_workers="auto")
            counts.append((usable_cores(), env.n_workers))
            env.close()
    finally:
        os.sched_setaffinity(0, cores)
    assert counts[0][0] <= len(cores) and counts[0][1] == min(counts[0][0], 2)
    assert counts[1] == (1, 1)


def test_pictures_are_in_the_order_of_the_environments():
    class Drawing(Failing):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012
        render_mode = "rgb_array"

        def render(self):
            return np.full((2, 2, 3), self._np_random_seed, np.uint8)

    env = supervised(*[Drawing] * 3, n_workers=2)
    assert env.metadata == Drawing.metadata
    env.reset()
    assert [image.max() for image in env.get_images()] == [5, 6, 7] and env.render(mode="rgb_array").max() == 7
    env.close()


@pytest.mark.parametrize("kind", [np.array, list, np.uint8])
def test_masks_come_with_the_step_that_precedes_them(kind):
    class OfAKind(Masked):
        asked = 0

        def action_masks(self):
            self.asked += 1
            return kind(super().action_masks())

    ours, theirs = supervised(*[OfAKind] * 3, n_workers=2, timeout=10), plain(*[OfAKind] * 3)
    ours.reset(), theirs.reset()
    for _ in range(20):
        assert equal(ours.env_method("action_masks"), theirs.env_method("action_masks"))
        ours.step(ACTIONS), theirs.step(ACTIONS)
    if kind is np.array:
        # They are there already, and no process has to answer.
        for worker in ours._workers:
            os.kill(worker.process.pid, signal.SIGSTOP)
    else:
        assert ours.get_attr("asked") == theirs.get_attr("asked") == [20] * 3
    for _ in range(2):
        masks = ours.env_method("action_masks")
        assert equal(masks, theirs.env_method("action_masks"))
        masks[0][:] = [False, False]
    for worker in ours._workers:
        os.kill(worker.process.pid, signal.SIGCONT)
    ours.set_attr("t", 3)
    assert [np.asarray(mask).tolist() for mask in ours.env_method("action_masks")] == [[False, True]] * 3
    assert np.asarray(ours.env_method("action_masks", indices=1)).tolist() == [[False, True]]
    ours.close()


def test_an_error_restarts_only_the_environment_that_raised_it():
    said = []
    env = supervised(*fine_and("raise", 4), n_workers=2, restarts=9, said=said)
    others = plain(Failing, Failing, Failing)
    env.reset(), others.reset()
    pids = [worker.process.pid for worker in env._workers]
    for _ in range(10):
        obs, rewards, dones, infos = env.step(ACTIONS)
        expected = others.step(ACTIONS)
        for i in (0, 2):
            assert equal(obs[i], expected[0][i]) and rewards[i] == expected[1][i] and dones[i] == expected[2][i]
            assert RESTART not in infos[i]
    assert env.n_restarts == 1 and [worker.process.pid for worker in env._workers] == pids
    assert said[0].startswith(
        f"environment 1, <Failing instance>, seed 6, step 4: {FAULTS['raise']}: restarted (1 of 9"
    )
    env.close()


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_one_that_dies_or_hangs_takes_its_process_with_it(fault):
    said = []
    env = supervised(*fine_and(fault, 4), Failing, n_workers=2, restarts=1, timeout=0.5, said=said)
    others = plain(*[Failing] * 4)
    env.set_attr("level", 7.0, indices=[0])
    env.reset(), others.reset()
    restarted, before = [], None
    for t in range(6):
        obs, rewards, dones, infos = env.step([1] * 4)
        expected = others.step([1] * 4)
        for i in (2, 3):
            assert equal(obs[i], expected[0][i]) and rewards[i] == expected[1][i]
        restarted += [(t, i) for i in range(4) if RESTART in infos[i]]
        if restarted and restarted[-1][0] == t:
            assert dones[:2].all() and not rewards[:2].any() and equal(infos[0]["terminal_observation"], before[0])
        before = obs
    assert [i for _, i in restarted] == [0, 1] and env.n_restarts == 1
    assert len(said) == 1 and said[0].startswith("environment 1, <Failing instance>, seed 6, step 4: ")
    assert "with the 1 others of its process (1 of 1" in said[0]
    assert env.get_attr("level") == [7.0, 1.0, 1.0, 1.0] and env.env_seeds[2:] == [7, 8]
    assert env.env_seeds[:2] == [_next_seed(5), _next_seed(6)]
    env.close()


def test_a_slow_environment_is_not_one_that_hangs():
    class Slow(Failing):
        def step(self, action):
            time.sleep(0.15)
            return super().step(action)

    # Each has its own time, however many share a process.
    env = supervised(*[Slow] * 4, n_workers=1, timeout=0.4)
    env.reset()
    env.step([1] * 4)
    env.close()


def test_environments_are_numbered_from_the_end_too():
    env = supervised(*[Failing] * 3, n_workers=2)
    env.set_attr("level", 3.0, indices=[-1])
    assert env.get_attr("level") == [1.0, 1.0, 3.0] and env.get_attr("level", indices=-1) == [3.0]
    with pytest.raises(IndexError):
        env.get_attr("level", indices=3)
    env.close()


def test_closed_environments_say_so():
    env = supervised(Failing)
    env.reset()
    env.close()
    for call in (lambda: env.step([1]), env.reset, lambda: env.get_attr("n")):
        with pytest.raises(ValueError, match="the environments are closed: make new ones"):
            call()
