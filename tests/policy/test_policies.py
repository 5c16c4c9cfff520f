"""Features of images: their layout in memory and their precision."""

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, vec
from gymnasium import spaces
from models import spoil
from optimizers import coefficients_at

from ppo_plus import ActorCriticPolicy, Features, LSTMMemory, PPO_Plus
from ppo_plus.update.minibatch import pick


def image_model(**arguments):
    settings = dict(n_steps=8, batch_size=8, n_epochs=2, seed=0, device="cpu", compile=False) | arguments
    return PPO_Plus("CnnPolicy", vec(ACTIONS["discrete"], IMAGE), **settings)


def images(model, n=4):
    return th.as_tensor(np.stack([model.observation_space.sample() for _ in range(n)]))


def test_images_are_channels_last_only_with_gradients():
    model = image_model()
    obs = images(model)
    with_gradients = model.policy._preprocess(obs)
    with th.no_grad():
        without = model.policy._preprocess(obs)
    assert with_gradients.is_contiguous(memory_format=th.channels_last) and without.is_contiguous()
    assert th.equal(with_gradients, without)
    with th.no_grad():
        values, params = model.policy.evaluate(obs)
    for one, other in zip(model.policy.evaluate(obs), (values, params), strict=True):
        th.testing.assert_close(one.detach(), other, rtol=1e-4, atol=1e-5)


def test_autocast_has_ratio_one_at_the_first_minibatch():
    model = image_model(policy_kwargs={"autocast": True})
    model.learn(16)
    _, callback = model._setup_learn(16, reset_num_timesteps=False)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    data, indices = next(model.rollout_buffer.minibatches(8))
    losses = model.compute_loss(pick(data, indices), coefficients_at(model))
    # No KL is negative, but for a rounding of its logarithms of order one.
    assert -th.finfo(th.float32).eps < losses.diagnostics["kl"] < 1e-5
    assert losses.diagnostics["clip_fraction"] == 0


@pytest.mark.exhaustive
def test_autocast_is_saved_compiles_and_learns(tmp_path):
    model = image_model(policy_kwargs={"autocast": True}, compile=True)
    before = [weight.detach().clone() for weight in model.policy.parameters()]
    model.learn(32)
    assert any(not th.equal(one, other) for one, other in zip(before, model.policy.parameters(), strict=True))
    assert all(weight.isfinite().all() for weight in model.policy.parameters())
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", device="cpu")
    obs = images(model).numpy()
    assert loaded.policy.autocast
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])


def test_a_saved_policy_knows_whether_its_extractors_are_shared(tmp_path):
    model = image_model(policy_kwargs={"share_features_extractor": False})
    model.learn(32).policy.save(tmp_path / "policy")
    loaded = type(model.policy).load(tmp_path / "policy", device="cpu")
    obs = images(model)
    for mine, theirs in zip(loaded.evaluate(obs), model.policy.evaluate(obs), strict=True):
        assert th.equal(mine, theirs)


def test_a_packed_step_holds_all_parts_in_order(n_envs=3):
    policy = PPO_Plus("MlpPolicy", vec(ACTIONS["mixed"], n_envs=n_envs), seed=0, device="cpu").policy
    step, _ = policy.act(th.zeros(n_envs, *policy.observation_space.shape), policy.init_carry(n_envs))
    n, packed = step.actions.shape[1], step.packed()
    assert packed.shape == (n_envs, n + 2 + step.params.shape[1])
    for part, column in zip(step, (packed[:, :n], packed[:, n], packed[:, n + 1], packed[:, n + 2 :]), strict=True):
        assert th.equal(part, column)


class Shifted(ActorCriticPolicy):
    """Overrides of either half apply to every call of the policy."""

    def encode(self, obs):
        features = super().encode(obs)
        return Features(features.actor + 1.0, features.critic - 1.0)

    def heads(self, features, masks=None):
        made = super().heads(features, masks)
        return made._replace(values=made.values + 10.0, params=made.params + th.tensor([2.0, 0.0]))


class ShiftedLstm(LSTMMemory, Shifted):
    """The same with memory."""


@pytest.mark.parametrize("policy", [Shifted, ShiftedLstm])
def test_overrides_of_encode_and_heads_apply_everywhere(policy):
    class First(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            losses = super().compute_loss(batch, coefficients)
            self.first = getattr(self, "first", losses.diagnostics)
            return losses

    env = vec(spaces.Box(-9.0, 9.0, (1,)))
    model = First(policy, env, n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu", compile=False).learn(16)
    assert model.rollout_buffer.values.mean() > 5 and model.rollout_buffer.params[..., 0].mean() > 1
    assert abs(model.first["kl"]) < 1e-5 and abs(model.first["approx_kl"]) < 1e-5
    actions, state = model.predict(env.reset(), deterministic=True)
    assert actions.mean() > 1 and (state is None) == (policy is Shifted)
    assert model.policy.predict_values(th.as_tensor(env.reset())).mean() > 5


@pytest.mark.parametrize(("kind", "memory"), [("box", ""), ("discrete", "Lstm"), ("multibinary", ""), ("mixed", "")])
def test_predict_and_evaluate_of_what_is_not_finite_raise(kind, memory):
    for what in ("actor", "log_std"):
        model = PPO_Plus(f"Mlp{memory}Policy", vec(ACTIONS[kind]), n_steps=16, batch_size=16, device="cpu")
        if what == "log_std" and not hasattr(model.policy, "log_std"):
            continue
        obs, message = model.env.reset(), "the policy, not the environment, .* so no action was taken"
        model.predict(obs)
        spoil(model.policy, what)
        for deterministic in (False, True):
            with pytest.raises(FloatingPointError, match=message):
                model.predict(obs, deterministic=deterministic)
            with pytest.raises(FloatingPointError, match=message):
                model.predict(obs[0], deterministic=deterministic)
        with pytest.raises(FloatingPointError, match=message):
            model.evaluate(1)


def test_an_infinite_mean_is_not_clipped_to_the_bounds():
    model = PPO_Plus("MlpPolicy", vec(ACTIONS["box"]), n_steps=16, batch_size=16, device="cpu")
    with th.no_grad():
        model.policy.action_net.bias.fill_(-th.inf)
    with pytest.raises(FloatingPointError, match="2 of its .* weights are not finite"):
        model.predict(model.env.reset(), deterministic=True)
