"""The trace: what Perfetto needs to read it, and the same work and memory as in the timeline."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.report.plans import plan
from wavelet.report.timeline import memory_curve, peak_of, predicted_spans
from wavelet.report.trace import trace_events


@pytest.fixture(params=[1, 2, 3])
def made(request):
    return plan(waves=request.param, budget="1.25x")


def test_each_track_is_in_order_and_never_overlaps(made):
    spans = predicted_spans(made, num_batches=8)
    trace = json.loads(json.dumps(trace_events(spans, made.profile, made.waves), allow_nan=False))
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    assert len(tracks) == made.waves
    for track in tracks.values():
        for before, after in pairwise(track):
            assert before["dur"] >= 0
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    assert sum(map(len, tracks.values())) == len(spans)


def test_work_has_its_batch_block_and_microseconds(made):
    spans = predicted_spans(made, num_batches=3)
    events = [event for event in trace_events(spans, made.profile, made.waves)["traceEvents"] if event["ph"] == "X"]
    first = events[0]
    assert (first["name"], first["cat"], first["args"]) == ("forward 1", "forward", {"batch": 0, "block": 1})
    assert (first["ts"], first["dur"]) == (0, pytest.approx(10_000))
    assert {event["cat"] for event in events} >= {"forward", "backward", "turn"}
    for span, event in zip(spans, events, strict=True):
        assert event["tid"] == span.wave + 1
        assert event["ts"] / 1e6 == pytest.approx(span.start)


def test_tracks_are_named_after_the_waves(made):
    events = trace_events(predicted_spans(made), made.profile, made.waves)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == dict(list({1: "tick-wave", 2: "tock-wave", 3: "wave 2"}.items())[: made.waves])
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["wavelet"]


def test_the_counter_has_what_each_wave_holds(made):
    spans = predicted_spans(made)
    counters = [event for event in trace_events(spans, made.profile, made.waves)["traceEvents"] if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"step memory"}
    assert all(len(event["args"]) == made.waves for event in counters)
    assert [event["ts"] for event in counters] == sorted(event["ts"] for event in counters)
    curves = memory_curve(spans, made.profile, made.waves)
    assert max(sum(event["args"].values()) for event in counters) == peak_of(curves)
    assert set(counters[-1]["args"].values()) == {0}
