"""CMA-ES whose state is never read from the database, where anyone could put a pickle that runs code."""

import os
import pickle
from statistics import median

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import CmaEsSampler, RandomSampler
from optuna.storages.journal._base import BaseJournalSnapshot
from parametrization import in_turn

from ppo_plus.zoo.tune.cma import GENERATION, CmaSampler, replay
from ppo_plus.zoo.tune.jobs import Jobs
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.search import PRUNERS, SAMPLERS, make_pruner, make_sampler
from ppo_plus.zoo.tune.stages import make_study
from ppo_plus.zoo.tune.storage import open_storage


class Attack:
    """A pickle that makes a folder when it is read."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def objective(trial):
    """A bowl over a linear, a logarithmic and a whole dimension; its minimum is 0."""
    x = trial.suggest_float("x", -1, 3)
    y = trial.suggest_float("y", 1e-5, 1e-1, log=True)
    n = trial.suggest_int("n", 1, 1000, log=True)
    trial.suggest_categorical("kind", ["a", "b"])
    return (x - 1.7) ** 2 + np.log10(y / 1e-3) ** 2 + np.log10(n / 40) ** 2


def best(sampler, n_trials=100):
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials)
    return study.best_value


@pytest.mark.parametrize(("sampler", "kind"), in_turn(SAMPLERS, ["sqlite:///{}/study.db", "journal:{}/study.log"]))
def test_a_pickle_in_the_database_is_not_read(kind, sampler, tmp_path):
    """Wherever it stands: under the names that Optuna's CMA-ES looks for, and in all attributes of study and trials."""
    target = tmp_path / "ran"
    attack = pickle.dumps(Attack(target)).hex()
    storage = open_storage(kind.format(tmp_path))
    make_study(storage, "study")
    study = optuna.load_study(study_name="study", storage=storage)
    storage.set_study_system_attr(study._study_id, "cma:optimizer:0", attack)
    for _ in range(12):
        trial = study.ask()
        for key in ("cma:optimizer:0", "cma:optimizer", "cmawm:optimizer:0", "sepcma:optimizer:0"):
            storage.set_trial_system_attr(trial._trial_id, key, attack)
        trial.set_user_attr("job", attack)
        study.tell(trial, objective(trial))
    for pruner in PRUNERS:
        plan = Plan(1000, sampler=sampler, pruner=pruner)
        number = study.ask().number
        claimed = study.get_trials()[number]
        trial = Jobs(storage, "study").trial(
            claimed, sampler=make_sampler(plan, claimed.number), pruner=make_pruner(plan)
        )
        trial.report(objective(trial), 500)
        trial.should_prune()
        assert -1 <= trial.params["x"] <= 3
    assert not target.exists()
    # The same pickle where it is read.
    pickle.loads(bytes.fromhex(attack))
    assert target.is_dir()


def test_journals_keep_no_snapshots(tmp_path):
    """They would be pickles."""
    storage = open_storage(f"journal:{tmp_path / 'study.log'}")
    assert not isinstance(storage._backend, BaseJournalSnapshot)


def test_the_state_is_the_one_that_optunas_own_sampler_keeps():
    """Also for studies that it began: its trials are read as they are."""
    study = optuna.create_study(sampler=CmaEsSampler(seed=1, warn_independent_sampling=False))
    study.optimize(objective, 100)
    trials = study.get_trials()
    last = max(trial.number for trial in trials if "cma:optimizer:0" in trial.system_attrs)
    attrs = trials[last].system_attrs
    pieces = sum(key.startswith("cma:optimizer") for key in attrs)
    theirs = pickle.loads(bytes.fromhex("".join(attrs[f"cma:optimizer:{i}"] for i in range(pieces))))
    space = {name: trials[last].distributions[name] for name in ("n", "x", "y")}
    ours = replay(space, trials[:last], study.direction, seed=0)
    assert ours.generation == theirs.generation > 5
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-6)
    np.testing.assert_allclose(ours._C, theirs._C, rtol=1e-6, atol=1e-9)
    assert ours._sigma == pytest.approx(theirs._sigma, rel=1e-6)


def test_it_finds_a_minimum_as_optunas_own_sampler_does():
    ours = median(best(CmaSampler(seed)) for seed in range(3))
    theirs = median(best(CmaEsSampler(seed=seed, warn_independent_sampling=False)) for seed in range(3))
    random = median(best(RandomSampler(seed=seed)) for seed in range(3))
    assert ours < random / 3 and theirs < random / 3
    assert ours < 10 * theirs


def test_a_maximum_is_found_as_well():
    study = optuna.create_study(sampler=CmaSampler(0), direction="maximize")
    study.optimize(lambda trial: -objective(trial), 150)
    assert study.best_value > -0.05


def test_late_trials_change_nothing():
    """A generation consists of the trials that ended first: replayed later, it has the same state."""
    space = {"x": FloatDistribution(0, 1), "n": IntDistribution(1, 9)}
    study = optuna.create_study()

    def add(x, generation):
        study.add_trial(
            optuna.create_trial(
                value=x, params={"x": x, "n": 3}, distributions=space, system_attrs={GENERATION: generation}
            )
        )

    for x in (0.9, 0.1, 0.4, 0.3, 0.8, 0.2):
        add(x, 0)
    before = replay(space, study.get_trials(), study.direction, seed=0)
    add(0.05, 0)
    after = replay(space, reversed(study.get_trials()), study.direction, seed=0)
    assert before.generation == after.generation == 1
    assert before.mean.tolist() == after.mean.tolist()


@pytest.mark.parametrize("generation", ["0", [0], None, {"0": 0}, True, 10**30, -1, 0.0, float("nan")])
@pytest.mark.parametrize("value", [0.5, float("inf")])
def test_edited_attributes_are_no_generation(generation, value):
    study = optuna.create_study(sampler=CmaSampler(0))
    space = {"x": FloatDistribution(0, 1), "n": IntDistribution(1, 9)}
    attrs = {GENERATION: generation}
    trials = [
        optuna.create_trial(value=value, params={"x": 0.5, "n": 3}, distributions=space, system_attrs=attrs)
        for _ in range(20)
    ]
    assert replay(space, trials, study.direction, seed=0).generation == 0
    study.add_trials(trials)
    assert 0 <= study.ask(space).params["x"] <= 1
