"""The environments of ``benchmarks/learning_actions.py`` are what their tables say."""

import learning_actions
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env


@pytest.mark.filterwarnings("ignore:.*")
def test_courier_keeps_gymnasiums_rules():
    check_env(learning_actions.Courier(), skip_render_check=True)


def test_three_steps_deliver_from_everywhere():
    """Along the two directions next to the address, then deliver."""
    env = learning_actions.Courier()
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


def test_as_a_box_the_largest_number_is_the_choice():
    env = learning_actions.AsBox(learning_actions.Courier())
    numbers = np.zeros(10, np.float32)
    numbers[[6, 9]] = 0.3, -0.7
    action = env.action(numbers)
    assert numbers in env.action_space and action in env.unwrapped.action_space
    assert action == {"kind": 6, "way": np.float32([-0.7])}
