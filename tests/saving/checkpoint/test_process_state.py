"""The random generators of a process are restored, its logs are continued, and a call resumes with the state of its
callbacks; their configuration is the new one."""

import random
import warnings
from collections import Counter as tallies
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EveryNTimesteps
from stable_baselines3.common.logger import Figure, Logger

from ppo_plus import make_vec
from ppo_plus.call import Call, tree_of
from ppo_plus.saving.checkpoint.checkpoint import restore
from ppo_plus.saving.checkpoint.process_state import (
    cut,
    get_callback,
    get_generators,
    get_logger,
    plain_attributes,
    reopen,
    set_generators,
    set_logger,
    sizes,
)
from ppo_plus.saving.format import container
from ppo_plus.saving.format.names import Refused

#: The state of a logger that has nothing.
NO_LOG = {"values": {}, "counts": {}, "excluded": {}}


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
    set_logger(other, get_logger(logger))
    assert dict(other.name_to_value) == {"a": 1.5, "text": "said", "mean": 1.5}
    assert other.name_to_excluded["a"] == ("tensorboard",)
    other.record_mean("mean", 6.0)
    assert other.name_to_value["mean"] == 3.0


@pytest.mark.parametrize("tensorboard_log", [None, "tb"])
def test_a_file_does_not_say_where_to_log(tmp_path, monkeypatch, tensorboard_log):
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "run_1" / "events.out.tfevents.1"
    victim.parent.mkdir()
    victim.write_text("precious")
    state = {**NO_LOG, "run_folder": str(victim.parent), "event_files": {victim.name: 0}}
    with pytest.warns(UserWarning, match="not continued: tensorboard_log=.*Pass the tensorboard_log of that run"):
        assert reopen(state, tensorboard_log, "run", verbose=0) is None
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["{}/victim.csv", "../../victim.csv"])
def test_what_is_not_a_log_is_not_cut(tmp_path, name):
    victim, folder = tmp_path / "victim.csv", tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    victim.write_text("precious")
    cut(folder, ["../*.csv", "*/*.csv"], {name.format(tmp_path): 0})
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kept", [{}, {"../link.csv": 0, "linked/victim.csv": 0}])
@pytest.mark.parametrize("pattern", ["../*.csv", "*/*.csv"])
def test_nothing_is_cut_through_a_link(tmp_path, kept, pattern):
    victim, folder = tmp_path / "victim.csv", tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    victim.write_text("precious")
    (folder / "linked").symlink_to(tmp_path)
    (folder.parent / "link.csv").symlink_to(victim)
    with pytest.raises(Refused, match="leads through a link"):
        cut(folder, [pattern], kept)
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


# --- callbacks -------------------------------------------------------------------------------------------------------


class Counter(BaseCallback):
    """Has attributes of all kinds."""

    def __init__(self, limit=1):
        super().__init__()
        self.limit = limit
        self.best, self.history, self.last = -np.inf, deque(maxlen=2), None
        self.worst, self.bounds = np.nan, np.array([np.nan])
        self.net, self.function = th.nn.Linear(1, 1), max

    def count(self):
        self.best, self.last = 3.0, np.arange(2.0)
        self.history.extend([{"a": (1, th.ones(1))}, 2, 3])
        self.new, self.path = 7, "elsewhere"
        self.net = th.nn.Linear(2, 2)

    def _on_step(self):
        return True


class Speaking(BaseCallback):
    """Keeps what it likes."""

    hidden = 0

    def _on_step(self):
        return True

    def get_state(self):
        return {"twice": 2 * self.hidden}

    def set_state(self, state):
        self.hidden = state["twice"] // 2


def watching(callback):
    call = Call(1.0)
    call.watch(callback)
    call.configured = [plain_attributes(part) for part in call.callbacks]
    return call


def states(call):
    return [get_callback(*pair) for pair in zip(call.callbacks, call.configured, strict=True)]


def restored(callback, states):
    """Restore states into a callback; what was warned of."""
    call = watching(callback)
    call.resumed = {"call": {"callbacks": states, "logger": NO_LOG}, "folder": "there"}
    call.resumed["generators"] = get_generators()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        restore(SimpleNamespace(call=call, logger=Logger(None, [])))
    assert call.resumed is None
    return [str(each.message) for each in warned]


def test_what_has_changed_is_kept():
    counter, other = Counter(limit=1), Counter(limit=2)
    call = watching(counter)
    counter.count()
    (state,) = states(call)  # NaN that stays has not changed
    assert state["class"] == "Counter" and state["changed"].keys() == {"best", "last", "history", "new"}
    vars(counter)["locals"] = {"new": 1}  # as SB3 does
    assert "locals" not in states(call)[0]["changed"]
    counter.history.append("later")
    counter.last[0] = 9.0
    assert restored(other, [state]) == []
    assert (other.limit, other.best, other.new) == (2, 3.0, 7)
    assert other.history == deque([2, 3]) and other.history.maxlen == 2
    assert other.last.tolist() == [0.0, 1.0]
    other.history.append("own")
    assert len(state["changed"]["history"]) == 2


def test_nested_callbacks_are_matched_by_class_and_order():
    def tree(*counters):
        inner = EveryNTimesteps(10, CallbackList([counters[1]]))
        return CallbackList([counters[0], inner, Speaking()])

    root, fresh = tree(Counter(), Counter()), [Counter(), Counter()]
    call = watching(root)
    assert [type(each).__name__ for each in tree_of(root)].count("Counter") == 2
    for value, each in enumerate(each for each in tree_of(root) if isinstance(each, Counter)):
        each.best = value
    root.callbacks[2].hidden = 21
    other = tree(*fresh)
    assert restored(other, states(call)) == []
    assert [each.best for each in fresh] == [0, 1]
    assert other.callbacks[2].hidden == 21


def test_environments_of_callbacks_may_be_closed_or_others():
    def holding(env):
        callback = Counter()
        callback.env = env
        return callback

    root, closed = holding(make_vec("CartPole-v1", 1)), holding(make_vec("CartPole-v1", 1, vec_env="subproc"))
    state = states(watching(root))
    (warned,) = restored(holding(make_vec("CartPole-v1", 2)), state)
    assert "Counter.env does not resume exactly: env has 2 environments" in warned
    closed.env.close()
    assert states(watching(closed))[0]["envs"] == {}


def test_missing_callbacks_with_state_are_named():
    root = CallbackList([Counter(), Counter(), Speaking()])
    call = watching(root)
    root.callbacks[0].count()
    root.callbacks[1].n_calls = 7
    warned = restored(CallbackList([]), states(call))
    assert warned == [
        f"the resumed run used callback {name}, which was not passed to learn(): pass it, or its state is lost"
        for name in ("Counter", "Speaking")
    ]


@pytest.mark.parametrize("name", ["_on_step", "__class__", "num_timesteps.x"])
def test_a_file_sets_no_methods_and_no_models(name):
    state = {"class": "Counter", "own": None, "changed": {name: 3}, "envs": {}}
    with pytest.raises(Refused, match=f"it sets '?{name}"):
        restored(Counter(), [state])


@pytest.mark.parametrize("value", ["a", b"a", np.array("a"), {"a": ("a",)}])
def test_texts_and_paths_are_neither_saved_nor_restored(value):
    counter = Counter()
    call = watching(counter)
    counter.limit = value
    assert states(call)[0]["changed"] == {}
    state = {"class": "Counter", "own": None, "changed": {"limit": value, "best": 1.0}, "envs": {}}
    other = Counter()
    assert [each.partition(":")[0] for each in restored(other, [state])] == ["Counter.limit is not restored"]
    assert (other.limit, other.best) == (1, 1.0)


LEARNED = th.zeros(1, requires_grad=True)
STATES = [tallies({"a": 2}), np.random.default_rng(0), np.ones(2, np.complex64), [random.Random(0)], LEARNED]


@pytest.mark.parametrize("value", STATES, ids=lambda each: type(each).__name__)
def test_other_kinds_of_state_are_left_out_and_generators_and_containers_named(value, tmp_path):
    counter = Counter()
    call = watching(counter)
    counter.mine = value
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        (state,) = states(call)
    assert "mine" not in state["changed"]
    is_named = isinstance(value, (dict, list, tuple, np.random.Generator, random.Random, th.Tensor))
    messages = [str(each.message) for each in warned]
    said = "checkpoints lack Counter.mine: define get_state and set_state in the callback to keep it"
    assert messages == [said] * is_named
    container.write(tmp_path / "state.zip", "test", state)


def test_a_container_that_gets_other_values_is_named():
    """An empty list is made of numbers, and one of records with texts is not: it is lost."""
    counter = Counter()
    counter.episodes, counter.names = [], {"a"}
    call = watching(counter)
    counter.episodes.append({"length": 3, "level": "hard"})
    counter.names.add("b")  # was not made of numbers before
    with pytest.warns(UserWarning, match=r"^checkpoints lack Counter.episodes: define get_state"):
        (state,) = states(call)
    assert not {"episodes", "names"} & state["changed"].keys()


def test_a_checkpoint_does_not_redirect_callbacks(tmp_path):
    changed = {"save_path": 5, "name_prefix": None, "save_freq": 1, "verbose": 2, "n_calls": 3, "best_mean_reward": 4.0}
    callback = CheckpointCallback(10, str(tmp_path))
    configured = {name: value for name, value in vars(callback).items() if name != "n_calls"}
    warned = restored(callback, [{"class": "CheckpointCallback", "own": None, "changed": changed, "envs": {}}])
    named = {each.partition(" ")[0].partition(".")[2] for each in warned}
    assert named == changed.keys() - {"n_calls", "best_mean_reward"}
    assert {name: value for name, value in vars(callback).items() if name in configured} == configured
    assert callback.n_calls == 3
