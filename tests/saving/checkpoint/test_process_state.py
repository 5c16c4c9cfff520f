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
from ppo_plus.saving.format.names import Refused


def draw():
    return random.random(), random.gauss(0, 1), np.random.random(), np.random.standard_normal(), th.rand(2).tolist()


def test_they_draw_the_same_again():
    draw()  # so that the second numbers of normal pairs are waiting
    states = get_generators()
    expected = [draw() for _ in range(3)]
    set_generators(states)
    assert [draw() for _ in range(3)] == expected


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_the_generators_of_gpus_are_restored(kind, monkeypatch):
    gpus, states = getattr(th, kind), [th.zeros(2), th.ones(2)][: 1 if kind == "mps" else 2]
    present = {"is_initialized": True, "is_available": True, "device_count": len(states)}
    for name, value in present.items():
        monkeypatch.setattr(gpus, name, lambda value=value: value, raising=False)
    monkeypatch.setattr(gpus, "get_rng_state", lambda device=0: states[device], raising=False)
    restored = {}
    monkeypatch.setattr(gpus, "set_rng_state", lambda state, device: restored.update({device: state}), raising=False)
    set_generators(get_generators())
    assert [*restored.values()] == states


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

    folder = tmp_path / "then" / "run_3"
    logger = configure(str(folder), ["tensorboard"])
    log(logger, range(3))
    state = get_log(logger)
    log(logger, range(3, 6))
    lost = configure(str(folder), ["tensorboard"])
    log(lost, range(6, 8))
    folder.parent.rename(tmp_path / "now")
    log(reopen(state, str(tmp_path / "now"), "run", verbose=0), [30])
    assert [path.name for path in tmp_path.iterdir()] == ["now"]
    # Each by itself: of files of one second TensorBoard reads number 10 before number 9.
    files = [EventAccumulator(str(path)).Reload() for path in tmp_path.rglob(EVENTS) if path.stat().st_size]
    values = [(value.step, value.value) for events in files for value in events.Scalars("value")]
    assert sorted(values) == [(0, 0.0), (1, 1.0), (2, 2.0), (30, 30.0)]


def test_without_files_there_is_nothing_to_reopen(tmp_path):
    assert reopen(get_log(Logger(None, [])), None, "run", verbose=0) is None
    # SB3's logger has a folder even if nothing is logged.
    assert reopen(get_log(configure(str(tmp_path / "run_1"), [""])), str(tmp_path), "run", verbose=0) is None


@pytest.mark.parametrize("tensorboard_log", [None, "tb"])
def test_a_file_does_not_say_where_to_log(tmp_path, monkeypatch, tensorboard_log):
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "run_1" / "events.out.tfevents.1"
    victim.parent.mkdir()
    victim.write_text("precious")
    state = {"values": {}, "counts": {}, "excluded": {}, "folder": str(victim.parent), "sizes": {victim.name: 0}}
    with pytest.warns(UserWarning, match="not continued: tensorboard_log=.*Pass the tensorboard_log of that run"):
        assert reopen(state, tensorboard_log, "run", verbose=0) is None
    state["sizes"] = {f"../../run_1/{victim.name}": 0}
    (tmp_path / "tb" / "run_1").mkdir(parents=True)
    if tensorboard_log is not None:
        with pytest.raises(Refused, match="which is not among the logs"):
            reopen(state, tensorboard_log, "run", verbose=0)
    assert victim.read_text() == "precious"


#: Names that a checkpoint may not have: absolute, above the folder, a link, through a link.
ELSEWHERE = ["{}/victim.csv", "../../victim.csv", "../link.csv", "linked/victim.csv"]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_not_a_log_is_not_cut(tmp_path, name):
    victim, folder = tmp_path / "victim.csv", tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    victim.write_text("precious")
    if "link" in name:
        (folder / name).parent.is_dir() or (folder / "linked").symlink_to(tmp_path)
        (folder / name).exists() or (folder / name).symlink_to(victim)
    with pytest.raises(Refused, match="not among the logs|leads through a link"):
        cut(folder, ["../*.csv", "*/*.csv"], {name.format(tmp_path): 0})
    assert victim.read_text() == "precious"
    if "link" in name:  # what the patterns of the user match, neither
        with pytest.raises(Refused, match="leads through a link"):
            cut(folder, ["../*.csv", "*/*.csv"], {})
        assert victim.read_text() == "precious"


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "there" / "run").mkdir(parents=True)
    (tmp_path / "here").symlink_to(tmp_path / "there")
    log = tmp_path / "there" / "run" / "0.csv"
    log.write_text("one\ntwo\n")
    cut(tmp_path / "here" / "run" / "checkpoints", ["../*.csv"], {"../0.csv": 4})
    assert log.read_text() == "one\n"


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
