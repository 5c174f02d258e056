"""The picture of a plan of partial synchronisation."""

import pytest

from tests.planning.test_partial_sync import random_layers
from wavelet.planning import partial_sync
from wavelet.report.partial_sync import ranges


def test_the_picture():
    lines = str(partial_sync([1.0] * 4, [1.5] * 4, 2)).splitlines()
    rows = {line.split()[0]: line for line in lines if "│" in line and line.split()[0] != "█"}
    end = rows["backward"].index("│")
    assert rows["0"][end] == rows["1"][end] == "│"
    assert "0–1" in rows["0"] and "×" not in rows["0"] and rows["0"].endswith(" 0")
    assert "2–3      0 " in rows["1"] and "█│××" in rows["1"] and rows["1"].endswith(" 2.000")
    assert "under this plan (best among contiguous)         2.000" in "\n".join(lines)
    assert lines[-1] == "No division of the layers waits less."


@pytest.mark.parametrize("period", [1, 7, 50, 400])
def test_the_picture_of_many_layers_is_80_wide(period):
    plan = partial_sync(*random_layers(1, 300, 0.3), period)
    lines = str(plan).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.count("│") <= 1 for line in lines)
    assert sum(line.lstrip()[:1].isdigit() and "│" in line for line in lines) <= period


def test_ranges():
    assert ranges([], 10) == ""
    assert ranges([0, 1, 2, 5, 7, 8], 20) == "0–2, 5, 7–8"
    assert ranges([0, 1, 2, 5, 7, 8], 10) == "0–2, … (6)"
    assert ranges(range(300), 10) == "0–299"
