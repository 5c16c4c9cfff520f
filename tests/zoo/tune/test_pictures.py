"""What the pictures show."""

from itertools import pairwise

import optuna
import pytest
from matplotlib import pyplot as plt
from matplotlib.image import imread
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from ppo_plus.zoo.tune.pictures import _confirmation, _curves, _search, draw_all
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import BASELINE, SCORES, SETTINGS, Study
from ppo_plus.zoo.tune.storage import open_storage
from ppo_plus.zoo.tune.verdict import Finalist, compare

PLAN = Plan(1000, n_evals=2, last_evals=1)
SPACE = {"1 - gamma": FloatDistribution(0.001, 0.1, log=True), "use_sde": CategoricalDistribution((False, True))}
NAMES = ["confirmation", "history", "importances", "learning_curves", "slices"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two baselines, five finished trials, one pruned and one failed, and an interruption: Optuna's numbers go on."""
    path = tmp_path_factory.mktemp("study") / "study.db"
    study = Study("study", open_storage(f"sqlite:///{path}"))
    optuna.create_study(study_name=study.name, storage=study.storage, direction="maximize")
    study.screening.fill([{BASELINE: "default"}, {BASELINE: "settings file"}, *[{}] * 7], [{"use_sde": True}] * 2)
    # Interrupted: the job of trial 0 is done by a later one.
    study.screening.interrupt(study.screening.claim())
    number = 0
    while (claimed := study.screening.claim()) is not None:
        trial = study.screening.trial(claimed)
        for name, distribution in SPACE.items():
            trial._suggest(name, distribution)
        trial.report(-number, 500)
        trial.set_user_attr(SETTINGS, {})
        trial.set_user_attr(SCORES, [float(-number)])
        if number == 3:
            study.screening.tell(claimed, TrialState.PRUNED)
        elif number == 4:
            study.screening.fail(claimed, "it diverged")
        else:
            trial.report(-number, 1000)
            study.screening.tell(claimed, TrialState.COMPLETE, float(-number))
        number += 1
    return study


@pytest.fixture(scope="module")
def verdict():
    def finalist(number, scores):
        return Finalist(create_trial(state=TrialState.COMPLETE, value=1.0, user_attrs={"job": number}), scores, 0)

    low, high = [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10], [101.0, 102, 103, 104, 105, 106, 107, 108, 109, 110]
    return compare({"default": finalist(0, low), "settings file": finalist(1, low)}, [finalist(5, high)])


def drawn(pictures):
    """The figures by name, before they are files."""
    found = {name: plt.gcf() for name, _ in pictures}
    plt.close("all")
    return found


def test_each_picture_is_a_file_with_a_caption(study, verdict, tmp_path):
    pictures = draw_all(study.screening.trials(), PLAN, verdict, tmp_path)
    assert sorted(path.stem for path, _ in pictures) == NAMES
    assert all(imread(path).shape[1] > 300 for path, _ in pictures)
    assert all(caption.endswith(".") for _, caption in pictures)
    assert not plt.get_fignums()


def test_trials_have_the_numbers_of_the_report(study, verdict):
    """Not Optuna's, which an interruption changes."""
    trials = study.screening.trials()
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    numbers = [trial.user_attrs["job"] for trial in complete]
    assert numbers != [trial.number for trial in complete]
    axes = drawn(_search(trials))["history"].axes[0]
    # The baselines are lines.
    assert axes.collections[0].get_offsets()[:, 0].tolist() == numbers[2:]
    assert {"default", "settings file"} < {line.get_label() for line in axes.lines}
    labels = {line.get_label() for line in drawn(_curves(trials, verdict, PLAN))["learning_curves"].axes[0].lines}
    assert labels == {"default", "settings file", "trial 5", "_other"}


def test_means_are_marked_with_their_intervals(verdict):
    axes = drawn(_confirmation(verdict))["confirmation"].axes[0]
    shown = [*verdict.baselines.values(), *verdict.finalists]
    means = [line for line in axes.lines if line.get_marker() == "D"]
    assert [float(line.get_xdata()[0]) for line in means] == [finalist.iqm.value for finalist in shown]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["default", "settings file", "trial 5"]


def test_without_data_there_are_no_pictures(tmp_path):
    assert draw_all([], PLAN, compare({}, []), tmp_path) == []


def test_curves_of_several_seeds_are_apart():
    reports = {500: 1.0, 1000: 2.0, 1500: 3.0, 2000: 4.0}
    trial = create_trial(value=1.0, user_attrs={"job": 0}, intermediate_values=reports)
    axes = drawn(_curves([trial], compare({}, []), PLAN))["learning_curves"].axes[0]
    runs = [line.get_xdata().tolist() for line in axes.lines]
    assert runs == [[500, 1000], [1500, 2000]] and all(a[-1] < b[0] for a, b in pairwise(runs))
