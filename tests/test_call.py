"""A call of ``learn`` orders its callbacks, and ends with an error."""

from io import StringIO
from types import SimpleNamespace

import pytest
from models import make_model
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EveryNTimesteps
from tqdm import tqdm

from ppo_plus import Checkpoints, EvalAfterUpdates
from ppo_plus.call import Call


class Quiet(BaseCallback):
    def _on_step(self):
        return True


def test_what_takes_checkpoints_comes_first():
    class First(Quiet):
        comes_first = in_all_processes = True

    given = [Quiet(), CallbackList([Quiet(), First()])]
    root = CallbackList(given)
    call = Call(1.0)
    call.watch(root)
    assert [type(each).__name__ for each in call.callbacks] == ["First", "Quiet", "Quiet"]
    assert call.in_all_processes == ["First"]
    assert type(given[0]) is Quiet  # the user's list is as it was


@pytest.mark.parametrize("inner", [Checkpoints("."), EvalAfterUpdates("CartPole-v1")])
def test_what_works_between_rollouts_is_not_called_by_other_callbacks(inner):
    with pytest.raises(ValueError, match="in EveryNTimesteps is not called.*: pass it to learn directly"):
        make_model().learn(64, [EveryNTimesteps(16, CallbackList([inner]))])


def test_a_call_is_over_after_an_error():
    model, seen = make_model(), []

    def fail(*_):
        seen.append((model.call.total_timesteps, [type(each) for each in model.call.callbacks]))
        raise KeyError

    with pytest.raises(KeyError):
        model.learn(64, callback=fail)
    ((total, callbacks),) = seen
    assert (total, callbacks) == (64, [ConvertCallback])
    assert model.call.total_timesteps is None and not model.call.callbacks


@pytest.mark.parametrize("name", ["pbar", "progress_bar", "bar"])
def test_progress_bars_are_closed_after_an_error(name):
    class Bar:
        n_open, start_t = 0, 0.0

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


@pytest.mark.parametrize("bar", [tqdm(total=128, file=StringIO()), (1.0, 2.0), SimpleNamespace(close=3.5)])
def test_what_callbacks_call_a_bar_is_theirs(bar):
    """A bar of several calls stays open, and a bar of prices is none."""

    class Showing(Quiet):
        def _init_callback(self):
            self.bar = bar

    make_model().learn(16, Showing())
    assert not getattr(bar, "disable", False)


def test_a_second_learn_shows_sb3s_progress_bar_after_an_error():
    model = make_model()

    def fail(*_):
        raise KeyError("the kite is gone")

    for _ in range(2):
        with pytest.raises(KeyError, match="the kite"):
            model.learn(64, callback=fail, progress_bar=True)
    model.learn(64, progress_bar=True)
