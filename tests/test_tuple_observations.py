"""Tuple observations: the same training, to the bit, as with Dict observations that have numbers as keys."""

from functools import partial

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, PARTS, VECTOR, RandomEnv, TupleEnv
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from models import make_model, weights
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import make_vec
from ppo_plus.policy.observations import as_dict, to_tensor
from ppo_plus.saving.export import Deployed

TUPLE = spaces.Tuple(PARTS)


def make(env, policy="MultiInputPolicy", **kwargs):
    return make_model(env=env, policy=policy, **kwargs)


VECTORIZED = {
    "single": lambda make_env: make_env(),
    "make_vec": lambda make_env: make_vec(make_env, 2, seed=0),
    "workers": lambda make_env: make_vec(make_env, 2, seed=0, vec_env="subproc"),
    "normalized": lambda make_env: VecNormalize(make_vec(make_env, 2, seed=0), norm_obs_keys=["0"]),
    "sync, same step": lambda make_env: SyncVectorEnv([make_env] * 2, autoreset_mode=AutoresetMode.SAME_STEP),
    "async": lambda make_env: AsyncVectorEnv([make_env] * 2),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "workers" else ()) for kind in VECTORIZED]
)
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
def test_training_is_that_of_a_dict(kind):
    learned = []
    for by_number in (False, True):
        env = VECTORIZED[kind](partial(TupleEnv, by_number))
        try:
            model = make(env).learn(32)
            learned.append(weights(model))
            assert model.observation_space == as_dict(TUPLE)
            assert np.isfinite(model.evaluate(2)).all()
        finally:
            model.env.close()
    assert th.equal(*learned)


def test_images_are_transposed_and_more_than_ten_parts_keep_their_order():
    parts = [spaces.Box(0, 255, (36, 36, 3), np.uint8), *[spaces.Discrete(2)] * 11]
    assert [*as_dict(spaces.Tuple(parts))] == [str(i) for i in range(12)]
    model = make(TupleEnv(parts=parts)).learn(16)
    assert model.observation_space["0"].shape == IMAGE.shape
    obs, _ = TupleEnv(parts=parts).reset(seed=0)
    assert model.predict(obs)[0].shape == ()


@pytest.mark.parametrize("policy", ["MultiInputPolicy", "MultiInputLstmPolicy"])
def test_predict_takes_tuples(policy):
    model = make(TupleEnv(), policy).learn(16)
    env = TupleEnv()
    obs, _ = env.reset(seed=0)
    action, _ = model.predict(obs, deterministic=True)
    assert env.action_space.contains(action)
    assert model.predict(as_dict(obs), deterministic=True)[0] == action
    batch = tuple(np.stack([part] * 3) for part in obs)
    assert model.predict(batch, deterministic=True)[0].tolist() == [action] * 3
    for evaluated in (evaluate_policy(model, env, 2, warn=False), model.evaluate(2, env)):
        assert np.isfinite(evaluated).all()
    for wrong in (obs[:2], [*obs]):
        with pytest.raises(ValueError, match=r"must be a tuple of 3 parts, or a dict with the keys \['0', '1', '2'\]"):
            model.predict(wrong)
    assert to_tensor(obs, model.observation_space, th.device("cpu"))[0].keys() == {"0", "1", "2"}


def test_an_entry_can_be_the_mask_or_seen_by_the_critic_only():
    parts = [VECTOR, spaces.MultiBinary(3)]

    class Masked(TupleEnv):
        def observe(self):
            return super().observe()[0], np.array([0, 1, 0], np.int8)

        def reward(self, action):
            assert action == 1
            return 0.0

    model = make(Masked(parts=parts), action_mask_key="1", policy_kwargs={"actor_keys": ["0"]})
    assert np.isfinite(model.learn(16).evaluate(2)).all()


def test_exported_each_part_is_an_input():
    deployed = Deployed(make(make_vec(TupleEnv, 2, seed=0)), "environment")
    assert [each["name"] for each in deployed.inputs] == ["observation.0", "observation.1", "observation.2"]
    assert deployed.outside == ["TupleAsDict"]


def test_sequences_and_nested_tuples_name_a_remedy():
    for space in (spaces.Sequence(VECTOR), spaces.Tuple([VECTOR, spaces.Sequence(VECTOR)])):
        with pytest.raises(ValueError, match="Sequence.* is not supported: .*TransformObservation"):
            make(RandomEnv(ACTIONS["discrete"], space))
    with pytest.raises(ValueError, match="is not supported: use .* one Dict or Tuple of them"):
        make(RandomEnv(ACTIONS["discrete"], spaces.Tuple([TUPLE])))
