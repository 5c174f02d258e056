"""Numbers as people read them."""

import pytest

from wavelet.report.numbers import count, mebibytes, ratio, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.0000"),
        (0.012345, "0.0123"),
        (1.23456, "1.235"),
        (98.476, "98.48"),
        (863.21, "863.2"),
        (38254.3, "38254"),
        (2.5e7, "2.500e+07"),
        (-1.23456, "-1.235"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_significant_digits(value, text):
    assert significant(value) == text


def test_counts_bytes_and_ratios():
    assert [count(950), count(41_234), count(3_100_000)] == ["950", "41.2 k", "3.1 M"]
    assert [mebibytes(3 * 2**20 + 1), mebibytes(None)] == ["3", "–"]
    assert [ratio(1.2349), ratio(None)] == ["1.23", "–"]
