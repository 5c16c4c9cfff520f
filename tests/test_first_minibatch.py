"""Before the first gradient step the policy is the one that collected the rollout: ratio 1, KL 0, nothing clipped.

This one fact catches whatever is stored, converted or scored in two different ways.
"""

import io

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, POLICIES, KeyMaskedEnv, MaskedEnv, RandomEnv, equal_actions, vec
from parametrization import all_pairs, in_turn
from tensor_envs import TensorTwin

from ppo_plus import ColoredNoise, PPO_Plus

EXPLORATIONS = {"white": {}, "gsde": {"use_sde": True}, "colored": {"exploration": ColoredNoise(0.5, horizon=16)}}
# Noise that is renewed within the rollout.
RENEWED = {f"gsde_{freq}": {"use_sde": True, "sde_sample_freq": freq} for freq in (3, "episode")}
# One kind of action of each family, each of them an odd one. The mixed ones have bits among their parts.
FAMILIES = ["box_int", "box_squashed", "discrete_start", "multidiscrete_2d", "mixed"]
MASKABLE = ["discrete", "multibinary", "mixed"]
MEMORIES = ["", "Lstm", "Gru", "Lru", "Attention"]
# Advantages are estimated once, or again before each epoch; what the policy normalizes changes between two rollouts.
ADVANTAGES = {"once": {}, "recomputed": {"recompute_advantages": True}, "normalized": {"normalize_values": True}}

# The rollout is computed two observations at a time, the minibatch sixteen: the sums may round differently, by some
# 1e-7 per unit of log-probability, of which there are up to ten here.
TOLERANCE = 1e-5


class Recording(PPO_Plus):
    """Remembers the ratios and diagnostics of each update's first minibatch."""

    def train(self):
        self.is_first = True
        super().train()

    def compute_loss(self, batch, coefficients):
        outcome = super().compute_loss(batch, coefficients)
        if self.is_first:
            _, params = self.policy.evaluate(batch.observations, batch.carry, batch.episode_starts, batch.masks)
            log_probs = self.policy.action_dist.log_prob(params, batch.actions)
            ratios = (log_probs - batch.old_log_prob).exp().detach()
            self.firsts = [*getattr(self, "firsts", []), (ratios, outcome.diagnostics)]
        self.is_first = False
        return outcome


def make(kind, observation="box", exploration="white", env=None, memory="", **kwargs):
    # Initial logits of SB3's networks are close to 0, which would hide mistakes; torch's own initialization is not.
    policy_kwargs = {"ortho_init": False}
    if kind == "box_squashed":
        kind, policy_kwargs["squash_output"] = "box_float64", True
    env = env or vec(ACTIONS[kind], OBSERVATIONS[observation])
    policy = POLICIES.get(observation, "MlpPolicy")
    if memory:
        # Episodes of random length end within the sequences, and sequences begin within episodes.
        policy = policy.replace("Policy", f"{memory}Policy")
        policy_kwargs |= {"lstm_hidden_size": 12, "n_lstm_layers": 2}
        kwargs = {"sequence_length": 4} | kwargs
    kwargs = {"n_steps": 8, "batch_size": 16, "n_epochs": 2, "policy_kwargs": policy_kwargs} | kwargs
    return Recording(policy, env, seed=0, device="cpu", **(EXPLORATIONS | RENEWED)[exploration], **kwargs)


def make_masked(kind, masks, exploration, **kwargs):
    """A model in environments that refuse forbidden actions."""
    if masks == "method":
        return make(kind, exploration=exploration, env=vec(ACTIONS[kind], env_class=MaskedEnv), **kwargs)
    env = vec(ACTIONS[kind], OBSERVATIONS["dict"], env_class=KeyMaskedEnv)
    return make(kind, "dict", exploration, env, action_mask_key="mask", **kwargs)


def assert_first_minibatches_are_neutral(model, n_updates=2):
    assert len(model.firsts) == n_updates
    for ratios, diagnostics in model.firsts:
        th.testing.assert_close(ratios, th.ones_like(ratios), rtol=0, atol=TOLERANCE)
        assert abs(diagnostics["approx_kl"].item()) < TOLERANCE
        assert abs(diagnostics["kl"].item()) < TOLERANCE
        assert diagnostics["clip_fraction"].item() == 0


@pytest.mark.parametrize(
    ("kind", "observation", "exploration", "memory", "advantages"),
    all_pairs(FAMILIES, OBSERVATIONS, EXPLORATIONS | RENEWED, MEMORIES, ADVANTAGES),
)
def test_ratio_is_one_and_a_loaded_model_acts_alike(kind, observation, exploration, memory, advantages):
    # Two updates: the second one works on a policy that has learned and a buffer that was used before.
    options = dict(ADVANTAGES[advantages])
    if advantages == "normalized":
        options["normalize_observations"] = observation in ("box", "box_int", "dict")
    model = make(kind, observation, exploration, memory=memory, **options).learn(32)
    assert_first_minibatches_are_neutral(model)
    assert_loaded_acts_alike(model)


@pytest.mark.parametrize(
    ("kind", "masks", "exploration", "memory"), all_pairs(MASKABLE, ["method", "key"], EXPLORATIONS, MEMORIES)
)
def test_ratio_is_one_and_a_loaded_model_acts_alike_under_masks(kind, masks, exploration, memory):
    model = make_masked(kind, masks, exploration, memory=memory, ent_coef=0.1).learn(32)
    assert_first_minibatches_are_neutral(model)
    assert (model.rollout_buffer.masks is None) == (masks == "key")
    given = model.env.env_method("action_masks") if masks == "method" else None
    assert_loaded_acts_alike(model, action_masks=given)


@pytest.mark.parametrize(
    ("memory", "case"), in_turn(MEMORIES, [("box", "white", ""), ("mixed", "gsde", "mask"), ("mixed", "colored", "")])
)
def test_ratio_is_one_with_separate_actor_and_critic_keys(memory, case):
    kind, exploration, mask = case
    keys = {"actor_keys": ["choice", "vector"], "critic_keys": ["choice", "choices", "image"], "ortho_init": False}
    if memory:
        keys |= {"lstm_hidden_size": 12}
    env = vec(ACTIONS[kind], OBSERVATIONS["dict"], env_class=KeyMaskedEnv if mask else RandomEnv)
    model = make(kind, "dict", exploration, env, memory, policy_kwargs=keys, action_mask_key=mask or None).learn(32)
    assert_first_minibatches_are_neutral(model)
    assert_loaded_acts_alike(model)


@pytest.mark.parametrize(
    ("kind", "masks", "exploration", "memory"), all_pairs(MASKABLE, [None, "method", "key"], EXPLORATIONS, MEMORIES)
)
def test_ratio_is_one_and_kl_zero_in_tensors(kind, masks, exploration, memory):
    env = TensorTwin(2, ACTIONS[kind], masks)
    kwargs = {"action_mask_key": "mask"} if masks == "key" else {}
    observation = "dict" if masks == "key" else "box"
    model = make(kind, observation, exploration, env, memory, sde_sample_freq="episode", ent_coef=0.1, **kwargs)
    assert_first_minibatches_are_neutral(model.learn(32))
    assert (model.rollout_buffer.masks is None) == (masks != "method")


def test_ratio_is_one_without_shared_features():
    policy_kwargs = {"share_features_extractor": False, "ortho_init": False}
    assert_first_minibatches_are_neutral(make("box", "dict", policy_kwargs=policy_kwargs).learn(32))


def assert_loaded_acts_alike(model, **predict_kwargs):
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    loaded = PPO_Plus.load(file, device="cpu")

    obs = model.get_env().reset()
    for deterministic in (True, False):
        actions = []
        for each in (model, loaded):
            # Held noise is drawn anew from the same seed.
            th.manual_seed(7)
            each.policy.reset_noise(2)
            first, state = each.predict(obs, deterministic=deterministic, **predict_kwargs)
            starts = np.array([False, True])
            second, _ = each.predict(obs, state, starts, deterministic=deterministic, **predict_kwargs)
            actions.append([*first, *second])
        assert equal_actions(*actions)
        assert all(each in model.action_space for each in actions[1])
