"""Layers in stretches, against all divisions."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from wavelet.planning.stretches import stretches, wait_of


def test_what_an_iteration_waits():
    """Layers down at 4 and 7; the first sent to 10, 3 late; the second to 12, 5 late; both to 15."""
    waits = [wait_of((4.0, 3.0), (6.0, 5.0), layers) for layers in ((), (0,), (1,), (0, 1))]
    assert waits == [0, 3, 5, 8]


@given(some.lists(some.tuples(some.floats(0, 5), some.floats(0, 5)), min_size=1, max_size=7), some.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_no_other_stretches_wait_less(numbers, period):
    backward, communication = zip(*numbers, strict=True)
    found = stretches(backward, communication, period)
    assert len(found) == period
    assert [layer for part in found for layer in part] == list(range(len(numbers)))
    least = min(
        sum(
            wait_of(backward, communication, range(start, end))
            for start, end in zip((0, *cuts), (*cuts, len(numbers)), strict=True)
        )
        for count in range(min(period, len(numbers)))
        for cuts in combinations(range(1, len(numbers)), count)
    )
    assert sum(wait_of(backward, communication, part) for part in found) == pytest.approx(least)
