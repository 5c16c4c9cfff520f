"""Logs are continued."""

import pytest
from stable_baselines3.common.logger import Figure, Logger, configure

from ppo_plus.saving.checkpoint import log_state


def test_what_is_not_written_yet_is_kept():
    logger, other = Logger(None, []), Logger(None, [])
    logger.record("a", 1.5, exclude="tensorboard")
    logger.record("text", "said")
    logger.record_mean("mean", 1.0)
    logger.record_mean("mean", 2.0)
    logger.record("picture", Figure(None, close=True))
    log_state.set_state(other, log_state.get_state(logger))
    assert dict(other.name_to_value) == {"a": 1.5, "text": "said", "mean": 1.5}
    assert other.name_to_excluded["a"] == ("tensorboard",)
    other.record_mean("mean", 6.0)
    assert other.name_to_value["mean"] == 3.0


def test_tensorboards_files_are_cut_and_gone_on_with(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def log(logger, steps):
        for step in steps:
            logger.record("value", float(step))
            logger.dump(step)

    logger = configure(str(tmp_path), ["tensorboard"])
    log(logger, range(3))
    state = log_state.get_state(logger)
    log(logger, range(3, 6))
    lost = configure(str(tmp_path), ["tensorboard"])
    log(lost, range(6, 8))
    log(log_state.reopen(state, verbose=0), [30])
    # Each by itself: of files of one second TensorBoard reads number 10 before number 9.
    files = [EventAccumulator(str(path)).Reload() for path in tmp_path.glob(log_state.EVENTS) if path.stat().st_size]
    values = [(value.step, value.value) for events in files for value in events.Scalars("value")]
    assert sorted(values) == [(0, 0.0), (1, 1.0), (2, 2.0), (30, 30.0)]


def test_without_a_folder_there_is_nothing_to_reopen():
    assert log_state.reopen(log_state.get_state(Logger(None, [])), verbose=0) is None


@pytest.mark.parametrize("pattern", ["*.csv", "../run [1]/*.csv"])
def test_files_are_cut_to_what_they_were(tmp_path, pattern):
    folder = tmp_path / "run [1]"
    folder.mkdir()
    for name in ("a.csv", "b.csv", "c.txt"):
        (folder / name).write_text("one\n")
    inner = folder if pattern == "*.csv" else folder / "not there yet"
    patterns = [pattern if inner == folder else "../*.csv"]
    kept = log_state.sizes(inner, patterns)
    for name in ("a.csv", "c.txt", "new.csv"):
        with (folder / name).open("a") as file:
            file.write("two\n")
    log_state.cut(inner, patterns, kept)
    texts = {path.name: path.read_text() for path in folder.glob("*.*")}
    assert texts == {"a.csv": "one\n", "b.csv": "one\n", "c.txt": "one\ntwo\n", "new.csv": ""}
