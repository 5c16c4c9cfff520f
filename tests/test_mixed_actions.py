"""Dict and Tuple action spaces in the world of SB3: wrappers, processes, callbacks, evaluation, files.

``RandomEnv`` raises at an action that its space does not contain.
"""

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, RandomEnv, vec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from models import make_model
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

MIXED = ["tuple", "mixed"]
every_kind = pytest.mark.parametrize("kind", MIXED)


def make(env, policy="MlpPolicy", **kwargs):
    return make_model(env=env, policy=policy, **{"n_steps": 16, "batch_size": 16} | kwargs)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda make_env: DummyVecEnv([lambda: Monitor(make_env())] * 2),
        lambda make_env: VecNormalize(DummyVecEnv([make_env] * 2)),
        lambda make_env: VecMonitor(VecFrameStack(DummyVecEnv([make_env] * 2), 2)),
        lambda make_env: AsyncVectorEnv([make_env] * 2),
    ],
    ids=["monitor", "normalize", "stack", "async"],
)
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
def test_structured_actions_go_through_wrappers_and_processes(wrap):
    env = wrap(lambda: RandomEnv(ACTIONS["mixed"]))
    try:
        model = make(env).learn(64)
        assert model.rollout_buffer.actions.shape == (16, 2, model.policy.action_dist.action_dim)
        assert np.isfinite(model.evaluate(3)).all()
        if not isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
            assert np.isfinite(evaluate_policy(model, env, 3, warn=False)).all()
    finally:
        env.close()


@every_kind
def test_a_single_environment_takes_what_predict_returns(kind):
    env = RandomEnv(ACTIONS[kind])
    model = make(env).learn(32)
    obs, _ = env.reset(seed=0)
    for deterministic in (True, False):
        action, state = model.predict(obs, deterministic=deterministic)
        assert type(action) is (tuple if kind == "tuple" else dict) and state is None
        env.step(action)


def test_choices_are_numbers_and_the_rest_are_arrays():
    action, _ = make(vec(ACTIONS["mixed"])).predict(np.zeros(5, np.float32))
    far, deep = action["how"][1]["far"], action["how"][1]["deep"]
    assert isinstance(action["kind"], np.integer) and action["kind"] in (-1, 0, 1)
    assert action["where"].shape == (2,) and action["where"].dtype == np.float64
    assert (far.shape, far.dtype, deep.shape) == ((), np.int64, (2, 2))


@pytest.mark.parametrize("options", [{}, {"full_std": False, "squash_output": True}], ids=str)
def test_gsde_has_a_standard_deviation_for_boxes_only(options):
    model = make(vec(ACTIONS["mixed"]), use_sde=True, policy_kwargs=options).learn(32)
    n_latent = model.policy.mlp_extractor.latent_dim_pi
    assert model.policy.log_std.shape == (n_latent, 1 if "full_std" in options else 3)
    assert model.logger.name_to_value["train/action_std"] > 0


def test_the_noise_of_gsde_is_that_of_each_part():
    """With the same held noise, each part of a mixed action is what the part alone would have been."""
    policy = make(vec(ACTIONS["tuple"]), use_sde=True, policy_kwargs={"ortho_init": False}).policy
    features = th.randn(4, policy.mlp_extractor.latent_dim_pi)
    with th.no_grad():
        policy.log_std.copy_(0.3 * th.randn_like(policy.log_std))
        carry = policy.exploration.init(4, features.shape[1], 5)
        z, _ = policy.exploration.sample(carry, features, policy.action_dist.noise_log_std(policy.log_std))
        for part, log_std in ((slice(0, 3), None), (slice(3, 5), policy.log_std)):
            own = {name: held[..., part] for name, held in carry.items()}
            th.testing.assert_close(z[:, part], policy.exploration.sample(own, features, log_std)[0])


def test_custom_networks_give_means_and_logits_in_order():
    env = vec(ACTIONS["tuple"], OBSERVATIONS["box"])
    actor = th.nn.Linear(5, 3 + 2)
    model = make(env, policy_kwargs={"actor": actor, "critic": th.nn.Linear(5, 1)}).learn(32)
    obs = env.reset()
    logits, means = model.policy.action_net(th.from_numpy(obs)).detach().split([3, 2], dim=1)
    actions, _ = model.predict(obs, deterministic=True)
    for (choice, where), logit, mean in zip(actions, logits, means, strict=True):
        assert choice == logit.argmax()
        np.testing.assert_allclose(where, mean.clamp(-1, 2), rtol=1e-6)
