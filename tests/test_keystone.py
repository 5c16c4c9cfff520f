"""The keystone: where PPO_Plus claims to be SB3's PPO, it is.

With SB3's defaults and the same seed the first rollout is SB3's, and from the same rollout in the same minibatch order
one ``train()`` makes the same weights.
"""

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, VECTOR, MaskedEnv, vec
from gymnasium import spaces
from networks import without_kinks
from parametrization import SLOW, part
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from ppo_plus import PPO_Plus

N_STEPS, N_ENVS = 64, 4
#: How far apart weights may be after training on one rollout: float32 roundings of 6e-8, on some processors a few more.
CLOSE = 1e-6
KINDS = ["discrete", "box", "multidiscrete", "multibinary"]


class KeepRollout(BaseCallback):
    """Copies the first rollout before SB3's buffer is reshuffled for training, and all that the environment saw."""

    def _on_training_start(self):
        self.actions = []

    def _on_step(self):
        # These discrete actions are the environments' as well; MaskablePPO has no others.
        given = self.locals.get("clipped_actions", self.locals["actions"])
        self.actions.append(np.array(given, dtype=np.float64))
        return True

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        names = ["observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns"]
        self.rollout = {name: _copy(getattr(buffer, name)) for name in names}


def _copy(arrays):
    return {key: value.copy() for key, value in arrays.items()} if isinstance(arrays, dict) else arrays.copy()


def make(cls, kind="discrete", observation=VECTOR, policy="MlpPolicy", max_steps=17, **kwargs):
    kwargs = {"n_steps": N_STEPS} | kwargs
    if cls is PPO_Plus and kwargs.get("clip_range_vf") is not None:
        kwargs["value_clip"] = "plain"
    env = vec(ACTIONS[kind], observation, N_ENVS, max_steps=max_steps)
    return cls(policy, env, seed=3, device="cpu", **kwargs)


def collect(model):
    """One rollout, without training on it."""
    keep = KeepRollout()
    _, callback = model._setup_learn(N_STEPS * N_ENVS, keep)
    callback.on_training_start({}, {})
    assert model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    return keep


def first_rollouts(kind, max_steps):
    return [collect(make(cls, kind, max_steps=max_steps)) for cls in (PPO, PPO_Plus)]


INITIAL = {
    **{kind: {"kind": kind} for kind in KINDS},
    "not_orthogonal": {"policy_kwargs": {"ortho_init": False}},
    "unshared": {"observation": IMAGE, "policy": "CnnPolicy", "policy_kwargs": {"share_features_extractor": False}},
    "architecture": {"policy_kwargs": {"net_arch": {"pi": [7], "vf": [6, 5]}, "activation_fn": th.nn.ReLU}},
}


@pytest.mark.parametrize("case", INITIAL)
def test_initial_weights_and_their_names_are_sb3s(case):
    theirs, ours = (make(cls, **INITIAL[case]).policy.state_dict() for cls in (PPO, PPO_Plus))
    assert list(theirs) == list(ours)
    for name, weight in theirs.items():
        assert th.equal(weight, ours[name]), name


@pytest.mark.parametrize("options", [{}, {"full_std": False}], ids=str)
def test_parameters_of_gsde_have_sb3s_names_and_shapes(options):
    theirs, ours = (make(cls, "box", use_sde=True, policy_kwargs=options).policy for cls in (PPO, PPO_Plus))
    # SB3 draws its noise while it builds the networks, so the numbers are others.
    shapes = [{name: weight.shape for name, weight in policy.state_dict().items()} for policy in (theirs, ours)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("kind", KINDS)
def test_first_rollout_is_sb3s_bit_for_bit(kind):
    theirs, ours = first_rollouts(kind, max_steps=None)
    np.testing.assert_array_equal(theirs.actions, ours.actions)
    for name in ("observations", "actions", "rewards", "episode_starts", "values", "log_probs"):
        np.testing.assert_array_equal(theirs.rollout[name], ours.rollout[name], err_msg=name)
    # Sums of up to 64 terms of size 10, in another order: some float32 roundings of 1e-6 each.
    for name in ("advantages", "returns"):
        np.testing.assert_allclose(theirs.rollout[name], ours.rollout[name], rtol=1e-5, atol=3e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_first_rollout_differs_at_time_limits_by_rounding_only(kind):
    theirs, ours = first_rollouts(kind, max_steps=17)
    for name in ("observations", "actions", "episode_starts", "values", "log_probs"):
        np.testing.assert_array_equal(theirs.rollout[name], ours.rollout[name], err_msg=name)
    # The values of all final observations come from one forward pass instead of one each.
    np.testing.assert_allclose(theirs.rollout["rewards"], ours.rollout["rewards"], rtol=0, atol=1e-6)


# --- one train() -------------------------------------------------------------------------------------------------


def hand_over(theirs, keep, ours):
    """Give SB3's weights and SB3's rollout to our model."""
    ours.policy.load_state_dict(theirs.policy.state_dict())
    collect(ours)
    buffer, rollout = ours.rollout_buffer, keep.rollout
    for name, rows in rollout.items():
        if name == "observations" and isinstance(rows, dict):
            for key, row in rows.items():
                # SB3 gives a choice a dimension of its own.
                buffer.observations[key][:] = row.reshape(buffer.observations[key].shape)
        else:
            stored = getattr(buffer, name)
            stored[:] = rows.reshape(stored.shape)


def train(model):
    np.random.seed(9)
    model.train()
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


def trained_on_the_same(**kwargs):
    """SB3's model and ours, and how far apart the largest of their weights are after one ``train()``."""
    if kwargs.get("observation", VECTOR) is not VECTOR:
        kwargs["n_steps"] = N_STEPS // 2  # images take their time
    theirs, ours = (without_kinks(make(cls, **kwargs)) for cls in (PPO, PPO_Plus))
    hand_over(theirs, collect(theirs), ours)
    before = th.nn.utils.parameters_to_vector(theirs.policy.parameters()).detach()
    after, our_after = train(theirs), train(ours)
    assert (after - before).abs().max() > 1e-3, "nothing was learned: the comparison would be empty"
    return theirs, ours, (after - our_after).abs().max().item()


# A Dict that SB3 can handle as well.
DICT = spaces.Dict(image=IMAGE, vector=VECTOR)
# Keywords keep their order, which decides the order of the features.
UNSORTED_DICT = spaces.Dict(vector=VECTOR, image=IMAGE, choice=spaces.Discrete(3))

TRAINED = {
    **{kind: {"kind": kind} for kind in KINDS},
    "discrete_ent_coef": {"kind": "discrete", "ent_coef": 0.1},
    "gsde": {"kind": "box", "use_sde": True},
    "gsde_expln": {
        "kind": "box",
        "use_sde": True,
        "ent_coef": 0.1,
        "policy_kwargs": {"use_expln": True, "full_std": False, "log_std_init": -1.0},
    },
    "cnn": {"observation": IMAGE, "policy": "CnnPolicy"},
    "unsorted_dict": {"observation": UNSORTED_DICT, "policy": "MultiInputPolicy"},
    "unshared": dict(observation=DICT, policy="MultiInputPolicy", policy_kwargs={"share_features_extractor": False}),
    "not_normalized": {"normalize_advantage": False},
    "value_clip": {"clip_range_vf": 0.05},
    "one_in_the_last_minibatch": {"batch_size": 51},
    "schedules": {"learning_rate": lambda progress: 1e-3 * progress, "clip_range": lambda progress: 0.1 * progress},
    "rmsprop": {"policy_kwargs": {"optimizer_class": th.optim.RMSprop, "optimizer_kwargs": {"eps": 1e-5}}},
    "two_widths": {"policy_kwargs": {"net_arch": {"pi": [16], "vf": [8, 8]}, "activation_fn": th.nn.SiLU}},
}


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("case", part(TRAINED, TRAINED.keys() - {"unsorted_dict", "rmsprop"}, SLOW))
def test_one_train_gives_sb3s_weights(case):
    theirs, ours, difference = trained_on_the_same(**TRAINED[case])
    assert difference < CLOSE
    assert ours._n_updates == theirs._n_updates == 10


def test_kl_stop_happens_at_sb3s_minibatch():
    theirs, ours, difference = trained_on_the_same(target_kl=0.003, learning_rate=3e-3)
    assert difference < CLOSE
    assert ours._n_updates == theirs._n_updates
    assert 1 < ours._n_updates < 10, "the case must stop in the middle to say anything"
    # One step per minibatch that was not stopped.
    steps = [next(iter(model.policy.optimizer.state.values()))["step"].item() for model in (theirs, ours)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("kind", KINDS)
def test_learning_for_one_rollout_is_sb3s(kind):
    weights = []
    for cls in (PPO, PPO_Plus):
        model = make(cls, kind).learn(N_STEPS * N_ENVS)
        weights.append(th.nn.utils.parameters_to_vector(model.policy.parameters()).detach())
    th.testing.assert_close(*weights, rtol=0, atol=CLOSE)


# --- masks: sb3-contrib's MaskablePPO ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["discrete", "multidiscrete"])
def test_masked_learning_for_one_rollout_is_sb3_contribs(kind):
    """Not MultiBinary, for which sb3-contrib has two logits for each bit."""
    results = []
    for cls in (MaskablePPO, PPO_Plus):
        env = vec(ACTIONS[kind], n_envs=N_ENVS, env_class=MaskedEnv, max_steps=17)
        keep = KeepRollout()
        model = cls("MlpPolicy", env, n_steps=N_STEPS, seed=3, device="cpu", ent_coef=0.1).learn(N_STEPS * N_ENVS, keep)
        results.append((keep, th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()))
    (theirs, weights), (ours, our_weights) = results
    np.testing.assert_array_equal(theirs.actions, ours.actions)
    for name in ("observations", "actions", "episode_starts", "values"):
        np.testing.assert_array_equal(theirs.rollout[name], ours.rollout[name], err_msg=name)
    np.testing.assert_allclose(theirs.rollout["log_probs"], ours.rollout["log_probs"], rtol=1e-6, atol=1e-6)
    th.testing.assert_close(weights, our_weights, rtol=0, atol=CLOSE)
