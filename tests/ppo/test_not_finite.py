"""Numbers that are not finite stop training, or are skipped, and are named."""

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, VECTOR, FaultyEnv, RandomEnv, vec
from gymnasium import spaces
from models import weights
from stable_baselines3.common.vec_env import DummyVecEnv
from training import learn, make, n_steps_taken

from ppo_plus import PPO_Plus

NAN, INF = float("nan"), float("inf")


def faulty(*args, **kwargs):
    """Two environments; the second one is faulty."""
    space = kwargs.get("observation_space", VECTOR)
    return DummyVecEnv([lambda: RandomEnv(ACTIONS["discrete"], space), lambda: FaultyEnv(*args, **kwargs)])


class OneBadKey(RandomEnv):
    """One entry of its observation is NaN in its second step."""

    def observe(self):
        observation = super().observe()
        if self.n_steps == 2:
            observation["bad"][0] = NAN
        return observation


def one_bad_key():
    return vec(ACTIONS["discrete"], spaces.Dict(good=spaces.Discrete(2), bad=VECTOR), env_class=OneBadKey)


def without_time_limit(*args):
    return DummyVecEnv([lambda: RandomEnv(ACTIONS["discrete"], max_steps=None), lambda: FaultyEnv(*args)])


#: Environments with a number that is not finite, and what the error says.
FAULTY = [
    (faulty("observation", 1, NAN), r"(?s)observation.*nan.*environment 1 at step 1\b"),
    (faulty("observation", 3, -INF), r"(?s)observation.*-inf.*environment 1 at step 3\b"),
    (faulty("reward", 1, INF), r"reward.*inf.*environment 1 at step 1\b"),
    (faulty("reward", 3, NAN), r"reward.*nan.*environment 1 at step 3\b"),
    (faulty("observation", 0), r"(?s)observation.*environment 1 at step 0\b"),
    # The fourth step of the second rollout.
    (faulty("reward", 12), r"reward.*environment 1 at step 12\b"),
    (one_bad_key(), r"(?s)observation\['bad'\].*environment 0 at step 2\b"),
    (without_time_limit("final", 0), r"(?s)observation.*environment 1 at step 5\b"),
]


@pytest.mark.parametrize(("env", "text"), FAULTY)
def test_numbers_that_are_not_finite_name_environment_and_step(env, text):
    is_dict = isinstance(env.observation_space, spaces.Dict)
    model = make(env=env, policy="MultiInputPolicy" if is_dict else "MlpPolicy")
    before = weights(model)
    with pytest.raises(FloatingPointError, match=text) as raised:
        model.learn(32)
    assert isinstance(raised.value, ValueError)  # which code written for SB3 catches
    assert model._n_updates or th.equal(weights(model), before)


class Broken(PPO_Plus):
    """The loss is NaN on the minibatches whose numbers, from 0, are in ``bad``."""

    bad: tuple = ()
    kind = "loss"
    n = -1

    def compute_loss(self, batch, coefficients):
        self.n += 1
        outcome = super().compute_loss(batch, coefficients)
        if self.n not in self.bad:
            return outcome
        if self.kind == "loss":
            return outcome._replace(total=outcome.total * NAN)
        # The value is finite, the gradient is 0 times infinity.
        return outcome._replace(total=outcome.total + (outcome.total * 0).square().sqrt())


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_minibatch_that_is_not_finite_is_skipped_and_counted(kind):
    model = make(Broken)
    model.bad, model.kind = (0, 1, 7), kind
    before = weights(model)
    history = learn(model, 1)
    assert history["train/skipped_minibatches"] == [3] and np.isfinite(history["train/loss"]).all()
    assert n_steps_taken(model) == 5
    assert th.isfinite(weights(model)).all()
    assert not th.equal(weights(model), before)
    # The gradient that is left is one that was applied.
    assert all(th.isfinite(p.grad).all() for p in model.policy.parameters())
    model.bad = ()
    assert "train/skipped_minibatches" not in learn(model, 1).updates[0]


def test_ten_bad_minibatches_in_a_row_stop_training():
    model = make(Broken, n_epochs=3)
    model.bad = range(1, 100)
    with pytest.raises(FloatingPointError, match="10 minibatches in a row; .* Not finite are loss. "):
        model.learn(32)
    # The rest of the epoch is skipped as well.
    assert 10 <= model.n < 12
    # One good step was taken before them.
    assert th.isfinite(weights(model)).all()
    assert n_steps_taken(model) == 1


def test_bad_minibatches_in_a_row_are_counted_across_updates():
    model = make(Broken, n_epochs=1)
    model.bad = range(2, 100)
    with pytest.raises(FloatingPointError, match="10 minibatches in a row"):
        model.learn(80)
    assert model.n == 11


def test_nine_bad_minibatches_in_a_row_do_not_stop_training():
    model = make(Broken, n_epochs=5)
    model.bad = [*range(0, 9), *range(10, 19)]
    model.learn(16)
    assert n_steps_taken(model) == 2


def test_an_update_of_bad_minibatches_changes_nothing():
    model = make(Broken, n_epochs=1)
    model.bad = range(4)
    before = weights(model)
    model.learn(16)
    assert th.equal(weights(model), before)
