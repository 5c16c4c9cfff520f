"""Jobs are done exactly once, whatever processes do at the same time, and wherever they die. An unusable storage is an
error of one line, without its password."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier

import optuna
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import TrialState, create_trial
from parametrization import sample
from sqlalchemy.exc import OperationalError
from storages import close

from ppo_plus.saving.files import append_lines
from ppo_plus.zoo.tune import jobs as jobs_module
from ppo_plus.zoo.tune.jobs import (
    DEATHS,
    HEARTBEAT,
    JOB,
    MAX_DEATHS,
    REASON,
    REPLACES,
    STORAGE_ERRORS,
    Heartbeats,
    Jobs,
    StorageError,
    holders,
    is_done,
    named_errors,
    open_storage,
)

#: The grace period of the jobs, in seconds: so long that no worker counts as dead because the machine is busy.
GRACE = 3600
names = (f"study {os.getpid()} {number}" for number in count())


@pytest.fixture
def jobs(storage):
    name = next(names)
    optuna.create_study(study_name=name, storage=storage, direction="maximize")
    return Jobs(storage, name, heartbeats=Heartbeats(GRACE))


def pass_by(jobs, seconds):
    """Let time pass for processes that watch heartbeats."""
    start = jobs.heartbeats.clock()
    jobs.heartbeats.clock = lambda: start + seconds


def states(jobs):
    return [trial.state.name for trial in jobs.study().get_trials(deepcopy=False)]


def test_filling_again_adds_only_what_is_missing(jobs):
    """Trials that were added with Optuna itself are no jobs."""
    jobs.study().enqueue_trial({"x": 0.5})
    jobs.fill([{"seed": 0}, {"seed": 1}], [{"x": 0.5}])
    jobs.fill([{"seed": 0}, {"seed": 1}, {"seed": 2}], [{"x": 0.5}])
    filled = [(trial.user_attrs["seed"], trial.system_attrs["fixed_params"]) for trial in jobs.trials()]
    assert filled == [(0, {"x": 0.5}), (1, {}), (2, {})]
    while (claimed := jobs.claim()) is not None:
        jobs.finish(claimed, TrialState.COMPLETE, 1.0)
    assert states(jobs) == ["WAITING", *["COMPLETE"] * 3]


def test_each_job_is_claimed_once(jobs, url):
    """By many at the same time, each with connections of its own as processes have them."""
    jobs.fill([{}] * 12)

    def claim_all(_):
        own = Jobs(open_storage(url), jobs.name)
        claimed = []
        while (trial := own.claim()) is not None:
            claimed.append(trial.number)
        close(own.storage)
        return claimed

    with ThreadPoolExecutor(4) as threads:
        claimed = [number for numbers in threads.map(claim_all, range(4)) for number in numbers]
    assert sorted(claimed) == list(range(12))


@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True)
def test_several_begin_a_study_at_once(url):
    """Each finds a new database, in which one makes the tables."""
    barrier = Barrier(4)
    if url.startswith("postgresql"):
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("CREATE DATABASE empty")
        url = url.removesuffix("postgres") + "empty"

    def begin(_):
        barrier.wait()
        close(open_storage(url))

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(begin, range(4))] == [None] * 4


def test_a_claimed_trial_is_told_and_counts(jobs):
    jobs.fill([{}] * 3)
    first, second, third = (jobs.claim() for _ in range(3))
    assert jobs.claim() is None
    jobs.finish(first, TrialState.COMPLETE, 1.5)
    jobs.finish(second, TrialState.FAIL, reason="it diverged")
    assert [is_done(trial) for trial in jobs.trials()] == [True, True, False]
    jobs.finish(third, TrialState.FAIL, interrupted=True)
    assert jobs.claim().user_attrs[JOB] == 2
    assert [trial.state.name for trial in jobs.trials()] == ["COMPLETE", "FAIL", "RUNNING"]
    assert jobs.trials()[1].user_attrs[REASON] == "it diverged"


def test_parameters_of_an_interrupted_trial_are_tried_again(jobs):
    jobs.fill([{"seed": 7}], [{"x": 0.25}])
    claimed = jobs.claim()
    trial = jobs.trial(claimed)
    sampled = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    jobs.finish(claimed, TrialState.FAIL, interrupted=True)
    again = jobs.claim()
    trial = jobs.trial(again)
    assert (trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)) == sampled
    assert trial.user_attrs["seed"] == 7
    assert again.user_attrs.get(DEATHS) == 0


def test_heartbeats_keep_a_trial_and_silence_loses_it(jobs):
    jobs.fill([{}])
    claimed = jobs.claim()
    assert jobs.claim() is None
    jobs.heartbeats.interval = 1
    with jobs.heartbeats.of(jobs.storage, claimed._trial_id):
        wait_for(lambda: HEARTBEAT in jobs.storage.get_trial(claimed._trial_id).user_attrs)
    pass_by(jobs, GRACE + 1)
    assert jobs.claim() is None
    # On a busy machine time passes besides.
    pass_by(jobs, GRACE / 2)
    assert jobs.claim() is None
    pass_by(jobs, GRACE / 2 + 1)
    again = jobs.claim()
    assert again.user_attrs[REPLACES] == claimed.number and again.user_attrs[DEATHS] == 1
    # The silent worker wakes up: its result is not wanted any more.
    with pytest.raises(UpdateFinishedTrialError):
        jobs.trial(claimed).report(1.0, 1)
    jobs.finish(claimed, TrialState.COMPLETE, 1.0)
    jobs.finish(claimed, TrialState.FAIL, interrupted=True)
    jobs.finish(again, TrialState.COMPLETE, 2.0)
    assert states(jobs) == ["FAIL", "COMPLETE"]


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.PRUNED])
def test_an_end_that_was_written_but_not_confirmed_is_one(jobs, state, monkeypatch):
    jobs.fill([{}])
    claimed = jobs.claim()
    end = jobs.storage.set_trial_state_values

    def twice(*args, **kwargs):
        end(*args, **kwargs)
        return end(*args, **kwargs)

    monkeypatch.setattr(jobs.storage, "set_trial_state_values", twice)
    jobs.finish(claimed, state, 1.0 if state == TrialState.COMPLETE else None)
    assert states(jobs) == [state.name]


@pytest.mark.slow
@pytest.mark.parametrize("at", sample(["SELECT", "INSERT INTO trial_user_attributes", "UPDATE trials"], 3))
def test_a_connection_that_is_cut_in_a_transaction_loses_nothing(postgres, at):
    """As a server that is shut down does it: here by ending the session at the first statement of a kind."""
    storage = open_storage(postgres)
    jobs = Jobs(storage, next(names))
    optuna.create_study(study_name=jobs.name, storage=storage, direction="maximize")
    engine = storage._backend.engine
    cut = []

    def cut_off(connection, cursor, statement, *_):
        if statement.startswith(at) and not cut:
            cut.append(statement)
            pid = connection.connection.dbapi_connection.info.backend_pid
            with sqlalchemy.create_engine(postgres).connect() as other:
                assert other.scalar(sqlalchemy.text(f"SELECT pg_terminate_backend({pid}, 5000)"))

    sqlalchemy.event.listen(engine, "before_cursor_execute", cut_off)
    jobs.fill([{}, {}])
    while (claimed := jobs.claim()) is not None:
        jobs.finish(claimed, TrialState.COMPLETE, 1.0)
    assert cut and states(jobs) == ["COMPLETE"] * 2
    close(storage)


def test_what_kills_its_workers_is_given_up(jobs):
    jobs.fill([{}])
    for _ in range(MAX_DEATHS):
        jobs.storage.set_trial_state_values(jobs.claim()._trial_id, TrialState.FAIL)
    assert jobs.claim() is None
    assert [is_done(trial) for trial in jobs.trials()] == [True]


def numbered(trials):
    """Frozen trials from pairs of job and what is replaced."""
    frozen = []
    for number, (job, replaces) in enumerate(trials):
        attrs = {JOB: job} if replaces is None else {JOB: job, REPLACES: replaces}
        trial = create_trial(state=TrialState.FAIL, user_attrs=attrs)
        trial.number = number
        frozen.append(trial)
    return frozen


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 9)), max_size=10), st.randoms())
def test_all_agree_on_the_current_trial_of_a_job(trials, random):
    """Whatever is added, and in whatever order it is read: what holds stays, until it is replaced by name."""
    frozen = numbered(trials)
    shuffled = random.sample(frozen, len(frozen))
    assert holders(shuffled) == holders(frozen)
    for size in range(len(frozen)):
        before, after, new = holders(frozen[:size]), holders(frozen[: size + 1]), frozen[size]
        changed = {job for job in after if after[job] is not before.get(job)}
        job = (new.user_attrs[JOB], None)
        assert changed <= {job}
        if changed and before.get(job) is not None:
            assert new.user_attrs[REPLACES] == before[job].number


def wait_for(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_write_that_fails_does_not_end_heartbeats(jobs, monkeypatch, recwarn):
    jobs.fill([{}])
    storage, trial_id = jobs.storage, jobs.claim()._trial_id
    write, errors = storage.set_trial_user_attr, [error("gone") for error in STORAGE_ERRORS]

    def failing(*args):
        if errors:
            raise errors.pop()
        write(*args)

    monkeypatch.setattr(storage, "set_trial_user_attr", failing)
    with Heartbeats(0.04).of(storage, trial_id):
        wait_for(lambda: HEARTBEAT in storage.get_trial(trial_id).user_attrs)
        # They end with the trial.
        storage.set_trial_state_values(trial_id, TrialState.FAIL)
        time.sleep(0.1)
    assert not errors and not recwarn


#: Storages that cannot be used, the contents of the file, and what the message says.
UNUSABLE = [
    ("postgresql+psycopg://me:secret@127.0.0.1:1/x", None, "refused"),
    (
        "postgresql+psycopg2://me:secret@127.0.0.1:1/x",
        None,
        r"psycopg2 is not supported: use .*install 'psycopg.binary.'",
    ),
    ("mysql://me@127.0.0.1:1/x?password=secret", None, "mysql is not supported: use FILE.log, sqlite:///FILE or "),
    ("sqlite:////proc/nowhere/study.db", None, "/proc/nowhere"),
    ("/proc/nowhere/study.log", None, "/proc/nowhere"),
    ("study.db", None, "study.db is not supported: use FILE.log, sqlite:///FILE or "),
    ("sqlite:study.db", None, "URL"),
    ("sqlite:///study.db", "something else " * 100, "not a database"),
    *(
        ("train.log", f"{line}\n" * 2, "train.log': .")
        for line in ("something else", "7", "[]", "{}", '{"op_code": 99}', '{"op_code": 4}', "ä\0")
    ),
]


@pytest.mark.parametrize(("url", "contents", "message"), UNUSABLE)
def test_unusable(tmp_path, monkeypatch, url, contents, message):
    monkeypatch.chdir(tmp_path)
    if contents is not None:
        Path(url.removeprefix("sqlite:///")).write_text(contents, "latin-1")
    with pytest.raises(StorageError, match=f"cannot use the storage .*{message}") as error:
        open_storage(url)
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


def test_a_line_that_damages_a_journal_is_an_error(tmp_path):
    """Without the line, the study continues; an editor may have removed the end of the last one."""
    journal = tmp_path / "study.log"
    study = optuna.create_study(storage=(storage := open_storage(str(journal))), study_name="a")
    study.set_user_attr("a", 1)
    whole = journal.read_text()
    journal.write_text('{"op_code": 2, "wor{"op_code": 2}\n' + whole)
    with pytest.raises(StorageError, match="cannot use the storage .*study.log': .*delimiter"):
        open_storage(str(journal))
    journal.write_text(whole.removesuffix("\n"))
    study = optuna.load_study(storage=open_storage(str(journal)), study_name="a")
    study.set_user_attr("b", 2)
    assert optuna.load_study(storage=open_storage(str(journal)), study_name="a").user_attrs == {"a": 1, "b": 2}
    journal.unlink()
    with pytest.raises(StorageError, match="the storage is unavailable: .*No such file"), named_errors():
        storage.get_all_studies()


@pytest.mark.parametrize("part", ['{"op_code": 2, "wor', "{", "\0\0", "ä"])
def test_what_an_unfinished_line_holds_back_is_nothing(tmp_path, part):
    """A full disk or a power failure has cut the last line: it is gone, and what the next command records is there."""
    journal = tmp_path / "study.log"
    optuna.create_study(storage=(storage := open_storage(str(journal))), study_name="a")
    with journal.open("ab") as file:
        file.write(part.encode("latin-1"))
    optuna.load_study(storage=open_storage(str(journal)), study_name="a").set_user_attr("a", 1)
    for other in (storage, open_storage(str(journal))):
        assert optuna.load_study(storage=other, study_name="a").user_attrs == {"a": 1}


def test_a_full_disk_is_one(tmp_path, monkeypatch):
    """Of a new database, of one that is written to, and of a journal."""

    def fail(*args, **kwargs):
        raise OperationalError("", {}, Exception("database or disk is full"))

    def fail_to_write(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create():
        with named_errors():
            optuna.create_study(study_name="a", storage=journal)

    def write():
        with named_errors():
            raise StorageInternalError from OperationalError("", {}, Exception("database or disk is full"))

    journal = open_storage(str(tmp_path / "study.log"))
    monkeypatch.setattr(jobs_module, "RDBStorage", fail)
    monkeypatch.setattr(os, "fsync", fail_to_write)
    for use in (lambda: open_storage(f"sqlite:///{tmp_path / 'study.db'}"), create, write):
        with pytest.raises(OSError, match="disk is full|No space left") as raised:
            use()
        assert raised.value.errno == errno.ENOSPC


def test_a_lock_that_another_worker_took_over_is_an_error_of_the_storage(tmp_path, monkeypatch):
    """The worker that paused for too long ends, and not the study."""

    def slowly(file, text):
        append_lines(file, text)
        (tmp_path / "study.log.lock").unlink()

    storage = open_storage(str(tmp_path / "study.log"))
    monkeypatch.setattr("ppo_plus.zoo.tune.jobs.append_lines", slowly)
    with pytest.raises(STORAGE_ERRORS, match="did not possess lock"):
        optuna.create_study(study_name="study", storage=storage)
