"""The look of pictures."""

import matplotlib as mpl

from ppo_plus.zoo.style import COLORS, SETTINGS, finish_panel, new_figure, style


def test_the_look_is_that_of_what_is_made_within_and_of_nothing_else():
    before = dict(mpl.rcParams)
    with style():
        assert {name: mpl.rcParams[name] for name in SETTINGS} == SETTINGS
        _, panels = new_figure(2)
        (line,) = panels[1].plot([0, 1])
    assert len(panels) == 2 and line.get_color() == COLORS[0]
    assert dict(mpl.rcParams) == before


def test_large_numbers_are_short_and_a_legend_is_there_where_it_says_something():
    _, (axes,) = new_figure()
    axes.plot([0, 1_000_000])
    finish_panel(axes, "Foo-v0")
    assert axes.get_legend() is None
    assert axes.xaxis.get_major_formatter()(20_000) == "20k"
    axes.plot([0], label="mine")
    finish_panel(axes, "Foo-v0")
    assert axes.get_legend() is not None
