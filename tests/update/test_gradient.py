"""The update of policies with memory, compiled from the recurrent layers on: the chain rule, and the same training."""

from functools import partial

import gymnasium as gym
import pytest
import torch as th
from compiled import assert_trained_alike, needs_compiler, parameters
from envs import ACTIONS, OBSERVATIONS, MaskedEnv, vec
from models import SMALL, STRUCTURES, NoTraining, make_recurrent
from networks import without_kinks
from optimizers import coefficients_at
from parametrization import all_pairs

from ppo_plus import PPO_Plus
from ppo_plus.compiling.compiled import CompileError
from ppo_plus.update.batch import pick
from ppo_plus.update.flat import packed, trainable
from ppo_plus.update.gradient import gradient_by_parts, head_gradient, loss_gradient, others_of

FROZEN = {"nothing": (), "recurrent layers": ("lstm", "gru"), "hidden layers": ("mlp_extractor", "action_net")}


def both_ways(model):
    """Loss and gradient of one minibatch: as a whole, and by the chain rule with nothing compiled."""
    model.__class__ = NoTraining
    model.learn(64)
    # Other weights than those of the rollout, so that ratios are not 1.
    with th.no_grad():
        for weight in model.policy.parameters():
            weight.add_(0.02 * th.randn_like(weight))
    loss, policy = partial(PPO_Plus.compute_loss, model), model.policy
    coefficients = coefficients_at(model)
    with packed(policy.optimizer) as lent:
        (vector,), params = trainable(lent), trainable(policy.optimizer)
        data, indices = next(model.rollout_buffer.minibatches(32))
        whole = loss_gradient(loss, params, coefficients, pick(data, indices))
        settled = vector.data, others_of(policy)(), coefficients, data, None
        head = partial(head_gradient, policy, loss, *settled)
        parts = gradient_by_parts(policy, lambda features: head(features, indices), params, pick(data, indices))
        return whole, parts


@pytest.mark.parametrize(
    ("layer", "structure", "observation", "frozen"),
    all_pairs(["Lstm", "Gru"], [*STRUCTURES, "own features"], ["box", "dict"], FROZEN),
)
def test_the_chain_rule_gives_the_whole_gradient(layer, structure, observation, frozen):
    policy = f"{'MultiInput' if observation == 'dict' else 'Mlp'}{layer}Policy"
    memory = STRUCTURES.get(structure, dict(share_features_extractor=False))
    model = make_recurrent("mixed", policy, observation=observation, memory=memory, n_steps=32, use_sde=True)
    for name, weight in model.policy.named_parameters():
        weight.requires_grad_(not name.startswith(FROZEN[frozen]))
    (losses, grads), (losses_by_parts, grads_by_parts) = both_ways(model)
    assert th.equal(losses.total, losses_by_parts.total)
    assert losses.diagnostics.keys() == losses_by_parts.diagnostics.keys()
    assert sum(grad is not None for grad in grads) > 2
    for grad, by_parts in zip(grads, grads_by_parts, strict=True):
        assert (grad is None) == (by_parts is None)
        assert grad is None or th.allclose(grad, by_parts, rtol=1e-4, atol=1e-7)


CASES = {
    "LSTM, gSDE": ("MlpLstmPolicy", "box", "box", dict(use_sde=True, clip_range_vf=0.2)),
    "two shared layers, dropout": (
        "MlpLstmPolicy",
        "multibinary",
        "box",
        dict(memory=STRUCTURES["shared"] | dict(n_lstm_layers=2, lstm_kwargs=dict(dropout=0.3))),
    ),
    "GRU, masks, penalty": (
        "MultiInputGruPolicy",
        "mixed",
        "dict",
        dict(kl_control="penalty", target_kl=0.01, ent_coef=0.01, batch_size=80),
    ),
}
#: Random numbers within the update; another network, masks and sequences of other lengths.
BY_INDUCTOR = "two shared layers, dropout", "GRU, masks, penalty"


@needs_compiler
@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_compiled_and_eager_train_the_same(case, request):
    if case not in BY_INDUCTOR:
        request.getfixturevalue("traced")
    policy, action, observation, arguments = CASES[case]
    env_class = (MaskedEnv,) if "masks" in case else ()
    eager, compiled = (
        without_kinks(
            make_recurrent(
                policy=policy,
                env=vec(ACTIONS[action], OBSERVATIONS[observation], 4, *env_class),
                **dict(n_steps=32, batch_size=64, n_epochs=3, compile=compile) | arguments,
            )
        ).learn(256)
        for compile in (False, True)
    )
    assert_trained_alike(eager, compiled)


@needs_compiler
@pytest.mark.usefixtures("traced")
@pytest.mark.slow
def test_other_clipping_is_noticed():
    results = []
    for compile in (False, True):
        model = make_recurrent("box", compile=compile, kl_control="penalty", target_kl=0.01).learn(64)
        # As many tensors as before, with another meaning.
        model.clip_range, model.clip_range_vf = None, 0.2
        results.append(parameters(model.learn(64)))
    th.testing.assert_close(*results, rtol=0, atol=1e-4)


class Augmented(PPO_Plus):
    """Evaluates the policy's heads at other features than those of the minibatch as well."""

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        features = batch.features
        if features is None:
            features, _ = self.policy.encode(batch.observations, batch.carry.memory, batch.episode_starts)
        values = self.policy.heads(features._replace(critic=features.critic + 0.5)).values
        return losses.plus("smooth", values.square().mean())


@needs_compiler
@pytest.mark.usefixtures("traced")
def test_a_custom_loss_is_compiled_too():
    arguments = dict(n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu", policy_kwargs=SMALL)
    eager, compiled = (
        Augmented("MlpLstmPolicy", vec(ACTIONS["box"]), compile=compile, **arguments).learn(64)
        for compile in (False, True)
    )
    assert_trained_alike(eager, compiled)


class Elsewhere(PPO_Plus):
    """Evaluates the policy at other observations than those of the minibatch as well."""

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        values, _ = self.policy.evaluate(batch.observations + 0.5, batch.carry, batch.episode_starts)
        return losses.plus("smooth", values.square().mean())


@needs_compiler
@pytest.mark.usefixtures("traced")
def test_a_loss_that_needs_the_encoder_elsewhere_runs_eagerly(monkeypatch):
    monkeypatch.setattr("ppo_plus.compiling.compilation.WORTH_COMPILING", 1)
    arguments = dict(n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu", policy_kwargs=SMALL)
    eager = Elsewhere("MlpLstmPolicy", vec(ACTIONS["box"]), compile=False, **arguments).learn(32)
    auto = Elsewhere("MlpLstmPolicy", vec(ACTIONS["box"]), **arguments)
    with pytest.warns(RuntimeWarning, match="the update runs uncompiled"):
        auto.learn(32)
    assert auto.compilation.functions["acting"].is_compiled and not auto.compiled
    assert th.allclose(parameters(eager), parameters(auto), atol=1e-6)
    strict = Elsewhere("MlpLstmPolicy", vec(ACTIONS["box"]), compile=True, **arguments)
    with pytest.raises(CompileError, match="the update could not be compiled"):
        strict.learn(32)


@pytest.mark.usefixtures("traced")
@pytest.mark.slow
@needs_compiler
def test_compiled_training_leaves_out_steps_that_only_reset():
    eager, compiled = (
        PPO_Plus(
            "MlpLstmPolicy",
            gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"),
            n_steps=64,
            batch_size=32,
            n_epochs=1,
            seed=0,
            device="cpu",
            compile=compile,
            policy_kwargs=SMALL,
        ).learn(128)
        for compile in (False, True)
    )
    assert compiled.rollout_buffer.valid is not None
    assert not compiled.compilation.functions["the update"].is_compiled
    assert th.allclose(parameters(eager), parameters(compiled), atol=1e-6)
