"""Histograms of plain numbers."""

from server.engine.tally import Tally


def test_values_are_counted_by_the_first_bound_that_is_not_below_them() -> None:
    tally = Tally((0.1, 1.0, 10.0))
    for value in (0.0, 0.1, 0.2, 1.0, 5.0, 11.0, 12.0):
        tally.observe(value)
    assert tally.counts == [2, 2, 1, 2]
    assert tally.total == 29.3
