"""Spaces of environments in tensors; Gymnasium's and other simulators as one."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from tensor_envs import Managed, TensorTwin

from ppo_plus import PPO_Plus, TensorEnv, as_vec_env
from ppo_plus.envs.tensors.env import UNBOUNDED, bounded


def test_bounds_that_are_missing_are_added():
    half = spaces.Box(np.float32([-1.0, -np.inf]), np.float32([np.inf, 2.0]))
    assert bounded(half) == spaces.Box(np.float32([-1.0, -UNBOUNDED]), np.float32([UNBOUNDED, 2.0]))
    far = spaces.Box(np.float32([200.0, -np.inf]), np.float32([np.inf, -200.0]))
    assert bounded(far) == spaces.Box(np.float32([200.0, -300.0]), np.float32([300.0, -200.0]))
    assert all(bounded(space) == space for space in ACTIONS.values())


def test_squashing_needs_bounds():
    class Free(TensorEnv):
        def __init__(self, bound):
            box = spaces.Box(-bound, bound, (1,))
            super().__init__(2, spaces.Box(-1, 1, (2,)), box)

    squashed = {"policy_kwargs": {"squash_output": True}, "n_steps": 8, "device": "cpu"}
    with pytest.raises(ValueError, match="squash_output=True scales actions to the bounds of the Box, which has none"):
        PPO_Plus("MlpPolicy", Free(np.inf), **squashed)
    PPO_Plus("MlpPolicy", Free(1.0), **squashed)
    PPO_Plus("MlpPolicy", Free(np.inf), n_steps=8, device="cpu")


# --- gymnasium's vector environments in tensors are recognized ------------------------------------------------------


SMALL = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


class InTensors(VectorEnv):
    """A Gymnasium vector environment that computes in tensors, with ManiSkill's way to tell of the end."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, twin, key="final_obs"):
        self.twin, self.key, self.num_envs, self.device = twin, key, twin.num_envs, th.device("cpu")
        self.single_observation_space, self.single_action_space = twin.observation_space, twin.action_space
        self.seeds = []

    def reset(self, *, seed=None, **options):
        self.seeds.append(seed)
        self.options = options
        return self.twin.reset(seed), {}

    def step(self, actions):
        step = self.twin.step(actions)
        ended = step.terminated | step.truncated
        infos = {}
        if ended.any():
            episode = {"success_once": ended & (th.arange(self.num_envs) > 0)}
            infos = {self.key: step.final_obs, f"_{self.key}": ended, "final_info": {"episode": episode}}
            infos["_final_info"] = ended
        return step.obs, step.rewards, step.terminated, step.truncated, infos


@pytest.mark.parametrize("key", ["final_obs", "final_observation"])
def test_a_vector_environment_in_tensors_is_the_same_task(key):
    plain = PPO_Plus("MlpPolicy", TensorTwin(3, ACTIONS["mixed"]), **SMALL).learn(48)
    vector = InTensors(TensorTwin(3, ACTIONS["mixed"]), key)
    wrapped = PPO_Plus("MlpPolicy", vector, **SMALL).learn(48)
    np.testing.assert_array_equal(plain.rollout_buffer.advantages, wrapped.rollout_buffer.advantages)
    assert vector.seeds == [0]


def test_masks_are_found_within_wrappers():
    twin = TensorTwin(3, ACTIONS["discrete"], masks=True)
    vector = InTensors(twin)
    vector.action_masks = twin.action_masks
    assert len(as_vec_env(VectorWrapper(vector)).env_method("action_masks")) == 3


@pytest.mark.parametrize("at_reset", [{}, {"cost": th.zeros(2), "terms": {"energy": th.zeros(2)}}])
def test_infos_of_the_last_step_are_those_before_the_reset(at_reset):
    class Crashing(InTensors):
        """A crash, which ends the episode of the second environment, costs 100."""

        def step(self, actions):
            obs, rewards, terminated, truncated, _ = super().step(actions)
            ended = th.tensor([False, True])
            cost = 1.0 + 99.0 * ended
            final = {"cost": cost, "terms": {"energy": th.stack([cost, -cost], dim=1)}, "note": "none"}
            return obs, rewards, ended, truncated, {**at_reset, "final_info": final, "_final_info": ended}

    env = as_vec_env(Crashing(TensorTwin(2, ACTIONS["discrete"])))
    env.reset()
    infos = env.env.step(th.zeros(2, dtype=th.long)).infos
    before = 0.0 if at_reset else 1.0
    assert infos["cost"].tolist() == [before, 100.0]
    assert infos["terms"]["energy"][1].tolist() == [100.0, -100.0] and "note" not in infos


def test_options_are_passed_where_there_are_any():
    env = as_vec_env(InTensors(TensorTwin(3, ACTIONS["discrete"])))
    env.set_options({"level": 3})
    for options in ({"options": {"level": 3}}, {}):
        env.reset()
        assert env.env.env.options == options
    # A simulator without them has an error of Python's own.
    plain = as_vec_env(TensorTwin(3, ACTIONS["discrete"]))
    plain.set_options({"level": 3})
    with pytest.raises(TypeError, match="options"):
        plain.reset()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_other_autoreset_modes_raise_an_error(mode):
    env = InTensors(TensorTwin(3, ACTIONS["discrete"]))
    env.metadata = {"autoreset_mode": mode}
    with pytest.raises(ValueError, match="SAME_STEP"):
        as_vec_env(env)


def test_an_environment_that_answers_everything_is_not_taken_for_tensors():
    class Answering(gym.Env):
        def __getattr__(self, name):
            return None

    env = Answering()
    assert as_vec_env(env) is env


def test_the_example_of_isaac_lab_runs(monkeypatch, tmp_path):
    page = Path(__file__).parents[3] / "docs" / "capabilities" / "tensor_environments.md"
    (example,) = re.findall(r"^```text\n(import argparse.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    app = SimpleNamespace(close=lambda: None)
    launcher = SimpleNamespace(
        add_app_launcher_args=lambda parser: parser.add_argument("--headless", action="store_true")
    )
    launcher = type("AppLauncher", (), vars(launcher) | {"__init__": lambda self, args: None, "app": app})
    launcher.add_app_launcher_args = staticmethod(launcher.add_app_launcher_args)
    utils = SimpleNamespace(parse_env_cfg=lambda task, num_envs: SimpleNamespace(compute_final_obs=False))
    modules = {"isaaclab": SimpleNamespace(), "isaaclab.app": SimpleNamespace(AppLauncher=launcher)}
    modules |= {"isaaclab_tasks": SimpleNamespace(utils=utils), "isaaclab_tasks.utils": utils}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    made = []
    monkeypatch.setattr(gym, "make", lambda task, cfg: made.append(Managed(n=64, **vars(cfg))) or made[-1])
    namespace = {"__name__": "__main__"}
    exec(example.replace("4096", "64").replace("100_000_000", "3000"), namespace)
    assert made[0].closed and made[0].cfg.compute_final_obs and (tmp_path / "anymal.zip").exists()
    # Rewards count the steps of an episode. Environment 0 falls when its time is over: it would not have gone on.
    small = PPO_Plus("MlpPolicy", namespace["IsaacLab"](Managed(compute_final_obs=True)), gamma=0.5, **SMALL)
    small.learn(32)
    added = small.rollout_buffer.rewards - (np.arange(8)[:, None] % 4 + 1)
    cut = np.zeros((8, 4), dtype=bool)
    cut[3::4, 1:] = True
    assert ((added != 0) == cut).all()
    # The value with which the rollout began, since its update has changed the weights.
    fresh = PPO_Plus("MlpPolicy", namespace["IsaacLab"](Managed()), **SMALL)
    np.testing.assert_allclose(added[cut], 0.5 * fresh.policy.predict_values(th.full((1, 2), 0.4)).item(), rtol=1e-5)
