"""The random generators of a process are restored, and its logs are continued."""

import random

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.logger import Figure, Logger, configure

from ppo_plus.saving.checkpoint.process_state import (
    EVENTS,
    cut,
    get_generators,
    get_log,
    reopen,
    set_generators,
    set_log,
    sizes,
)


def draw():
    return random.random(), random.gauss(0, 1), np.random.random(), np.random.standard_normal(), th.rand(2).tolist()


def test_they_draw_the_same_again():
    draw()  # so that the second numbers of normal pairs are waiting
    states = get_generators()
    expected = [draw() for _ in range(3)]
    set_generators(states)
    assert [draw() for _ in range(3)] == expected


@pytest.mark.parametrize(("part", "value"), [("pos", 10**6), ("pos", -1), ("key", np.zeros(1, np.uint32))])
def test_numpys_does_not_read_beyond_its_state(part, value):
    states = get_generators()
    damaged = {**states["numpy"], "state": {**states["numpy"]["state"], part: value}}
    with pytest.raises(ValueError, match="not a valid state of a random generator"):
        set_generators({**states, "python": random.Random(0).getstate(), "numpy": damaged})
    found = draw()
    set_generators(states)
    assert draw() == found


def test_what_is_not_written_yet_is_kept():
    logger, other = Logger(None, []), Logger(None, [])
    logger.record("a", 1.5, exclude="tensorboard")
    logger.record("text", "said")
    logger.record_mean("mean", 1.0)
    logger.record_mean("mean", 2.0)
    logger.record("picture", Figure(None, close=True))
    set_log(other, get_log(logger))
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
    state = get_log(logger)
    log(logger, range(3, 6))
    lost = configure(str(tmp_path), ["tensorboard"])
    log(lost, range(6, 8))
    log(reopen(state, verbose=0), [30])
    # Each by itself: of files of one second TensorBoard reads number 10 before number 9.
    files = [EventAccumulator(str(path)).Reload() for path in tmp_path.glob(EVENTS) if path.stat().st_size]
    values = [(value.step, value.value) for events in files for value in events.Scalars("value")]
    assert sorted(values) == [(0, 0.0), (1, 1.0), (2, 2.0), (30, 30.0)]


def test_without_a_folder_there_is_nothing_to_reopen():
    assert reopen(get_log(Logger(None, [])), verbose=0) is None


@pytest.mark.parametrize("pattern", ["*.csv", "../run [1]/*.csv"])
def test_files_are_cut_to_what_they_were(tmp_path, pattern):
    folder = tmp_path / "run [1]"
    folder.mkdir()
    for name in ("a.csv", "b.csv", "c.txt"):
        (folder / name).write_text("one\n")
    inner = folder if pattern == "*.csv" else folder / "not there yet"
    patterns = [pattern if inner == folder else "../*.csv"]
    kept = sizes(inner, patterns)
    for name in ("a.csv", "c.txt", "new.csv"):
        with (folder / name).open("a") as file:
            file.write("two\n")
    cut(inner, patterns, kept)
    texts = {path.name: path.read_text() for path in folder.glob("*.*")}
    assert texts == {"a.csv": "one\n", "b.csv": "one\n", "c.txt": "one\ntwo\n", "new.csv": ""}
