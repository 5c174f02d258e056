"""The page of a simulated cluster: whole, self-contained, and safe from names."""

import dataclasses
import json
import math
import re

import pytest

from tests.planning.clusters import PAIR, TWO
from tests.report.test_page import Reader
from wavelet.planning.comparison import compare, over_bandwidths, over_ranks
from wavelet.planning.strategies import dream, local, naive, wait_free, waves
from wavelet.report.simulation import efficiency_table, outcome_table, rate_text, verdict
from wavelet.report.simulation_page import SimulationPage, render_simulation

STRATEGIES = [naive(), wait_free(0), waves(1, 0), waves(2, 0), waves(3, 0), local(2), dream(2)]


def page(title="a cluster", about=None):
    setting = (STRATEGIES, lambda _: TWO, PAIR, TWO.alone)
    outcomes = compare(*setting)
    rates = [0.5, 1.0, 2.0]
    rows = list(zip(rates, over_bandwidths(*setting, rates), strict=True))
    return SimulationPage(title, PAIR, outcomes, over_ranks(*setting, [1, 2, 4]), rows, verdict(outcomes), about or {})


@pytest.fixture(scope="module")
def text():
    return render_simulation(page(about={"command": "wavelet simulate c.toml"}))


def test_nothing_is_loaded(text):
    reader = Reader(text)
    assert not [tag for tag, attrs in reader.tags if {"src", "href", "srcset", "data"} & attrs.keys()]
    policy = next(attrs["content"] for _, attrs in reader.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"@import|url\(", text.split("</style>")[0])


def test_each_section_is_there(text):
    reader = Reader(text)
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert {"parts", "bandwidth", "ranks", "figures"} <= set(ids)
    assert len(ids) == len(set(ids))
    for words in ("exposed communication", "Nothing here was measured on a cluster", "wavelet simulate c.toml"):
        assert words in " ".join(reader.text.split())
    figures = json.loads(next(script for script in reader.scripts if script.startswith("{")))
    assert set(figures) == {"parts", "bandwidth", "ranks"}
    for figure in figures.values():
        assert set(figure) == {"light", "dark"}
    lines = figures["bandwidth"]["light"]["data"]
    assert [line["name"] for line in lines] == [strategy.name for strategy in STRATEGIES]
    assert len({line["line"]["color"] for line in lines}) == len(STRATEGIES), "each has a colour of its own"


def test_areas_cover_the_picture_over_bandwidths():
    """From the lowest rate to the highest without a gap, each in the colour of the strategy that is to be taken."""
    from wavelet.planning.advice import areas
    from wavelet.report.simulation_figures import bandwidth_figure, colour_of
    from wavelet.report.style import DARK

    rows = [(rate, [*page().outcomes]) for rate in (0.5, 1.0, 2.0)]
    slow = [dataclasses.replace(each, seconds=each.seconds + 100 * (not each.of_weights)) for each in rows[0][1]]
    rows[0] = (0.5, slow)
    found = areas(rows)
    assert len(found) == 2
    spans = [shape for shape in bandwidth_figure(rows, 1.0, DARK)["layout"]["shapes"] if shape["type"] == "rect"]
    assert [span["fillcolor"] for span in spans] == [colour_of(area.strategy, DARK) for area in found]
    border = 8e-6 * math.sqrt(0.5)
    assert bandwidth_figure(rows[:1], 1.0, DARK)["layout"]["xaxis"].get("range") is None, "of one rate plotly knows one"
    assert [span[end] for span in spans for end in ("x0", "x1")] == pytest.approx([4e-6, border, border, 16e-6])


def test_the_bars_are_the_iteration():
    shown = page()
    bars = json.loads(next(s for s in Reader(render_simulation(shown)).scripts if s.startswith("{")))["parts"]["dark"]
    stacked = [sum(values) for values in zip(*(bar["x"] for bar in bars["data"][:3]), strict=True)]
    assert stacked == pytest.approx([outcome.seconds * 1e3 for outcome in shown.outcomes], rel=1e-5)


def test_names_are_escaped():
    nasty = "</script><script>alert(1)</script>"
    reader = Reader(render_simulation(page(nasty, {nasty: nasty})))
    assert len(reader.scripts) == 3
    assert nasty in reader.text


def test_tables_and_verdict():
    shown = page()
    first, second = outcome_table("t", shown.outcomes).sections
    assert [row[0] for row in first] == [s.name for s in STRATEGIES[:5]]
    assert [row[0] for row in second] == ["local SGD (H=2)", "DreamDDP (H=2)"]
    assert first[0][1:4] == ("24000", "11000", "2000")
    assert efficiency_table(shown.over_ranks).columns == ("strategy", "1", "2", "4")
    every, seldom = verdict(shown.outcomes)
    assert every.startswith("Of those that exchange every gradient, Wavelet (K=")
    assert seldom.startswith("Exchanging weights less often gains nothing here: DreamDDP (H=2)")
    without = [outcome for outcome in shown.outcomes if not outcome.strategy.startswith("Wavelet")]
    assert "DreamDDP (H=2) is: 15000 ms an iteration" in verdict(without)[1]


def test_rates_as_people_write_them():
    assert [rate_text(bits / 8) for bits in (1e8, 1e9, 2.5e10, 15_625_000, 8e3)] == [
        "100 Mbit/s",
        "1 Gbit/s",
        "25 Gbit/s",
        "15.6 Mbit/s",
        "8 kbit/s",
    ]
