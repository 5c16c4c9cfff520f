"""Whole studies, as users run them: processes on a real database, one of them killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import optuna
import pytest
import yaml
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from parametrization import part
from process_states import state

from ppo_plus.zoo.cli import experiments, main
from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.interrupts import exit_codes
from ppo_plus.zoo.tune.jobs import DEATHS, JOB, REASON, REPLACES, STORAGE_ERRORS, WORKER, open_storage
from ppo_plus.zoo.tune.study import RECORDED, Study, create
from ppo_plus.zoo.tune.task import Plan
from ppo_plus.zoo.tune.tuner import TuningWorker, tune

ROOT = Path(__file__).parents[3]
#: What processes import from: the package, and the environment of these tests.
PYTHONPATH = f"{ROOT}:{ROOT / 'tests' / 'helpers'}"
#: A search of four trials on runs of two rollouts of the default.
SEARCH = ["--env", "CartPole-v1", "-n", "4096", "--n-evaluations", "2", "--last-evals", "1", "--eval-episodes", "1"]
ALONE = ["--max-total-trials", "4", "--pruner", "none", "--confirm-seeds", "0"]
SPACE = {"learning_rate": {"low": 1.0e-4, "high": 1.0e-2, "scale": "log"}}


def start(folder, url, *arguments):
    """``ppo-plus``, in a folder outside the checkout."""
    return subprocess.Popen(
        [sys.executable, "-c", "from ppo_plus.zoo.cli import main; main()", *arguments, "--storage", url],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A process group of its own, as a terminal gives it to each command.
        start_new_session=True,
    )


def finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def stop_in_a_trial(study):
    """Stop a worker that is in the middle of a trial: it has reported once, and will again before the trial ends.

    :return: the number of the trial, and the worker's process id
    """
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        for trial in running(study):
            if len(trial.intermediate_values) == 1:
                pid = int(trial.user_attrs[WORKER].split(":")[1])
                os.kill(pid, signal.SIGSTOP)
                # On a busy machine that takes a while, in which it would take other signals first.
                while state(pid) not in "TZ":
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                # It may have been stopped while nobody else can read.
                with suppress(*STORAGE_ERRORS):
                    reports = {now.number: len(now.intermediate_values) for now in trials_running(study)}
                    if reports.get(trial.number) == 1:
                        return trial.number, pid
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)
    raise AssertionError("no trial has reported")


def wait_for_report(study):
    """Wait until a trial is in its middle."""
    deadline = time.monotonic() + 600
    while not any(trial.intermediate_values for trial in running(study)):
        assert time.monotonic() < deadline, "no trial has reported"
        time.sleep(0.02)


def running(study):
    return patiently(trials_running, study)


def trials_running(study):
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def patiently(function, *arguments):
    """Call a function again as long as workers lock the database, which they do for longer if the machine is busy."""
    deadline = time.monotonic() + 600
    while True:
        try:
            return function(*arguments)
        except STORAGE_ERRORS:
            assert time.monotonic() < deadline, "the database is locked"
            time.sleep(0.02)


def wait_for_study(url, name):
    """The study, once there is one; opened so that looking at it locks nothing, and waits for no lock for long."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            optuna.load_study(study_name=name, storage=open_storage(url))
            return optuna.load_study(study_name=name, storage=url if "://" in url else open_storage(url))
        except (KeyError, ValueError, StorageInternalError):
            time.sleep(0.2)
    raise AssertionError(f"no study {name}")


@pytest.mark.slow
@pytest.mark.parametrize("url", part(["sqlite", "journal", "postgres"], ["sqlite"]), indirect=True)
def test_a_killed_worker_loses_nothing_but_its_trials_progress(url, tmp_path, request):
    """The same command twice, one killed -9 in the middle of a trial: exactly the budget, each trial once.

    A server was stopped before, for some seconds while both are in the middle of trials: they wait, and continue."""
    command = ["tune", *SEARCH, *ALONE, "--study-name", "kill", "--search-space", write_space(tmp_path)]
    # Short of the default, so that a dead worker is found soon.
    tuning = [start(tmp_path, url, *command, "--grace-period", "20") for _ in range(2)]
    study = wait_for_study(url, "kill")
    if url.startswith("postgresql"):
        study = restarted(request.getfixturevalue("server"), study, tuning[0])
    killed, pid = stop_in_a_trial(study)
    os.kill(pid, signal.SIGKILL)
    for process in tuning:
        if process.pid == pid:
            process.communicate()
        else:
            assert "No confirmation: no runs on unseen seeds." in finish(process)

    trials = study.get_trials(deepcopy=False)
    assert sorted(trial.user_attrs[JOB] for trial in trials if trial.state == TrialState.COMPLETE) == [0, 1, 2, 3]
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.FAIL, TrialState.WAITING}
    dead = trials[killed]
    # Two workers may have queued the same job at the same time; then one of the two never starts.
    ran = [trial for trial in trials if trial.datetime_start is not None]
    others = [trial.state for trial in ran if trial.user_attrs[JOB] != dead.user_attrs[JOB]]
    assert others == [TrialState.COMPLETE] * 3
    assert dead.state == TrialState.FAIL and REASON not in dead.user_attrs
    again = next(trial for trial in ran if trial.user_attrs.get(REPLACES) == killed)
    assert again.params == dead.params and again.user_attrs[DEATHS] >= 1
    assert again.user_attrs[RECORDED] == dead.user_attrs[RECORDED]
    # What the dead one had reported is what the other reported again.
    step, value = next(iter(dead.intermediate_values.items()))
    assert again.intermediate_values[step] == value


def restarted(server, study, tuning):
    """Stop a server for some seconds in the middle of a trial; the study, read from the server that started again."""
    wait_for_report(study)
    server.stop()
    try:
        time.sleep(3)
        assert tuning.poll() is None
    finally:
        server.start()
    return wait_for_study(server.url, study.study_name)


@pytest.mark.exhaustive
def test_interrupted_and_grown(tmp_path):
    """Ctrl-C, twice, in the middle of a trial: the workers put their jobs back, and the line says how to go on."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    process = start(tmp_path, url, "tune", *SEARCH, *ALONE, "--search-space", write_space(tmp_path), "--workers", "2")
    study = wait_for_study(url, "CartPole-v1")
    interrupted, pid = stop_in_a_trial(study)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
    os.kill(pid, signal.SIGCONT)
    _, err = process.communicate(timeout=600)
    line = "interrupted; resume with: "
    assert process.returncode == 130 and err.startswith(line) and err.count("\n") == 1, err
    assert not running(study)

    # The line is for a shell, in the same folder and environment.
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    grown = f"{err.strip().removeprefix(line)} --max-total-trials 5"
    subprocess.run(grown, shell=True, check=True, cwd=tmp_path, env=environment, capture_output=True, timeout=600)
    lost, *others = sorted(study.get_trials(), key=lambda trial: trial.number != interrupted)
    assert lost.state == TrialState.FAIL and REASON not in lost.user_attrs
    done = [trial for trial in others if trial.state == TrialState.COMPLETE]
    assert sorted(trial.user_attrs[JOB] for trial in done) == [0, 1, 2, 3, 4]
    (again,) = (trial for trial in done if trial.user_attrs.get(REPLACES) == interrupted)
    assert again.user_attrs[JOB] == lost.user_attrs[JOB] and again.user_attrs[DEATHS] == 0


def test_a_lost_interrupt_ends_the_trial(tmp_path, handlers, loses_interrupt):
    """Its job is put back."""
    study = Study("lost", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    experiment = Experiment("CartPole-v1", 2048, hyperparams={"n_steps": 128})
    loses_interrupt(signal.SIGTERM)
    with pytest.raises(SystemExit, match="130"), exit_codes({}):
        tune(experiment, SPACE, study, Plan(2048), 2, tmp_path)
    (trial,) = (trial for trial in study.screening().trials() if trial.datetime_start is not None)
    assert trial.state == TrialState.FAIL and REASON not in trial.user_attrs


def write_space(folder):
    """A small search space, so that its pictures take no time."""
    path = folder / "space.yml"
    path.write_text(yaml.safe_dump(SPACE))
    return str(path)


#: The study of the fixture `tuned`, as a command.
TUNED = (
    "--env Aiming-v0 --variant sb3 --gym-packages tuning_envs -n 512 --n-envs 8 -params n_steps:8 --seed 3 "
    "--n-evaluations 1 --last-evals 1 --eval-episodes 3 --finalists 1 --max-total-trials 3 "
    "--study-name whole"
).split()


@pytest.mark.slow
def test_a_whole_study(tuned):
    """Again, it does nothing but write the report; and it is about one thing."""
    study, verdict, folder, task = tuned
    stages = {name: jobs.trials() for name, jobs in study.begun_stages().items()}
    assert [len(trials) for trials in stages.values()] == [3, 30]
    seeds = {trial.user_attrs["seed"] for trial in stages["confirmation"]}
    assert seeds == set(range(1_000_003, 1_010_003, 1000))
    assert [trial.user_attrs.get("baseline") for trial in stages["screening"]] == ["default", "settings file", None]
    default = {"n_timesteps": 512, "n_envs": 1, "policy": "MlpPolicy"}
    assert stages["screening"][0].user_attrs[RECORDED] == default
    report = (folder / "report.md").read_text()
    assert str(verdict) in report and "| gain over default | gain over settings file |" in report
    # What ran, not only what was sampled.
    assert "n_steps=8" in report.split("## Screening")[1].split("## ")[0]
    (folder / "report.md").unlink()
    create(study, task, 3)
    assert str(TuningWorker(study, task).finish(folder)) == str(verdict) and (folder / "report.md").is_file()
    assert [len(jobs.study().trials) for _, jobs in study.begun_stages().items()] == [3, 30]
    with pytest.raises(ValueError, match=r"plan n_timesteps=8192 \(the study has 512\)"):
        create(study, replace(task, plan=Plan(8192)), 3)


def test_nan_is_a_failed_trial_with_its_reason(tmp_path):
    """The environment's rewards overflow: no trial has a score, and the study still ends."""
    study = Study("nan", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    gym.register(
        "Overflowing-v0", lambda: gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda _: float("inf"))
    )
    try:
        verdict = tune(Experiment("Overflowing-v0", 64), SPACE, study, Plan(2048), 2, tmp_path)
    finally:
        gym.registry.pop("Overflowing-v0")
    trials = study.screening().trials()
    assert [trial.state for trial in trials] == [TrialState.FAIL] * 2
    assert all("reward" in trial.user_attrs[REASON] for trial in trials)
    assert verdict.winner is None
    assert trials[0].user_attrs[REASON] in (tmp_path / "report.md").read_text()


def test_values_that_do_not_fit_each_other_are_a_failed_trial(tmp_path):
    """Each can be used, but a penalty finds no KL in one epoch of one minibatch; the study continues."""
    study, settings = Study("unfit", open_storage(f"sqlite:///{tmp_path / 'study.db'}")), {"n_steps": 64, "n_epochs": 2}
    space = {"n_epochs": {"choices": [1, 2]}, "kl_control": {"choices": ["stop", "penalty"]}}
    experiment = Experiment("CartPole-v1", 64, hyperparams={**settings, "target_kl": 0.01, "compile": False})
    tune(
        experiment, space, study, Plan(64, n_evals=1, n_eval_episodes=1, sampler="random", confirm_seeds=0), 8, tmp_path
    )
    trials = study.screening().trials()
    unfit = [trial.params == {"n_epochs": 1, "kl_control": "penalty"} for trial in trials]
    assert any(unfit) and [trial.state == TrialState.FAIL for trial in trials] == unfit
    assert all("finds no KL" in trial.user_attrs[REASON] for trial in trials if trial.state == TrialState.FAIL)


@pytest.mark.slow
def test_what_is_printed_in_the_end(tuned, tmp_path, monkeypatch, capsys):
    study, verdict, folder, task = tuned
    monkeypatch.chdir(tmp_path)
    space = tmp_path / "space.yml"
    space.write_text(yaml.safe_dump(task.space))
    main(
        ["tune", *TUNED, "--search-space", str(space), "--storage", f"sqlite:///{folder / 'study.db'}", "-f", "my logs"]
    )
    going_on, plan, line, report, settings, command = capsys.readouterr().out.splitlines()
    assert going_on == f"study 'whole' in sqlite:///{folder / 'study.db'}: 3 of 3 trials done"
    assert plan == "at most 3 runs of the search and 30 of the confirmation, with 512 timesteps each"
    assert line == str(verdict) and line.startswith("Confirmed: trial ")
    assert report == "report: my logs/tune/whole/report.md" and Path(report.removeprefix("report: ")).is_file()
    assert settings == "settings: my logs/tune/whole/Aiming-v0.yml"
    assert command.endswith("train --env Aiming-v0 -conf 'my logs/tune/whole/Aiming-v0.yml' --gym-packages tuning_envs")


def test_a_worker_that_crashes_is_named(capsys):
    with experiments.same_command(["no command"], 1):
        pass
    assert capsys.readouterr().err == "a worker ended with exit code 2: --workers 1 shows why\n"


def test_workers_run_the_same_command(tmp_path, monkeypatch):
    """They put their jobs back when it is interrupted, and one that hangs then is killed."""
    monkeypatch.setattr(experiments, "END_PATIENCE", 0)
    started, begin = [], subprocess.Popen

    def hanging(command, **options):
        started.append((command, begin([sys.executable, "-S", "-c", HANGS], stdout=subprocess.PIPE)))
        started[-1][1].stdout.read(1)
        return started[-1][1]

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", hanging)
    monkeypatch.setattr(TuningWorker, "finish", interrupt)
    words = ["tune", *SEARCH, *ALONE, "--search-space", write_space(tmp_path), "-f", str(tmp_path / "a?b%41#")]
    with pytest.raises(SystemExit, match="130"):
        main([*words, "--workers", "3"])
    # Its URL has other meanings for these characters.
    assert (tmp_path / "a?b%41#" / "tune" / "CartPole-v1" / "study.db").is_file()
    assert [command for command, _ in started] == [
        [sys.executable, "-m", "ppo_plus", *words, "--workers", "3", "--workers", "1"]
    ] * 2
    assert [process.wait() for _, process in started] == [-signal.SIGKILL] * 2


#: A process that does not end when it is asked to.
HANGS = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(end='.', flush=True); time.sleep(600)"
)
