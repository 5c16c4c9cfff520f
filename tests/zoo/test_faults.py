"""``ppo-plus train`` with environments that fail: messages, files, and resuming."""

import re
import sys
import textwrap

import numpy as np
import pytest
import torch as th
from parametrization import sample

from ppo_plus import EnvFault, PPO_Plus
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.saving.checkpoint.process_state import EVENTS
from ppo_plus.zoo.cli import main
from ppo_plus.zoo.results import read_training

#: A package of the user's. Its environments fail in their 50th step, and not where their seed is that of a fresh one.
ENVIRONMENTS = """
    import os, signal, time
    import gymnasium as gym
    import numpy as np
    from gymnasium.envs.registration import register

    class Failing(gym.Env):
        replayable = True
        observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
        action_space = gym.spaces.Discrete(2)

        def __init__(self, fault=None, p=0.0):
            self.fault, self.p, self.n = fault, p, 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return self.observe(), {}

        def observe(self):
            return self.np_random.normal(size=3).astype("float32")

        def step(self, action):
            self.t += 1
            self.n += 1
            obs = self.observe()
            fails = self.p and self.np_random.random() < self.p
            if fails or (self.n == 50 and self._np_random_seed < 1000 and not self.p):
                if self.fault == "raise":
                    raise ValueError("boom")
                if self.fault == "nan":
                    obs[1] = np.nan
                if self.fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.fault == "hang":
                    with open("hangs", "w"):
                        pass
                    time.sleep(1e6)
            return obs, float(action), False, self.t == 20, {}

    for name in ("raise", "nan", "kill", "hang"):
        register(f"Fails-{name}-v0", "failing_environments:Failing", kwargs={"fault": name})
"""
SETTINGS = "n_steps:32 batch_size:64 n_epochs:2 compile:False".split()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package, in the current folder."""
    (tmp_path / "failing_environments.py").write_text(textwrap.dedent(ENVIRONMENTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("failing_environments", None)


def arguments(fault, *more, n_timesteps=256):
    options = ["train", "--gym-packages", "failing_environments", "--env", f"Fails-{fault}-v0", "--n-envs", "2"]
    options += ["-n", str(n_timesteps), "--seed", "3", "--no-progress", "--eval-freq", "-1", *more]
    return [*options, "-params", *SETTINGS]


def run_of(folder, fault, number=1):
    return folder / "logs" / "ppo_plus" / f"Fails-{fault}-v0_{number}"


def logged(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # Each by itself: of files of one second TensorBoard reads number 10 before number 9.
    files = [EventAccumulator(str(path)).Reload() for path in run.glob(EVENTS) if path.stat().st_size]
    events = [event for file in files for event in file.Scalars("faults/env_restarts")]
    return [event.value for event in sorted(events, key=lambda event: event.step)]


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [("raise", ValueError, "boom"), pytest.param("nan", FloatingPointError, "is not finite", marks=pytest.mark.slow)],
)
def test_a_failure_is_named_and_resumes_with_restarts_allowed(fault, error, message, package, capsys):
    with pytest.raises(error, match=message) as raised:
        main(arguments(fault))
    assert re.search(rf"environment 0, <Failing<Fails-{fault}-v0>>, seed 3, step (49|50)\.", raised.value.__notes__[0])
    run = run_of(package, fault)
    resume = f" train --resume {run.relative_to(package)} --gym-packages failing_environments"
    # The state of before the rollout that failed.
    (steps,) = re.findall(rf"^resume from (0|64) timesteps: .*{resume}$", capsys.readouterr().out, re.MULTILINE)
    assert checkpoint.read(checkpoint.files(run / "checkpoints")[0])[0]["num_timesteps"] == int(steps)

    main([*resume.split(), *"--no-progress --restart-envs 2 --env-workers auto".split()])
    shown = capsys.readouterr().err.splitlines()
    said = [line for line in shown if "restarted" in line]
    assert not any("timesteps, seed" in line for line in shown)
    # The seed of a fresh environment is another, and neither fails again.
    assert len(said) == 2 and said[0].endswith("restarted (1 of 2 restarts)")
    assert PPO_Plus.load(run / f"Fails-{fault}-v0.zip").num_timesteps == 256
    assert not (run / "checkpoints").exists()
    # Each of both files has the episodes that were whole.
    assert len(list(run.glob("*.monitor.csv"))) == 2 and len(read_training(run)[0]) == 10


@pytest.mark.slow
def test_restarts_are_counted_in_the_log_over_an_interruption(package, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", np.inf)
    env_kwargs = ["--env-kwargs", "p:0.03", "--restart-envs", "100"]
    main(arguments("raise", *env_kwargs, "-tb", "whole"))
    collect, calls = PPO_Plus.collect_rollouts, []

    def interrupted(model, *args):
        calls.append(model)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return collect(model, *args)

    with monkeypatch.context() as patch:
        patch.setattr(PPO_Plus, "collect_rollouts", interrupted)
        with pytest.raises(SystemExit) as stop:
            main(arguments("raise", *env_kwargs, "-tb", "cut"))
        assert stop.value.code == 130
    resumed = ["--resume", str(run_of(package, "raise", 2)), "-tb", "cut"]
    main(["train", *resumed, "--gym-packages", "failing_environments"])
    whole, cut = (logged(package / name / "Fails-raise-v0" / "PPO_Plus_1") for name in ("whole", "cut"))
    assert whole == cut and len(whole) == 4 and whole[-1] > 3 and whole == sorted(whole)
    models = [PPO_Plus.load(run_of(package, "raise", i) / "Fails-raise-v0.zip").policy.state_dict() for i in (1, 2)]
    assert all(th.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"), sample([("kill", "died with its process .SIGKILL"), ("hang", "gave no answer ")], 2)
)
def test_processes_that_die_or_hang_end_or_are_replaced(fault, reason, package, capsys):
    message = rf"^environment 0, <.*Fails-{fault}-v0.*, seed 3, step 50: {reason}"
    with pytest.raises(EnvFault, match=message):
        main(arguments(fault, "--vec-env", "subproc", "--env-timeout", "10"))
    go_on = f" train --resume {run_of(package, fault).relative_to(package)} --gym-packages failing_environments"
    assert re.search(rf"^resume from \d+ timesteps: .*{go_on}$", capsys.readouterr().out, re.MULTILINE)
    main([*go_on.split(), "--restart-envs", "2", "--no-progress"])
    assert len(re.findall(rf"{reason}.*restarted", capsys.readouterr().err)) == 2
