"""SB3's ``PPO``, ``MaskablePPO`` and ``RecurrentPPO`` read what is exported for them, and act the same."""

import io
import sys

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, VECTOR, KeyMaskedEnv, MaskedEnv, vec
from gymnasium import spaces
from gymnasium.spaces import Discrete
from networks import Batched
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize, VecTransposeImage

from ppo_plus import ColoredNoise, MlpPolicy, PPO_Plus, RolloutBuffer, StateDependentNoise

DICT = spaces.Dict(image=IMAGE, vector=VECTOR, choice=spaces.Discrete(3))
CASES = {
    "discrete": {},
    "box": {"env": vec(ACTIONS["box"]), "learning_rate": "lin_1e-3", "clip_range_vf": 0.1, "value_clip": "plain"},
    "multidiscrete": {"env": vec(ACTIONS["multidiscrete"]), "policy_kwargs": {"net_arch": [8]}},
    "multibinary": {"env": vec(ACTIONS["multibinary"]), "target_kl": 0.1},
    "gsde": {"env": vec(ACTIONS["box"]), "use_sde": True},
    "images": {"env": vec(ACTIONS["discrete"], IMAGE), "policy": "CnnPolicy"},
    "dict": {"env": vec(ACTIONS["box"], DICT), "policy": "MultiInputPolicy"},
    "rmsprop": {"policy_kwargs": {"optimizer_class": th.optim.RMSprop}},
    **{
        f"masks, {kind}": {"cls": MaskablePPO, "env": vec(ACTIONS[kind], env_class=MaskedEnv)}
        for kind in ("discrete", "multidiscrete", "multibinary")
    },
    "masks, buffers": {
        "cls": MaskablePPO,
        "env": vec(ACTIONS["multibinary"], env_class=MaskedEnv),
        "policy_kwargs": {"features_extractor_class": Batched},
    },
    "memory": {"cls": RecurrentPPO, "policy": "MlpLstmPolicy", "policy_kwargs": {"lstm_hidden_size": 8}},
    "memory, gsde": {"cls": RecurrentPPO, "policy": "MlpLstmPolicy", "env": vec(ACTIONS["box"]), "use_sde": True},
}


def make(policy="MlpPolicy", env=None, algorithm=PPO_Plus, **kwargs):
    defaults = dict(n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu", compile=False)
    return algorithm(policy, env or vec(ACTIONS["discrete"]), **defaults | kwargs)


@pytest.mark.parametrize("case", CASES)
def test_sb3_acts_the_same_and_learns_on(case, tmp_path, recwarn):
    options = dict(CASES[case])
    cls = options.pop("cls", PPO)
    model = make(**options).learn(32)
    model.to_sb3(tmp_path / "exported")
    assert not [each for each in recwarn if "learns without" in str(each.message)]
    theirs = cls.load(tmp_path / "exported", env=model.get_env(), device="cpu")
    obs = model.get_env().reset()
    masks = {"action_masks": get_action_masks(model.get_env())} if cls is MaskablePPO else {}
    ours, found = (each.predict(obs, deterministic=True, **masks)[0] for each in (model, theirs))
    np.testing.assert_allclose(found, ours, atol=1e-6)
    assert (theirs.num_timesteps, theirs.gamma, theirs.n_steps) == (32, model.gamma, model.n_steps)
    for progress in (1.0, 0.3):
        assert theirs.lr_schedule(progress) == pytest.approx(model.lr_schedule(progress))
    back = PPO_Plus.load(tmp_path / "exported", device="cpu")
    pairs = zip(back.policy.state_dict().items(), model.policy.state_dict().items(), strict=True)
    assert all(one[0] == other[0] and th.equal(one[1], other[1]) for one, other in pairs)
    assert type(back) is PPO_Plus and back._expects_masks == model._expects_masks
    states = [each.policy.optimizer.state_dict()["state"] for each in (back, model)]
    assert all(th.equal(states[0][i][name], each) for i, state in states[1].items() for name, each in state.items())
    theirs.learn(32, reset_num_timesteps=False)


def squared(progress):
    return 1e-3 * progress**2


def test_schedules_that_sb3_lacks_need_no_ppo_plus(tmp_path, monkeypatch):
    make(learning_rate=squared).save(tmp_path / "first")
    model = PPO_Plus.load(tmp_path / "first", env=vec(ACTIONS["discrete"]), clip_range="cos_0.2_0.1")
    model.to_sb3(tmp_path / "exported")
    back = PPO_Plus.load(tmp_path / "exported")
    assert (back.learning_rate(0.3), back.clip_range(0.3)) == (model.learning_rate(0.3), model.clip_range(0.3))
    for name in [name for name in sys.modules if name.startswith("ppo_plus")]:
        monkeypatch.setitem(sys.modules, name, None)
    theirs = PPO.load(tmp_path / "exported")
    assert (theirs.lr_schedule(0.3), theirs.clip_range(0.3)) == (model.learning_rate(0.3), model.clip_range(0.3))


def test_it_is_written_into_an_open_file_and_draws_no_numbers():
    model, file = make(), io.BytesIO()
    th.manual_seed(3), np.random.seed(3)
    model.to_sb3(file)
    drawn = th.rand(1).item(), np.random.random()
    th.manual_seed(3), np.random.seed(3)
    assert drawn == (th.rand(1).item(), np.random.random())
    assert PPO.load(file, device="cpu").n_steps == 16


class OwnPolicy(MlpPolicy):
    pass


OTHER = "cannot have this policy"
KEYS = {"policy": "MultiInputPolicy", "action_mask_key": "mask", "policy_kwargs": {"actor_keys": list(DICT)[:1]}}
UNKNOWN = {
    "memory": ({"policy": "MlpGruPolicy"}, "does not support policy=MlpGruPolicy"),
    "policy": ({"policy": OwnPolicy}, "does not support policy=OwnPolicy"),
    "mixed": ({"env": vec(ACTIONS["mixed"])}, OTHER),
    "start of observations": ({"env": vec(ACTIONS["discrete"], Discrete(3, start=1))}, OTHER),
    "start": ({"env": vec(ACTIONS["discrete_start"])}, OTHER),
    "integers": ({"env": vec(ACTIONS["box_int"])}, OTHER),
    "keys": ({"env": vec(ACTIONS["multibinary"], DICT, env_class=KeyMaskedEnv), **KEYS}, OTHER),
    "gsde": ({"use_sde": True}, OTHER),
    "exploration": ({"env": vec(ACTIONS["box"]), "exploration": StateDependentNoise()}, OTHER),
    "squashed": ({"env": vec(ACTIONS["box"]), "policy_kwargs": {"squash_output": True}}, OTHER),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_sb3_does_not_know_is_named(case, tmp_path):
    options, message = UNKNOWN[case]
    with pytest.raises(ValueError, match=message):
        make(**options).to_sb3(tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []


def test_memory_and_masks_together_raise_an_error(tmp_path):
    model = make("MlpLstmPolicy", vec(ACTIONS["discrete"], env_class=MaskedEnv)).learn(32)
    explores = make("MlpPolicy", vec(ACTIONS["discrete"], env_class=MaskedEnv), use_sde=True).learn(32)
    for each in (model, explores):
        with pytest.raises(ValueError, match="does not support action masks with memory or gSDE"):
            each.to_sb3(tmp_path / "exported")


def test_the_learning_rate_is_that_of_now(tmp_path):
    model = make()
    model.learning_rate = 1e-5
    model.to_sb3(tmp_path / "exported")
    assert PPO.load(tmp_path / "exported", device="cpu").learning_rate == 1e-5


class OwnBuffer(RolloutBuffer):
    pass


class OwnPPO(PPO_Plus):
    pass


def test_what_sb3_learns_without_is_said(tmp_path):
    options = dict(kl_control="penalty", target_kl="lin_0.1", clip_range=None, sde_sample_freq="episode")
    options |= dict(rollout_buffer_class=OwnBuffer, exploration=ColoredNoise(0.5, 16))
    model = make(env=vec(ACTIONS["box"]), algorithm=OwnPPO, **options)
    message = "learns without clip_range=None, exploration=.*kl_control='penalty', rollout_buffer_class.*OwnBuffer.*"
    message += "sde_sample_freq='episode', target_kl=.*, the methods of OwnPPO"
    with pytest.warns(UserWarning, match=message):
        model.to_sb3(tmp_path / "exported")
    assert PPO.load(tmp_path / "exported", device="cpu").target_kl is None


def test_images_and_normalized_numbers_are_read_by_sb3_as_the_warning_says(tmp_path):
    space = spaces.Dict(image=spaces.Box(0, 255, (36, 36, 3), np.uint8), vector=VECTOR)
    model = make("MultiInputPolicy", vec(ACTIONS["discrete"], space), normalize_observations=True).learn(32)
    with pytest.warns(UserWarning, match=r"VecNormalize.load\('.*', VecTransposeImage\(venv\), or venv if"):
        model.to_sb3(tmp_path / "model")
    raw = vec(ACTIONS["discrete"], space)
    with pytest.warns(UserWarning, match="may have been normalized"):
        PPO_Plus.from_sb3(tmp_path / "model", env=raw)
    env = VecNormalize.load(tmp_path / "model_vecnormalize.pkl", VecTransposeImage(raw))
    theirs = PPO.load(tmp_path / "model", env=env, device="cpu")
    obs = env.reset()
    expected = model.predict(env.get_original_obs(), deterministic=True)[0]
    np.testing.assert_array_equal(theirs.predict(obs, deterministic=True)[0], expected)
