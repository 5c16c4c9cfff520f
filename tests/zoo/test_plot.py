"""Learning curves."""

import numpy as np
import pytest

from ppo_plus.zoo.plot import moving_average, plot_learning_curve, read_episodes


def write_monitor(path, t_start, rows):
    lines = [f'#{{"t_start": {t_start}, "env_id": "Foo-v0"}}', "r,l,t", *(f"{r},{n},{t}" for r, n, t in rows)]
    path.write_text("\n".join(lines) + "\n")


def test_episodes_of_all_environments_in_order_of_their_end(tmp_path):
    write_monitor(tmp_path / "0.monitor.csv", 100.0, [(1.0, 10, 1.0), (3.0, 10, 4.0)])
    write_monitor(tmp_path / "1.monitor.csv", 101.0, [(2.0, 5, 1.0)])
    timesteps, returns = read_episodes(tmp_path)
    np.testing.assert_array_equal(timesteps, [10, 15, 25])
    np.testing.assert_array_equal(returns, [1, 2, 3])


def test_moving_average():
    np.testing.assert_allclose(moving_average(np.array([1.0, 3.0, 5.0, 7.0]), 2), [2, 4, 6])
    np.testing.assert_allclose(moving_average(np.array([4.0]), 1), [4])


@pytest.mark.parametrize("n_episodes", [0, 1, 30])
def test_picture(tmp_path, n_episodes):
    write_monitor(tmp_path / "0.monitor.csv", 0.0, [(float(i), 7, float(i)) for i in range(n_episodes)])
    path = plot_learning_curve(tmp_path, "Foo-v0")
    assert path == tmp_path / "learning_curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")
