"""Heartbeats of workers by themselves; with jobs: ``test_jobs.py``."""

import time

import pytest
from optuna.trial import TrialState

from ppo_plus.zoo.tune.attributes import HEARTBEAT
from ppo_plus.zoo.tune.heartbeats import Heartbeats
from ppo_plus.zoo.tune.stages import make_study
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS, open_storage


@pytest.fixture
def storage(tmp_path):
    opened = open_storage(f"sqlite:///{tmp_path / 'study.db'}")
    make_study(opened, "study")
    return opened


def wait_for(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_write_that_fails_does_not_end_them(storage, monkeypatch):
    trial_id = storage.create_new_trial(storage.get_study_id_from_name("study"))
    write, errors = storage.set_trial_user_attr, [error("gone") for error in STORAGE_ERRORS]

    def failing(*args):
        if errors:
            raise errors.pop()
        write(*args)

    monkeypatch.setattr(storage, "set_trial_user_attr", failing)
    with Heartbeats(0.04).of(storage, trial_id):
        wait_for(lambda: storage.get_trial(trial_id).user_attrs.get(HEARTBEAT, 0) > len(STORAGE_ERRORS))


def test_they_end_with_the_trial(storage, recwarn):
    trial_id = storage.create_new_trial(storage.get_study_id_from_name("study"))
    with Heartbeats(0.04).of(storage, trial_id):
        wait_for(lambda: HEARTBEAT in storage.get_trial(trial_id).user_attrs)
        storage.set_trial_state_values(trial_id, TrialState.FAIL)
        time.sleep(0.1)
    assert not recwarn
