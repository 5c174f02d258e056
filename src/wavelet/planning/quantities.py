"""Rates and times as users write them: ``"100mbit"`` and ``"1ms"``."""

from __future__ import annotations

import re

__all__ = ["bits_per_second", "seconds_in"]

_RATES = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def bits_per_second(rate: str) -> int:
    """The number behind a rate such as ``500mbit``.

    Raises:
        ValueError: it is not written so.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    bits = round(float(match[1]) * _RATES[match[2]]) if match else 0
    if bits < 1:
        raise ValueError(f"the rate {rate!r} makes no sense: give a number with kbit, mbit or gbit, as 500mbit")
    return bits


def seconds_in(time: str) -> float:
    """The seconds behind a time such as ``1ms``.

    Raises:
        ValueError: it is not written so.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|ms|us|ns)", time)
    if match is None:
        raise ValueError(f"the time {time!r} makes no sense: give a number with s, ms, us or ns, as 1ms")
    return float(match[1]) * _TIMES[match[2]]
