"""A study of version 0.1, whose race is left out, is reported and resumed."""

import shutil
from pathlib import Path

import pytest

from ppo_plus.zoo.tune import study as study_module
from ppo_plus.zoo.tune.jobs import is_done, open_storage
from ppo_plus.zoo.tune.report import write_report
from ppo_plus.zoo.tune.study import Study, create, is_over, read_task
from ppo_plus.zoo.tune.tuner import TuningWorker

#: The folder that ``ppo-plus tune`` left: a search of four trials on CartPole, a race, and a confirmation.
SAVED = Path(__file__).parents[2] / "data" / "study"


@pytest.fixture
def folder(tmp_path):
    """A copy of it, which tests may change."""
    return shutil.copytree(SAVED, tmp_path / "study")


@pytest.fixture
def study(folder):
    return Study("CartPole-v1", open_storage(f"sqlite:///{folder / 'study.db'}"))


def scores(study):
    """The scores of each stage, in the order in which its jobs were made."""
    return {name: [trial.values[0] for trial in jobs.trials()] for name, jobs in study.begun_stages().items()}


def test_it_is_reported(study, folder):
    verdict = write_report(study, read_task(study), folder)
    assert "the settings file has no score on unseen seeds" in str(verdict)
    report = (folder / "report.md").read_text()
    assert "| default | 198.0 [143.9, 260.8] |" in report and "| trial 2 | 38.8 [23.0, 80.0] |" in report


def test_the_search_is_resumed(study):
    before = scores(study)
    create(study, read_task(study), 5)
    screening = next(study_module.stages(study, read_task(study)))
    assert [is_done(trial) for trial in screening.trials()] == [True] * 4 + [False]
    assert [trial.values[0] for trial in screening.trials() if is_done(trial)] == before["screening"]


def test_the_settings_file_joins_the_confirmation(study, folder, monkeypatch):
    """It was no baseline then: its runs are added, and nothing else runs again."""
    monkeypatch.setattr("ppo_plus.zoo.tune.tuner.score", lambda *_: 300.0)
    before = scores(study)
    assert not is_over(study, read_task(study))
    TuningWorker(study, read_task(study)).work()
    assert is_over(study, read_task(study))
    assert scores(study) == {**before, "confirmation": [*before["confirmation"], *[300.0] * 10]}
    verdict = write_report(study, read_task(study), folder)
    assert str(verdict).startswith("No winner: none of the finalists")
    assert verdict.finalists[0].gains["settings file"].high < 0
    # The order in which runs were added does not count.
    assert verdict.baselines["default"].iqm == pytest.approx((198.0, 143.9, 260.8), abs=0.05)
