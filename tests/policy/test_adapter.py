"""Policy classes that override what SB3 calls run as SB3 runs them: same rollouts, same weights."""

import io
import pickle

import numpy as np
import pytest
import sb3_contrib.common.maskable.policies as maskable
import sb3_contrib.common.recurrent.policies as recurrent
import torch as th
from envs import ACTIONS, OBSERVATIONS, MaskedEnv, vec
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticCnnPolicy, MultiInputActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy as SB3Policy
from stable_baselines3.common.torch_layers import NatureCNN

from ppo_plus import ActorCriticPolicy, AdaptivePenalty, ColoredNoise, PPO_Plus, register
from ppo_plus.policy.adapter import adapt_policy_class, overridden

pytestmark = pytest.mark.filterwarnings("ignore:policy=.*overrides:UserWarning")


class Scaled(SB3Policy):
    """Values ten times as large, and a custom entropy."""

    def forward(self, obs, deterministic=False):
        actions, values, log_prob = super().forward(obs, deterministic)
        return actions, 10 * values, log_prob

    def evaluate_actions(self, obs, actions):
        values, log_prob, entropy = super().evaluate_actions(obs, actions)
        return 10 * values, log_prob, None if entropy is None else 2 * entropy

    def predict_values(self, obs):
        return 10 * super().predict_values(obs)


class Calm(SB3Policy):
    """Explores half as much."""

    def _get_action_dist_from_latent(self, latent_pi):
        distribution = super()._get_action_dist_from_latent(latent_pi)
        distribution.distribution.scale = distribution.distribution.scale / 2
        return distribution


class Squashed(SB3Policy):
    """Has another distribution."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.action_dist = SquashedDiagGaussianDistribution(self.action_space.shape[0])


CASES = {
    "another distribution": (Squashed, "box", "box", {}),
    "discrete": (Scaled, "discrete", "box", {}),
    "multibinary": (Scaled, "multibinary", "box", {}),
    "box": (Scaled, "box", "box", dict(ent_coef=0.01)),
    "narrow": (Calm, "box", "box", {}),
    "gSDE": (Scaled, "box", "box", dict(use_sde=True, policy_kwargs=dict(full_std=False))),
    # No formula for the entropy, and so an estimate.
    "squashed gSDE": (Scaled, "box", "box", dict(use_sde=True, ent_coef=0.1, policy_kwargs=dict(squash_output=True))),
    "target": (Scaled, "box", "box", dict(target_kl=1e-4, n_epochs=5)),
}


def learned(cls, case, **kwargs):
    policy, action, observation, arguments = CASES[case]
    defaults = dict(n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu")
    model = cls(policy, vec(ACTIONS[action], OBSERVATIONS[observation]), **defaults | arguments | kwargs)
    return model.learn(64)


@pytest.mark.parametrize("case", CASES)
def test_it_learns_what_sb3_learns(case):
    sb3, ours = learned(PPO, case), learned(PPO_Plus, case)
    # The second rollout, by weights that differ in their rounding.
    theirs = np.asarray(sb3.rollout_buffer.actions).reshape(2, 16, -1).swapaxes(0, 1)
    np.testing.assert_allclose(ours.rollout_buffer.actions, theirs, rtol=0, atol=1e-5)
    for mine, theirs in zip(ours.policy.parameters(), sb3.policy.parameters(), strict=True):
        th.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)
    obs = np.stack([ours.observation_space.sample() for _ in range(3)])
    for mine, theirs in zip(ours.predict(obs, deterministic=True), sb3.predict(obs, deterministic=True), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4) if theirs is not None else None


def test_squashed_actions_reach_the_bounds():
    kwargs = dict(use_sde=True, policy_kwargs=dict(squash_output=True), n_steps=8, batch_size=16)
    model = PPO_Plus(Scaled, vec(ACTIONS["box_float64"]), **kwargs)
    actions = np.array([[-1.0, 0.0], [0.5, 1.0]], np.float32)
    np.testing.assert_allclose(model.policy.distribution.to_env(actions), [[-1.0, 0.5], [1.25, 2.0]])


def test_it_is_saved_loaded_and_evaluated(tmp_path):
    model = learned(PPO_Plus, "box")
    register(model.policy_class)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", env=model.get_env(), device="cpu")
    for mine, theirs in zip(loaded.policy.parameters(), model.policy.parameters(), strict=True):
        assert th.equal(mine, theirs)
    assert loaded.evaluate(2) and evaluate_policy(loaded, loaded.get_env(), 2)
    loaded.learn(32)


def test_a_warning_says_once_what_is_missing():
    with pytest.warns(UserWarning, match="policy=Scaled overrides forward, evaluate_actions, predict_values") as record:
        learned(PPO_Plus, "box")
    assert len([each for each in record if "overrides" in str(each.message)]) == 1


def test_subclasses_of_sb3s_classes_for_images_and_dicts_take_the_arguments_of_ours():
    class Own(MultiInputActorCriticPolicy):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs, net_arch=[8])

    env = vec(ACTIONS["box"], spaces.Dict(choice=spaces.Discrete(3), vector=OBSERVATIONS["box"]))
    options = dict(n_steps=8, batch_size=8, normalize_observations=True, exploration=ColoredNoise())
    model = PPO_Plus(Own, env, **options, device="cpu").learn(16)
    theirs = PPO(Own, env, n_steps=8, batch_size=8, device="cpu")
    assert type(model.policy.features_extractor) is type(theirs.policy.features_extractor)
    assert model.policy.observation_normalizer is not None and model.policy.net_arch == [8]

    class Images(ActorCriticCnnPolicy):
        pass

    env = vec(ACTIONS["discrete"], OBSERVATIONS["image"])
    assert type(PPO_Plus(Images, env, n_steps=8, batch_size=8).policy.features_extractor) is NatureCNN


def test_predict_may_have_the_arguments_of_sb3s():
    class Small(SB3Policy):
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            action, state = super().predict(observation, state, episode_start, deterministic)
            return 0.1 * action, state

    model = PPO_Plus(Small, vec(ACTIONS["box"]), n_steps=16, batch_size=16, device="cpu")
    assert np.abs(model.predict(model.env.reset())[0]).max() <= 0.1
    model.evaluate(1)


class SampledPenalty(AdaptivePenalty):
    measure = "approx_kl"


def test_masks_where_the_class_has_none_raise_an_error():
    env = vec(ACTIONS["discrete"], env_class=MaskedEnv)
    with pytest.raises(ValueError, match=r"a method action_masks\(\), but .* the policy class has no masks"):
        PPO_Plus(Scaled, env, n_steps=8, batch_size=8, device="cpu").learn(16)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (dict(kl_control="penalty", target_kl=0.01), "kl_control='penalty' does not reach policy="),
        (dict(kl_control="adaptive_lr", target_kl=0.01), "kl_control='adaptive_lr' does not reach policy="),
        (dict(kl_control=SampledPenalty(), target_kl=0.01), "kl_control=.*SampledPenalty.* does not reach policy="),
        (dict(exploration=ColoredNoise()), "exploration=.* does not reach"),
        (dict(use_sde=True, sde_sample_freq="episode"), "does not reach policy="),
        (dict(policy_kwargs={"actor_keys": ["a"]}), r"actor_keys=\['a'\] does not reach"),
    ],
)
def test_what_it_cannot_do_raises_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        learned(PPO_Plus, "box", **arguments)


@pytest.mark.parametrize(
    ("space", "arguments", "message"),
    [
        (spaces.Discrete(2), {"use_sde": True}, "use_sde=True does not reach"),
        (spaces.Dict(a=spaces.Discrete(2)), {}, r"action_space=Dict\(.* does not reach"),
        (spaces.Tuple([spaces.Discrete(2)]), {}, r"action_space=Tuple\(.* does not reach"),
        (spaces.Discrete(2), {"observation": spaces.Discrete(3, start=3)}, r"observation_space=Discrete\(.* does not"),
    ],
)
def test_spaces_that_sb3_does_not_have_raise_an_error(space, arguments, message):
    env = vec(space, *([arguments.pop("observation")] if "observation" in arguments else []))
    with pytest.raises(ValueError, match=message):
        PPO_Plus(Scaled, env, n_steps=8, batch_size=8, **arguments)


@pytest.mark.parametrize("base", [SB3Policy, ActorCriticPolicy])
def test_an_override_of_predicts_actions_is_used(base):
    class First(base):
        def _predict(self, observation, deterministic=False):
            return self.get_distribution(observation).get_actions(deterministic) * 0

    model = PPO_Plus(First, "CartPole-v1", n_steps=8, batch_size=8, device="cpu", compile=False)
    assert {int(model.predict(np.ones(4, np.float32))[0]) for _ in range(20)} == {0}


def test_what_is_overridden_is_found_and_nothing_else():
    class Networks(SB3Policy):
        def _build_mlp_extractor(self):
            super()._build_mlp_extractor()

    class Further(Scaled):
        pass

    assert overridden(Networks) == [] and issubclass(adapt_policy_class(Networks), ActorCriticPolicy)
    assert overridden(Further) == ["forward", "evaluate_actions", "predict_values"]
    assert not issubclass(adapt_policy_class(Further), ActorCriticPolicy)


class ReadsFeaturesBefore(SB3Policy):
    """Builds what it needs before SB3's networks, as SB3 allows: the features extractor is there already."""

    def _build(self, lr_schedule):
        self.extra = th.nn.Linear(self.features_dim, 3)
        super()._build(lr_schedule)


def test_a_policy_may_build_before_sb3s_networks():
    model = PPO_Plus(ReadsFeaturesBefore, vec(ACTIONS["discrete"]), n_steps=8, batch_size=8, device="cpu").learn(16)
    assert model.policy.extra.in_features == model.policy.features_dim


class OwnForward(SB3Policy):
    def forward(self, obs, deterministic=False):
        return super().forward(obs, deterministic)


class Mine(SB3Policy):
    """A class of the user's that overrides nothing."""


def round_trip(value):
    return pickle.loads(pickle.dumps(value))


def saved_and_read(value):
    file = io.BytesIO()
    th.save(value, file)
    file.seek(0)
    return th.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [round_trip, saved_and_read])
@pytest.mark.parametrize("policy_class", [Mine, Scaled])
def test_it_is_pickled_by_the_class_that_the_user_wrote(policy_class, copied):
    model = PPO_Plus(policy_class, vec(ACTIONS["discrete"]), device="cpu")
    for policy in (copied(model).policy, copied(model.policy)):
        assert type(policy) is type(model.policy)
        assert all(map(th.equal, policy.parameters(), model.policy.parameters()))


@pytest.mark.parametrize("policy_class", [Mine, Scaled, SB3Policy])
def test_sb3s_classes_read_what_a_policy_saves(policy_class, tmp_path):
    policy_kwargs = dict(net_arch=[8], activation_fn=th.nn.ReLU)
    model = PPO_Plus(policy_class, vec(ACTIONS["box"]), policy_kwargs=policy_kwargs, device="cpu")
    model.policy.save(tmp_path / "policy.pth")
    theirs = policy_class.load(tmp_path / "policy.pth", device="cpu")
    obs = model.observation_space.sample()
    chosen = [policy.predict(obs, deterministic=True)[0] for policy in (model.policy, theirs)]
    np.testing.assert_allclose(*chosen, rtol=1e-6)


@pytest.mark.parametrize("name", ["Mlp", "Cnn", "MultiInput"])
@pytest.mark.parametrize(("module", "kind"), [(maskable, "Maskable"), (recurrent, "Recurrent")])
def test_sb3_contribs_classes_are_ours_of_the_same_kind(module, kind, name):
    title = {"Mlp": "ActorCriticPolicy", "Cnn": "ActorCriticCnnPolicy"}.get(name, "MultiInputActorCriticPolicy")
    theirs = getattr(module, f"{kind}{title}")
    env = vec(ACTIONS["discrete"], OBSERVATIONS[{"Mlp": "box", "Cnn": "image"}.get(name, "dict")])
    model = PPO_Plus(theirs, env, n_steps=8, batch_size=8, device="cpu", _init_setup_model=name != "Cnn")
    alias = f"{name}{'Lstm' if kind == 'Recurrent' else ''}Policy"
    assert model.policy_class is PPO_Plus.policy_aliases[alias]
    own = type("Own", (theirs,), {"__module__": __name__})
    with pytest.raises(ValueError, match=f"Own.* is derived from sb3-contrib's {kind}.*, or pass ppo_plus.{alias} "):
        PPO_Plus(own, env)
    if name == "Mlp":
        model.learn(16)


@pytest.mark.parametrize("space", [spaces.Discrete(3, start=2), spaces.Box(0, 5, (2,), np.int64)], ids=str)
def test_predict_returns_actions_of_the_space(space):
    model = PPO_Plus(OwnForward, vec(space), n_steps=8, batch_size=8, device="cpu").learn(16)
    for deterministic in (False, True):
        actions, _ = model.predict(model.env.reset(), deterministic=deterministic)
        assert all(space.contains(action) for action in actions)
    action, _ = model.predict(model.env.reset()[0])
    assert isinstance(action, np.ndarray) and space.contains(action if action.shape else int(action))
    model.evaluate(1)
