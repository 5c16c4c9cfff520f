"""Arguments are checked where a model is made, where they are assigned, and where ``learn`` begins."""

import re

import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, RandomEnv, vec
from models import weights
from stable_baselines3.common.buffers import RolloutBuffer as SB3RolloutBuffer
from training import At, make

from ppo_plus import AdaptiveLearningRate, AdaptivePenalty, ColoredNoise, Cost, EarlyStop, PPO_Plus, WhiteNoise

NAN, INF = float("nan"), float("inf")


INTEGERS, NUMBERS = [0, 2.5], [-0.1, NAN, None]
#: Values of each argument that raise an error: tests/test_require.py has more of each kind.
REFUSED = {
    "policy": ["NoPolicy", 5, int],
    "learning_rate": [*NUMBERS, INF, "abc", "lin_", "lin_1_2_3", "", True, [1e-3], lambda p: NAN],
    "n_steps": INTEGERS,
    "batch_size": [*INTEGERS, 1],
    "n_epochs": INTEGERS,
    "gamma": [*NUMBERS, 1.1],
    "gae_lambda": [*NUMBERS, 1.1],
    "clip_range": [*NUMBERS, 0, INF, "abc"],
    "clip_range_vf": [0, -0.1, NAN],
    "normalize_advantage": ["batch", 2, None],
    "ent_coef": [NAN, INF, "abc", None],
    "vf_coef": [*NUMBERS, INF, "abc"],
    "max_grad_norm": [*NUMBERS, 0],
    "use_sde": ["yes", None],
    "sde_sample_freq": [*INTEGERS, -2, "rollout", None],
    "rollout_buffer_class": [int, "RolloutBuffer"],
    "rollout_buffer_kwargs": [5],
    "target_kl": [0, -0.01, NAN, INF, "abc"],
    "stats_window_size": INTEGERS,
    "policy_kwargs": [5],
    "seed": [-1, "abc"],
    "device": ["abacus"],
    "value_clip": ["min", None],
    "recompute_advantages": [2],
    "kl_control": ["abc", None, EarlyStop, "penalty", "adaptive_lr"],
    "exploration": ["gsde", WhiteNoise],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_a_bad_argument_raises_an_error_before_any_step(name, value):
    env = vec(ACTIONS["discrete"])
    with pytest.raises((ValueError, TypeError)) as refusal:
        make(env=env, **{name: value}).learn(16)
    assert re.search(name, str(refusal.value), re.IGNORECASE)
    assert repr(value) in str(refusal.value) or str(value) in str(refusal.value)
    assert all(each.n_steps == 0 for each in env.envs)


#: Arguments that do not fit together, or the environment's spaces.
EXCLUDING = [
    ({"use_sde": True, "exploration": WhiteNoise()}, "use_sde=True.* no effect beside exploration=WhiteNoise"),
    ({"clip_range": None}, 'clip_range=None .* kl_control="penalty"'),
    ({"clip_range": None, "target_kl": 0.1}, 'clip_range=None .* kl_control="penalty"'),
    ({"clip_range": None, "target_kl": 0.1, "kl_control": "adaptive_lr"}, "clip_range=None"),
    *(({"kl_control": kind()}, f"kl_control={kind.__name__}.* target_kl") for kind in (EarlyStop, AdaptivePenalty)),
    ({"kl_control": AdaptiveLearningRate()}, "kl_control=AdaptiveLearningRate.* target_kl"),
    ({"policy_kwargs": {"squash_output": True}}, "squash_output=True .* Box"),
    ({"env": RandomEnv(ACTIONS["discrete"]), "n_steps": 1}, "n_steps=1 times n_envs=1"),
    ({"policy": "MultiInputPolicy"}, '[Oo]bservation.*"Mlp" and "Cnn" take others'),
    ({"policy": "MultiInputLruPolicy"}, '[Oo]bservation.*"Mlp" and "Cnn" take others'),
    *(
        (
            {"env": vec(ACTIONS["discrete"], OBSERVATIONS["dict"]), "policy": policy},
            "(?s)[Oo]bservation.*MultiInput|use `MultiInput",
        )
        for policy in ("MlpPolicy", "MlpLruPolicy", "CnnLstmPolicy")
    ),
]


@pytest.mark.parametrize(("kwargs", "message"), EXCLUDING)
def test_arguments_that_do_not_fit_raise_an_error(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)


@pytest.mark.parametrize("total_timesteps", [0, -1, NAN, "many", None])
def test_a_bad_number_of_steps_raises_an_error(total_timesteps):
    with pytest.raises((ValueError, TypeError), match=f"total_timesteps={total_timesteps!r}"):
        make().learn(total_timesteps)


@pytest.mark.parametrize(
    ("name", "value"),
    [("gamma", 2.0), ("batch_size", 1), ("clip_range", -1.0), ("learning_rate", -1.0), ("n_epochs", 0)],
)
def test_an_invalid_attribute_makes_learn_raise_an_error(name, value):
    model = make()
    setattr(model, name, value)
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        model.learn(16)
    assert model.num_timesteps == 0


@pytest.mark.parametrize("batch_size", [1, 4])
def test_minibatches_of_one_work_without_their_normalization(batch_size):
    for mode in (False, "rollout"):
        model = make(batch_size=batch_size, normalize_advantage=mode).learn(16)
        assert th.isfinite(weights(model)).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exploration", ColoredNoise()),
        ("use_sde", True),
        ("policy_kwargs", {"net_arch": [8]}),
        ("rollout_buffer_class", SB3RolloutBuffer),
        ("rollout_buffer_kwargs", {"gamma": 0.5}),
        ("streams", [Cost("cost", limit=1.0)]),
        ("action_mask_key", "mask"),
        ("normalize_values", True),
    ],
)
def test_arguments_that_the_model_is_built_with_cannot_change(name, value):
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32)
    before, rollouts = getattr(model, name), []

    def change(model):
        rollouts.append(model.num_timesteps)
        setattr(model, name, value)

    with pytest.raises(ValueError, match=f"{name}=.* the model is built with {name}="):
        model.learn(96, At(change, hooks=["rollout_end"]))
    # Nothing is learned with arguments that do not hold.
    assert rollouts == [32] and model._n_updates == 0
    with pytest.raises(ValueError, match=f"{name}=.* the model is built with {name}="):
        model.learn(96)
    setattr(model, name, before)
    model.learn(32)
