"""The verdict of a study, and what it leaves in its folder."""

import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy.stats import binom
from verdicts import HIGH, LOW, against, finalist

from ppo_plus.zoo import results
from ppo_plus.zoo.cli import make_parser
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.hyperparams import builtin_file
from ppo_plus.zoo.tune import Plan, read_space
from ppo_plus.zoo.tune.report import ERROR_RATE, TuningVerdict, compare, export, export_best, retraining
from ppo_plus.zoo.tune.study import RECORDED
from ppo_plus.zoo.tune.task import TuningTask


def against_both(default, file, *finalists):
    """The verdict where the settings file has an entry."""
    return compare({"default": default, "settings file": file}, finalists)


def shifted(scores, by):
    return [score + by for score in scores]


def test_the_best_of_the_significantly_better_ones_wins():
    verdict = against(finalist(LOW), finalist(LOW, 1), finalist(shifted(LOW, 5), 2), finalist(HIGH, 3))
    assert verdict.winner is verdict.finalists[2]
    lows = [each.gains["default"].low for each in verdict.finalists]
    assert lows[0] < 0 < lows[1] < lows[2]
    assert verdict.confidence == pytest.approx(1 - 0.05 / 3)
    assert str(verdict).startswith("Confirmed: trial 3 reaches 21.0 [")
    assert "over the default (confidence 98.3 %)." in str(verdict)


def test_the_default_stays_where_nothing_is_significantly_better():
    noisy = [x + 30 * (-1) ** i for i, x in enumerate(HIGH)]
    verdict = against(finalist(LOW), finalist(noisy, 1))
    assert verdict.winner is None and verdict.finalists[0].gains["default"].value > 0
    assert str(verdict).startswith("No winner: none of the finalists is significantly better than each of the default.")


def test_a_winner_beats_the_settings_file_as_well():
    """What beats the default alone is not exported, however much better than the default it is."""
    default, file, between = finalist(LOW), finalist(HIGH, 1), finalist(shifted(LOW, 5), 2)
    verdict = against_both(default, file, between)
    assert verdict.winner is None
    assert verdict.finalists[0].gains["default"].low > 0 > verdict.finalists[0].gains["settings file"].high
    assert str(verdict).startswith(
        "No winner: none of the finalists is significantly better than each of the default and the settings file"
    )
    best = finalist(shifted(HIGH, 5), 3)
    verdict = against_both(default, file, between, best)
    assert verdict.winner is verdict.finalists[1]
    assert re.search(
        r"Confirmed: trial 3 reaches 26.0 .*, the default 11.0 .* and the settings file 21.0 .*; the gain is "
        r"15.0 .* over the default and 5.0 .* over the settings file \(confidence 97.5 %\)\.",
        str(verdict),
    )
    # An entry that is worse than the default changes nothing: the default must be beaten, too.
    assert against_both(file, default, between).winner is None


def test_what_failed_on_a_seed_is_not_confirmed():
    assert against(finalist(LOW), finalist(HIGH[:9], 1, n_failed=1)).winner is None
    assert against(finalist(LOW[:9], n_failed=1), finalist(HIGH, 1)).winner.name == "trial 1"
    without = against(finalist([], n_failed=10), finalist(HIGH, 1))
    assert without.winner is None and "the default has no score on unseen seeds" in str(without)
    without = against_both(finalist(LOW), finalist([], 1, n_failed=10), finalist(HIGH, 2))
    assert without.winner is None and "the settings file has no score on unseen seeds" in str(without)


def test_no_confirmation_no_winner():
    for baselines in ({}, {"default": finalist([])}):
        assert compare(baselines, []).winner is None
        assert "No confirmation" in str(compare(baselines, []))


@pytest.mark.parametrize("n_baselines", [1, 2])
@pytest.mark.exhaustive
def test_a_wrong_winner_is_as_rare_as_the_report_says(monkeypatch, n_baselines):
    """Where the best of three finalists is only as good as the best baseline, it wins in at most 5 % of studies: the
    worst case of two baselines is a default that everything beats, so that the settings file's entry alone decides."""
    monkeypatch.setattr(results, "N_RESAMPLES", 300)
    rng = np.random.default_rng(0)
    returns = (rng.normal, rng.exponential, lambda size: rng.normal(size=size) + 10 * (rng.random(size) < 0.5))
    n_studies, wrong = 600, 0
    for study in range(n_studies):
        best, *others = (finalist(list(row), job) for job, row in enumerate(returns[study % 3](size=(4, 10))))
        verdict = against(best, *others) if n_baselines == 1 else against_both(finalist([-100.0] * 10), best, *others)
        wrong += verdict.winner is not None
    assert wrong <= binom.ppf(0.999, n_studies, ERROR_RATE)
    # It is no test if nothing ever wins.
    assert wrong >= binom.ppf(0.001, n_studies, 0.01)


def test_export_is_an_entry_that_reads_back(tmp_path):
    task = TuningTask(load_experiment("CartPole-v1"), read_space(), Plan(50_000, seed=4)).fitted()
    sampled = {"gamma": 0.95, "policy_kwargs": {"net_arch": [32, 32], "activation_fn": "nn.ReLU"}, "n_steps": 64}
    candidate = task.candidate(sampled)
    path = tmp_path / "CartPole-v1.yml"
    won = finalist(HIGH, 7, settings=candidate.settings())
    assert export(won.trial, against(finalist(LOW), won), task, "my study", path) == path
    assert load_experiment("CartPole-v1", path) == candidate
    text = path.read_text()
    shown = ["study my study, trial 7", "return was 1.25", "train --env CartPole-v1 -conf CartPole-v1.yml"]
    assert [each for each in shown if each not in text] == []
    # rl_zoo3 wants policy_kwargs as Python text.
    assert isinstance(yaml.safe_load(text)["CartPole-v1"]["policy_kwargs"], str)
    assert "NOT CONFIRMED" not in text
    # The same settings, if they have not won.
    export(won.trial, against(finalist(HIGH), won), task, "my study", path)
    assert "NOT CONFIRMED: trial 7" in path.read_text() and load_experiment("CartPole-v1", path) == candidate


@pytest.mark.slow
def test_no_more_than_one_best_is_exported(tuned, tmp_path):
    study, verdict, _, task = tuned
    winner = verdict.winner
    assert export_best(study, task, verdict, tmp_path).name == "Aiming-v0.yml"
    finalists = [replace(finalist, gains=dict.fromkeys(verdict.baselines)) for finalist in verdict.finalists]
    lost = TuningVerdict(verdict.baselines, finalists, verdict.confidence)
    path = export_best(study, task, lost, tmp_path)
    # What an earlier report exported is not left beside one that says otherwise.
    assert [path] == list(tmp_path.glob("*.yml")) and path.name == "Aiming-v0_not_confirmed.yml"
    assert f"NOT CONFIRMED: {winner.name} " in path.read_text()
    assert yaml.safe_load(path.read_text())["Aiming-v0"] == winner.trial.user_attrs[RECORDED]


def test_the_command_trains_with_the_entry():
    experiment = load_experiment("CartPole-v1").replace(eval_env_kwargs={"sutton_barto_reward": False})
    task = TuningTask(experiment, read_space(), Plan(50_000), None, ("my_envs",)).fitted()
    args = make_parser().parse_args(retraining(task, builtin_file()))
    assert (args.env, args.conf_file) == ("CartPole-v1", str(builtin_file()))
    assert args.eval_env_kwargs == {"sutton_barto_reward": False}
    assert (args.trust_config, args.gym_packages) == (True, ["my_envs"])
    plain = TuningTask(load_experiment("CartPole-v1"), read_space(), Plan(50_000)).fitted()
    assert retraining(plain, builtin_file()) == ["train", "--env", "CartPole-v1", "-conf", str(builtin_file())]
