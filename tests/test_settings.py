"""The arguments as one value: sizes that do not fit together, numbers that no machine can hold."""

import inspect
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, VECTOR, RandomEnv, vec
from stable_baselines3.common.callbacks import CallbackList, EvalCallback

from ppo_plus import Cost, PPO_Plus
from ppo_plus.formulas.losses import Coefficients
from ppo_plus.settings import MAX_THREADS, SCHEDULED


def make(**kwargs):
    defaults = {"policy": "MlpPolicy", "env": RandomEnv(ACTIONS["discrete"], VECTOR), "n_steps": 8, "batch_size": 4}
    return PPO_Plus(**defaults | {"device": "cpu"} | kwargs)


@pytest.mark.parametrize(
    ("n_envs", "n_steps", "batch_size", "message"),
    [
        (1, 32, 64, "minibatches have 32"),
        (2, 50, 64, "the last of an epoch has 36"),
        (1, 13, 4, "the last of an epoch has 1"),
        (1, 1, 64, "minibatches have 1"),
    ],
)
def test_another_minibatch_size_gives_one_warning(n_envs, n_steps, batch_size, message):
    env = vec(ACTIONS["discrete"], n_envs=n_envs)
    with pytest.warns(UserWarning, match=re.escape(f"batch_size={batch_size} does not divide")) as caught:
        model = make(env=env, n_steps=n_steps, batch_size=batch_size, n_epochs=1, normalize_advantage=False)
        model.learn(1)
    (said,) = (each for each in caught if "batch_size=" in str(each.message))
    assert f"{message}: use a batch_size that divides {n_envs * n_steps}" in str(said.message)
    # It points to the line that made the model.
    assert said.filename == __file__


def test_a_model_that_is_loaded_does_not_warn_again(tmp_path):
    with pytest.warns(UserWarning, match="does not divide"):
        make(n_steps=6).save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PPO_Plus.load(tmp_path / "model", env=RandomEnv(ACTIONS["discrete"]), device="cpu")


def test_a_model_of_a_larger_machine_can_be_made_here():
    assert make(n_threads=256).n_threads == 256


# --- names, environments, devices and callbacks ----------------------------------------------------------------------


#: Unknown arguments, and what the error suggests.
UNKNOWN = {
    "learn_rate": "did you mean learning_rate?",
    "nsteps": "did you mean n_steps?",
    "lr": "did you mean learning_rate?",
    "policy_lr": "did you mean learning_rate?",
    "lr_schedule": "did you mean learning_rate?",
    "net_archi": "did you mean policy_kwargs=dict(net_arch=...)?",
    "lstm_hidden": "did you mean policy_kwargs=dict(lstm_hidden_size=...)?",
    "attention_window": "did you mean policy_kwargs=dict(attention_window=...)?",
    "n_envs": "did you mean env=ppo_plus.make_vec(env, n_envs=5)?",
    "xyzzy": "see help(PPO_Plus) for its arguments",
}
#: Values that are not environments, and what the error says.
NO_ENVS = [
    (None, "env=None: pass an environment"),
    (5, "env=5 must be a Gymnasium environment"),
    (RandomEnv, "env=<class .*> must be a Gymnasium environment.*make_vec makes several of a class or function"),
    (SimpleNamespace(possible_agents=["a"]), "must be a Gymnasium environment.*make_agents those of PettingZoo"),
]
DOUBLE = {"normalize_observations": {"clip": 5.0}, "normalize_values": True, "streams": [Cost("cost", limit=1.0)]}
MPS = "needs double precision, which device='mps' does not have: pass device=\"cpu\""
RAISES = [
    *(({name: "64"}, TypeError, f"{name}.*='64' must be ") for name in ("n_steps", "gamma", "n_threads")),
    ({"n_threads": MAX_THREADS + 1}, ValueError, f"n_threads={MAX_THREADS + 1} must be at most {MAX_THREADS}"),
    *(
        ({"n_steps": n}, ValueError, f"n_steps={n} times n_envs=1 .* transitions: use fewer steps")
        for n in (99_999_999_999, np.int64(99_999_999_999), 10**30)
    ),
    *(
        ({name: 5}, TypeError, re.escape(f"{name}=5 is not an argument of PPO_Plus: {advice}"))
        for name, advice in UNKNOWN.items()
    ),
    *(({"env": env}, TypeError, text) for env, text in NO_ENVS),
    *(
        ({name: value, "device": th.device("mps")}, ValueError, re.escape(f"{name}={value!r} {MPS}"))
        for name, value in DOUBLE.items()
    ),
]


@pytest.mark.parametrize(("arguments", "error", "text"), RAISES)
def test_a_wrong_argument_is_answered_with_what_to_write(arguments, error, text):
    with pytest.raises(error, match=text):
        make(**arguments)


def test_a_wrong_type_of_new_environment_is_a_type_error():
    with pytest.raises(TypeError, match="must be a Gymnasium environment"):
        make().set_env(RandomEnv)


def test_the_signature_is_that_of_the_constructor():
    names = list(inspect.signature(PPO_Plus).parameters)
    assert names[:4] == ["policy", "env", "learning_rate", "n_steps"]
    assert names[-1] == "streams"
    assert "kwargs" not in names


class WithOwnArgument(PPO_Plus):
    def __init__(self, *args, bonus=0.0, **kwargs):
        self.bonus = bonus
        super().__init__(*args, **kwargs)


def test_a_subclass_may_have_more_arguments():
    assert WithOwnArgument("MlpPolicy", RandomEnv(ACTIONS["discrete"]), bonus=2.0).bonus == 2.0
    with pytest.raises(TypeError, match=r"gama=0.9 is not an argument of PPO_Plus: did you mean gamma\?"):
        WithOwnArgument("MlpPolicy", RandomEnv(ACTIONS["discrete"]), gama=0.9)


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
