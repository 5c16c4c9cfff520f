"""Names, environments, devices and callbacks that cannot be, and what the messages advise."""

import inspect
import re
import warnings

import pytest
import torch as th
from envs import ACTIONS, VECTOR, RandomEnv
from stable_baselines3.common.callbacks import CallbackList, EvalCallback

from ppo_plus import PPO_Plus


def make(**kwargs):
    return PPO_Plus(
        **{"policy": "MlpPolicy", "env": RandomEnv(ACTIONS["discrete"]), "n_steps": 8, "batch_size": 4} | kwargs
    )


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("learn_rate", "did you mean learning_rate?"),
        ("nsteps", "did you mean n_steps?"),
        ("cliprange", "did you mean clip_range?"),
        ("lr", "did you mean learning_rate?"),
        *((name, "did you mean learning_rate?") for name in ("actor_lr", "policy_lr", "lr_schedule")),
        ("net_arch", "did you mean policy_kwargs=dict(net_arch=...)?"),
        ("net_archi", "did you mean policy_kwargs=dict(net_arch=...)?"),
        ("lstm_hidden", "did you mean policy_kwargs=dict(lstm_hidden_size=...)?"),
        ("xyzzy", "see help(PPO_Plus) for its arguments"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_nearest_name(name, advice):
    with pytest.raises(TypeError, match=re.escape(f"{name}=5 is no argument of PPO_Plus: {advice}")):
        make(**{name: 5})


def test_the_signature_is_that_of_the_constructor():
    names = list(inspect.signature(PPO_Plus).parameters)
    assert names[:4] == ["policy", "env", "learning_rate", "n_steps"]
    assert names[-1] == "action_mask_key"
    assert "kwargs" not in names


class WithOwnArgument(PPO_Plus):
    def __init__(self, *args, bonus=0.0, **kwargs):
        self.bonus = bonus
        super().__init__(*args, **kwargs)


def test_a_subclass_may_have_more_arguments():
    assert WithOwnArgument("MlpPolicy", RandomEnv(ACTIONS["discrete"]), bonus=2.0).bonus == 2.0
    with pytest.raises(TypeError, match=r"gama=0.9 is no argument of PPO_Plus: did you mean gamma\?"):
        WithOwnArgument("MlpPolicy", RandomEnv(ACTIONS["discrete"]), gama=0.9)


class OldGym:
    """An environment that is none of Gymnasium's."""

    observation_space, action_space = VECTOR, ACTIONS["discrete"]


@pytest.mark.parametrize(
    ("env", "advice"),
    [
        (None, "env=None: pass an environment"),
        (RandomEnv, r"env=<class .*> is a class: pass an environment, RandomEnv\(\)"),
        (OldGym(), r"must be derived from gymnasium.Env; .* shimmy.GymV21CompatibilityV0\(env=env\)"),
        (lambda: RandomEnv(ACTIONS["discrete"]), "must be a Gymnasium environment"),
    ],
)
def test_a_wrong_type_of_environment_is_a_type_error(env, advice):
    with pytest.raises(TypeError, match=advice):
        make(env=env)


def test_a_wrong_type_of_new_environment_is_a_type_error():
    with pytest.raises(TypeError, match="is a class: pass an environment"):
        make().set_env(RandomEnv)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", th.device("cuda")])
def test_a_missing_gpu_gives_a_warning(device, monkeypatch):
    monkeypatch.setattr(th.cuda, "is_available", lambda: False)
    with pytest.warns(
        UserWarning, match=f"device='{device}': torch finds no GPU here, so training runs on the CPU"
    ) as w:
        assert make(device=device).device.type == "cpu"
    assert w[0].filename == __file__


@pytest.mark.parametrize("device", ["cpu", "auto", th.device("cpu")])
def test_an_existing_device_gives_no_warning(device):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(device=device)


@pytest.mark.parametrize(
    ("callback", "advice"),
    [
        ("eval", r"callback='eval' must be a callback such as EvalCallback\(eval_env\)"),
        (5, "callback=5 must be a callback"),
        (EvalCallback, r"is a class: pass a callback, EvalCallback\(...\)"),
        ((CallbackList([]),), "must be a callback such as"),
        ([CallbackList([]), "eval"], "must be a list of callback objects, which 'eval' is not"),
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
