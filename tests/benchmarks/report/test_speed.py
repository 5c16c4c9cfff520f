"""The cells of tables of speed: ``benchmarks/report/speed.py``."""

from report import speed


def test_speed_ups_are_taken_within_rounds():
    slow, fast = speed.Measured([10.0, 20.0, 60.0]), speed.Measured([5.0, 5.0, 20.0])
    assert fast.speed_ups(slow) == [2.0, 4.0, 3.0]
    assert speed.ratio_cell(fast, slow) == "**3.00×** [2.00, 4.00]"
    assert speed.ratio_cell(slow, slow) == "20 µs per step"
    assert speed.time_cell(fast, slow) == "5.0 µs, **3.00×** [2.00, 4.00]"
    assert speed.time_cell(slow, slow) == "20.0 µs"
    assert speed.time_cell(speed.Measured(error="ValueError"), slow) == "–"
