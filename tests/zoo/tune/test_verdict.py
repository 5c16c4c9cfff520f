"""Who wins, and what is exported."""

import json
import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml
from optuna.trial import TrialState, create_trial
from scipy.stats import binom

from ppo_plus.zoo.cli import make_parser
from ppo_plus.zoo.cli.train import make_experiment
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.hyperparams import builtin_file
from ppo_plus.zoo.tune import statistics
from ppo_plus.zoo.tune.export import export, retrain_command
from ppo_plus.zoo.tune.plan import Plan, make_task
from ppo_plus.zoo.tune.space import read_space
from ppo_plus.zoo.tune.stages import SCORES, SETTINGS
from ppo_plus.zoo.tune.verdict import ERROR_RATE, Finalist, compare

ROOT = Path(__file__).parents[3]
LOW = [10.0, 12, 11, 13, 9, 10, 12, 11, 13, 9]
HIGH = [20.0, 22, 21, 23, 19, 20, 22, 21, 23, 19]


def finalist(scores, job=0, n_failed=0, settings=None):
    attrs = {"job": job, SCORES: [1.25], SETTINGS: settings or {}}
    return Finalist(create_trial(state=TrialState.COMPLETE, value=1.0, user_attrs=attrs), scores, n_failed)


def test_the_best_of_the_surely_better_ones_wins():
    verdict = compare(finalist(LOW), [finalist(LOW, 1), finalist([x + 5 for x in LOW], 2), finalist(HIGH, 3)])
    assert verdict.winner == 2
    assert verdict.gains[0].low < 0 < verdict.gains[1].low < verdict.gains[2].low
    assert verdict.confidence == pytest.approx(1 - 0.05 / 3)
    assert str(verdict).startswith("Confirmed: trial 3 returns 21.0 [")


def test_the_default_stays_where_nothing_is_surely_better():
    noisy = [x + 30 * (-1) ** i for i, x in enumerate(HIGH)]
    verdict = compare(finalist(LOW), [finalist(noisy, 1)])
    assert verdict.winner is None and verdict.gains[0].value > 0
    assert str(verdict).startswith("The default stays")


def test_what_failed_on_a_seed_is_not_confirmed():
    assert compare(finalist(LOW), [finalist(HIGH[:9], 1, n_failed=1)]).winner is None
    assert compare(finalist(LOW[:9], n_failed=1), [finalist(HIGH, 1)]).winner == 0
    without = compare(finalist([], n_failed=10), [finalist(HIGH, 1)])
    assert without.winner is None and "the default has no score on any of the 10 unseen seeds" in str(without)


def test_no_confirmation_no_winner():
    assert compare(None, []).winner is None
    assert "No confirmation" in str(compare(None, []))


def test_settings_that_train_uses_already_are_named():
    named = finalist(HIGH, 1)
    named.trial.set_user_attr("baseline", "settings file")
    assert "plain `ppo-plus train` uses them already" in str(compare(finalist(LOW), [named]))
    assert "already" not in str(compare(finalist(LOW), [finalist(HIGH, 1)]))


def test_a_wrong_winner_is_as_rare_as_the_report_says(monkeypatch):
    """Where all settings are equal, the best of three finalists beats the default in at most 5 % of studies."""
    monkeypatch.setattr(statistics, "N_RESAMPLES", 300)
    rng = np.random.default_rng(0)
    returns = (rng.normal, rng.exponential, lambda size: rng.normal(size=size) + 10 * (rng.random(size) < 0.5))
    n_studies, wrong = 900, 0
    for study in range(n_studies):
        default, *others = (finalist(list(scores), job) for job, scores in enumerate(returns[study % 3](size=(4, 10))))
        wrong += compare(default, others).winner is not None
    assert wrong <= binom.ppf(0.999, n_studies, ERROR_RATE)
    # It is no test if nothing ever wins.
    assert wrong >= binom.ppf(0.001, n_studies, 0.01)


def test_export_is_an_entry_that_reads_back(tmp_path):
    task = make_task(load_experiment("CartPole-v1"), read_space(), Plan(50_000, seed=4))
    sampled = {"gamma": 0.95, "policy_kwargs": {"net_arch": [32, 32], "activation_fn": "nn.ReLU"}, "n_steps": 64}
    candidate = task.candidate(sampled)
    path = tmp_path / "CartPole-v1.yml"
    assert export(compare(finalist(LOW), [finalist(HIGH, 7, settings=candidate.settings())]), task, "my study", path)
    assert load_experiment("CartPole-v1", path) == candidate
    text = path.read_text()
    assert "study my study, trial 7" in text and "score was 1.25" in text and "--seed 4" in text
    # rl_zoo3 wants policy_kwargs as Python text.
    assert isinstance(yaml.safe_load(text)["CartPole-v1"]["policy_kwargs"], str)
    # What an earlier run found is not left beside a verdict that says otherwise.
    assert not export(compare(finalist(LOW), [finalist(LOW, 7)]), task, "my study", path)
    assert not path.exists()


def test_the_command_trains_as_the_trial_did():
    """Read by the command line, it is the experiment again."""
    run = {"vec_env": "subproc", "device": "cpu", "eval_env_kwargs": {"sutton_barto_reward": True, "render_mode": None}}
    experiment = load_experiment("CartPole-v1", seed=4, **run)
    task = make_task(experiment, read_space(), Plan(50_000, seed=4), None, ("stable_baselines3.common",))
    words = shlex.split(retrain_command(task, builtin_file()))
    args = make_parser().parse_args(words[1:])
    assert make_experiment(args) == experiment
    assert (args.trust_config, args.gym_packages) == (True, ["stable_baselines3.common"])
    plain = make_task(load_experiment("CartPole-v1"), read_space(), Plan(50_000))
    assert retrain_command(plain, builtin_file()).endswith("--n-eval-envs 1")


@pytest.mark.skipif(find_spec("rl_zoo3") is None, reason="rl_zoo3 is not installed: pip install rl_zoo3 requests")
def test_rl_zoo3_reads_it_back(tmp_path):
    task = make_task(load_experiment("MountainCar-v0"), read_space(), Plan(50_000))
    sampled = {"gamma": 0.95, "learning_rate": "lin_0.01", "policy_kwargs": {"activation_fn": "nn.ReLU"}}
    settings = task.candidate(sampled).settings()
    path = tmp_path / "MountainCar-v0.yml"
    export(compare(finalist(LOW), [finalist(HIGH, 7, settings=settings)]), task, "my study", path)
    code = """
import json, sys
from pathlib import Path
from rl_zoo3_entries import read
print(json.dumps(read("ppo", Path(sys.argv[1]), "MountainCar-v0", False), default=str))
"""
    # In a process of its own, because importing rl_zoo3 changes Gymnasium.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "zoo"), *sys.path])}
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    assert (read["n_timesteps"], read["n_envs"], read["policy"]) == (task.plan.n_timesteps, 8, "MlpPolicy")
    assert read["normalize"]["gamma"] == read["hyperparams"]["gamma"] == 0.95
    assert read["hyperparams"]["learning_rate"] == [0.01, 0.0025, 0.0]
    assert read["policy_kwargs"] == {"activation_fn": "<class 'torch.nn.modules.activation.ReLU'>"}
    assert read["hyperparams"]["sde_sample_freq"] == "episode"
