"""The timeline: spans from hand-written events and from plans, and the memory that they stand for."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.plans import plan, profile
from wavelet.planning.plan import one_wave_bytes
from wavelet.profiling.watcher import Event
from wavelet.report.timeline import Span, level_at, measured_spans, memory_curve, peak_of, predicted_spans

# Two blocks, two waves: batch 1 waits for batch 0 to come down before its second block.
STORY = [
    Event(100.0, 4, "starts", 1),
    Event(101.0, 4, "starts", 2),
    Event(103.0, 4, "rose", 0),
    Event(103.5, 5, "starts", 1),
    Event(104.0, 5, "waits", 2),
    Event(105.0, 4, "left", 1),
    Event(105.25, 5, "starts", 2),
    Event(107.0, 5, "rose", 0),
    Event(108.0, 4, "fell", 2),
    Event(108.0, 4, "updates", 0),
    Event(109.0, 4, "turned", 3),
    Event(108.5, 5, "fell", 2),
    Event(109.0, 5, "updates", 0),
    Event(110.0, 5, "turned", 3),
]


def tracks(spans):
    return [[span for span in spans if span.wave == wave] for wave in {span.wave for span in spans}]


def overlap(track):
    return any(before.end > after.start + 1e-12 for before, after in pairwise(sorted(track, key=lambda s: s[4:])))


@pytest.mark.parametrize("seed", range(3))
def test_spans_of_a_story_in_any_order(seed):
    events = random.Random(seed).sample(STORY, len(STORY))
    spans = measured_spans(events, num_waves=2, num_blocks=2)
    first = [span for span in spans if span.batch == 4 and span.end > span.start]
    assert first == [
        Span(4, 0, "forward", 1, 0.0, 1.0),
        Span(4, 0, "forward", 2, 1.0, 3.0),
        Span(4, 0, "backward", 2, 3.0, 5.0),
        Span(4, 0, "backward", 1, 5.0, 8.0),
        Span(4, 0, "turn", 0, 8.0, 9.0),
    ]
    assert [span for span in spans if span.batch == 5] == [
        Span(5, 1, "forward", 1, 3.5, 4.0),
        Span(5, 1, "wait", 2, 4.0, 5.25),
        Span(5, 1, "forward", 2, 5.25, 7.0),
        Span(5, 1, "backward", 2, 7.0, 8.5),  # it was never seen to leave its second block
        Span(5, 1, "wait", 0, 8.5, 9.0),
        Span(5, 1, "turn", 0, 9.0, 10.0),
    ]
    assert not any(map(overlap, tracks(spans)))


def test_no_events_make_no_spans():
    assert measured_spans([], num_waves=2, num_blocks=2) == []


def test_memory_of_the_story_by_hand():
    costs = profile([10, 5], transient=[3, 1], turn=2)
    assert costs.bytes.rising == (10, 15)
    assert costs.bytes.falling == (18, 11)
    curves = memory_curve(measured_spans(STORY, num_waves=2, num_blocks=2), costs, 2)
    assert curves[0] == [(0.0, 10), (1.0, 15), (3.0, 18), (5.0, 11), (8.0, 2), (9.0, 0)]
    assert curves[1] == [(0.0, 0), (3.5, 10), (5.25, 15), (7.0, 18), (8.5, 2), (10.0, 0)]
    assert level_at(curves[0], [0.0, 0.5, 5.0, 9.9]) == [10, 10, 11, 0]
    assert peak_of(curves) == 29  # from 7 to 8


@st.composite
def plans(draw):
    num_blocks = draw(st.integers(1, 5))

    def row(values):
        return [draw(values) for _ in range(num_blocks)]

    seconds = st.sampled_from([0.0, 0.5, 1.0, 2.5])
    return plan(
        row(st.integers(0, 2_000_000)),
        draw(st.sampled_from(["1x", "1.2x", "1.5x", "3x"])),
        draw(st.sampled_from([1, 2, 2, 3])),
        transient=row(st.integers(0, 300_000)),
        forward=[*row(seconds)[:-1], 0.5],
        backward=row(seconds),
        update=draw(seconds),
        rule=draw(st.sampled_from(["neighbour", "synchronous"])),
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plans())
def test_predicted_spans_keep_the_promise_and_never_overlap(made):
    spans = predicted_spans(made, num_batches=7)
    assert not any(map(overlap, tracks(spans)))
    assert {span.batch for span in spans} == set(range(7))
    beside = one_wave_bytes(made.profile) - made.profile.peak
    curves = memory_curve(spans, made.profile, made.waves)
    assert peak_of(curves) + beside <= made.peak_step_bytes


@pytest.mark.parametrize("waves", [1, 2, 3])
def test_predicted_spans_are_as_fast_as_the_plan_says(waves):
    made = plan(waves=waves, budget="1.5x")
    turns = [span.end for span in predicted_spans(made, num_batches=36) if span.kind == "turn"]
    assert 24 * made.profile.samples / (turns[-1] - turns[11]) == pytest.approx(made.samples_per_second)


def test_a_tight_plan_waits_where_its_gates_are():
    made = plan(budget="1x")
    waits = {span.block for span in predicted_spans(made) if span.kind == "wait" and span.block}
    assert waits
    assert waits <= made.interlock.gates()
