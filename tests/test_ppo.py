"""What PPO_Plus adds to SB3's PPO, end to end."""

import copy
import pickle
import re
import warnings
from dataclasses import dataclass
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, OBSERVATIONS, VECTOR, FaultyEnv, RandomEnv, StillEnv, equal_actions, vec
from gymnasium import spaces
from models import make_model, weights
from parametrization import in_turn, sample
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer as SB3RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from torch import nn

from ppo_plus import (
    AdaptiveLearningRate,
    AdaptivePenalty,
    ColoredNoise,
    EarlyStop,
    KLControl,
    Losses,
    MlpPolicy,
    NoiseProcess,
    PPO_Plus,
    StateDependentNoise,
    WhiteNoise,
    cosine,
    linear,
)
from ppo_plus.update import flat

NAN, INF = float("nan"), float("inf")


#: Four minibatches in each epoch.
make = partial(make_model, batch_size=4)


def logged(model):
    return model.logger.name_to_value


class Recording(PPO_Plus):
    """Remembers the batches, coefficients and diagnostics of every minibatch."""

    def compute_loss(self, batch, coefficients):
        outcome = super().compute_loss(batch, coefficients)
        self.record = [*getattr(self, "record", []), (batch, coefficients, outcome.diagnostics)]
        return outcome


class LogHistory(BaseCallback):
    """Keeps what each update logged; the last one is in the logger after training."""

    def __init__(self):
        super().__init__()
        self.updates = []

    def _on_rollout_start(self):
        if "train/loss" in logged(self.model):
            self.updates.append(dict(logged(self.model)))

    def _on_training_end(self):
        self.updates.append(dict(logged(self.model)))

    def _on_step(self):
        return True

    def __getitem__(self, name):
        return [update[name] for update in self.updates]


def learn(model, n_updates, **kwargs):
    """Learn for some updates; returns what each of them logged."""
    history = LogHistory()
    model.learn(n_updates * model.n_steps * model.n_envs, callback=history, log_interval=None, **kwargs)
    return history


# --- arguments -------------------------------------------------------------------------------------------------------

REFUSED = {
    "policy": ["NoPolicy", 5, int],
    "learning_rate": [-1e-3, NAN, INF, "abc", "lin_", "lin_x", "lin_1_2_3", "", True, [1e-3], None, lambda p: NAN],
    "n_steps": [0, -1, 2.5, "8", True, None],
    "batch_size": [0, -1, 1, 2.5, "8", True, None],
    "n_epochs": [0, -1, 2.5, "8", True, None],
    "gamma": [-0.1, 1.1, NAN, "1", True, None],
    "gae_lambda": [-0.1, 1.1, NAN, "1", True, None],
    "clip_range": [0, -0.1, NAN, INF, "abc", True, None],
    "clip_range_vf": [0, -0.1, NAN, INF, "abc", True],
    "normalize_advantage": ["batch", 1, 0, None],
    "ent_coef": [NAN, INF, "abc", True, None],
    "vf_coef": [-0.1, NAN, INF, "abc", True, None],
    "max_grad_norm": [0, -0.5, NAN, "1", True, None],
    "use_sde": ["yes", None],
    "sde_sample_freq": [0, -2, 2.5, "rollout", True, None],
    "rollout_buffer_class": [int, "RolloutBuffer", 5],
    "rollout_buffer_kwargs": [5],
    "target_kl": [0, -0.01, NAN, INF, "abc", True],
    "stats_window_size": [0, -1, 2.5, None],
    "tensorboard_log": [5],
    "policy_kwargs": [5],
    "verbose": ["loud"],
    "seed": [-1, "abc"],
    "device": ["abacus"],
    "value_clip": ["min", None, True],
    "kl_control": ["abc", None, 5, EarlyStop, "penalty", "adaptive_lr"],
    "exploration": ["gsde", 5, WhiteNoise],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_a_bad_argument_raises_an_error_before_any_step(name, value):
    env = vec(ACTIONS["discrete"])
    with pytest.raises((ValueError, TypeError)) as refusal:
        make(env=env, **{name: value}).learn(16)
    assert re.search(name, str(refusal.value), re.IGNORECASE)
    assert repr(value) in str(refusal.value) or str(value) in str(refusal.value)
    assert all(each.n_steps == 0 for each in env.envs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"use_sde": True, "exploration": WhiteNoise()}, "use_sde=True and exploration=WhiteNoise"),
        ({"clip_range": None}, 'clip_range=None .* kl_control="penalty"'),
        ({"clip_range": None, "target_kl": 0.1}, 'clip_range=None .* kl_control="penalty"'),
        ({"clip_range": None, "target_kl": 0.1, "kl_control": "adaptive_lr"}, "clip_range=None"),
        ({"kl_control": EarlyStop()}, "kl_control=EarlyStop.* target_kl"),
        ({"kl_control": AdaptivePenalty()}, "kl_control=AdaptivePenalty.* target_kl"),
        ({"kl_control": AdaptiveLearningRate()}, "kl_control=AdaptiveLearningRate.* target_kl"),
        ({"policy_kwargs": {"squash_output": True}}, "squash_output=True .* Box"),
        ({"env": RandomEnv(ACTIONS["discrete"]), "n_steps": 1}, "n_steps=1 times n_envs=1"),
    ],
)
def test_arguments_that_exclude_each_other_raise_an_error(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("action_space", spaces.Box(-np.inf, np.inf, (2,))),
        ("action_space", spaces.Box(-1, 1, (0,))),
        ("action_space", spaces.Text(3)),
        ("observation_space", spaces.Tuple([VECTOR])),
        ("observation_space", spaces.Dict(a=spaces.Dict(b=VECTOR))),
        ("observation_space", spaces.Text(3)),
        ("observation_space", spaces.Sequence(VECTOR)),
    ],
    ids=str,
)
def test_an_unsupported_space_raises_an_error_with_its_name(name, space):
    env = RandomEnv(**{"action_space": ACTIONS["discrete"], name: space})
    with pytest.raises(ValueError, match=f"{name}={re.escape(str(space))}"):
        make(env=env, policy="MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy")


@pytest.mark.parametrize(
    ("policy", "observation", "remedy"),
    [
        ("CnnPolicy", "box", "MlpPolicy"),
        ("MultiInputPolicy", "box", "MlpPolicy"),
        *((policy, "dict", "MultiInput") for policy in ("MlpPolicy", "MlpLstmPolicy", "MlpGruPolicy", "CnnLstmPolicy")),
    ],
)
def test_a_policy_for_other_observations_raises_an_error(policy, observation, remedy):
    with pytest.raises(ValueError, match=f"(?s)[Oo]bservation.*{remedy}|use `{remedy}"):
        make(env=vec(ACTIONS["discrete"], OBSERVATIONS[observation]), policy=policy)


@pytest.mark.parametrize("env", [5, None])
def test_a_wrong_type_of_environment_raises_an_error(env):
    with pytest.raises((ValueError, TypeError), match=f"env={env}"):
        PPO_Plus("MlpPolicy", env)


@pytest.mark.parametrize("total_timesteps", [0, -1, NAN, "many", None])
def test_a_bad_number_of_steps_raises_an_error(total_timesteps):
    with pytest.raises((ValueError, TypeError), match=f"total_timesteps={total_timesteps!r}"):
        make().learn(total_timesteps)


@pytest.mark.parametrize(("name", "value"), [("gamma", 2.0), ("batch_size", 1), ("clip_range", -1.0), ("n_epochs", 0)])
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


# --- schedules -------------------------------------------------------------------------------------------------------


def test_a_string_a_callable_and_an_object_are_the_same_schedule():
    forms = "lin_1e-2_1e-3", linear(1e-2, 1e-3), lambda progress: 1e-3 + (1e-2 - 1e-3) * progress
    results = [weights(make(learning_rate=form).learn(48)) for form in forms]
    # The lambda may round the rate differently in the last bit of a double.
    th.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    th.testing.assert_close(results[0], results[2], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["clip_range", "clip_range_vf", "ent_coef", "vf_coef"])
@pytest.mark.parametrize("schedule", [linear(0.4, 0.1), cosine(0.4, 0.1), "cos_0.4_0.1"], ids=str)
def test_a_coefficient_follows_its_schedule(name, schedule):
    model = make(Recording, n_epochs=1, batch_size=16, **{name: schedule}).learn(48)
    reference = cosine(0.4, 0.1) if isinstance(schedule, str) else schedule
    found = [getattr(coefficients, name).item() for _, coefficients, _ in model.record]
    assert found == pytest.approx([reference(2 / 3), reference(1 / 3), reference(0.0)])


@dataclass(frozen=True)
class TargetAsBeta(KLControl):
    def after_update(self, state, kl, target):
        return state._replace(beta=target.clone())


def test_target_kl_follows_its_schedule():
    model = make(target_kl=linear(0.4, 0.1), kl_control=TargetAsBeta())
    assert learn(model, 3)["train/kl_coef"] == pytest.approx([0.3, 0.2, 0.1])


def test_progress_never_becomes_negative():
    seen = []
    model = make(learning_rate=lambda progress: seen.append(progress) or 1e-3)
    model.learn(20)
    # 20 steps were asked for, 32 taken: the last update is past the end.
    assert model.num_timesteps == 32
    assert min(seen) == 0.0


def test_a_decayed_to_zero_schedule_ends_learning_not_training():
    model = make(learning_rate="lin_1e-3", clip_range="lin_0.2", target_kl="lin_0.02")
    assert np.isfinite(list(learn(model, 2)["train/loss"])).all()


class Counted:
    """A schedule with a state: it falls with each call."""

    def __init__(self):
        self.calls = []

    def __call__(self, progress):
        self.calls.append(progress)
        return 0.1 / len(self.calls)


def test_schedules_are_called_as_sb3_calls_them():
    names = "learning_rate", "clip_range", "clip_range_vf"
    sizes = dict(n_steps=8, batch_size=4, n_epochs=2, seed=0, device="cpu")
    ours, theirs = {name: Counted() for name in names}, {name: Counted() for name in names}
    PPO_Plus("MlpPolicy", vec(ACTIONS["discrete"]), **sizes, **ours).learn(48)
    PPO("MlpPolicy", vec(ACTIONS["discrete"]), **sizes, **theirs).learn(48)
    assert len(ours["clip_range"].calls) == 3
    for name in names:
        # SB3 asks for the learning rate a second time, to log it.
        assert ours[name].calls == list(dict.fromkeys(theirs[name].calls))


def test_our_own_schedules_are_called_once_per_update():
    counted = {name: Counted() for name in ("ent_coef", "vf_coef", "target_kl")}
    history = learn(make(**counted), 3)
    assert {name: len(each.calls) for name, each in counted.items()} == dict(ent_coef=3, vf_coef=3, target_kl=3)
    assert len(history["train/loss"]) == 3


def test_a_callback_can_change_the_discount():
    model = PPO_Plus("MlpPolicy", vec(ACTIONS["box"]), n_steps=8, batch_size=16)

    def change(locals_, globals_):
        model.gamma = 0.0
        return True

    model.learn(16, callback=change)
    rollout = model.rollout_buffer
    # Without a future the advantage is that of one step.
    np.testing.assert_allclose(rollout.advantages, rollout.rewards - rollout.values, atol=1e-6)


def test_the_learning_rate_can_be_changed_between_calls():
    model = make(learning_rate=1e-3).learn(16)
    model.learning_rate = 0.0
    before = weights(model)
    model.learn(16)
    assert th.equal(weights(model), before) and logged(model)["train/learning_rate"] == 0.0
    model.learning_rate = "lin_0.2"
    assert learn(model, 2)["train/learning_rate"] == [0.1, 0.0]
    model.learning_rate = -1.0
    before = weights(model)
    with pytest.raises(ValueError, match=r"learning_rate=-1\.0 must be"):
        model.learn(16)
    assert th.equal(weights(model), before)


def test_a_callback_can_change_the_learning_rate():
    model = make(learning_rate=1e-3)

    def change(locals_, globals_):
        model.learning_rate = 0.0
        return True

    before = weights(model)
    model.learn(16, callback=change)
    assert th.equal(weights(model), before) and logged(model)["train/learning_rate"] == 0.0


def test_a_schedule_assigned_as_in_sb3_is_used():
    model = make(learning_rate=1e-3)
    model.lr_schedule = lambda progress: 0.5
    model.learn(16)
    assert logged(model)["train/learning_rate"] == 0.5


def test_a_callback_can_change_the_clip_range():
    model = make(clip_range=0.2)

    def change(locals_, globals_):
        model.clip_range = 0.05
        return True

    model.learn(16, callback=change)
    assert logged(model)["train/clip_range"] == 0.05
    model.clip_range = -1.0
    with pytest.raises(ValueError, match=r"clip_range=-1\.0 must be"):
        model.learn(16)


def test_a_schedule_that_becomes_nan_stops_training():
    model = make(vf_coef=lambda progress: NAN if 0.331 < progress < 0.339 else 0.5)
    with pytest.raises(ValueError, match="vf_coef.*nan"):
        model.learn(48)
    assert model.num_timesteps == 32
    assert th.isfinite(weights(model)).all()


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "ent_coef", "target_kl"])
def test_a_schedule_in_a_model_can_be_pickled(name):
    model = make(**{name: linear(0.3, 0.1)})
    schedule = pickle.loads(pickle.dumps(getattr(model, name)))
    assert schedule(0.5) == pytest.approx(0.2)


# --- KL control ------------------------------------------------------------------------------------------------------


def n_steps_taken(model):
    return int(next(iter(model.policy.optimizer.state.values()))["step"])


def test_early_stop_comes_before_the_step_beyond_the_limit():
    model = make(Recording, target_kl=1e-12)
    history = learn(model, 1)
    # The first minibatch has KL 0; after its step the second one is beyond any such target.
    assert len(model.record) == 2
    assert n_steps_taken(model) == 1
    assert history["train/n_updates"] == [1]
    assert history["train/kl_early_stop"] == [1.0]


def test_the_minibatch_that_stops_is_counted_in_the_averages():
    model = make(Recording, target_kl=1e-12)
    history = learn(model, 1)
    kls = [diagnostics["approx_kl"].item() for _, _, diagnostics in model.record]
    assert history["train/approx_kl"] == pytest.approx([np.mean(kls)])


def test_stop_per_epoch_finishes_the_epoch():
    model = make(target_kl=1e-12, kl_control=EarlyStop(per="epoch"), n_epochs=3)
    history = learn(model, 1)
    assert n_steps_taken(model) == 4
    assert history["train/n_updates"] == [1]


def test_stop_leaves_an_update_within_the_limit_alone():
    model = make(target_kl=100.0)
    history = learn(model, 1)
    assert n_steps_taken(model) == 8
    assert history["train/kl_early_stop"] == [0.0]


def test_stopping_one_update_does_not_stop_the_next():
    model = make(target_kl=1e-12)
    learn(model, 3)
    assert n_steps_taken(model) == 3


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_kl_is_the_exact_divergence_of_new_from_old_policy(kind):
    model = make(Recording, env=vec(ACTIONS[kind]), learning_rate=1e-2, normalize_advantage=False).learn(16)
    batch, coefficients, _ = model.record[-1]
    old = model.policy.action_dist.to_torch(batch.old_params)
    new = model.policy.get_distribution(batch.observations).distribution
    expected = th.distributions.kl_divergence(old, new).reshape(len(batch.actions), -1).sum(dim=1).mean()
    assert expected > 1e-5
    th.testing.assert_close(model.compute_loss(batch, coefficients).diagnostics["kl"], expected, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize(("target", "betas"), [(1e-9, [2.0, 4.0, 8.0]), (1e3, [0.5, 0.25, 0.125])])
def test_penalty_is_doubled_above_and_halved_below_the_band(target, betas):
    model = make(target_kl=target, kl_control="penalty", learning_rate=1e-2)
    assert learn(model, 3)["train/kl_coef"] == betas


def test_penalty_adds_beta_times_the_exact_kl_to_the_loss():
    model = make(Recording, target_kl=0.01, kl_control="penalty", learning_rate=1e-2)
    learn(model, 1)
    batch, coefficients, _ = model.record[-1]
    plain = model.compute_loss(batch, coefficients._replace(kl_coef=None))
    penalized = model.compute_loss(batch, coefficients._replace(kl_coef=th.tensor(3.0)))
    assert plain.diagnostics["kl"].item() > 0
    assert (penalized.total - plain.total).item() == pytest.approx(3 * plain.diagnostics["kl"].item(), rel=1e-3)
    assert coefficients.kl_coef.item() == 1.0


@pytest.mark.parametrize("kl_control", ["penalty", AdaptivePenalty(band=2.0)], ids=str)
def test_clipping_can_be_off_under_a_penalty(kl_control):
    model = make(clip_range=None, target_kl=0.01, kl_control=kl_control)
    before = weights(model)
    model.learn(16)
    assert not th.equal(weights(model), before)
    assert not {"train/clip_fraction", "train/clip_range"} & set(logged(model))


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 1 / 1.5), (1e3, 1.5)])
def test_adaptive_lr_scales_a_decaying_schedule(target, factor):
    schedule = linear(1e-2, 1e-3)
    model = make(target_kl=target, kl_control="adaptive_lr", learning_rate=schedule)
    history = learn(model, 3)
    assert history["train/lr_scale"] == pytest.approx([factor, factor**2, factor**3])
    # The scale that an update ends with serves the next one.
    scales = [1.0, *history["train/lr_scale"][:-1]]
    expected = [schedule(progress) * scale for progress, scale in zip((2 / 3, 1 / 3, 0.0), scales, strict=True)]
    assert history["train/learning_rate"] == pytest.approx(expected)
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(expected[-1])


def test_adaptive_lr_scale_is_bounded():
    model = make(target_kl=1e3, kl_control=AdaptiveLearningRate(factor=10.0, max_scale=20.0))
    assert learn(model, 3)["train/lr_scale"] == pytest.approx([10.0, 20.0, 20.0])


@pytest.mark.parametrize("kl_control", ["penalty", "adaptive_lr"])
def test_the_state_of_a_control_is_saved_and_loaded(kl_control, tmp_path):
    model = make(target_kl=1e3, kl_control=kl_control)
    learn(model, 1)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", env=vec(ACTIONS["discrete"]), device="cpu")
    name, expected = {"penalty": ("train/kl_coef", 0.25), "adaptive_lr": ("train/lr_scale", 2.25)}[kl_control]
    assert learn(loaded, 1)[name] == pytest.approx([expected])


def test_a_new_penalty_control_starts_with_its_own_coefficient():
    model = make()
    learn(model, 1)
    model.kl_control, model.target_kl = "penalty", 1e3
    assert learn(model, 1)["train/kl_coef"] == [0.5]


def test_replacing_a_control_removes_its_scale():
    model = make(target_kl=1e3, kl_control="adaptive_lr", learning_rate=1e-3)
    assert learn(model, 1)["train/lr_scale"] == [1.5]
    model.kl_control = "stop"
    assert learn(model, 1)["train/learning_rate"] == [1e-3]


class ConstantGradient(PPO_Plus):
    """Every weight has the gradient 1, so that a plain SGD step moves it by the learning rate."""

    def compute_loss(self, batch, coefficients):
        outcome = super().compute_loss(batch, coefficients)
        return Losses(sum(weight.sum() for weight in self.policy.parameters()), outcome.diagnostics)


@dataclass(frozen=True)
class HalveEachMinibatch(KLControl):
    def after_minibatch(self, state, kl, target):
        return state._replace(lr_scale=state.lr_scale / 2)


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_custom_control_may_change_the_rate_per_minibatch(is_packed, monkeypatch):
    if not is_packed:
        monkeypatch.setattr(flat, "ELEMENTWISE", ())
    kwargs = {"policy_kwargs": {"optimizer_class": th.optim.SGD}, "max_grad_norm": 1e9, "n_epochs": 1}
    model = make(ConstantGradient, kl_control=HalveEachMinibatch(), learning_rate=1.0, **kwargs)
    before = weights(model)
    learn(model, 2)
    # Eight steps, each with half the rate of the one before; the second update goes on where the first one ended.
    moved = before - weights(model)
    th.testing.assert_close(moved, th.full_like(moved, sum(0.5**k for k in range(1, 9))), rtol=0, atol=1e-5)


@dataclass(frozen=True)
class StopAtThird(KLControl):
    """Counts minibatches in ``beta``."""

    def after_minibatch(self, state, kl, target):
        return state._replace(beta=state.beta + 1, running=state.running & (state.beta + 1 < 3))


def test_a_custom_control_may_stop_the_update_without_a_target():
    model = make(kl_control=StopAtThird())
    history = learn(model, 1)
    assert n_steps_taken(model) == 2
    assert history["train/kl_coef"] == [3.0]


# --- advantages ------------------------------------------------------------------------------------------------------


def test_minibatch_is_another_name_for_true():
    first, second = (weights(make(normalize_advantage=mode).learn(32)) for mode in (True, "minibatch"))
    assert th.equal(first, second)


def test_rollout_normalizes_once_over_all_minibatches():
    model = make(Recording, normalize_advantage="rollout", n_epochs=1).learn(16)
    advantages = th.cat([batch.advantages for batch, _, _ in model.record])
    # Sixteen float32 numbers of size 1.
    assert advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert advantages.std().item() == pytest.approx(1, abs=1e-6)
    loss = model.record[0][2]["policy_gradient_loss"]
    assert loss.item() == pytest.approx(-model.record[0][0].advantages.mean().item(), abs=1e-6)


def test_false_leaves_advantages_unchanged():
    model = make(Recording, normalize_advantage=False, n_epochs=1).learn(16)
    batch, _, diagnostics = model.record[0]
    # The ratio is 1 on the first minibatch.
    assert diagnostics["policy_gradient_loss"].item() == pytest.approx(-batch.advantages.mean().item(), rel=1e-5)


@pytest.mark.parametrize(("mode", "is_invariant"), [(True, True), ("rollout", False), (False, False)])
def test_only_minibatch_normalization_removes_the_scale(mode, is_invariant):
    model = make(Recording, normalize_advantage=mode, learning_rate=1e-2).learn(16)
    batch, coefficients, diagnostics = model.record[-1]
    scaled = model.compute_loss(batch._replace(advantages=10 * batch.advantages + 3), coefficients).diagnostics
    again = model.compute_loss(batch, coefficients).diagnostics
    same = scaled["policy_gradient_loss"].item() == pytest.approx(again["policy_gradient_loss"].item(), abs=1e-5)
    assert same == is_invariant


@pytest.mark.parametrize("mode", [True, "rollout", False])
def test_a_last_minibatch_of_one_does_not_harm_the_weights(mode):
    model = make(Recording, batch_size=5, normalize_advantage=mode).learn(32)
    assert {len(batch.advantages) for batch, _, _ in model.record} == {5, 1}
    assert th.isfinite(weights(model)).all()
    assert "train/skipped_minibatches" not in logged(model)


def test_value_clip_takes_the_maximum_unless_it_is_plain():
    values = {}
    for form in ("max", "plain"):
        model = make(Recording, clip_range_vf=0.01, value_clip=form, learning_rate=1e-2).learn(16)
        batch, coefficients, _ = model.record[-1]
        values[form] = model.compute_loss(batch, coefficients).diagnostics["value_loss"]
        new = model.policy.evaluate(batch.observations)[0].detach()
        clipped = batch.old_values + (new - batch.old_values).clamp(-0.01, 0.01)
        plain, unclipped = (clipped - batch.returns) ** 2, (new - batch.returns) ** 2
        expected = plain.mean() if form == "plain" else th.max(plain, unclipped).mean()
        th.testing.assert_close(values[form], expected)


# --- numbers that are not finite -------------------------------------------------------------------------------------


def faulty(*args, **kwargs):
    """Two environments; the second one is faulty."""
    space = kwargs.get("observation_space", VECTOR)
    return DummyVecEnv([lambda: RandomEnv(ACTIONS["discrete"], space), lambda: FaultyEnv(*args, **kwargs)])


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("at", [1, 3])
def test_numbers_that_are_not_finite_name_environment_and_step(what, value, at):
    model = make(env=faulty(what, at, value))
    before = weights(model)
    with pytest.raises(FloatingPointError, match=rf"(?s){what}.*{value}.*environment 1 at step {at}\b"):
        model.learn(32)
    assert th.equal(weights(model), before)


def test_a_bad_first_observation_is_named():
    with pytest.raises(FloatingPointError, match=r"(?s)observation.*environment 1 at step 0\b"):
        make(env=faulty("observation", 0)).learn(32)


def test_a_bad_observation_later_is_named_by_the_step_of_the_run():
    # The fourth step of the second rollout.
    env = faulty("reward", 12)
    with pytest.raises(FloatingPointError, match=r"reward.*environment 1 at step 12\b"):
        make(env=env).learn(32)


def test_a_bad_entry_of_a_dict_observation_is_named_by_its_key():
    space = spaces.Dict(good=spaces.Discrete(2), bad=VECTOR)

    class OneBadKey(RandomEnv):
        def observe(self):
            observation = super().observe()
            if self.n_steps == 2:
                observation["bad"][0] = NAN
            return observation

    env = vec(ACTIONS["discrete"], space, env_class=OneBadKey)
    with pytest.raises(FloatingPointError, match=r"(?s)observation\['bad'\].*environment 0 at step 2\b"):
        make(env=env, policy="MultiInputPolicy").learn(32)


def test_a_bad_final_observation_names_environment_and_step():
    env = DummyVecEnv([lambda: RandomEnv(ACTIONS["discrete"], max_steps=None), lambda: FaultyEnv("final", 0)])
    with pytest.raises(FloatingPointError, match=r"(?s)observation.*environment 1 at step 5\b"):
        make(env=env).learn(32)


class ReusedMemory(DummyVecEnv):
    """Writes all final observations into the same array."""

    def step_wait(self):
        obs, rewards, dones, infos = super().step_wait()
        for i in np.flatnonzero(dones):
            if not hasattr(self, "final"):
                self.final = np.empty_like(infos[i]["terminal_observation"])
            self.final[:] = infos[i]["terminal_observation"]
            infos[i]["terminal_observation"] = self.final
        return obs, rewards, dones, infos


def test_final_observations_are_kept_for_the_whole_rollout():
    rewards = []
    for vec_class in (DummyVecEnv, ReusedMemory):
        env = vec_class([lambda: RandomEnv(ACTIONS["discrete"], max_steps=3)])
        rewards.append(make(env=env, normalize_advantage=False).learn(8).rollout_buffer.rewards)
    np.testing.assert_array_equal(*rewards)


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
    model.bad, model.kind = (0, 1, 5), kind
    before = weights(model)
    history = learn(model, 1)
    assert history["train/skipped_minibatches"] == [3]
    assert n_steps_taken(model) == 5
    assert th.isfinite(weights(model)).all()
    assert not th.equal(weights(model), before)


def test_skipped_minibatches_are_not_in_the_averages():
    model = make(Broken)
    model.bad = (0, 7)
    assert np.isfinite(learn(model, 1)["train/loss"]).all()


def test_the_gradient_that_is_left_was_applied():
    model = make(Broken)
    model.bad = (7,)
    assert learn(model, 1)["train/skipped_minibatches"] == [1]
    assert all(th.isfinite(p.grad).all() for p in model.policy.parameters())


def test_without_skipped_minibatches_none_are_logged():
    assert "train/skipped_minibatches" not in learn(make(), 1).updates[0]


def test_ten_bad_minibatches_in_a_row_stop_training():
    model = make(Broken, n_epochs=3)
    model.bad = range(1, 100)
    began = "10 minibatches in a row; .* It began in this update, in minibatch 2 of epoch 1: not finite are loss. "
    with pytest.raises(FloatingPointError, match=began):
        model.learn(32)
    # The rest of the epoch is skipped as well.
    assert 10 <= model.n < 12
    # One good step was taken before them.
    assert th.isfinite(weights(model)).all()
    assert n_steps_taken(model) == 1


def test_bad_minibatches_in_a_row_are_counted_across_updates():
    model = make(Broken, n_epochs=1)
    model.bad = range(2, 100)
    with pytest.raises(FloatingPointError, match="10 minibatches in a row; .* began [1-9] updates ago, in minibatch"):
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


# --- held noise ------------------------------------------------------------------------------------------------------

# Many environments, in up to three groups: that new noise makes the same three-way choice in a whole group of sixteen
# has a probability of 3**-16, and the seed is fixed.
N_NOISY = 48


class Actions(BaseCallback):
    def __init__(self):
        super().__init__()
        self.actions, self.starts = [], []

    def _on_step(self):
        self.actions.append(self.locals["actions"].copy())
        self.starts.append(self.model._last_episode_starts.copy())
        return True


def explore(kind, n_updates=2, n_steps=8, max_steps=None, observation_space=VECTOR, **kwargs):
    """The actions of a policy that sees one and the same observation and does not learn: ``(steps, envs, dims)``."""
    lengths = [None if max_steps is None else max_steps[i % len(max_steps)] for i in range(N_NOISY)]
    action_space = ACTIONS["box" if kind == "box_squashed" else kind]
    env = DummyVecEnv([lambda n=n: StillEnv(action_space, observation_space, n, p_end=0.0) for n in lengths])
    policy_kwargs = {"squash_output": True} if kind == "box_squashed" else {}
    kwargs = {"use_sde": True} | kwargs
    model = make(
        env=env, n_steps=n_steps, n_epochs=1, batch_size=64, learning_rate=0.0, policy_kwargs=policy_kwargs, **kwargs
    )
    callback = Actions()
    model.learn(n_updates * n_steps * N_NOISY, callback)
    return np.array(callback.actions), np.array(callback.starts)


def changes(actions):
    """Steps at which any environment's action differs from the step before."""
    return [t for t in range(1, len(actions)) if np.any(actions[t] != actions[t - 1])]


EVERY_KIND = [*ACTIONS, "box_squashed"]
EXPLORATIONS = [{}, {"use_sde": True}, {"exploration": ColoredNoise(1.0, horizon=64)}]


@pytest.mark.parametrize("kind", sample(EVERY_KIND, 3))
def test_noise_is_kept_for_a_rollout(kind):
    actions, _ = explore(kind)
    assert changes(actions) == [8]


@pytest.mark.parametrize("kind", sample(EVERY_KIND, 3))
def test_noise_is_resampled_every_n_steps_of_a_rollout(kind):
    actions, _ = explore(kind, sde_sample_freq=3)
    assert changes(actions) == [3, 6, 8, 11, 14]


@pytest.mark.parametrize("kind", sample(EVERY_KIND, 3))
def test_noise_is_resampled_only_at_episode_starts(kind):
    actions, starts = explore(kind, sde_sample_freq="episode", max_steps=(3, 5, 100))
    for parity, length in enumerate((3, 5, 100)):
        # Episodes run on from one rollout into the next.
        assert changes(actions[:, parity::3]) == list(range(length, 16, length))
    for t in range(1, 16):
        assert np.array_equal(actions[t][~starts[t]], actions[t - 1][~starts[t]])


@pytest.mark.parametrize("kind", sample(EVERY_KIND, 3))
def test_white_noise_is_new_at_every_step(kind):
    actions, _ = explore(kind, use_sde=False)
    assert changes(actions) == list(range(1, 16))


@pytest.mark.parametrize("kind", sample(EVERY_KIND, 3))
def test_environments_do_not_share_noise(kind):
    # All of them see the one observation that there is.
    actions, _ = explore(kind, n_updates=1, observation_space=spaces.Discrete(1))
    assert len(np.unique(actions[0], axis=0)) > 1


@pytest.mark.parametrize(("kind", "exploration"), in_turn(EVERY_KIND, EXPLORATIONS))
def test_reset_noise_resamples_the_noise_of_predict(kind, exploration):
    env = vec(ACTIONS["box" if kind == "box_squashed" else kind], n_envs=N_NOISY)
    policy_kwargs = {"squash_output": True} if kind == "box_squashed" else {}
    model = make(env=env, policy_kwargs=policy_kwargs, **exploration)
    obs = env.reset()
    model.policy.reset_noise(N_NOISY)
    first, second = model.predict(obs)[0], model.predict(obs)[0]
    assert equal_actions(first, second) == ("use_sde" in exploration)
    model.policy.reset_noise(N_NOISY)
    assert not equal_actions(model.predict(obs)[0], second)


def test_predict_resamples_noise_where_episodes_start():
    model = make(env=vec(ACTIONS["box"], n_envs=3), use_sde=True)
    obs = model.get_env().reset()
    before = model.predict(obs)[0]
    after = model.predict(obs, episode_start=np.array([False, True, False]))[0]
    assert np.array_equal(before[[0, 2]], after[[0, 2]])
    assert not np.array_equal(before[1], after[1])


def test_predicting_does_not_disturb_the_noise_of_training():
    class Predict(Actions):
        def _on_step(self):
            state = th.get_rng_state()
            self.model.predict(self.locals["new_obs"][:1])
            self.model.policy.reset_noise(3)
            th.set_rng_state(state)
            return super()._on_step()

    results = []
    for callback in (Actions(), Predict()):
        make(env=vec(ACTIONS["box"]), use_sde=True).learn(16, callback)
        results.append(np.array(callback.actions))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("kind", "exploration"), in_turn(EVERY_KIND, EXPLORATIONS))
def test_a_copy_of_a_trained_policy_acts_alike(kind, exploration):
    env = vec(ACTIONS["box" if kind == "box_squashed" else kind])
    policy_kwargs = {"squash_output": True} if kind == "box_squashed" else {}
    model = make(env=env, policy_kwargs=policy_kwargs, n_epochs=1, **exploration).learn(16)
    obs = env.reset()
    model.predict(obs)
    twin = copy.deepcopy(model.policy)
    actions = []
    for policy in (model.policy, twin):
        th.manual_seed(5)
        actions.append(policy.predict(obs)[0])
    assert equal_actions(*actions)


@dataclass(frozen=True)
class NoNoise(NoiseProcess):
    """A process of one's own, which does nothing."""

    def init(self, n_envs, latent_dim, noise_dim, device="cpu"):
        return {"zeros": th.zeros(n_envs, noise_dim, device=device)}

    def sample(self, carry, features, log_std):
        return carry["zeros"], carry


@pytest.mark.parametrize("kind", ["box", "multibinary"])
def test_a_custom_noise_process_decides_the_actions(kind):
    model = make(env=vec(ACTIONS[kind]), exploration=NoNoise(), sde_sample_freq="episode", learning_rate=0.0).learn(16)
    obs = th.from_numpy(model.rollout_buffer.observations).flatten(0, 1)
    mode = model.policy.get_distribution(obs).mode().detach().numpy()
    # Without noise an action is the mean, or for a coin its likelier side; two rows and sixteen are added differently.
    np.testing.assert_allclose(model.rollout_buffer.actions.reshape(mode.shape), mode, rtol=0, atol=1e-6)


def test_an_exploration_object_of_gsde_is_use_sde():
    runs = [{"use_sde": True}, {"exploration": StateDependentNoise()}]
    first, second = (weights(make(env=vec(ACTIONS["box"]), **run).learn(32)) for run in runs)
    assert th.equal(first, second)


# --- the loss --------------------------------------------------------------------------------------------------------


class WithPlus(PPO_Plus):
    """Adds a term whose gradient is known."""

    def compute_loss(self, batch, coefficients):
        bias = self.policy.value_net.bias
        return super().compute_loss(batch, coefficients).plus("bias", 0.5 * bias.sum())


def test_a_custom_loss_term_is_descended_and_logged():
    options = {
        "policy_kwargs": {"optimizer_class": th.optim.SGD},
        "max_grad_norm": 1e9,
        "n_epochs": 1,
        "batch_size": 16,
    }
    plain, more = (make(cls, learning_rate=0.1, **options).learn(16) for cls in (PPO_Plus, WithPlus))
    # SB3's initial biases are 0, so is the term's first value.
    before = 0.0
    assert logged(more)["train/bias"] == pytest.approx(0.5 * before)
    assert (plain.policy.value_net.bias - more.policy.value_net.bias).item() == pytest.approx(0.05, rel=1e-4)
    assert logged(more)["train/loss"] == pytest.approx(logged(plain)["train/loss"] + 0.5 * before)


def test_a_custom_loss_needs_no_diagnostics_without_kl_control():
    class Regression(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            values, _ = self.policy.evaluate(batch.observations)
            return Losses((values - batch.returns).square().mean(), {})

    model = make(Regression).learn(16)
    assert logged(model)["train/loss"] > 0


def test_compute_loss_changes_nothing():
    model = make(Recording).learn(16)
    batch, coefficients, _ = model.record[0]
    before, record = weights(model), dict(logged(model))
    first, second = (model.compute_loss(batch, coefficients) for _ in range(2))
    assert th.equal(first.total, second.total)
    assert th.equal(weights(model), before)
    assert logged(model) == record


@pytest.mark.parametrize("exploration", EXPLORATIONS, ids=str)
def test_a_policy_keeps_its_exploration_when_saved_by_itself(exploration, tmp_path):
    policy = make(env=vec(ACTIONS["box"]), **exploration).policy
    policy.save(tmp_path / "policy.pt")
    obs = np.stack([VECTOR.sample() for _ in range(4)])
    actions = []
    for each in (policy, MlpPolicy.load(tmp_path / "policy.pt", device="cpu")):
        th.manual_seed(5)
        actions.append([each.predict(obs)[0] for _ in range(3)])
    np.testing.assert_array_equal(*actions)


# --- features and initial weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ortho_init", [True, False])
@pytest.mark.parametrize("observation", ["box", "image"])
def test_unshared_features_extractors_both_learn(observation, ortho_init):
    env = vec(ACTIONS["discrete"], OBSERVATIONS[observation])
    policy = {"image": "CnnPolicy", "box": "MlpPolicy"}[observation]
    model = make(
        env=env, policy=policy, policy_kwargs={"share_features_extractor": False, "ortho_init": ortho_init}, n_epochs=1
    )
    before = {name: weight.clone() for name, weight in model.policy.state_dict().items()}
    model.learn(16)
    assert [name for name, weight in model.policy.state_dict().items() if th.equal(weight, before[name])] == []
    assert (observation == "image") == any(name.startswith("vf_features_extractor") for name in before)


@pytest.mark.parametrize("ortho_init", [True, False])
def test_orthogonal_initial_weights_are_optional(ortho_init):
    weight = make(policy_kwargs={"ortho_init": ortho_init}).policy.mlp_extractor.policy_net[2].weight.detach()
    is_orthogonal = th.allclose(weight @ weight.T, 2 * th.eye(64), atol=1e-5)
    assert is_orthogonal == ortho_init


# --- optimizers ------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    **{cls.__name__: (cls, {}) for cls in flat.ELEMENTWISE},
    # SB3 chooses this eps for Adam itself.
    "Adam": (th.optim.Adam, {"eps": 1e-5}),
    "Adam_amsgrad": (th.optim.Adam, {"amsgrad": True, "eps": 1e-5}),
    "Adam_betas_decay": (th.optim.Adam, {"betas": (0.5, 0.9), "weight_decay": 0.1, "eps": 1e-5}),
    "SGD_nesterov": (th.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "SGD_maximize": (th.optim.SGD, {"maximize": True}),
    "RMSprop_centered": (th.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "RMSpropTFLike_momentum": (RMSpropTFLike, {"momentum": 0.9, "centered": True}),
    "Adagrad_initial": (th.optim.Adagrad, {"initial_accumulator_value": 0.1, "lr_decay": 0.1}),
}


class EmptyGroup(th.optim.Adam):
    """Its first group has no parameters."""

    def __init__(self, params, **kwargs):
        super().__init__([{"params": []}, {"params": list(params)}], **kwargs)


def make_sgd(params, lr):
    return th.optim.SGD(params, lr=lr)


@pytest.mark.parametrize("optimizer_class", [EmptyGroup, make_sgd])
def test_whatever_makes_an_optimizer_is_accepted(optimizer_class):
    model = make(policy_kwargs={"optimizer_class": optimizer_class})
    before = weights(model)
    assert not th.equal(weights(model.learn(16)), before)


def test_a_class_that_is_not_an_optimizer_raises_an_error():
    with pytest.raises(ValueError, match="optimizer_class=.*ReLU.* must be an optimizer of torch"):
        make(policy_kwargs={"optimizer_class": nn.ReLU})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_makes_the_same_weights_packed_or_not(name, monkeypatch):
    optimizer_class, optimizer_kwargs = OPTIMIZERS[name]
    policy_kwargs = {"optimizer_class": optimizer_class, "optimizer_kwargs": optimizer_kwargs}
    results = []
    for elementwise in (flat.ELEMENTWISE, ()):
        monkeypatch.setattr(flat, "ELEMENTWISE", elementwise)
        model = make(env=vec(ACTIONS["box"]), policy_kwargs=policy_kwargs, learning_rate=1e-3)
        before = weights(model)
        # Two updates: state is packed, unpacked and packed again.
        results.append(weights(model.learn(32)))
    moved = (results[1] - before).abs().max()
    assert moved > 1e-5
    # Norms and fused kernels round differently; sixteen steps may carry that on, but not to where it matters.
    assert (results[0] - results[1]).abs().max() < 1e-3 * moved


def test_an_optimizer_may_have_several_parameter_groups():
    class TwoGroups(MlpPolicy):
        def _build(self, lr_schedule):
            super()._build(lr_schedule)
            actor = list(self.action_net.parameters())
            rest = [weight for weight in self.parameters() if all(weight is not each for each in actor)]
            groups = [{"params": actor, "weight_decay": 0.5}, {"params": rest}]
            self.optimizer = th.optim.AdamW(groups, lr=lr_schedule(1), weight_decay=0.0)

    model = make(policy=TwoGroups, learning_rate="lin_1e-2")
    before = weights(model)
    model.learn(32)
    assert not th.equal(weights(model), before)
    assert [group["weight_decay"] for group in model.policy.optimizer.param_groups] == [0.5, 0.0]
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [0.0, 0.0]


class RaisesOnce(PPO_Plus):
    n = 0

    def compute_loss(self, batch, coefficients):
        self.n += 1
        if self.n == 4:
            raise KeyboardInterrupt
        return super().compute_loss(batch, coefficients)


def test_training_can_continue_after_an_exception():
    model = make(RaisesOnce)
    before = weights(model)
    with pytest.raises(KeyboardInterrupt):
        model.learn(16)
    assert n_steps_taken(model) == 3
    assert not th.equal(weights(model), before)
    # No two of them share memory.
    assert all(weight.untyped_storage().nbytes() == 4 * weight.numel() for weight in model.policy.parameters())
    model.learn(16)
    assert n_steps_taken(model) == 11
    assert th.isfinite(weights(model)).all()


def test_a_callback_that_stops_training_leaves_the_weights_alone():
    class Stop(BaseCallback):
        def _on_step(self):
            return self.n_calls < 3

    model = make()
    before = weights(model)
    model.learn(32, Stop())
    assert model.num_timesteps == 6
    assert th.equal(weights(model), before)


# --- odd spaces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("squash_output", [False, True])
def test_every_dtype_of_box_actions_reaches_its_bounds(dtype, squash_output):
    # The environment refuses an action that its space does not contain.
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if "int" in dtype else (-100, 100)
    if dtype == "int64":
        # Beyond 2**53 a float is no longer every integer.
        low, high = -(2**53), 2**53
    space = spaces.Box(np.full(2, low, dtype), np.full(2, high, dtype), dtype=np.dtype(dtype).type)
    model = make(env=vec(space), policy_kwargs={"squash_output": squash_output}).learn(16)
    extremes = model.policy.action_dist.to_env(np.array([[-1e30, 1e30]], dtype=np.float32))
    assert extremes.tolist() == [[low, high]]
    assert extremes.dtype == space.dtype


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int64", "float16", "float64", "bool"])
def test_every_dtype_of_box_observations_is_learned_from(dtype):
    space = spaces.Box(0, 1, (3,), np.dtype(dtype).type)
    assert th.isfinite(weights(make(env=vec(ACTIONS["discrete"], space)).learn(16))).all()


@pytest.mark.parametrize(("normalize_images", "scale"), [(True, 255.0), (False, 1.0)])
def test_images_are_scaled_unless_asked_otherwise(normalize_images, scale):
    policy = make(env=vec(ACTIONS["discrete"], IMAGE), policy_kwargs={"normalize_images": normalize_images}).policy
    image = th.from_numpy(IMAGE.sample())
    assert th.equal(policy.extract_features(image[None])[0], image.flatten() / scale)


def test_images_are_learned_from_without_normalizing_them_too():
    space = spaces.Box(0.0, 1.0, IMAGE.shape, np.float32)
    kwargs = {"normalize_images": False, "features_extractor_kwargs": {"normalized_image": True}}
    model = make(env=vec(ACTIONS["discrete"], space), policy="CnnPolicy", policy_kwargs=kwargs, n_epochs=1)
    assert th.isfinite(weights(model.learn(16))).all()


# --- vector environments of Gymnasium --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [gym.vector.AutoresetMode.SAME_STEP, gym.vector.AutoresetMode.NEXT_STEP])
def test_gymnasium_vector_envs_give_the_rows_of_a_dummy_vec_env(mode):
    """Rows in which such an environment only resets take no part: what is left is what SB3 would have seen."""

    def episodes(env, n_rows):
        """Observations, actions and rewards of the first environment, split into episodes."""
        model = make(env=env, n_steps=n_rows, batch_size=8, policy_kwargs={"ortho_init": False})
        _, callback = model._setup_learn(10_000)
        th.manual_seed(0)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rows)
        buffer = model.rollout_buffer
        kept = np.ones(n_rows, bool) if buffer.valid is None else buffer.valid[:, 0]
        starts = buffer.episode_starts[kept, 0].astype(bool)
        assert sum(len(batch.actions) for batch in buffer.get(8)) == kept.sum()
        return kept, starts, buffer

    def one():
        return RandomEnv(ACTIONS["discrete"], max_steps=4)

    vector = gym.vector.SyncVectorEnv([one], autoreset_mode=mode)
    kept, starts, buffer = episodes(vector, 30)
    lengths = np.diff(np.flatnonzero(starts))
    assert lengths.max() == 4
    assert (~kept).any() == (mode == gym.vector.AutoresetMode.NEXT_STEP)
    # The value of the final observation was added to the reward of steps that the time limit ended.
    _, dummy_starts, dummy = episodes(DummyVecEnv([one]), 30)
    n = min(kept.sum(), 30)
    np.testing.assert_array_equal(starts[:n], dummy_starts[:n])
    np.testing.assert_array_equal(buffer.observations[kept][:n], dummy.observations[:n])


def test_a_gymnasium_vector_env_is_learned_from_and_evaluated():
    env = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    model = make(env=env, n_steps=32, batch_size=32, normalize_advantage="rollout").learn(512)
    assert model.rollout_buffer.valid is not None
    assert len(model.ep_info_buffer) > 0
    assert model.evaluate(2)[0] > 5
    assert model.evaluate(2, env=gym.make_vec("CartPole-v1", num_envs=2))[0] > 5


# --- copies, and callbacks that reach for the environment ------------------------------------------------------------


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_model_learns_as_the_original_does(twin_of):
    model = make().learn(16)
    model._logger = None
    twin = twin_of(model)
    for each in (model, twin):
        each.env.seed(1)
        th.manual_seed(1)
        np.random.seed(1)
        each.learn(16)
    assert th.equal(weights(model), weights(twin))
    np.testing.assert_array_equal(model.rollout_buffer.advantages, twin.rollout_buffer.advantages)


class At(BaseCallback):
    """Does something once, at a step."""

    def __init__(self, step, action):
        super().__init__()
        self.step, self.action = step, action

    def _on_step(self):
        if self.n_calls == self.step:
            self.action(self.model)
        return True


def test_evaluation_within_stacked_frames_keeps_the_last_frames():
    env = VecFrameStack(vec(ACTIONS["discrete"], n_envs=1), 2)
    model = make(env=env, n_steps=8, policy_kwargs={"ortho_init": False})
    seen = []

    def evaluate(model):
        seen.append(model.collector.pending.new_obs.copy())
        model.evaluate(1)
        seen.append(model.collector.pending.new_obs)

    model.learn(8, At(4, evaluate))
    # The observation behind the transition that the evaluation cut off.
    np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize("step", [1, 5, 8, 9])
def test_the_environment_may_be_replaced_in_a_rollout(step):
    model = make()
    model.learn(32, At(step, lambda model: model.set_env(vec(ACTIONS["discrete"]))))
    assert model.num_timesteps == 32


def test_integer_actions_are_not_rounded_in_the_buffer():
    box = spaces.Box(-10, 10, (2,), np.int32)
    model = make(Recording, env=vec(box)).learn(16)
    assert model.record[0][2]["approx_kl"].item() == pytest.approx(0.0, abs=1e-6)


class Plain(KLControl):
    """A control that is no dataclass."""

    def __init__(self, allowed):
        object.__setattr__(self, "allowed", allowed)

    def after_minibatch(self, state, kl, target):
        return state._replace(running=state.running & th.tensor(self.allowed))


def test_another_control_of_the_same_class_takes_over():
    model = make(kl_control=Plain(True)).learn(16)
    before = weights(model)
    model.kl_control = Plain(False)
    model.learn(16)
    assert th.equal(weights(model), before)


# --- what may change between calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exploration", ColoredNoise()),
        ("use_sde", True),
        ("policy_kwargs", {"net_arch": [8]}),
        ("rollout_buffer_class", SB3RolloutBuffer),
        ("rollout_buffer_kwargs", {"gamma": 0.5}),
        ("action_mask_key", "mask"),
    ],
)
def test_arguments_that_the_model_is_built_with_cannot_change(name, value):
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32)
    before, rollouts = getattr(model, name), []

    class Change(BaseCallback):
        def _on_rollout_end(self):
            rollouts.append(self.num_timesteps)
            setattr(model, name, value)

        def _on_step(self):
            return True

    with pytest.raises(ValueError, match=f"{name}=.* the model is built with {name}="):
        model.learn(96, Change())
    # Nothing is learned with arguments that do not hold.
    assert rollouts == [32] and model._n_updates == 0
    with pytest.raises(ValueError, match=f"{name}=.* the model is built with {name}="):
        model.learn(96)
    setattr(model, name, before)
    model.learn(32)


def test_forward_hooks_on_the_policy_itself_give_a_warning():
    model = make_model()
    seen = []
    hook = model.policy.register_forward_hook(lambda *_: seen.append("policy"))
    with pytest.warns(UserWarning, match="forward hooks on the policy itself are not called.*policy.mlp_extractor"):
        model.learn(16)
    hook.remove()
    model.policy.mlp_extractor.policy_net.register_forward_hook(lambda *_: seen.append("part"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(16)
    assert "part" in seen and "policy" not in seen
