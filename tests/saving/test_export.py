"""Exported policies act as ``predict``: over spaces, policies and wrappers, in onnxruntime and as a program."""

import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, OBSERVATIONS, POLICIES, vec
from gymnasium import spaces
from parametrization import part
from stable_baselines3.common import policies as sb3
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from torch import nn

from ppo_plus import PPO_Plus
from ppo_plus.saving import export as room
from ppo_plus.saving.export import BATCH, Deployed, raw_observations, tensor_like
from ppo_plus.trees import mapped

ort = pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")


class Overridden(sb3.ActorCriticPolicy):
    """A policy written for SB3, which runs by SB3's methods."""

    def forward(self, obs, deterministic=False):
        return super().forward(obs, deterministic)


def make(action="box", observation="box", policy=None, env=None, expects_masks=False, **options):
    """A model with weights and actions that are not small."""
    env = env or vec(ACTIONS[action], OBSERVATIONS[observation])
    policy = policy or POLICIES.get(observation, "MlpPolicy")
    model = PPO_Plus(policy, env, n_steps=16, batch_size=16, device="cpu", seed=1, **options)
    with th.no_grad():
        for weight in model.policy.action_net.parameters():
            weight.add_(0.3 * th.randn_like(weight))
    model._expects_masks = expects_masks
    return model


def small(**more):
    return {"policy_kwargs": {"net_arch": [8], **more}}


def normalized(space=OBSERVATIONS["box"], **options):
    env = VecNormalize(vec(ACTIONS["box"], space), **options)
    env.reset()
    for _ in range(20):
        env.step([env.action_space.sample() for _ in range(2)])
    return env


def generators(model):
    space = model.observation_space.np_random.bit_generator.state
    return th.get_rng_state().tolist(), [*np.random.get_state()[1]], space


def check(model, path, n_steps=4):
    """Export a model, which does not change, and play the file by its own memory, so that differences would add up."""
    before, noise = generators(model), model.policy.exploration
    model.export(path)
    assert generators(model) == before and model.policy.exploration is noise
    assert all(weight.requires_grad for weight in model.policy.parameters())
    deployed, session, rng = Deployed(model, "environment"), ort.InferenceSession(path), np.random.default_rng(7)
    names, state, memory = [each.name for each in session.get_outputs()], None, {}
    for _ in range(n_steps):
        feeds = room._feeds(deployed, 5, rng)
        feeds |= memory or {name: 0 * each for name, each in feeds.items() if name.startswith("memory.")}
        expected, state = room.predicted(deployed, feeds, state)
        found = dict(zip(names, session.run(names, feeds), strict=True))
        room.difference(deployed, feeds, found, expected)
        memory = {name.removeprefix("next_"): each for name, each in found.items() if "memory" in name}
    return deployed


WIDE = spaces.Box(-500.0, 3000.0, (2,))
NUMBERS = spaces.Dict({key: sub for key, sub in OBSERVATIONS["dict"].items() if key != "image"})
#: The others are parts of "mixed".
TOP_LEVEL = ("box_float64", "discrete_start", "multibinary_2d")
CASES = {
    **{action: lambda action=action: make(action, **small()) for action in TOP_LEVEL},
    "lstm": lambda: make("box_int", policy="MlpLstmPolicy", policy_kwargs={"lstm_hidden_size": 8, "n_lstm_layers": 2}),
    "lru": lambda: make("box", policy="MlpLruPolicy", policy_kwargs={"lstm_hidden_size": 8, "n_lstm_layers": 2}),
    "attention": lambda: make(
        "discrete_start", policy="MlpAttentionPolicy", policy_kwargs={"lstm_hidden_size": 8, "attention_window": 4}
    ),
    "gru, masks": lambda: make("multibinary", policy="MlpGruPolicy", expects_masks=True),
    "of a single number, normalized": lambda: make(env=VecNormalize(vec(ACTIONS["box"], spaces.Box(-1, 1, ())))),
    "of multibinary_2d": lambda: make(observation="multibinary_2d"),
    "of normalized dict": lambda: make(observation="dict", env=normalized(NUMBERS, norm_obs_keys=["vector"])),
    "normalized, clipped": lambda: make(env=normalized(clip_obs=0.7), use_sde=True),
    "masks of floats": lambda: make(
        env=vec(spaces.Discrete(3), spaces.Dict(o=WIDE, mask=spaces.Box(0, 1, (3,)))),
        policy="MultiInputPolicy",
        action_mask_key="mask",
    ),
    "squashed, wide": lambda: make(env=vec(WIDE), **small(squash_output=True)),
}
#: What other cases and tests have parts of.
NIGHTLY = {"lstm", "lru", "gru, masks", "of a single number, normalized", "of multibinary_2d", *TOP_LEVEL}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "policy.onnx"
    return check(make("mixed", expects_masks=True, **small()), path), path


def test_the_files_of_mixed_actions_act_as_predict_with_masks(mixed):
    deployed, _ = mixed
    assert "action_masks" in {each["name"] for each in deployed.inputs}


@pytest.mark.slow
@pytest.mark.parametrize("case", part(CASES, CASES.keys() - NIGHTLY))
def test_the_files_act_as_predict(case, tmp_path):
    check(CASES[case](), tmp_path / "policy.onnx", n_steps=50 if case in ("lstm", "lru", "attention") else 4)


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_the_traced_module_of_sb3s_page_on_export(policy):
    class OnnxableSB3Policy(nn.Module):
        def __init__(self, policy):
            super().__init__()
            self.policy = policy

        def forward(self, observation):
            return self.policy(observation, deterministic=True)

    model = make("discrete", env=vec(ACTIONS["discrete"], IMAGE) if policy == "CnnPolicy" else None, policy=policy)
    obs = model.env.reset()
    traced = th.jit.trace(OnnxableSB3Policy(model.policy).eval(), th.as_tensor(obs))
    actions = th.jit.freeze(traced)(th.as_tensor(obs))[0]
    assert np.array_equal(actions, model.predict(obs, deterministic=True)[0])


def pictures(height=36):
    """Channels last, so that they are transposed."""
    return vec(ACTIONS["box"], spaces.Dict(image=spaces.Box(0, 255, (height, 36, 3), np.uint8), at=OBSERVATIONS["box"]))


@pytest.mark.slow
def test_images_as_the_environment_returns_them(tmp_path):
    env = VecNormalize(pictures(), norm_obs_keys=["at"])
    env.reset()
    model = make(policy="MultiInputPolicy", env=env)
    model.export(tmp_path / "policy.onnx")
    raw = env.venv.reset()
    obs = model.env.transpose_observations(env.normalize_obs(raw))
    (action,) = ort.InferenceSession(tmp_path / "policy.onnx").run(
        ["action"], {f"observation.{key}": part for key, part in raw.items()}
    )
    np.testing.assert_allclose(action, model.predict(obs, deterministic=True)[0], atol=1e-5)
    described = json.loads((tmp_path / "policy.json").read_text())
    shapes = {each["name"]: (each["shape"], each["dtype"]) for each in described["inputs"]}
    assert shapes["observation.image"] == (["batch", 36, 36, 3], "uint8")
    assert described["wrappers_inside"] == ["VecNormalize", "VecTransposeImage"]
    assert described["wrappers_outside"] == []


def test_frame_stacks_are_outside():
    model = make(policy="MultiInputPolicy", env=VecFrameStack(pictures(), 2))
    deployed = Deployed(model, "environment")
    assert deployed.outside == ["VecFrameStack"]
    assert deployed.raw_space["image"].shape == (36, 36, 6)
    obs = mapped(th.from_numpy, room._feeds(deployed, 3, np.random.default_rng(0)))
    assert deployed.observations(obs)["image"].shape == (3, 6, 36, 36)


def test_what_the_package_itself_puts_around_an_environment_is_not_outside():
    model = make(env="CartPole-v1")
    assert raw_observations(model, "environment")[2] == []
    model = make(env=gym.wrappers.vector.NormalizeObservation(gym.make_vec("CartPole-v1", 2)))
    assert raw_observations(model, "environment")[2] == ["NormalizeObservation"]


def test_only_what_the_actor_sees_is_an_input():
    space = spaces.Dict(seen=OBSERVATIONS["box"], secret=OBSERVATIONS["box"], mask=spaces.MultiBinary(3))
    kwargs = {"actor_keys": ["seen"], "net_arch": [8]}
    env = VecNormalize(vec(ACTIONS["discrete"], space), norm_obs_keys=["seen", "secret"])
    env.reset()
    model = make(policy="MultiInputPolicy", env=env, action_mask_key="mask", policy_kwargs=kwargs)
    deployed = Deployed(model, "environment")
    assert {each["name"] for each in deployed.inputs} == {"observation.seen", "observation.mask"}
    inputs = {"observation.seen": th.zeros(3, 5), "observation.mask": th.eye(3, dtype=th.int8)}
    assert deployed(inputs)["action"].tolist() == [0, 1, 2]


def test_the_description_says_how_to_read_actions(mixed):
    _, path = mixed
    text = path.with_suffix(".json").read_text()
    assert ort.InferenceSession(path).get_modelmeta().custom_metadata_map == {"ppo_plus": text}
    described = json.loads(text)
    kind = {"output": "action.kind", "type": "Discrete", "shape": [], "dtype": "int64", "n": 3, "start": -1}
    assert described["action"]["kind"] == kind
    assert described["action"]["how"][1]["far"]["high"] == 5
    names = {each["name"] for each in described["outputs"]}
    assert names == {"action.kind", "action.where", "action.how.0", "action.how.1.far", "action.how.1.deep"}
    assert described["opset"] == room.OPSET


@pytest.mark.slow
def test_a_file_needs_neither_torch_nor_sb3(tmp_path):
    """The code of the page, where these cannot be imported."""
    page = Path(__file__).parents[2] / "docs" / "deploying.md"
    code = page.read_text(encoding="utf-8").partition("<!-- without torch -->\n```python\n")[2].partition("```")[0]
    assert 10 < len(code.splitlines()) <= 20
    make(policy="MlpLstmPolicy", env=normalized(), policy_kwargs={"lstm_hidden_size": 8}).export(
        tmp_path / "policy.onnx"
    )
    block = "import sys\nfor name in ('torch', 'stable_baselines3', 'ppo_plus'): sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", block + code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "action" in done.stdout


# --- what cannot be exported -----------------------------------------------------------------------------------------


class Branching(nn.Module):
    """Depends on values in a way that no graph can express."""

    def forward(self, features):
        return features * 2 if features.sum() > 0 else features


class Drawing(nn.Module):
    def forward(self, features):
        return features + th.randn_like(features)


class Extractor(BaseFeaturesExtractor):
    def __init__(self, space, layer):
        super().__init__(space, space.shape[0])
        self.first, self.layer = nn.Linear(space.shape[0], space.shape[0]), layer()

    def forward(self, observations):
        return self.layer(self.first(observations))


def with_layer(layer):
    kwargs = {"features_extractor_class": Extractor, "features_extractor_kwargs": {"layer": layer}, "net_arch": [8]}
    return make(policy_kwargs=kwargs)


def test_a_layer_that_torch_cannot_export_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError, match="return features \\* 2 if features.sum"):  # torch shows the line
        with_layer(Branching).export(tmp_path / "policy.onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_what_acts_otherwise_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError, match="acts otherwise than predict: its action is"):
        with_layer(Drawing).export(tmp_path / "policy.onnx")
    assert not [*tmp_path.iterdir()]


def test_ties_may_be_either_choice(tmp_path):
    model = make("discrete", **small())
    with th.no_grad():
        model.policy.action_net.weight.zero_()
        model.policy.action_net.bias.copy_(th.tensor([1.0, 1.0, 0.0]))
    deployed = Deployed(model, None)
    feeds = room._feeds(deployed, 3, np.random.default_rng(0))
    expected, _ = room.predicted(deployed, feeds, None)
    assert room.difference(deployed, feeds, {"action": np.array([0, 1, 0])}, expected) == 0
    with pytest.raises(RuntimeError, match="its action is 2, not 0"):
        room.difference(deployed, feeds, {"action": np.array([0, 1, 2])}, expected)
    with pytest.raises(RuntimeError, match="int32"):
        room.difference(deployed, feeds, {"action": np.array([0, 1, 0], np.int32)}, expected)


def test_the_statistics_of_a_loaded_model_must_be_known(tmp_path):
    model = make(env=normalized())
    model.num_timesteps = 32
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", device="cpu")
    with pytest.raises(ValueError, match="has no environment.*normalization=None"):
        raw_observations(loaded, "environment")
    assert raw_observations(loaded, None)[1] == []
    fresh = PPO_Plus.load(tmp_path / "model", env=VecNormalize(vec(ACTIONS["box"])), device="cpu")
    with pytest.raises(ValueError, match="no statistics yet"):
        raw_observations(fresh, "environment")
    with pytest.raises(ValueError, match="normalization='file' must be one of 'environment', None"):
        raw_observations(loaded, "file")


def test_statistics_inside_another_wrapper_are_refused():
    model = make(env=VecFrameStack(normalized(), 3))
    with pytest.raises(ValueError, match="VecNormalize is inside VecFrameStack"):
        raw_observations(model, "environment")
    assert raw_observations(model, None)[2] == ["VecFrameStack", "VecNormalize"]
    # Statistics that are not used do not matter.
    assert raw_observations(make(env=VecFrameStack(normalized(norm_obs=False), 3)), "environment")[1] == []


def test_other_mistakes(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="must end in .onnx"):
        make().export("policy.zip")
    with pytest.raises(
        ValueError, match="policy=Overridden overrides methods of SB3's policy: derive it from ppo_plus"
    ):
        make(policy=Overridden).export(tmp_path / "policy.onnx")
    twice = spaces.Dict({"x.y": spaces.Discrete(2), "x": spaces.Dict({"y": spaces.Discrete(2)})})
    with pytest.raises(ValueError, match="has several parts of one name"):
        make(env=vec(twice)).export(tmp_path / "policy.onnx")
    model = make()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r'onnxruntime is missing: pip install "ppo_plus\[export\]"'):
        model.export(tmp_path / "policy.onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["action.memory.0", "memory.0", "next_memory.0"])
def test_the_batch_is_the_second_dimension_of_memory_alone(name):
    shape = tensor_like(name, np.zeros((2, 3)))["shape"]
    assert shape == ([BATCH, 3] if name.startswith("action") else [2, BATCH])
