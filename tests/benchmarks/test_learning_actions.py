"""The environments of ``benchmarks/learning_actions.py`` are what their tables say."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.vec_env import DummyVecEnv


@pytest.fixture(scope="module")
def script(import_script):
    return import_script("learning_actions")


@pytest.mark.filterwarnings("ignore:.*")
def test_courier_keeps_gymnasiums_rules(script):
    check_env(script.Courier(), skip_render_check=True)


def test_three_steps_deliver_from_everywhere(script):
    """Along the two directions next to the address, then deliver."""
    env = script.Courier()
    for seed in range(50):
        env.reset(seed=seed)
        distance = abs(env.address)
        sector = 2 * np.pi / env.N_DIRECTIONS
        left = int(np.floor(np.angle(env.address) / sector))
        basis = np.array([[np.cos(k * sector), np.sin(k * sector)] for k in (left, left + 1)]).T
        ways = np.linalg.solve(basis, [env.address.real, env.address.imag])
        total = 0.0
        for kind, way in [*zip((left, left + 1), ways, strict=True), (env.DELIVER, 0.0)]:
            action = {"kind": kind % (env.N_DIRECTIONS + (kind == env.DELIVER)), "way": np.float32([2 * way - 1])}
            assert action in env.action_space
            _, reward, terminated, truncated, _ = env.step(action)
            total += reward
        assert terminated and not truncated
        assert total == pytest.approx(distance + 1 - 3 * 0.05, abs=1e-5)


def test_delivering_elsewhere_only_takes_time(script):
    env = script.Courier()
    env.reset(seed=0)
    for step in range(20):
        _, reward, terminated, truncated, _ = env.step({"kind": env.DELIVER, "way": np.float32([0.0])})
        assert reward == pytest.approx(-0.05)
        assert not terminated and truncated == (step == 19)


def test_as_a_box_the_largest_number_is_the_choice(script):
    env = script.AsBox(script.Courier())
    numbers = np.zeros(10, np.float32)
    numbers[[6, 9]] = 0.3, -0.7
    action = env.action(numbers)
    assert numbers in env.action_space and action in env.unwrapped.action_space
    assert action == {"kind": 6, "way": np.float32([-0.7])}


def test_masks_can_be_hidden(script):
    def make_env():
        return InvalidActionEnvDiscrete(dim=4, n_invalid_actions=2)

    assert is_masking_supported(DummyVecEnv([make_env]))
    assert not is_masking_supported(DummyVecEnv([lambda: script.Unmasked(make_env())]))
