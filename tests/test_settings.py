"""The arguments as one value: sizes that do not fit together, numbers that no machine can hold."""

import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, VECTOR, RandomEnv, vec
from stable_baselines3.common.callbacks import CallbackList, EvalCallback

from ppo_plus import PPO_Plus
from ppo_plus.formulas.losses import Coefficients
from ppo_plus.settings import MAX_THREADS, SCHEDULED


def make(**kwargs):
    defaults = {"policy": "MlpPolicy", "env": RandomEnv(ACTIONS["discrete"], VECTOR), "n_steps": 8, "batch_size": 4}
    return PPO_Plus(**defaults | {"device": "cpu"} | kwargs)


@pytest.mark.parametrize(("n_envs", "n_steps", "batch_size"), [(1, 32, 64), (2, 50, 64)])
def test_another_minibatch_size_gives_one_warning(n_envs, n_steps, batch_size):
    env = vec(ACTIONS["discrete"], n_envs=n_envs)
    with pytest.warns(UserWarning, match=re.escape(f"batch_size={batch_size} does not divide")) as caught:
        model = make(env=env, n_steps=n_steps, batch_size=batch_size, n_epochs=1, normalize_advantage=False)
        model.learn(1)
    (said,) = (each for each in caught if "batch_size=" in str(each.message))
    assert f"use one that divides {n_envs * n_steps}" in str(said.message)
    # It points to the line that made the model.
    assert said.filename == __file__


def test_a_model_that_is_loaded_does_not_warn_again(tmp_path):
    with pytest.warns(UserWarning, match="does not divide"):
        make(n_steps=6).save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PPO_Plus.load(tmp_path / "model", env=RandomEnv(ACTIONS["discrete"]), device="cpu")


# --- names, environments, devices and callbacks ----------------------------------------------------------------------


#: Values that are not environments, and what the error says.
NO_ENVS = [
    (None, "env=None: pass an environment"),
    (5, "env=5 must be a Gymnasium environment"),
    (RandomEnv, "env=<class .*> must be a Gymnasium environment.*make_vec makes several of a class or function"),
    (SimpleNamespace(possible_agents=["a"]), "must be a Gymnasium environment.*make_agents those of PettingZoo"),
]
RAISES = [
    *(({name: "64"}, TypeError, f"{name}.*='64' must be ") for name in ("n_steps", "gamma", "n_threads")),
    ({"n_threads": MAX_THREADS + 1}, ValueError, f"n_threads .*={MAX_THREADS + 1} must be .* at most {MAX_THREADS}"),
    *(
        ({"n_steps": n}, ValueError, f"n_steps={n} times n_envs=1 is above .* transitions")
        for n in (np.int64(99_999_999_999), 10**30)
    ),
    ({"gama": 0.9}, TypeError, "unexpected keyword argument 'gama'"),
    *(({"env": env}, TypeError, text) for env, text in NO_ENVS),
]


@pytest.mark.parametrize(("arguments", "error", "text"), RAISES)
def test_a_wrong_argument_is_answered_with_what_to_write(arguments, error, text):
    with pytest.raises(error, match=text):
        make(**arguments)


def test_a_wrong_type_of_new_environment_is_a_type_error():
    with pytest.raises(TypeError, match="must be a Gymnasium environment"):
        make().set_env(RandomEnv)


@pytest.mark.parametrize("device", ["cuda:0", th.device("cuda")])
def test_a_missing_gpu_gives_a_warning(device, monkeypatch):
    monkeypatch.setattr(th.cuda, "is_available", lambda: False)
    text = f"device='{device}': torch finds no GPU here, so training runs on the CPU"
    with pytest.warns(UserWarning, match=text) as said:
        assert make(device=device).device.type == "cpu"
    assert said[0].filename == __file__


@pytest.mark.parametrize("device", ["cpu", "auto", th.device("cpu")])
def test_an_existing_device_gives_no_warning(device):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(device=device)


@pytest.mark.parametrize(
    ("callback", "advice"),
    [
        ("eval", r"callback='eval' must be a callback such as EvalCallback\(eval_env\)"),
        (EvalCallback, r"callback=<class .*> must be a callback such as EvalCallback\(eval_env\)"),
        ((CallbackList([]),), "must be a callback such as"),
        ([CallbackList([]), "eval"], "'eval'.* must be a callback such as .*, a list of callbacks"),
    ],
)
def test_a_wrong_type_of_callback_is_an_error_before_any_step(callback, advice):
    model = make()
    with pytest.raises(TypeError, match=advice):
        model.learn(8, callback=callback)
    assert model.num_timesteps == 0


@pytest.mark.parametrize("callback", [None, [], CallbackList([]), [CallbackList([])], lambda here, everywhere: True])
def test_callbacks_are_accepted(callback):
    assert make().learn(8, callback=callback).num_timesteps == 8


def test_each_coefficient_has_a_schedule():
    """But the penalty's, which the KL control changes."""
    assert SCHEDULED.keys() == {*Coefficients._fields} - {"kl_coef"}
