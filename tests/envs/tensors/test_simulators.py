"""Simulators are recognized: stand-ins with their interfaces, and those that run on a CPU."""

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
from gymnasium.vector import AutoresetMode, VectorEnv
from tensor_envs import Managed, RslRl, TensorTwin

from ppo_plus import PPO_Plus, as_vec_env
from ppo_plus.envs.tensors.env import UNBOUNDED
from ppo_plus.envs.tensors.simulators import ManagedTensors, RslRlTensors, as_tensor_env

SMALL = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


def learned(env, policy="MlpPolicy", n=8, **kwargs):
    model = PPO_Plus(policy, env, **SMALL | kwargs)
    return model.learn(n * model.n_envs)


class InTensors(VectorEnv):
    """A Gymnasium vector environment that computes in tensors, with ManiSkill's way to tell of the end."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, twin, key="final_obs"):
        self.twin, self.key, self.num_envs, self.device = twin, key, twin.num_envs, th.device("cpu")
        self.single_observation_space, self.single_action_space = twin.observation_space, twin.action_space
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
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
    plain = learned(TensorTwin(3, ACTIONS["mixed"]), n=16)
    vector = InTensors(TensorTwin(3, ACTIONS["mixed"]), key)
    wrapped = learned(vector, n=16)
    np.testing.assert_array_equal(plain.rollout_buffer.advantages, wrapped.rollout_buffer.advantages)
    assert vector.seeds == [0]


def test_metrics_of_episodes_are_logged():
    env = as_tensor_env(InTensors(TensorTwin(3, ACTIONS["discrete"], falls=False, limit=2)))
    env.reset(0)
    env.step(th.zeros(3, dtype=th.long))
    assert env.step(th.zeros(3, dtype=th.long)).log["episode/success_once"].item() == pytest.approx(2 / 3)


def cartpoles(mode=AutoresetMode.SAME_STEP):
    return gym.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})


def test_gymnasiums_wrapper_of_numpy_is_taken_off():
    pytest.importorskip("array_api_compat", reason="pip install 'gymnasium[array-api]'")
    from gymnasium.wrappers.vector import NumpyToTorch

    plain = cartpoles()
    assert as_vec_env(NumpyToTorch(plain)).env is plain


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_other_autoreset_modes_raise_an_error(mode):
    env = InTensors(TensorTwin(3, ACTIONS["discrete"]))
    env.metadata = {"autoreset_mode": mode}
    with pytest.raises(ValueError, match="SAME_STEP"):
        as_vec_env(env)


def test_vector_environments_in_numpy_are_not_taken_for_tensors():
    assert as_tensor_env(cartpoles()) is None
    assert as_tensor_env(gym.make("CartPole-v1")) is None

    class Answering(gym.Env):
        def __getattr__(self, name):
            return None

    assert as_tensor_env(Answering()) is None


# --- Isaac Lab and mjlab -------------------------------------------------------------------------------------------


def bootstrapped(env, **kwargs):
    """The stored rewards of a rollout without noise in the weights: rewards count the steps of an episode."""
    model = learned(env, gamma=0.5, **kwargs)
    return model, model.rollout_buffer.rewards - (np.arange(8)[:, None] % 4 + 1)


def test_isaac_lab_is_taken_as_it_is():
    env = Managed(compute_final_obs=True)
    model, added = bootstrapped(env)
    assert model.observation_space == spaces.Box(-np.inf, np.inf, (2,))
    assert model.action_space == spaces.Box(-UNBOUNDED, UNBOUNDED, (2,))
    assert env.seeds == [0] and env.actions[0].shape == (4, 2)
    # Environment 0 falls when its time is over: it would not have gone on.
    cut = np.zeros((8, 4), dtype=bool)
    cut[3::4, 1:] = True
    assert ((added != 0) == cut).all()
    final = th.full((1, 2), 0.4)
    # The value with which the rollout began, since its update has changed the weights.
    fresh = PPO_Plus("MlpPolicy", Managed(), **SMALL)
    expected = 0.5 * fresh.policy.predict_values(final).item()
    np.testing.assert_allclose(added[cut], expected, rtol=1e-5)


def test_what_isaac_lab_logs_is_logged():
    env = as_vec_env(Managed(compute_final_obs=True))
    env.reset_tensors()
    log = env.step_tensors(th.zeros(4, 2)).log
    assert {"Episode_Reward/alive", "Episode_Termination/time_out"} == set(log)


def test_without_final_observations_isaac_lab_is_asked_for_them():
    with pytest.warns(UserWarning, match="compute_final_obs=True"):
        learned(Managed(compute_final_obs=False))


def test_the_end_of_a_finite_horizon_is_an_end():
    _, added = bootstrapped(Managed(compute_final_obs=True, is_finite_horizon=True))
    assert (added == 0).all()


def test_the_example_of_the_documentation_runs(monkeypatch, tmp_path):
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
    exec(example.replace("4096", "64").replace("100_000_000", "3000"), {"__name__": "__main__"})
    assert made[0].closed and made[0].cfg.compute_final_obs and (tmp_path / "anymal.zip").exists()


def test_wrapped_by_gymnasium_it_is_still_isaac_lab():
    class AsGym(Managed, gym.Env):
        observation_space = action_space = spaces.Box(-1, 1, (2,))

    assert learned(gym.wrappers.OrderEnforcing(AsGym(compute_final_obs=True))).observation_space.shape == (2,)


def test_mjlab_is_asked_to_leave_resets_to_others():
    with pytest.warns(UserWarning, match="auto_reset=False"):
        learned(Managed(groups=("actor", "critic"), auto_reset=True))


def test_mjlab_without_auto_reset_is_reset_and_has_final_obs():
    isaac, expected = bootstrapped(Managed(compute_final_obs=True))
    mjlab, added = bootstrapped(Managed(groups=("actor", "critic"), auto_reset=False))
    np.testing.assert_array_equal(added, expected)
    np.testing.assert_array_equal(mjlab.rollout_buffer.observations, isaac.rollout_buffer.observations)


def test_groups_are_taken_when_they_are_asked_for():
    env = as_vec_env(Managed(compute_final_obs=True), groups=["policy", "critic"])
    model = learned(env, "MultiInputPolicy")
    assert {key: part.shape for key, part in model.rollout_buffer.observations.items()} == {
        "policy": (8, 4, 2),
        "critic": (8, 4, 3),
    }
    with pytest.raises(ValueError, match="groups=.*policy.*critic"):
        as_vec_env(Managed(), groups=["teacher"])


# --- rsl_rl --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_dict", [False, True])
def test_the_interface_of_rsl_rl_is_taken_as_it_is(as_dict):
    with pytest.warns(UserWarning, match="final_obs"):
        model, added = bootstrapped(RslRl(as_dict=as_dict))
    assert model.observation_space.shape == (3,) and model.action_space.shape == (2,)
    # Time limits are known, and bootstrapped from the value before.
    assert ((added != 0) == (np.arange(8)[:, None] % 4 == 3)).all()
    values = model.rollout_buffer.values
    np.testing.assert_allclose(added[3], 0.5 * values[3], rtol=1e-4)


def test_wrappers_with_rsl_rls_interface_are_recognized():
    class Wrapper(RslRl):
        unwrapped = Managed()

    assert isinstance(as_tensor_env(Wrapper()), RslRlTensors)
    assert isinstance(as_tensor_env(Managed()), ManagedTensors)
