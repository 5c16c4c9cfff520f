"""Learning curves."""

import numpy as np
import pytest

from ppo_plus.zoo.plot import average, moving_average, plot_curves, plot_learning_curve, read_curve, read_episodes


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


def write_evaluations(log_folder, number, timesteps, means):
    folder = log_folder / "ppo_plus" / f"Foo-v0_{number}"
    folder.mkdir(parents=True)
    np.savez(folder / "evaluations.npz", timesteps=timesteps, results=np.array(means)[:, None] + [-1.0, 1.0])


def test_mean_over_runs_where_all_have_values(tmp_path):
    write_evaluations(tmp_path, 1, [10, 20, 30], [0.0, 10.0, 20.0])
    write_evaluations(tmp_path, 2, [20, 40], [20.0, 40.0])
    curve = read_curve(tmp_path, "Foo-v0")
    np.testing.assert_allclose(curve.timesteps, [20, 30])
    np.testing.assert_allclose(curve.mean, [15, 25])
    assert curve.n_runs == 2
    # Two runs: each of them, or their mean, is drawn.
    np.testing.assert_allclose(curve.low, [10, 20])
    np.testing.assert_allclose(curve.high, [20, 30])


def test_one_run_has_no_spread():
    curve = average([(np.array([1.0, 2.0]), np.array([3.0, 4.0]))])
    np.testing.assert_array_equal(curve.low, curve.mean)
    np.testing.assert_array_equal(curve.high, curve.mean)


def test_interval_holds_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    n_runs, n_repeats = 20, 200
    held = 0
    for _ in range(n_repeats):
        curve = average([(np.array([1.0]), rng.normal(size=1)) for _ in range(n_runs)])
        held += bool(curve.low[0] <= 0 <= curve.high[0])
    # A percentile bootstrap of 20 values is a little narrow: about 93 %.
    assert 0.86 <= held / n_repeats <= 0.99


def test_runs_that_do_not_overlap():
    curve = average([(np.array([1.0, 2.0]), np.array([0.0, 0.0])), (np.array([5.0]), np.array([4.0]))])
    np.testing.assert_allclose(curve.mean, [2])


def test_curve_of_training_episodes(tmp_path):
    folder = tmp_path / "ppo_plus" / "Foo-v0_1"
    folder.mkdir(parents=True)
    write_monitor(folder / "0.monitor.csv", 0.0, [(float(i), 7, float(i)) for i in range(40)])
    curve = read_curve(tmp_path, "Foo-v0", "train")
    np.testing.assert_allclose(curve.mean, np.arange(37) + 1.5)
    np.testing.assert_allclose(curve.timesteps, 7 * np.arange(4, 41))


def test_nothing_to_draw(tmp_path):
    (tmp_path / "ppo_plus" / "Foo-v0_1").mkdir(parents=True)
    with pytest.raises(ValueError, match="no run of Foo-v0 with eval returns"):
        read_curve(tmp_path, "Foo-v0")


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_picture_of_curves(tmp_path, suffix, start):
    write_evaluations(tmp_path, 1, [10, 20], [0.0, 10.0])
    write_evaluations(tmp_path, 2, [10, 20], [5.0, 15.0])
    curve = read_curve(tmp_path, "Foo-v0")
    path = tmp_path / f"curves{suffix}"
    plot_curves({"Foo-v0": {"a": curve, "b": curve}, "Bar-v0": {"a": curve}}, path)
    assert path.read_bytes().startswith(start)
