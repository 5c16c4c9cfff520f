"""A call resumes with the state of its callbacks; their configuration is the new one."""

import warnings
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from models import make_model
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EveryNTimesteps
from stable_baselines3.common.logger import Logger

from ppo_plus.call import Call, calling, tree_of
from ppo_plus.saving.checkpoint.process_state import get_generators
from ppo_plus.saving.format.names import Refused


class Counter(BaseCallback):
    """Has attributes of all kinds."""

    def __init__(self, limit=1):
        super().__init__()
        self.limit = limit
        self.best, self.history, self.last = -np.inf, deque(maxlen=2), None
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
    return call


def states(call):
    return call.state()["callbacks"]


def restored(callback, states):
    """Restore states into a callback; what was warned of."""
    model = SimpleNamespace(logger=Logger(None, []))
    call = watching(callback)
    call.resumed = {
        "call": {"callbacks": states},
        "log": {"values": {}, "counts": {}, "excluded": {}},
        "logs": {"folder": "there"},
    }
    call.resumed["generators"] = get_generators()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        call.restore(model)
    assert call.resumed is None
    return [str(each.message) for each in warned]


def test_what_has_changed_is_kept():
    counter, other = Counter(limit=1), Counter(limit=2)
    call = watching(counter)
    counter.count()
    (state,) = states(call)
    assert state["class"] == "Counter" and state["changed"].keys() == {"best", "last", "history", "new"}
    counter.history.append("later")
    counter.last[0] = 9.0
    assert restored(other, [state]) == []
    assert (other.limit, other.best, other.new) == (2, 3.0, 7)
    assert other.history == deque([2, 3]) and other.history.maxlen == 2
    assert other.last.tolist() == [0.0, 1.0]
    other.history.append("own")
    assert len(state["changed"]["history"]) == 2


def test_nan_that_stays_has_not_changed():
    counter = Counter()
    counter.best, counter.last = np.nan, np.array([np.nan])
    call = watching(counter)
    assert states(call)[0]["changed"] == {}


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


@pytest.mark.parametrize("name", ["on_step", "_on_step", "model", "parent", "__class__", "a.b", "num_timesteps.x"])
def test_a_file_sets_no_methods_and_no_models(name):
    state = {"class": "Counter", "own": None, "changed": {name: 3}, "envs": {}}
    with pytest.raises(Refused, match=f"it sets '?{name}"):
        restored(Counter(), [state])


@pytest.mark.parametrize("value", ["a", b"a", np.array("a"), np.str_("a"), ["a"], {1: "a"}, {"a": ("a",)}])
def test_texts_and_paths_are_neither_saved_nor_restored(value):
    counter = Counter()
    call = watching(counter)
    counter.limit = value
    assert states(call)[0]["changed"] == {}
    state = {"class": "Counter", "own": None, "changed": {"limit": value, "best": 1.0}, "envs": {}}
    assert restored(other := Counter(), [state]) == ["Counter.limit is not restored: it is not made of numbers"]
    assert (other.limit, other.best) == (1, 1.0)


def test_a_checkpoint_does_not_redirect_callbacks(tmp_path):
    changed = {"save_path": 5, "name_prefix": None, "save_freq": 1, "verbose": 2, "n_calls": 3, "best_mean_reward": 4.0}
    callback = CheckpointCallback(10, str(tmp_path))
    configured = {name: value for name, value in vars(callback).items() if name != "n_calls"}
    warned = restored(callback, [{"class": "CheckpointCallback", "own": None, "changed": changed, "envs": {}}])
    assert {each.partition(" ")[0].partition(".")[2] for each in warned} == changed.keys() - {
        "n_calls",
        "best_mean_reward",
    }
    assert all("the new callback has" in each or "not made of numbers" in each for each in warned)
    assert {name: value for name, value in vars(callback).items() if name in configured} == configured
    assert callback.n_calls == 3


class Patient(BaseCallback):
    """Counts down an argument, and has a folder that is not one."""

    def __init__(self, patience):
        super().__init__()
        self.patience, self.folder = patience, "here"

    def _on_step(self):
        return True


def test_arguments_and_texts_stay_as_configured():
    patient, other = Patient(3), Patient(3)
    call = watching(patient)
    patient.patience, patient.folder, patient.n_calls = 2, 7, 5
    assert restored(other, states(call)) == [
        "Patient.patience is not restored: it is an argument, which the new callback has (to keep it, define get_state "
        "and set_state)",
        "Patient.folder is not restored: it is not made of numbers",
    ]
    assert (other.patience, other.folder, other.n_calls) == (3, "here", 5)


@pytest.mark.parametrize("name", ["model", "logger", "locals", "parent"])
def test_attributes_that_sb3_sets_are_not_state(name):
    counter = Counter()
    call = watching(counter)
    vars(counter)[name] = {"new": 1}
    assert states(call)[0]["changed"] == {}


def test_what_takes_checkpoints_comes_first():
    class First(Counter):
        comes_first = in_all_processes = True

    given = [Counter(), CallbackList([Counter(), First()])]
    root = CallbackList(given)
    call = watching(root)
    assert [type(each).__name__ for each in call.callbacks] == ["First", "Counter", "Counter"]
    assert call.in_all_processes == ["First"]
    assert type(given[0]) is Counter  # the user's list is as it was


def test_a_call_is_over_after_an_error():
    model = SimpleNamespace(call=Call())
    with pytest.raises(KeyError), calling(model, 64.0) as call:
        assert model.call is call and call.total_timesteps == 64.0
        raise KeyError
    assert model.call is not call and model.call.total_timesteps is None


@pytest.mark.parametrize("name", ["pbar", "progress_bar", "bar"])
def test_progress_bars_are_closed_after_an_error(name):
    class Bar:
        n_open = 0

        def __init__(self):
            assert Bar.n_open == 0, "only one may be open"
            Bar.n_open = 1

        def close(self):
            Bar.n_open = 0

    class Showing(BaseCallback):
        def _on_training_start(self):
            setattr(self, name, Bar())

        def _on_step(self):
            raise KeyError("the kite is gone")

    model = make_model()
    for _ in range(2):
        with pytest.raises(KeyError, match="the kite"):
            model.learn(64, callback=Showing())
    assert Bar.n_open == 0


def test_a_second_learn_shows_sb3s_progress_bar_after_an_error():
    model = make_model()

    def fail(*_):
        raise KeyError("the kite is gone")

    for _ in range(2):
        with pytest.raises(KeyError, match="the kite"):
            model.learn(64, callback=fail, progress_bar=True)
    model.learn(64, progress_bar=True)
