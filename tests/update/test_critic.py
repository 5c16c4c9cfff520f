"""A critic that learns by itself does what plain torch optimizers do, one for each part of the weights."""

import copy
import re

import pytest
import torch as th
from compiled import needs_compiler, parameters
from envs import ACTIONS, OBSERVATIONS, POLICIES, MaskedEnv, RandomEnv, vec
from memories import SMALL, STRUCTURES
from networks import TowerPolicy
from optimizers import scheduled
from stable_baselines3.common.buffers import RolloutBuffer as SB3Buffer
from stable_baselines3.common.policies import ActorCriticPolicy as SB3Policy
from torch import nn, optim
from trained_by_ranks import two_groups

from ppo_plus import PPO_Plus
from ppo_plus.formulas.losses import value_loss
from ppo_plus.update.batch import pick
from ppo_plus.update.critic import critic_weights

RATE, OWN_RATE = 1e-3, 4e-3


def make(kind="discrete", policy="MlpPolicy", observation="box", env_class=RandomEnv, cls=PPO_Plus, **given):
    policy = POLICIES.get(observation, policy)
    env = vec(ACTIONS[kind], OBSERVATIONS[observation], env_class=env_class)
    sizes = dict(n_steps=16, batch_size=8, n_epochs=2, learning_rate=RATE, seed=0, device="cpu", compile=False)
    return cls(policy, env, **sizes | given)


def names_of(model):
    own = critic_weights(model.policy)
    return [name for name, p in model.policy.named_parameters() if any(p is each for each in own)]


# --- which weights are its own ----------------------------------------------------------------------------------------


class OwnValues(SB3Policy):
    """A policy class that runs as SB3 runs it."""

    def evaluate_actions(self, obs, actions):
        return super().evaluate_actions(obs, actions)


MLP = ["mlp_extractor.value_net", "value_net"]
KINDS = {
    "MLP": ({}, MLP),
    "gSDE": (dict(kind="box", use_sde=True), MLP),
    "mixed, masks": (dict(kind="mixed", env_class=MaskedEnv), MLP),
    "no layers but the last": (dict(policy_kwargs=dict(net_arch=[])), ["value_net"]),
    "images": (dict(observation="image"), ["value_net"]),
    "images apart": (
        dict(observation="image", policy_kwargs=dict(share_features_extractor=False)),
        ["vf_features_extractor", "value_net"],
    ),
    "Dict": (dict(observation="dict"), MLP),
    "custom networks": (dict(policy_kwargs=dict(critic=nn.Linear)), ["value_net"]),
    "LSTM": (dict(policy="MlpLstmPolicy", policy_kwargs=SMALL), [*MLP, "lstm_critic"]),
    "shared LSTM": (dict(policy="MlpLstmPolicy", policy_kwargs=SMALL | STRUCTURES["shared"]), MLP),
    "GRU of the actor": (dict(policy="MlpGruPolicy", policy_kwargs=SMALL | STRUCTURES["none"]), [*MLP, "critic"]),
    "SB3's structure": (dict(policy=TowerPolicy), ["mlp_extractor.value_tower", "value_net"]),
    "SB3's methods": (dict(policy=OwnValues), MLP),
}


@pytest.mark.filterwarnings("ignore:policy=OwnValues overrides")
@pytest.mark.parametrize("kind", KINDS)
def test_its_own_are_those_that_only_values_depend_on(kind):
    options, expected = KINDS[kind]
    model = make(**options)
    names = [name for name, _ in model.policy.named_parameters()]
    assert names_of(model) == [name for name in names if name.startswith(tuple(f"{each}." for each in expected))]
    assert model.policy.training


def test_frozen_weights_are_not_among_them():
    model = make()
    model.policy.mlp_extractor.value_net.requires_grad_(False)
    assert names_of(model) == ["value_net.weight", "value_net.bias"]
    model.policy.value_net.requires_grad_(False)
    with pytest.raises(ValueError, match="the actor shares all of them, or they are frozen: give the critic layers"):
        critic_weights(model.policy)


class Shared(th.nn.Module):
    """The value is a part of what the actor sees."""

    def __init__(self, n_in, n_out):
        super().__init__()

    def forward(self, features):
        return features[:, :1]


def test_a_critic_without_weights_is_refused_when_the_model_is_made():
    for option in (dict(critic_epochs=1), dict(critic_learning_rate=1e-3)):
        with pytest.raises(ValueError, match="critic_learning_rate and critic_epochs are for weights that the critic"):
            make(policy_kwargs=dict(critic=Shared), **option)
    make(policy_kwargs=dict(critic=Shared))


# --- what is learned --------------------------------------------------------------------------------------------------


class Noting(PPO_Plus):
    """Remembers the minibatches of an update."""

    def train(self):
        self.taken, minibatches = [], self.rollout_buffer.minibatches

        def noted(*arguments):
            self.taken.append([])
            for data, indices in minibatches(*arguments):
                self.taken[-1].append(indices)
                yield data, indices

        self.rollout_buffer.minibatches = noted
        super().train()
        del self.rollout_buffer.minibatches


class Plainly:
    """The same by torch's optimizers on the policy's weights: one for all, the critic's in a group of their own; and
    one for these alone.

    :param model: before its update; left as it is
    """

    def __init__(self, model, optimizer_class=optim.Adam):
        self.model = copy.deepcopy(model)
        policy = self.model.policy
        names = names_of(self.model)
        self.own = [p for name, p in policy.named_parameters() if name in names]
        self.all = list(policy.parameters())
        others = [p for p in self.all if all(p is not each for each in self.own)]
        groups = [{"params": others, "lr": RATE}, {"params": self.own, "lr": RATE}]
        self.joint, self.alone = (
            optimizer_class(groups, lr=RATE, eps=1e-5),
            optimizer_class(self.own, lr=RATE, eps=1e-5),
        )

    def step(self, optimizer, loss, weights):
        for p in self.all:
            p.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(weights, self.model.max_grad_norm)
        optimizer.step()

    def update(self, taken, scale=1.0, own_rate=None):
        model, coefficients = self.model, scheduled(self.model).coefficients
        self.joint.param_groups[0]["lr"] = RATE * scale
        self.joint.param_groups[1]["lr"] = RATE * scale if own_rate is None else own_rate
        self.alone.param_groups[0]["lr"] = RATE if own_rate is None else own_rate
        data = model.rollout_buffer.on_device()
        for number, epoch in enumerate(taken):
            for indices in epoch:
                batch = pick(data, indices)
                if number < model.n_epochs:
                    self.step(self.joint, model.compute_loss(batch, coefficients).total, self.all)
                else:
                    values, _ = model.policy.evaluate_batch(batch)
                    if batch.valid is not None:
                        values, batch = values[batch.valid], batch.only_valid()
                    self.step(self.alone, nn.functional.mse_loss(values, batch.returns), self.own)


OPTIONS = {
    "rate": dict(critic_learning_rate=OWN_RATE),
    "passes": dict(critic_epochs=3),
    "both": dict(critic_learning_rate=OWN_RATE, critic_epochs=3),
    "passes alone": dict(vf_coef=0.0, critic_epochs=3),
    "scaled": dict(critic_learning_rate=OWN_RATE, critic_epochs=1, kl_control="adaptive_lr", target_kl=1.0),
    "scaled, no own rate": dict(critic_epochs=1, kl_control="adaptive_lr", target_kl=1.0),
}
NETWORKS = {
    "MLP": dict(kind="mixed", env_class=MaskedEnv),
    "image": dict(observation="image"),
    "LSTM": dict(kind="box", policy="MlpLstmPolicy", policy_kwargs=SMALL),
    "GRU of the actor": dict(policy="MlpGruPolicy", policy_kwargs=SMALL | STRUCTURES["none"]),
}


def pairs():
    yield from (("MLP", option) for option in OPTIONS)
    yield from ((network, "both") for network in NETWORKS if network != "MLP")


def with_eps(options, cls=optim.Adam):
    """Adam that does not magnify rounding where a gradient is next to nothing."""
    given = dict(optimizer_class=cls, optimizer_kwargs=dict(eps=1e-5))
    return options | {"policy_kwargs": options.get("policy_kwargs", {}) | given}


def assert_learns_plainly(model, updates=2):
    """Several updates with one rollout, so that what optimizers remember counts.

    :param model: a fresh one
    """
    model.learn(32)
    # With optimizers that nobody has used.
    plain = Plainly(fresh := copy.deepcopy(model))
    fresh.policy.optimizer.state.clear()
    fresh.learner.critic_moments.clear()
    before = parameters(fresh).clone()
    for number in range(updates):
        memory = fresh.learner.kl_memory
        scale = 1.0 if memory is None else memory[1][2]
        if model.settings.control.measure == "kl" and not number:
            control, (running, beta, _) = memory
            fresh.learner.kl_memory, scale = (control, (running, beta, 0.5)), 0.5
        fresh.train()
        plain.update(fresh.taken, scale, model.critic_learning_rate)
    assert len(fresh.taken) == model.n_epochs + model.critic_epochs
    th.testing.assert_close(parameters(fresh), parameters(plain.model), rtol=0, atol=5e-6)
    assert (parameters(fresh) - before).abs().max() > 1e-3


@pytest.mark.parametrize(("network", "option"), list(pairs()))
def test_it_learns_as_by_optimizers_of_torch(network, option):
    assert_learns_plainly(make(cls=Noting, **with_eps(NETWORKS[network] | OPTIONS[option])))


class Elsewhere(optim.Adam):
    """An optimizer that nobody packs."""


def test_it_does_so_where_the_weights_cannot_be_packed():
    model = make(cls=Noting, **with_eps(OPTIONS["both"], Elsewhere))
    assert_learns_plainly(model)
    groups = model.policy.optimizer.param_groups
    assert len(groups) == 1 and [id(p) for p in groups[0]["params"]] == [id(p) for p in model.policy.parameters()]


def test_groups_of_the_user_stay_as_they_are():
    model = make(policy_kwargs=dict(optimizer_class=two_groups), **OPTIONS["both"]).learn(64)
    assert [len(group["params"]) for group in model.policy.optimizer.param_groups][0] == 3
    assert len(model.policy.optimizer.param_groups) == 2
    steps = {int(state["step"]) for state in model.policy.optimizer.state.values()}
    assert steps == {2 * 2 * 4} and len(model.policy.optimizer.state) == len(list(model.policy.parameters()))


def test_the_same_rate_for_the_critic_changes_nothing_but_rounding():
    models = [make("box", use_sde=True, critic_learning_rate=rate).learn(64) for rate in (None, RATE)]
    th.testing.assert_close(*map(parameters, models), rtol=0, atol=1e-5)


def test_passes_leave_the_actor_and_the_order_of_minibatches_before_them_alone():
    models = [make("box", critic_epochs=n, n_epochs=3).learn(32) for n in (0, 2)]
    without, with_passes = (model.policy.state_dict() for model in models)
    own = names_of(models[0])
    for name in without:
        assert th.equal(without[name], with_passes[name]) == (name not in own), name


def test_an_update_that_the_kl_control_stops_is_followed_by_all_passes():
    model = make("box", cls=Noting, target_kl=1e-9, critic_epochs=2, learning_rate=1e-2).learn(32)
    assert model._n_updates == 1
    assert [len(epoch) for epoch in model.taken] == [2, 4, 4]
    assert {int(state["step"]) for state in model.learner.critic_moments.values()} == {8}


def test_the_rest_is_as_before_after_the_passes_and_after_an_error_in_them():
    class Failing(PPO_Plus):
        def compute_critic_loss(self, batch, coefficients):
            assert sum(p.requires_grad for p in self.policy.parameters()) == len(names)
            assert self.policy.optimizer is not optimizer
            raise KeyError("my mistake")

    model = make(critic_epochs=1, cls=Failing)
    names, optimizer = names_of(model), model.policy.optimizer
    model.policy.log_std = None
    model.policy.action_net.bias.requires_grad_(False)
    with pytest.raises(KeyError):
        model.learn(32)
    assert model.policy.optimizer is optimizer
    frozen = [name for name, p in model.policy.named_parameters() if not p.requires_grad]
    assert frozen == ["action_net.bias"]


def test_a_loss_of_ones_own():
    class Huber(PPO_Plus):
        def compute_critic_loss(self, batch, coefficients):
            losses = super().compute_critic_loss(batch, coefficients)
            values, _ = self.policy.evaluate_batch(batch)
            assert losses.total == losses.diagnostics["value_loss"]
            return losses._replace(total=nn.functional.huber_loss(values, batch.returns))

    losses = [
        make(cls=cls, critic_epochs=1).learn(32).logger.name_to_value["train/critic_loss"] for cls in (PPO_Plus, Huber)
    ]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("value_clip", ["max", "plain"])
def test_the_value_loss_has_the_form_that_is_asked_for(value_clip):
    model = make(critic_epochs=4, clip_range_vf=0.01, value_clip=value_clip, learning_rate=1e-2).learn(32)
    batch, coefficients = model.rollout_buffer.on_device(), scheduled(model).coefficients
    values, _ = model.policy.evaluate_batch(batch)
    assert (values - batch.old_values).abs().max() > 0.01
    plain = value_loss(values, batch.old_values, batch.returns, th.tensor(0.01), value_clip)
    assert model.compute_critic_loss(batch, coefficients).total == plain


def test_returns_are_anew_in_each_pass():
    class Returns(PPO_Plus):
        def compute_critic_loss(self, batch, coefficients):
            self.seen.append(batch.returns)
            return super().compute_critic_loss(batch, coefficients)

    seen = {}
    for anew in (False, True):
        model = make(cls=Returns, critic_epochs=3, batch_size=32, recompute_advantages=anew, learning_rate=1e-2)
        model.seen = []
        model.learn(32)
        seen[anew] = [returns.sort().values for returns in model.seen]
    assert th.equal(seen[False][0], seen[False][2])
    assert (seen[True][0] - seen[True][1]).abs().max() > 1e-3 and (seen[True][1] - seen[True][2]).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:policy=OwnValues overrides")
@pytest.mark.parametrize(
    "options", [dict(policy=OwnValues), dict(rollout_buffer_class=SB3Buffer)], ids=["policy", "buffer"]
)
def test_classes_written_for_sb3(options):
    before, after = (make(**options, **given).learn(32) for given in ({}, OPTIONS["both"]))
    changed = [
        name for name, p in after.policy.state_dict().items() if not th.equal(p, before.policy.state_dict()[name])
    ]
    # The rate of the critic has a part in the clipped norm from the second step on.
    assert set(names_of(after)) <= set(changed)


# --- it lasts ---------------------------------------------------------------------------------------------------------


def test_what_the_passes_remember_is_saved(tmp_path):
    model = make(policy="MlpGruPolicy", policy_kwargs=SMALL, **OPTIONS["both"]).learn(32)
    for pickle in (False, True):
        model.save(tmp_path / "model", pickle=pickle)
        loaded = PPO_Plus.load(tmp_path / "model", trust_pickle=pickle, device="cpu")
        assert (loaded.critic_epochs, loaded.critic_learning_rate) == (3, OWN_RATE)
        ours, theirs = model.learner.critic_moments, loaded.learner.critic_moments
        assert list(ours) == list(theirs) == names_of(model)
        for name, state in ours.items():
            assert all(th.equal(value, theirs[name][key]) for key, value in state.items())


def test_they_can_be_changed_between_two_calls():
    model = make().learn(32)
    model.critic_epochs, model.critic_learning_rate = 2, "lin_1e-3"
    model.learn(64)
    assert model.logger.name_to_value["train/critic_learning_rate"] == 0
    assert model.settings.gradient_steps(64, 2) == 2 * (2 + 2) * 4
    model.policy.value_net.requires_grad_(False)
    steps = model.learner.critic_moments["value_net.bias"]["step"].item()
    model.learn(32)
    assert model.learner.critic_moments["value_net.bias"]["step"] == steps
    model.policy.value_net.requires_grad_(True)
    # Its weights have taken fewer steps than the others now, so that they cannot be packed.
    model.learn(32)
    assert model.learner.critic_moments["value_net.bias"]["step"] == steps + 8


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(critic_epochs=-1), ValueError, "critic_epochs=-1 must be at least 0"),
        (dict(critic_epochs=1.5), TypeError, "critic_epochs=1.5 must be"),
        (dict(critic_learning_rate=-1e-3), ValueError, "critic_learning_rate=-0.001 must be"),
        (dict(critic_learning_rate="fast"), ValueError, "critic_learning_rate='fast'"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make(**options)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("network", ["MLP", "LSTM", "GRU of the actor"])
def test_compiled_and_eager_train_the_same(network, request):
    if network != "MLP":
        request.getfixturevalue("traced")
    options = with_eps(NETWORKS[network] | OPTIONS["both"] | dict(recompute_advantages=True))
    eager, compiled = (make(**options | dict(compile=each)).learn(64) for each in (False, True))
    assert len(compiled.compilation.cache) == 3 and compiled.compiled
    assert all(each.is_compiled for each in compiled.compilation.cache.values())
    assert th.allclose(parameters(eager), parameters(compiled), atol=2e-5)
    for key in ("train/loss", "train/critic_loss", "train/grad_norm"):
        assert compiled.logger.name_to_value[key] == pytest.approx(eager.logger.name_to_value[key], rel=1e-3, abs=1e-5)
