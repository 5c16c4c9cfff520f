"""Long runs one by one: ``benchmarks/campaign.py`` and what ``benchmarks/learning_returns.py`` does with it."""

import json
import os
import sys
from functools import cache
from importlib import import_module

import campaign
import learning_returns as script
import numpy as np
import pytest
from parametrization import part
from report import plan
from stable_baselines3 import PPO

from ppo_plus.zoo.experiment import load_experiment, make_envs

#: Stands for a run: appends the words that name it, and how many results there were before.
FAKE = """
import json, pathlib, sys
arm, task, seed = sys.argv[2:]
if task == "broken":
    sys.exit(1)
file = pathlib.Path(sys.argv[1])
result = {"arm": arm, "task": task, "seed": int(seed), "order": len(file.read_text().splitlines())}
with file.open("a") as lines:
    print(json.dumps(result), file=lines)
"""


@pytest.fixture(autouse=True)
def settings_read_once(monkeypatch):
    monkeypatch.setattr(script, "read_mapping", cache(script.read_mapping))


def test_low_seeds_of_every_cell_come_first_and_nothing_twice():
    stages = [
        [plan.Cell("a", "x", range(2)), plan.Cell("b", "x", range(1))],
        plan.cells([{"arms": ["a"], "tasks": ["y"], "seeds": "0-1"}, {"arms": ["a"], "tasks": ["x"], "seeds": "0-2"}]),
    ]
    assert [str(job) for job in plan.in_order(stages)] == ["a x 0", "b x 0", "a x 1", "a y 0", "a y 1", "a x 2"]


def test_a_queue_does_what_is_left_and_continues_after_failures(tmp_path):
    file = tmp_path / "results.jsonl"
    jobs = [plan.Job("a", task, seed) for seed in range(2) for task in ("x", "broken", "busy")]
    script.append_line(file, {**vars(jobs[0]), "order": 0})
    with campaign.claim(campaign.lock_path(file, jobs[2])) as held:
        assert held
        failed = campaign.work([sys.executable, "-c", FAKE, str(file)], file, jobs)
    assert failed == [jobs[1], jobs[4]]
    results = plan.read(file, jobs)
    assert {job: result["order"] for job, result in results.items()} == {jobs[0]: 0, jobs[3]: 1, jobs[5]: 2}
    assert campaign.queue_path(file).read_text() == f"{os.getpgrp()}\n"


def test_a_lock_has_one_owner(tmp_path):
    path = tmp_path / "running" / "a.lock"
    assert not campaign.is_claimed(path)
    with campaign.claim(path) as first, campaign.claim(path) as second:
        assert first and not second and campaign.is_claimed(path)
    assert not campaign.is_claimed(path)


def is_installed(task):
    """Whether the package of a task is here: those of tasks ``package:id`` are needed by no other test."""
    try:
        return ":" not in task or bool(import_module(task.partition(":")[0]))
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
def test_every_planned_run_can_be_built():
    """All contenders and tasks are known, and those that are compared get the same settings."""

    def made(job):
        return script.experiment(job, script.settings_of(job))

    # Of each arm and task the last seed.
    for job in {(job.arm, job.task): job for job in plan.in_order(plan.STAGES.values())}.values():
        if not is_installed(job.task):
            continue
        training, arm = made(job), plan.ARMS[job.arm]
        variant = (arm.entry or "").partition("/")[2] or None
        steps = arm.steps or arm.by_task.get(job.task, {}).get("n_timesteps")
        steps = steps or load_experiment(job.task, variant=variant).n_timesteps
        assert (training.env_id, training.seed, training.n_timesteps) == (job.task, job.seed, steps)
    for arm in ("rl_zoo3", "sb3-defaults"):
        ours, theirs = (made(script.Job(name, "Hopper-v5", 0)) for name in (arm, f"{arm}-by-sb3"))
        assert ours == theirs
    assert made(script.Job("trpo", "Swimmer-v5", 0)).hyperparams["gamma"] == 0.9999
    assert made(script.Job("trpo", "Hopper-v5", 0)).hyperparams["gamma"] == 0.99


def test_results_have_the_settings_of_their_contenders():
    """A result is known by its place: one of other settings would count as one of these."""
    for result in script.results():
        job = script.Job(result["arm"], result["task"], result["seed"])
        if not is_installed(job.task):
            continue
        assert result["algorithm"] == plan.ARMS[job.arm].algorithm, job
        planned, had = script.settings_of(job), result["settings"]
        # Building experiments takes long, and most settings are equal.
        assert planned == had or script.experiment(job, planned) == script.experiment(job, had), job


def test_episodes_are_in_the_order_of_their_ends():
    """And where several end at once, in the order of environments: not the better ones last."""
    episodes = script.Episodes()
    ends = {20: [(1.0, 10), None], 30: [None, (3.0, 15)], 40: [None] * 2, 60: [(9.0, 20), (2.0, 15)]}
    for steps, ended in ends.items():
        episodes.num_timesteps = steps
        episodes.locals["infos"] = [{"episode": {"r": each[0], "l": each[1]}} if each else {} for each in ended]
        assert episodes._on_step()
    np.testing.assert_array_equal(episodes.rows(), [[20, 1.0, 10], [30, 3.0, 15], [60, 9.0, 20], [60, 2.0, 15]])
    assert script.Episodes().rows().shape == (0, 3)


def test_a_curve_is_made_of_means_between_ends_of_episodes():
    done = np.array([[10, 1.0, 10], [20, 3.0, 10], [50, 5.0, 30]])
    assert script.curve(done, 55, 20) == {"steps": [20, 40, 55], "episodes": [2, 0, 1], "return": [2.0, None, 5.0]}
    assert script.curve(np.zeros((0, 3)), 20, 20)["return"] == [None]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["mujocco", "Ant-v5", "1"], "there is no contender ARM='mujocco': mujoco, "),
        (["?", "Ant-v5", "1"], "there is no contender ARM='?': mujoco, entry, sb3-defaults are some of those"),
        (["rl_zoo3", "Nope-v5", "1"], "ARM=rl_zoo3 TASK=Nope-v5: ppo_plus.yml has no entry Nope-v5/rl_zoo3"),
        (["sb3-defaults", "Nope-v5", "1"], "TASK='Nope-v5' is not an environment that Gymnasium has registered"),
        (["entry", "mujoco", "1"], "TASK='mujoco' is not an environment that Gymnasium has registered"),
        (["mujoco", "Ant-v5", "x"], "SEED='x' must be a whole number, 0 or above"),
        (["mujoco", "Ant-v5", "1", "--steps", "0"], "argument --steps: it must be a positive whole number, not '0'"),
    ],
)
def test_mistakes_in_a_run_are_named(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["learning_returns.py", "--run", *arguments])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arm", part(["entry", "sb3-defaults-by-sb3"], ["entry"]))
@pytest.mark.slow
def test_a_run_leaves_a_short_line_that_says_all(arm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "N_EPISODES", 4)
    monkeypatch.setattr(script, "N_EVAL_ENVS", 2)
    job, path = script.Job(arm, "Pendulum-v1", 3), tmp_path / "results.jsonl"
    script.run(job, path, 4096)
    assert path.stat().st_size < 3_000
    result = json.loads(path.read_text())
    assert result["steps"] == 4096
    assert result["settings"].get("gamma") == (0.9 if arm == "entry" else None)
    packages = {"python", "torch", "stable_baselines3", "gymnasium", "mujoco", "ppo_plus", "commit"}
    assert packages <= set(result["versions"])
    # Episodes of Pendulum have 200 steps; four environments made 1024 steps each, or one 4096.
    assert result["curve"]["episodes"] == [20]
    assert result["last"]["length"] == 200
    for name in ("deterministic", "stochastic"):
        assert -2000 < result[name]["mean"] < 0
    assert result["deterministic"] != result["stochastic"]
    before = path.read_text()
    capsys.readouterr()
    script.run(job, path, 4096)
    assert capsys.readouterr().out == f"{job}: done already, 4,096 steps in {path}; --results takes another file\n"
    assert path.read_text() == before
    assert script.status(path, [job, script.Job(arm, "Pendulum-v1", 4)])[1] == f"{arm} Pendulum-v1 4: open"


@pytest.mark.slow
def test_episodes_at_the_end_are_normalized_as_training_was(monkeypatch):
    """Rewards come as the environment gives them, observations as the policy knows them."""
    monkeypatch.setattr(script, "N_EPISODES", 4)
    monkeypatch.setattr(script, "N_EVAL_ENVS", 2)
    job = script.Job("sb3-defaults-by-sb3", "Pendulum-v1", 0)
    training = script.experiment(job, script.settings_of(job, 2048))
    env = make_envs(training)
    model = script.make_model(PPO, training, env)
    model.n_epochs = 1
    model.learn(2048)
    seen, predict = [], model.predict

    def spy(observation, **kwargs):
        seen.append(observation)
        return predict(observation, **kwargs)

    model.predict = spy
    result = script.play(model, training, deterministic=True)
    assert result["mean"] < -100
    # Pendulum's angular velocity goes up to 8; normalized it is about 1.
    assert 0.5 < np.std(np.concatenate(seen), axis=0)[2] < 2.0
    assert env.obs_rms.mean.any()
