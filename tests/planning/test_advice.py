"""Which strategy is to be taken, from outcomes made by hand."""

import dataclasses

import pytest

from wavelet.planning.advice import Area, areas, to_take
from wavelet.planning.comparison import Outcome

ONE = Outcome("DDP", False, 2, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0)


def outcomes(**seconds):
    return [dataclasses.replace(ONE, strategy=name, seconds=each) for name, each in seconds.items()]


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({"DDP": 1.05, "waves": 1.0, "local": 2.0}, "DDP"),
        ({"DDP": 1.06, "waves": 1.0, "local": 1.0}, "waves"),
        ({"DDP": 1.06, "waves": 1.0, "local": 0.9}, "local"),
        ({"naive": 1.0, "DDP": 1.0}, "DDP"),
    ],
)
def test_the_first_that_is_nearly_the_fastest(seconds, taken):
    """Up to 5 % slower; the naive one never, as DDP does the same and overlaps."""
    assert to_take(outcomes(**seconds)).strategy == taken


def test_areas_are_runs_of_the_same_strategy():
    seconds = [(2.0, 1.0), (2.0, 1.0), (1.0, 1.0), (2.0, 1.0)]
    rows = [(float(rate), outcomes(DDP=one, local=other)) for rate, (one, other) in enumerate(seconds, 1)]
    assert areas(rows) == [Area("local", 1, 2), Area("DDP", 3, 3), Area("local", 4, 4)]
