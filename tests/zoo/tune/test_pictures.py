"""What the pictures show."""

from itertools import pairwise

import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from ppo_plus.zoo.tune import pictures
from ppo_plus.zoo.tune.pictures import DPI, WIDTH, caution, draw_all
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import BASELINE, SCORES, SETTINGS, Study, make_study
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
    make_study(study.storage, study.name)
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


@pytest.fixture(scope="module")
def figures(study, verdict, tmp_path_factory):
    """The figures by name, before they are files."""
    drawn = {}
    save = pictures._save

    def keep(figure, path, caption):
        drawn[path.stem] = figure
        return save(figure, path, caption)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(pictures, "_save", keep)
        draw_all(study, PLAN, verdict, tmp_path_factory.mktemp("figures"))
    return drawn


def test_all_are_as_wide_as_a_readme_and_have_a_caption(study, verdict, tmp_path):
    drawn = draw_all(study, PLAN, verdict, tmp_path)
    assert sorted(picture.path.stem for picture in drawn) == NAMES
    assert all(imread(picture.path).shape[1] == int(WIDTH * DPI) <= 1000 for picture in drawn)
    assert all(picture.caption.endswith(".") for picture in drawn)


def test_all_axes_say_what_they_show(figures):
    labels = {
        name: {axes.get_xlabel() for axes in figure.axes if axes.get_visible()} for name, figure in figures.items()
    }
    assert labels["confirmation"] == {"mean return"}
    assert labels["history"] == {"trial"} and labels["learning_curves"] == {"timesteps"}
    assert labels["slices"] == {"1 - gamma", "use_sde", "trial"}
    assert figures["history"].axes[0].get_ylabel() == "score: mean return of the\nlast 1 evaluation"
    assert figures["learning_curves"].axes[0].get_ylabel() == "mean return"
    assert figures["slices"].axes[0].get_ylabel() == "score (mean return)"


def test_trials_have_the_numbers_of_the_report(figures, study):
    """Not Optuna's, which an interruption changes."""
    complete = [trial for trial in study.screening.trials() if trial.state == TrialState.COMPLETE]
    numbers = [trial.user_attrs["job"] for trial in complete]
    assert numbers != [trial.number for trial in complete]
    (line,) = (line for line in figures["history"].axes[0].lines if line.get_label() == "best so far")
    assert list(line.get_xdata()) == numbers
    labels = {line.get_label() for line in figures["learning_curves"].axes[0].lines}
    assert labels == {"default", "settings file", "trial 5", "other trials", "pruned or failed"}


def test_means_are_marked_with_their_intervals(figures, verdict):
    axes = figures["confirmation"].axes[0]
    means = [line for line in axes.lines if line.get_marker() == "D"]
    shown = [*verdict.baselines.values(), *verdict.finalists]
    assert [float(line.get_xdata()[0]) for line in means] == [finalist.iqm.value for finalist in shown]
    assert all(line.get_markersize() >= 8 and line.get_alpha() is None for line in means)
    # The winner stands out, and all are told apart.
    colors = [to_hex(line.get_color()).upper() for line in means]
    assert colors[-1] == pictures.GREEN and len(set(colors)) == 3
    assert [text.get_text() for text in axes.texts] == [str(finalist.iqm) for finalist in shown]


@pytest.mark.slow
def test_importances_of_few_trials_come_with_a_caution(figures, study, verdict, tmp_path, monkeypatch):
    said = "Caution: 7 finished trials for 2 parameters: a hint at most, no ranking."
    assert figures["importances"].axes[0].get_title(loc="left") == said
    assert caution(6, 19) and caution(189, 19) and not caution(190, 19)
    assert (
        said
        in {picture.path.stem: picture.caption for picture in draw_all(study, PLAN, verdict, tmp_path)}["importances"]
    )
    monkeypatch.setattr(pictures, "N_PER_PARAMETER", 3)
    assert not any("Caution" in picture.caption for picture in draw_all(study, PLAN, verdict, tmp_path))


def test_without_data_there_are_no_pictures(tmp_path):
    study = Study("study", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    make_study(study.storage, study.name)
    study.screening.fill([{}])
    assert draw_all(study, PLAN, compare({}, []), tmp_path) == []


def test_curves_of_several_seeds_are_apart():
    trial = create_trial(value=1.0, intermediate_values={500: 1.0, 1000: 2.0, 1500: 3.0, 2000: 4.0})
    runs = [steps for steps, _ in pictures._by_seed(trial, PLAN)]
    assert runs == [[500, 1000], [1500, 2000]] and all(a[-1] < b[0] for a, b in pairwise(runs))
