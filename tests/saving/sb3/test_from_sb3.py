"""A trained SB3 PPO is loaded: it acts as before and continues to learn as it would have. Its zip is read without
running the pickles in it, and a damaged one raises an error."""

import base64
import io
import json
import pickle
import random
import sys
import zipfile

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, VECTOR, MaskedEnv, vec
from gymnasium import spaces
from models import weights
from networks import Batched
from parametrization import in_turn, sample
from poison import Evil
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.buffers import RolloutBuffer as SB3RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy as SB3Policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import MlpPolicy, PPO_Plus
from ppo_plus.policy.adapter import OURS
from ppo_plus.saving.format.names import Damaged, Refused

BOX_2D = spaces.Box(-2.0, 1.0, (2, 2), np.float32)
CASES = {
    "discrete": {"action": ACTIONS["discrete"]},
    "box": {"action": ACTIONS["box"]},
    "multidiscrete": {"action": ACTIONS["multidiscrete"]},
    "multibinary": {"action": ACTIONS["multibinary"]},
    "gsde": {"action": ACTIONS["box"], "use_sde": True},
    "gsde_squashed": {"action": BOX_2D, "use_sde": True, "policy_kwargs": {"squash_output": True}},
    "gsde_options": {
        "action": ACTIONS["box"],
        "use_sde": True,
        "sde_sample_freq": 4,
        "policy_kwargs": {"full_std": False, "use_expln": True, "log_std_init": -1.0, "net_arch": [8]},
    },
    "images": {"action": ACTIONS["discrete"], "observation": IMAGE, "policy": "CnnPolicy", "n_epochs": 1},
    "dict": {
        "action": ACTIONS["box"],
        "observation": spaces.Dict(image=IMAGE, vector=VECTOR, choice=spaces.Discrete(3)),
        "policy": "MultiInputPolicy",
        "n_epochs": 1,
    },
    "rmsprop": {"action": ACTIONS["discrete"], "policy_kwargs": {"optimizer_class": th.optim.RMSprop}},
    "options": {
        "action": ACTIONS["discrete"],
        "learning_rate": lambda progress: 1e-3 * (0.5 + progress),
        "clip_range": lambda progress: 0.1 + 0.1 * progress,
        "clip_range_vf": 0.1,
        "normalize_advantage": False,
        "ent_coef": 0.01,
        "target_kl": 0.05,
        "gamma": 0.9,
        "gae_lambda": 0.8,
        "max_grad_norm": 0.3,
    },
}
#: What only running a pickle brings back.
LAMBDAS = ("options",)
WHITE = [name for name, case in CASES.items() if not case.get("use_sde")]


def env_of(case):
    return vec(CASES[case]["action"], CASES[case].get("observation", VECTOR))


def trained(case="discrete", env=None, n_updates=1):
    """An SB3 model with some updates behind it."""
    options = {key: value for key, value in CASES[case].items() if key not in ("action", "observation")}
    options = {"policy": "MlpPolicy", "n_steps": 16, "batch_size": 16, "n_epochs": 3} | options
    model = PPO(env=env or env_of(case), seed=1, device="cpu", **options)
    return model.learn(32 * n_updates)


def taken(theirs, **kwargs):
    """An SB3 model as ours, through its file."""
    file = io.BytesIO()
    theirs.save(file)
    file.seek(0)
    return PPO_Plus.from_sb3(file, device="cpu", **{"env": theirs.get_env(), "trust_pickle": True} | kwargs)


def observations(model):
    model.get_env().seed(3)
    return model.get_env().reset()


def assert_same_actions(ours, theirs, obs):
    # Squashed actions are scaled in float64 and in float32: they differ in the last bit.
    actions = [model.predict(obs, deterministic=True)[0] for model in (ours, theirs)]
    np.testing.assert_allclose(*actions, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("case", "how"), in_turn(CASES, ["path", "file", "load"]))
def test_from_a_saved_model_actions_are_the_same(case, how, tmp_path):
    theirs = trained(case)
    theirs.save(tmp_path / "model.zip")
    options = {"device": "cpu", "trust_pickle": case in LAMBDAS}
    if how == "file":
        with open(tmp_path / "model.zip", "rb") as file:
            ours = PPO_Plus.from_sb3(file, **options)
    elif how == "load":
        ours = PPO_Plus.load(tmp_path / "model", **options)
    else:
        ours = PPO_Plus.from_sb3(tmp_path / "model", **options)
    assert type(ours) is PPO_Plus and type(ours.policy) is OURS[type(theirs.policy)]
    obs = observations(theirs)
    assert_same_actions(ours, theirs, obs)


def go_on(model):
    """Learn for one more update, in a world that begins in the same state."""
    model.get_env().seed(5)
    th.manual_seed(6)
    np.random.seed(7)
    model.learn(32, reset_num_timesteps=False)
    return weights(model)


@pytest.mark.parametrize("case", sample(WHITE, 2))
def test_training_continues_as_sb3s_would(case, tmp_path):
    trained(case).save(tmp_path / "model")
    theirs = PPO.load(tmp_path / "model", env=env_of(case), device="cpu")
    ours = PPO_Plus.from_sb3(tmp_path / "model", env=env_of(case), device="cpu", trust_pickle=case in LAMBDAS)
    before = weights(theirs)
    expected = go_on(theirs)
    assert (expected - before).abs().max() > 1e-4
    th.testing.assert_close(go_on(ours), expected, rtol=0, atol=1e-5)
    assert (ours.num_timesteps, ours._n_updates) == (theirs.num_timesteps, theirs._n_updates)


def test_hyperparameters_and_counters_are_loaded():
    theirs = trained("options")
    ours = taken(theirs)
    names = "n_steps batch_size n_epochs gamma gae_lambda normalize_advantage ent_coef vf_coef max_grad_norm target_kl"
    for name in [*names.split(), "use_sde", "sde_sample_freq", "seed", "num_timesteps", "_n_updates", "n_envs"]:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.value_clip == "plain"
    for name in ("lr_schedule", "clip_range", "clip_range_vf"):
        for progress in (1.0, 0.4, 0.0):
            assert getattr(ours, name)(progress) == getattr(theirs, name)(progress), name


def test_arguments_can_be_changed_on_the_way(tmp_path):
    theirs = trained()
    theirs.save(tmp_path / "model")
    changes = {"stats_window_size": 7, "learning_rate": "lin_1e-2", "value_clip": "max", "clip_range": 0.3}
    ours = PPO_Plus.from_sb3(tmp_path / "model", device="cpu", **changes)
    found = ours._stats_window_size, ours.lr_schedule(0.5), ours.value_clip, ours.clip_range(1.0)
    assert found == (7, 5e-3, "max", 0.3)
    with pytest.raises(ValueError, match="gamma=2"):
        PPO_Plus.from_sb3(tmp_path / "model", gamma=2)
    with pytest.raises(TypeError, match="clip_rage=0.1 is not an argument of PPO_Plus: did you mean clip_range"):
        PPO_Plus.from_sb3(tmp_path / "model", clip_rage=0.1)


# --- environments ----------------------------------------------------------------------------------------------------


def test_normalized_environments_continue_as_in_sb3(tmp_path):
    trained(env=VecNormalize(env_of("discrete"))).save(tmp_path / "model")
    theirs = PPO.load(tmp_path / "model", env=VecNormalize(env_of("discrete")), device="cpu")
    ours = PPO_Plus.from_sb3(tmp_path / "model", env=VecNormalize(env_of("discrete")), device="cpu")
    th.testing.assert_close(go_on(ours), go_on(theirs), rtol=0, atol=1e-5)
    assert ours.get_vec_normalize_env().obs_rms.count == theirs.get_vec_normalize_env().obs_rms.count


def test_whether_sb3s_models_have_learned_from_normalized_observations_is_known(tmp_path, recwarn):
    trained(env=VecNormalize(env_of("discrete"))).save(tmp_path / "model")
    with pytest.warns(UserWarning, match="may have been normalized .*does not normalize them.* may be wrong"):
        PPO_Plus.load(tmp_path / "model", env=env_of("discrete"))
    trained().save(tmp_path / "model")
    with pytest.warns(UserWarning, match="were not normalized .*leave VecNormalize out"):
        PPO_Plus.load(tmp_path / "model", env=VecNormalize(env_of("discrete")))
    recwarn.clear()
    PPO_Plus.load(tmp_path / "model", env=env_of("discrete"))
    PPO("MlpPolicy", env_of("discrete")).save(tmp_path / "untrained")
    PPO_Plus.load(tmp_path / "untrained", env=VecNormalize(env_of("discrete")))
    assert not recwarn


# --- classes of one's own --------------------------------------------------------------------------------------------


class Features(BaseFeaturesExtractor):
    def __init__(self, observation_space, features_dim=6):
        super().__init__(observation_space, features_dim)
        self.layer = th.nn.Linear(5, features_dim)

    def forward(self, observations):
        return self.layer(observations).tanh()


class OwnPolicy(SB3Policy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs | {"features_extractor_class": Features, "net_arch": [4]})


class OwnBuffer(SB3RolloutBuffer):
    """Advantages of one's own."""

    def compute_returns_and_advantage(self, last_values, dones):
        super().compute_returns_and_advantage(last_values, dones)
        self.advantages *= -1


def test_custom_policies_are_kept(tmp_path):
    PPO(OwnPolicy, env_of("discrete"), n_steps=16, batch_size=16, device="cpu").learn(32).save(tmp_path / "model")
    theirs = PPO.load(tmp_path / "model", env=env_of("discrete"), device="cpu")
    ours = PPO_Plus.from_sb3(tmp_path / "model", env=env_of("discrete"), device="cpu", trust_pickle=True)
    # Both differ from what SB3 does by itself, so an ignored class would be noticed.
    th.testing.assert_close(go_on(ours), go_on(theirs), rtol=0, atol=1e-5)


def test_a_buffer_class_written_for_sb3_can_be_replaced():
    theirs = PPO("MlpPolicy", env_of("discrete"), n_steps=16, batch_size=16, rollout_buffer_class=OwnBuffer)
    with pytest.raises(TypeError, match="rollout_buffer_class=.*OwnBuffer.* must be derived from ppo_plus"):
        taken(theirs)
    assert taken(theirs, rollout_buffer_class=None).learn(32).num_timesteps == 32


# --- and on ----------------------------------------------------------------------------------------------------------


def test_a_loaded_model_is_saved_as_ours(tmp_path):
    ours = taken(trained("gsde_squashed")).learn(32)
    ours.save(tmp_path / "ours")
    loaded = PPO_Plus.load(tmp_path / "ours", device="cpu")
    obs = observations(ours)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], ours.predict(obs, deterministic=True)[0])


@pytest.mark.parametrize("algorithm", [A2C, DQN])
def test_another_algorithm_raises_an_error(algorithm, tmp_path):
    model = algorithm("MlpPolicy", vec(ACTIONS["discrete"], n_envs=1), device="cpu")
    model.save(tmp_path / "model.zip")
    with pytest.raises(TypeError, match="is not the path of an SB3 PPO"):
        PPO_Plus.from_sb3(tmp_path / "model.zip", device="cpu")
    with pytest.raises(FileNotFoundError):
        PPO_Plus.from_sb3(tmp_path / "nothing")


def test_load_takes_the_custom_objects_that_the_zoo_passes(tmp_path):
    trained("options").save(tmp_path / "model")
    objects = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.1, "gamma": 0.7}
    ours = PPO_Plus.load(tmp_path / "model", device="cpu", custom_objects=objects)
    assert (ours.lr_schedule(1.0), ours.clip_range(1.0), ours.gamma) == (0.0, 0.1, 0.7)


# --- sb3-contrib's MaskablePPO ----------------------------------------------------------------------------------------

MASKABLE = {
    "discrete": {},
    "multidiscrete": {"policy_kwargs": {"net_arch": [8], "activation_fn": th.nn.ReLU}},
    "multibinary": {"ent_coef": 0.01},
}


def trained_with_masks(kind, n_updates=1, policy="MlpPolicy", **kwargs):
    env = vec(ACTIONS[kind], env_class=MaskedEnv)
    options = {"n_steps": 16, "batch_size": 16, "n_epochs": 3, "learning_rate": 0.01} | MASKABLE[kind] | kwargs
    return MaskablePPO(policy, env, seed=1, device="cpu", **options).learn(32 * n_updates)


@pytest.mark.parametrize("kind", MASKABLE)
def test_maskable_ppo_keeps_its_actions_and_continues(kind):
    theirs = trained_with_masks(kind)
    ours = taken(theirs, env=vec(ACTIONS[kind], env_class=MaskedEnv))
    env = vec(ACTIONS[kind], n_envs=64, env_class=MaskedEnv)
    env.seed(5)
    obs = env.reset()
    masks = np.stack(env.env_method("action_masks"))
    actions = [m.predict(obs, deterministic=True, action_masks=masks)[0] for m in (ours, theirs)]
    np.testing.assert_array_equal(*actions)
    with th.no_grad():
        tensor = th.from_numpy(obs)
        distributions = [m.policy.get_distribution(tensor, action_masks=masks) for m in (ours, theirs)]
        actions = distributions[1].mode()
        log_probs = [d.log_prob(actions.float()) for d in distributions]
        th.testing.assert_close(*log_probs, rtol=1e-5, atol=1e-6)
        th.testing.assert_close(*(m.policy.predict_values(tensor) for m in (ours, theirs)))
    with pytest.warns(UserWarning, match="trained with masks"):
        ours.predict(obs)
    n_updates = ours._n_updates
    ours.learn(32, reset_num_timesteps=False)
    assert ours._n_updates == n_updates + 3 and ours.num_timesteps == 64


def test_another_policy_is_given_in_place_of_a_class_derived_from_contribs():
    class Own(MaskableActorCriticPolicy):
        pass

    theirs = trained_with_masks("multibinary", policy=Own)
    with pytest.raises(ValueError, match=r"or pass ppo_plus.MlpPolicy \(to load: policy_class="):
        taken(theirs)
    for trust_pickle in (False, True):
        ours = taken(theirs, policy_class=MlpPolicy, trust_pickle=trust_pickle)
        with pytest.warns(UserWarning, match="trained with masks"):
            ours.predict(observations(ours))


@pytest.mark.parametrize("kind", ["discrete", "multidiscrete"])
def test_masked_training_continues_as_sb3_contribs_would(kind):
    theirs = trained_with_masks(kind)
    ours = taken(theirs)
    for model in (theirs, ours):
        model.set_env(vec(ACTIONS[kind], env_class=MaskedEnv))
        model.set_random_seed(7)
        model.learn(32, reset_num_timesteps=False)
    th.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy_kwargs", [{}, {"features_extractor_class": Batched}], ids=["", "buffers"])
def test_moments_of_a_bit_are_those_of_its_second_logit(policy_kwargs):
    theirs = trained_with_masks("multibinary", policy_kwargs=policy_kwargs)
    ours = taken(theirs)
    names = [name for name, _ in theirs.policy.named_parameters()]
    for name in ("action_net.weight", "action_net.bias"):
        i = names.index(name)
        # The two logits of a bit pull in opposite directions.
        before, after = (m.policy.optimizer.state_dict()["state"][i] for m in (theirs, ours))
        th.testing.assert_close(before["exp_avg"][::2], -before["exp_avg"][1::2])
        assert th.equal(after["exp_avg"], before["exp_avg"][1::2])
        assert th.equal(after["exp_avg_sq"], before["exp_avg_sq"][1::2])
        assert after["step"] == before["step"]
    assert theirs.policy.action_net.out_features == 2 * ours.policy.action_net.out_features


def test_a_model_of_a_package_that_is_missing_asks_for_it(tmp_path, monkeypatch):
    trained_with_masks("discrete").save(tmp_path / "theirs")
    monkeypatch.setitem(sys.modules, "sb3_contrib.common.maskable.policies", None)
    with pytest.raises(Refused, match=r"without policy_class \(it needs .*of sb3-contrib .*pip install sb3-contrib\)"):
        PPO_Plus.from_sb3(tmp_path / "theirs")
    assert PPO_Plus.from_sb3(tmp_path / "theirs", policy_class=MlpPolicy).num_timesteps == 32


def test_a_damaged_file_is_called_so(sb3_zip, tmp_path):
    whole, path = sb3_zip.read_bytes(), tmp_path / "model.zip"
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    for damaged in (b"", whole[:100], whole[:middle], whole[:-30], changed):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.zip is not a valid saved model \(damaged or truncated\?\)"):
            PPO_Plus.load(path)


@pytest.fixture(scope="module")
def sb3_zip(tmp_path_factory):
    path = tmp_path_factory.mktemp("sb3") / "model.zip"
    PPO("MlpPolicy", vec(ACTIONS["box"]), n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(32).save(path)
    return path


def with_member(source, target, name, change):
    """A zip with one member changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for each in old.namelist():
            new.writestr(each, change(old.read(each)) if each == name else old.read(each))
        if name not in old.namelist():
            new.writestr(name, change(b""))
    return target


def poisoned(attribute, evil):
    def change(text):
        data = json.loads(text)
        data[attribute] = {":type:": "x", ":serialized:": base64.b64encode(pickle.dumps(evil)).decode()}
        return json.dumps(data)

    return change


@pytest.fixture
def evil(sb3_zip, tmp_path):
    """A function of an attribute, which gives a model where that is a pickle that runs something."""
    ran = tmp_path / "ran"
    yield lambda name: with_member(sb3_zip, tmp_path / "evil.zip", "data", poisoned(name, Evil(ran)))
    assert not ran.exists()


@pytest.mark.parametrize("attribute", ["policy_class", "observation_space", "policy_kwargs"])
def test_a_poisoned_model_runs_nothing_and_is_named(evil, attribute):
    with pytest.raises(ValueError, match=rf"evil\.zip .*{attribute} \(it would call posix:system\).*trust_pickle=True"):
        PPO_Plus.load(evil(attribute))


@pytest.mark.parametrize("attribute", ["lr_schedule", "_last_obs", "mine"])
def test_poison_that_is_not_needed_is_left(evil, attribute):
    assert PPO_Plus.load(evil(attribute), device="cpu").num_timesteps == 32


def test_a_poisoned_schedule_is_passed_or_only_learn_asks_for_it(evil):
    path = evil("learning_rate")
    for how in ({"learning_rate": 0.5}, {"custom_objects": {"learning_rate": 0.5}}):
        assert PPO_Plus.load(path, device="cpu", **how).lr_schedule(1.0) == 0.5
    model = PPO_Plus.from_sb3(path, env=vec(ACTIONS["box"]), device="cpu")
    with pytest.raises(ValueError, match="learning_rate: the file.*it would call posix:system"):
        model.learn(32)


def saved_by_torch(value, **kwargs):
    file = io.BytesIO()
    th.save(value, file, **kwargs)
    return file.getvalue()


WEIGHTS = {
    "a pickle": lambda path: pickle.dumps(Evil(path)),
    "torch's with a pickle": lambda path: saved_by_torch({"a": Evil(path)}),
    "torch's old form": lambda path: saved_by_torch({"a": th.ones(1)}, _use_new_zipfile_serialization=False),
    "a huge view": lambda path: saved_by_torch({"a": th.ones(1).expand(10**12)}),
    "nothing": lambda path: b"",
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_poisoned_weights_run_nothing(sb3_zip, tmp_path, kind):
    path = with_member(sb3_zip, tmp_path / "evil.zip", "policy.pth", lambda _: WEIGHTS[kind](tmp_path / "ran"))
    with pytest.raises(Refused, match="evil.zip"):
        PPO_Plus.load(path)
    assert not (tmp_path / "ran").exists()


def test_a_bomb_raises_an_error(sb3_zip, tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(sb3_zip) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for each in old.namelist():
            new.writestr(each, old.read(each) + (bytes(2**27) if each == "data" else b""))
    with pytest.raises(Damaged, match="times larger than itself"):
        PPO_Plus.load(path)


def test_a_damaged_sb3_model_is_the_same_or_an_error(sb3_zip):
    data, rng = sb3_zip.read_bytes(), random.Random(0)
    whole = PPO_Plus.load(sb3_zip, device="cpu")
    for _ in range(40):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            loaded = PPO_Plus.load(io.BytesIO(damaged), device="cpu")
        except (Refused, TypeError):  # it is no PPO's
            continue
        assert loaded.settings.n_steps == whole.n_steps
        assert th.equal(loaded.policy.action_net.weight, whole.policy.action_net.weight)
