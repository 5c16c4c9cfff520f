"""The arguments as one value: sizes that do not fit together, numbers that no machine can hold."""

import os
import re
import warnings

import numpy as np
import pytest
from envs import ACTIONS, IMAGE, RandomEnv, vec
from gymnasium import spaces

from ppo_plus import PPO_Plus
from ppo_plus.rollout.buffer import least_bytes
from ppo_plus.settings import MAX_THREADS


def make(env=None, policy="MlpPolicy", **kwargs):
    env = RandomEnv(ACTIONS["discrete"]) if env is None else env
    return PPO_Plus(policy, env, **{"n_steps": 8, "batch_size": 4, "device": "cpu"} | kwargs)


@pytest.mark.parametrize(
    ("n_envs", "n_steps", "batch_size", "message"),
    [
        (1, 32, 64, "minibatches have 32: use batch_size=32, or n_steps=64"),
        (1, 100, 64, "the last of an epoch has 36: use batch_size=50, or n_steps=128"),
        (2, 50, 64, "the last of an epoch has 36: use batch_size=50, or n_steps=64"),
        (3, 32, 64, "the last of an epoch has 32: use batch_size=48, or n_steps=64"),
        # A prime number has no divisors but itself.
        (1, 13, 4, "the last of an epoch has 1: use batch_size=13, or n_steps=12"),
        (1, 1, 64, "minibatches have 1: use batch_size=1, or n_steps=64"),
    ],
)
def test_another_minibatch_size_gives_one_warning(n_envs, n_steps, batch_size, message):
    env = vec(ACTIONS["discrete"], n_envs=n_envs)
    with pytest.warns(UserWarning, match=re.escape(f"batch_size={batch_size} does not divide")) as caught:
        model = make(env, n_steps=n_steps, batch_size=batch_size, n_epochs=1, normalize_advantage=False)
        model.learn(1)
    (said,) = (each for each in caught if "batch_size=" in str(each.message))
    assert str(said.message).endswith(message)
    # It points to the line that made the model.
    assert said.filename == __file__


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_steps": 32, "batch_size": 64},
        {"n_steps": 100, "batch_size": 64},
        {"n_steps": 48, "batch_size": 20, "policy": "MlpGruPolicy"},
        {"n_steps": 48, "batch_size": 32, "policy": "MlpGruPolicy", "sequence_length": 8},
    ],
    ids=str,
)
def test_following_either_advice_ends_the_warning(sizes):
    with pytest.warns(UserWarning) as caught:
        make(**sizes)
    for name, value in re.findall(r"(batch_size|n_steps)=(\d+)", str(caught[0].message).rpartition(": use ")[2]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(**sizes | {name: int(value)})


def test_a_model_that_is_loaded_does_not_warn_again(tmp_path):
    with pytest.warns(UserWarning, match="does not divide"):
        make(n_steps=6).save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PPO_Plus.load(tmp_path / "model", env=RandomEnv(ACTIONS["discrete"]), device="cpu")


@pytest.mark.parametrize("name", ["n_steps", "batch_size", "n_epochs", "gamma", "n_threads"])
def test_a_number_between_quotation_marks_is_called_text(name):
    with pytest.raises(TypeError, match=rf"{name}.*='64' must be .* not text: leave the quotation marks out"):
        make(**{name: "64"})


def test_more_threads_than_any_machine_has_raise_an_error():
    for n_threads in (MAX_THREADS + 1, 1_000_000):
        with pytest.raises(ValueError, match=f"n_threads={n_threads} must be at most {MAX_THREADS}"):
            make(n_threads=n_threads)
    assert MAX_THREADS >= os.cpu_count()


def test_a_model_of_a_larger_machine_can_be_made_here():
    assert make(n_threads=256).n_threads == 256


@pytest.mark.parametrize("n_steps", [99_999_999_999, np.int64(99_999_999_999), 10**30])
def test_rollouts_larger_than_the_memory_raise_an_error(n_steps):
    with pytest.raises(ValueError, match=rf"n_steps={n_steps} times n_envs=1 .* GB of memory: use fewer steps"):
        make(n_steps=n_steps)


def test_memory_of_a_transition_counts_observation_and_action():
    numbers = 4 * 6
    assert least_bytes(spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2,))) == 4 * 3 + 4 * 2 + numbers
    assert least_bytes(IMAGE, spaces.Discrete(5)) == 3 * 36 * 36 + 4 + numbers
    assert least_bytes(spaces.Dict(a=IMAGE, b=spaces.Discrete(2)), spaces.Discrete(5)) == 3 * 36 * 36 + 4 + 4 + numbers
