"""Results of runs: learning curves, interquartile means and their intervals."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from ppo_plus.saving.files import write_text
from ppo_plus.zoo.results import (
    COLORS,
    CURVE_POINTS,
    STYLE,
    Estimate,
    average,
    difference_interval,
    iqm,
    iqm_interval,
    picture,
    plot_curves,
    plot_learning_curve,
    read_curve,
    read_episodes,
)


def write_monitor(path, t_start, rows):
    lines = [f'#{{"t_start": {t_start}, "env_id": "Foo-v0"}}', "r,l,t", *(f"{r},{n},{t}" for r, n, t in rows)]
    path.write_text("\n".join(lines) + "\n")


def test_episodes_of_all_environments_in_order_of_their_end(tmp_path):
    write_monitor(tmp_path / "0.monitor.csv", 100.0, [(1.0, 10, 1.0), (3.0, 10, 4.0)])
    write_monitor(tmp_path / "1.monitor.csv", 101.0, [(2.0, 5, 1.0)])
    timesteps, returns = read_episodes(tmp_path)
    np.testing.assert_array_equal(timesteps, [10, 15, 25])
    np.testing.assert_array_equal(returns, [1, 2, 3])


def test_the_clock_of_a_fresh_environment_begins_again(tmp_path):
    write_monitor(tmp_path / "0.monitor.csv", 100.0, [(1.0, 10, 1.0), (2.0, 10, 4.0), (4.0, 10, 0.5), (5.0, 10, 3.5)])
    write_monitor(tmp_path / "1.monitor.csv", 100.0, [(3.0, 10, 4.2)])
    assert read_episodes(tmp_path)[1].tolist() == [1, 2, 4, 3, 5]


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


def test_mean_over_the_steps_that_all_runs_reached(tmp_path):
    write_evaluations(tmp_path, 1, [10, 20, 30], [0.0, 10.0, 20.0])
    write_evaluations(tmp_path, 2, [20, 40], [20.0, 40.0])
    curve = read_curve(tmp_path, "Foo-v0")
    np.testing.assert_allclose(curve.timesteps, [20, 30])
    np.testing.assert_allclose(curve.mean, [15, 25])
    np.testing.assert_allclose(curve.runs, [[10, 20], [20, 30]])
    assert (len(curve.runs), curve.longest) == (2, 40)


def test_runs_of_different_settings_are_said_to_be(tmp_path, capsys):
    for number, said in ((1, ""), (2, "have different settings: plot each kind from its own -f\n")):
        write_evaluations(tmp_path, number, [10], [1.0])
        write_text(tmp_path / "ppo_plus" / f"Foo-v0_{number}" / "Foo-v0" / "config.yml", f"gamma: 0.{number}")
        read_curve(tmp_path, "Foo-v0")
        assert capsys.readouterr().err.endswith(said)


def returns_of(*runs):
    """A curve of two points."""
    return average([(np.array([1.0, 2.0]), np.array([0.0, last])) for last in runs])


def test_curves_have_no_more_points_than_can_be_seen():
    """Episodes of many runs end at millions of different timesteps."""
    steps = np.arange(10.0 * CURVE_POINTS)
    curve = average([(steps, steps), (steps + 0.5, steps)])
    assert len(curve.timesteps) == CURVE_POINTS and curve.timesteps[-1] == steps[-1]
    np.testing.assert_allclose(curve.mean, curve.timesteps - 0.25)


def test_few_runs_have_no_interval():
    """A bootstrap of two runs is from one to the other, which is not a 95 % interval."""
    assert [returns_of(*range(n)).interval is None for n in (1, 2, 4, 5)] == [True, True, True, False]
    assert returns_of(3).legend() == "1 run"
    assert returns_of(1, 2).legend() == "mean of 2 runs, thin lines: each run"
    assert returns_of(*range(5)).legend() == "mean of 5 runs, band: 95 % interval"
    assert str(returns_of(3)) == "return 3.00 after 2 timesteps, 1 run"
    assert str(returns_of(1, 2)) == "return 1.50 after 2 timesteps, mean of 2 runs, from worst to best [1.00, 2.00]"
    assert str(returns_of(*range(5))).startswith("return 2.00 after 2 timesteps, mean of 5 runs, 95 % interval [")


@pytest.fixture
def drawn(monkeypatch):
    """The panels of pictures that are written."""
    panels = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: panels.extend(figure.axes))
    return panels


@pytest.mark.parametrize(("n_runs", "n_lines", "n_bands"), [(1, 1, 0), (3, 4, 0), (5, 1, 1)])
def test_interval_or_single_runs_of_a_curve(tmp_path, drawn, n_runs, n_lines, n_bands):
    plot_curves({"Foo-v0": {"mine": returns_of(*range(n_runs))}}, tmp_path / "curves.png")
    (axes,) = drawn
    assert (len(axes.lines), len(axes.collections)) == (n_lines, n_bands)
    assert len(axes.get_legend_handles_labels()[1]) == 1


def test_interval_contains_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    n_runs, n_repeats = 20, 200
    held, widths = 0, []
    for _ in range(n_repeats):
        curve = average([(np.array([1.0]), rng.normal(size=1)) for _ in range(n_runs)])
        low, high = curve.interval
        held += bool(low[0] <= 0 <= high[0])
        widths.append((high - low) / 2 / (curve.runs.std() / n_runs**0.5))
    # A percentile bootstrap of 20 values is a little narrow: about 93 %.
    assert 0.86 <= held / n_repeats <= 0.99
    # Of normal means, 95 % are within 1.96 standard errors.
    assert np.mean(widths) == pytest.approx(1.96, abs=0.05)


def test_runs_that_end_before_others_begin_are_left_out(tmp_path, capsys):
    write_evaluations(tmp_path, 1, [1, 2], [0.0, 0.0])
    write_evaluations(tmp_path, 2, [5, 6], [3.0, 4.0])
    write_evaluations(tmp_path, 3, [], [])
    assert str(read_curve(tmp_path, "Foo-v0")) == "return 4.00 after 6 timesteps, 1 run"
    why = "no eval returns, or none as late as another run's first"
    assert capsys.readouterr().err.splitlines() == [
        f"left out: {tmp_path / 'ppo_plus' / f'Foo-v0_{number}'}: {why}" for number in (1, 3)
    ]


def test_curve_of_training_episodes(tmp_path):
    folder = tmp_path / "ppo_plus" / "Foo-v0_1"
    folder.mkdir(parents=True)
    write_monitor(folder / "0.monitor.csv", 0.0, [(float(i), 7, float(i)) for i in range(40)])
    curve = read_curve(tmp_path, "Foo-v0", "train")
    np.testing.assert_allclose(curve.mean, np.arange(37) + 1.5)
    np.testing.assert_allclose(curve.timesteps, 7 * np.arange(4, 41))


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_picture_of_curves(tmp_path, suffix, start):
    write_evaluations(tmp_path, 1, [10, 20], [0.0, 10.0])
    write_evaluations(tmp_path, 2, [10, 20], [5.0, 15.0])
    curve = read_curve(tmp_path, "Foo-v0")
    path = tmp_path / f"curves{suffix}"
    plot_curves({"Foo-v0": {"a": curve, "b": curve}, "Bar-v0": {"a": curve}}, path)
    assert path.read_bytes().startswith(start)


def test_style_applies_only_inside_its_block(tmp_path):
    before = dict(mpl.rcParams)
    with picture(tmp_path / "x.png", "Foo-v0", "Bar-v0") as panels:
        assert {name: mpl.rcParams[name] for name in STYLE} == STYLE
        for axes in panels:
            (line,) = axes.plot([0, 1], label="mine")
    assert len(panels) == 2 and line.get_color() == COLORS[0] and axes.get_legend() is not None
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Bar-v0", "timesteps", "episode return")
    assert axes.xaxis.get_major_formatter()(20_000) == "20k"
    assert dict(mpl.rcParams) == before


def test_iqm_is_the_mean_of_the_middle_half():
    assert iqm(np.array([1000.0, 1, 2, 3, 4, 5, 6, -1000])) == pytest.approx((2 + 3 + 4 + 5) / 4)


def test_intervals_hold_what_they_are_about():
    """In about 95 % of repetitions; with 20 seeds a percentile interval is a little too narrow."""
    rng = np.random.default_rng(0)
    held = [(lambda e: e.low <= 0 <= e.high)(difference_interval(*rng.normal(size=(2, 20)))) for _ in range(50)]
    assert 42 <= sum(held) <= 50
    assert all((lambda e: e.low > 0)(difference_interval(rng.normal(5, 1, 20), rng.normal(size=20))) for _ in range(10))


def test_intervals_are_reproducible_and_grow_with_confidence():
    scores, others = [1.0, 5, 2, 8, 3, 9, 4, 4, 7, 2], [2.0, 2, 1, 4, 3, 5, 4, 1, 2, 3]
    estimate = difference_interval(scores, others)
    assert estimate == difference_interval(scores, others)
    assert estimate.low < estimate.value == iqm(np.array(scores)) - iqm(np.array(others)) < estimate.high
    wide = difference_interval(scores, others, 0.99)
    assert wide.low < estimate.low and estimate.high < wide.high


def test_estimates_are_written_with_their_interval():
    assert iqm_interval([3.0]) == (3.0, -float("inf"), float("inf"))
    estimate = Estimate(0.5, 0.25, 1.0)
    assert f"{estimate}" == "0.5 [0.2, 1.0]" and f"{estimate:+.0%}" == "+50% [+25%, +100%]"
    assert f"{Estimate(0.964, 0.95, 0.97)}" == "0.964 [0.950, 0.970]"
