"""How waves slow each other down, from a story written by hand."""

import pytest

from wavelet.profiling.contention import contention_in, seconds_between
from wavelet.profiling.recorders import BlockSeconds
from wavelet.profiling.watcher import Event


def batch(number, start, rose, fell, updates, turned, *, waits=()):
    events = [Event(start, number, "starts", 1), Event(rose, number, "rose", 0)]
    for begin, end in waits:
        events += [Event(begin, number, "waits", 2), Event(end, number, "starts", 2)]
    end = [Event(fell, number, "fell", 2), Event(updates, number, "updates", 0), Event(turned, number, "turned", 3)]
    return [*events, *end]


def test_work_beside_nothing_is_not_slowed_down():
    events = [*batch(0, 0, 1, 3, 3, 3.5), *batch(1, 4, 5, 7, 7, 7.5)]
    assert contention_in(events, BlockSeconds((1.0,), (2.0,), 0.5)) == (1.0, 1.0)


def test_work_beside_work():
    """Forward 1 runs from 1 to 2.5 beside backward 0 (alone 1 s); backward 0 takes 2.5 s of which 1.5 are beside it."""
    events = [*batch(0, 0, 1, 3.5, 3.5, 3.5), *batch(1, 1, 2.5, 3.5, 3.5, 3.5)]
    found = contention_in(events, BlockSeconds((1.0,), (2.0,), 0.0))
    assert found.forward == pytest.approx(1.5)
    everything = (2.5 + 1.0) / 4.0  # backwards: 0 is beside all the time, 1 too; 3.5 s for 4 s of work
    assert found.backward == pytest.approx(max(everything, 0.8))


def test_waiting_in_a_gate_is_no_work():
    events = [*batch(0, 0, 1, 5, 5, 5), *batch(1, 1, 4, 6, 6, 6, waits=[(1.5, 3.5)])]
    assert contention_in(events, BlockSeconds((1.0,), (4.0,), 0.0)).forward == pytest.approx(1.0)


def test_the_callers_own_time():
    events = [*batch(0, 0, 1, 2, 2, 2), *batch(1, 1.25, 2, 3, 3, 3), *batch(2, 2.25, 3, 4, 4, 4)]
    assert seconds_between(events, 2) == pytest.approx(0.25)
    assert seconds_between([], 2) == 0.0
