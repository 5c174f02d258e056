"""The page: whole, self-contained, and safe from the names that users give."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.report.plans import MIB, plan
from wavelet.report.frontier import frontier_figure, gain_in_words
from wavelet.report.page import Page, Point, render_page
from wavelet.report.style import DARK, LIGHT
from wavelet.report.timeline import predicted_spans
from wavelet.report.timeline_figure import opening_in_words, timeline_figure, views

POINTS = [
    Point("one wave", "one wave", 9 * MIB, 100.0, True),
    Point("1.25x", "plan", 11 * MIB, 120.0, True),
    Point("1.25x", "plan", 11 * MIB, 125.0, False),
    Point("2x", "plan", 18 * MIB, 140.0, False),
    Point("<b>recompute</b>", "checkpointing", 5 * MIB, 70.0, True),
]


def page(**changes):
    made = changes.pop("plan", None) or plan()
    fields = {
        "title": "a job",
        "plan": made,
        "spans": predicted_spans(made),
        "measured": False,
        "points": POINTS,
        "about": {"machine": "8 cores", "command": "wavelet profile a-job"},
        "sentences": ["2 waves are faster here."],
    }
    return Page(**(fields | changes))


class Reader(HTMLParser):
    """What a browser would find: tags with attributes, the text outside of scripts, the scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.scripts = [], "", []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def text():
    return render_page(page())


def test_nothing_is_loaded(text):
    reader = Reader(text)
    loaded = [
        attrs[name]
        for tag, attrs in reader.tags
        for name in ("src", "href", "srcset", "data")
        if name in attrs and tag != "a"
    ]
    assert loaded == []
    policy = next(attrs["content"] for tag, attrs in reader.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"@import|url\(", text.split("</style>")[0])
    assert sum("plotly.js v" in script for script in reader.scripts) == 1, "embedded once"


def test_each_section_is_there(text):
    reader = Reader(text)
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert {"timeline", "frontier", "interlock", "blocks", "about", "figures"} <= set(ids)
    assert len(ids) == len(set(ids))
    assert ("html", {"lang": "en"}) in reader.tags
    for words in ("a job", "predicted", "promise", "block.3", "8 cores", "wavelet profile a-job", "2 waves are faster"):
        assert words in reader.text
    assert sum(tag == "table" for tag, _ in reader.tags) == 3
    assert "not bytes that were read" in " ".join(reader.text.split())


def test_names_are_escaped_everywhere():
    nasty = "</script><script>alert(1)</script>"
    made = plan(names=[nasty, "<img src=x>"])
    text = render_page(page(title="<script>", plan=made, about={nasty: nasty}, sentences=[nasty]))
    reader = Reader(text)
    assert len(reader.scripts) == 3
    assert "<script> – Wavelet" in reader.text
    assert not any(tag == "img" for tag, _ in reader.tags)
    figures = json.loads(next(script for script in reader.scripts if script.startswith("{")))["figures"]
    hover = json.dumps(figures["timeline"]["light"]["data"])
    assert "&lt;img src=x&gt;" in hover, "plotly takes text for HTML"
    assert "<img" not in hover
    assert [label["text"] for label in figures["frontier"]["light"]["layout"]["meta"]["labels"]] == [
        "one wave",
        "1.25x",
        "2x",
        "&lt;b&gt;recompute&lt;/b&gt;",
    ]


def test_headline_numbers():
    made = replace(plan(), one_wave_samples_per_second=100.0, samples_per_second=130.0)
    words = " ".join(Reader(render_page(page(plan=made))).text.split())
    assert "130.0 samples/s predicted" in words
    assert "1.30× the speed of one wave, 100.0 samples/s, predicted" in words
    measured = " ".join(Reader(render_page(page(plan=made, measured=True))).text.split())
    assert "measured in this timeline, 130.0 predicted" in measured
    assert "Times are as measured." in measured


def test_one_wave_without_points_or_machine():
    reader = Reader(render_page(page(plan=plan(waves=1), points=[], about={}, sentences=[])))
    assert "tock" not in reader.text
    assert "Nothing to compare with" in reader.text


def test_memory_is_stacked_up_to_the_promise_and_no_further():
    made = plan(budget="1.25x")
    spans = predicted_spans(made)
    figure = timeline_figure(made, spans, LIGHT)
    areas = [trace for trace in figure["data"] if trace.get("stackgroup")]
    assert len(areas) == 3
    top = max(map(sum, zip(*(area["y"] for area in areas), strict=True)))
    assert top <= made.peak_step_bytes / MIB + 1e-6
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert sum(len(bar["x"]) for bar in bars) == len(spans)
    first, last = views(spans)["wide"]
    assert 0 <= first < last <= views(spans)["all"][1]


def test_predicted_marks_are_hollow_and_measured_ones_filled():
    marks = frontier_figure(POINTS, DARK)["data"][-1]["marker"]["symbol"]
    assert list(marks) == ["square", "circle", "circle-open", "circle-open", "triangle-up"]


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((107, 120, 125), "than one under each of these budgets: 1.07 times as fast at 1× its memory, 1.25 times"),
        ((67, 72, 119), "Below 2× the memory of one wave, two waves gain nothing here"),
        ((67, 103, 119), "Below 1.5× the memory of one wave, two waves gain nothing here"),
        ((67, 72, 101), "under any budget up to 2× the memory of one wave: they are predicted to reach at most 1.01 "
         "times its speed. Train with one wave."),
    ],
)  # fmt: skip
def test_what_a_budget_gains_is_said_in_words(rates, words):
    plans = [Point(name, "plan", MIB, rate, False) for name, rate in zip(("1×", "1.5×", "2×"), rates, strict=True)]
    run = Point("this run", "plan", MIB, 200.0, True)
    points = [Point("one wave", "one wave", MIB, 100.0, False), *plans, run]
    assert words in gain_in_words(points)
    assert words in " ".join(Reader(render_page(page(points=points))).text.split())


def test_without_predictions_nothing_is_said_about_budgets():
    assert gain_in_words([Point("one wave", "one wave", MIB, 100.0, True)]) is None


def test_where_the_picture_opens_is_said():
    made = plan()
    spans = [span._replace(batch=span.batch + 6) for span in predicted_spans(made)]
    assert "Batches 0 to 5 are not in the picture" in opening_in_words(spans, measured=True)
    words = " ".join(Reader(render_page(page(spans=spans, measured=True))).text.split())
    assert "opens at batch 8, when all waves are under way; the button “earlier” shows the batches from 6 on" in words
    begin = min(span.start for span in spans if span.batch == 8 and span.kind == "forward")
    assert views(spans)["wide"][0] == pytest.approx(1000 * begin, abs=1e-3), "and it does open there"
    assert opening_in_words(predicted_spans(made, num_batches=4), measured=False) == ""
