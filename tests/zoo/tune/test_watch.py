"""What is shown of a study while it runs."""

import io

import optuna
import pytest
from optuna.trial import TrialState
from rich.console import Console

from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import BUDGET, CANDIDATE, SCORES, SEED, SETTINGS, Study, make_study
from ppo_plus.zoo.tune.storage import open_storage
from ppo_plus.zoo.tune.watch import Watch


@pytest.fixture
def study(tmp_path):
    """Two trials are done, one is running, one waits."""
    study = Study("Pendulum-v1", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    optuna.create_study(study_name=study.name, storage=study.storage, direction="maximize")
    study.set(BUDGET, 4)
    study.screening.fill([{SETTINGS: {}, SCORES: [1.0]}] * 4)
    first, second, third = (study.screening.claim() for _ in range(3))
    study.screening.tell(first, TrialState.COMPLETE, -200.5)
    study.screening.fail(second, "it diverged")
    study.screening.trial(third).report(-300.25, 500)
    return study


def shown(study, terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    return console, Watch(study, Plan(1000), console)


def test_a_line_for_the_study_and_a_bar_for_each_worker(study):
    console, watch = shown(study, terminal=True)
    with watch.running():
        watch.update()
    text = console.file.getvalue()
    assert "Pendulum-v1, screening: 2 of 4 done, 0 pruned, 1 failed, best -200.50 (trial 0)" in text
    assert "trial 2" in text and "500 of 1,000 steps, -300.25" in text and "━" in text


def test_plain_lines_without_a_terminal(study):
    console, watch = shown(study, terminal=False)
    with watch.running():
        watch.update()
        assert console.file.getvalue() == ""
        study.screening.tell(study.screening.trials()[2], TrialState.COMPLETE, -300.25)
        watch.update()
        watch.update()
    assert console.file.getvalue() == "screening, trial 2: complete -300.25\n"


def test_a_pruned_trial_has_no_score_and_a_run_says_of_what(study):
    console, watch = shown(study, terminal=False)
    with watch.running():
        study.screening.tell(study.screening.trials()[2], TrialState.PRUNED)
        study.screening.fail(study.screening.claim(), "it [really] diverged")
        confirmation = study.runs("confirmation", 4)
        make_study(study.storage, confirmation.name)
        confirmation.fill([{CANDIDATE: 3, SEED: 1_000_000, SETTINGS: {}}])
        confirmation.tell(confirmation.claim(), TrialState.COMPLETE, 1.5)
        watch.update()
    assert console.file.getvalue().splitlines() == [
        "screening, trial 2: pruned after 500 steps",
        "screening, trial 3: failed: it [really] diverged",
        "confirmation, trial 3, seed 1000000: complete 1.50",
    ]


def test_dashboard_shows_the_storage(study):
    """Each stage is a study of Optuna's, so its dashboard works as it is."""
    dashboard = pytest.importorskip("optuna_dashboard", reason="pip install optuna-dashboard")
    app = dashboard.wsgi(study.storage)
    answer = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/api/studies", "wsgi.input": io.BytesIO()}
    body = b"".join(app(environ, lambda status, _headers, *_: answer.append(status)))
    assert answer == ["200 OK"] and b"Pendulum-v1" in body
