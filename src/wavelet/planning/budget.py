"""A budget as users write it: a ratio of what one wave needs, or bytes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["Budget"]

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_WRITTEN = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*", re.IGNORECASE)
_ADVICE = "use a ratio such as '1.25x', or bytes such as '2GiB'"


@dataclass(frozen=True)
class Budget:
    """Either a ratio, of step memory to that of one wave alone, or bytes of resting and step memory together."""

    ratio: float | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, value: object) -> Budget:
        """The budget that a user wrote: ``"1.25x"``, ``"2GiB"`` or a number of bytes.

        Raises:
            ValueError: it is none of these, not above 0, or a ratio below 1.
        """
        if isinstance(value, Budget):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return cls(bytes=value)
        match = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"budget={value!r} makes no sense: {_ADVICE}.")
        number, unit = float(match[1]), match[2].upper()
        if number * 2**40 == math.inf:
            raise ValueError(f"budget={match[0][:20]!r}… is more than there is: {_ADVICE}.")
        if unit == "X":
            if number < 1:
                raise ValueError(f"budget={value!r} is less than one wave needs: use at least '1x'.")
            return cls(ratio=number)
        if unit not in _UNITS or number * _UNITS[unit] < 1:
            raise ValueError(f"budget={value!r} makes no sense: {_ADVICE}.")
        return cls(bytes=int(number * _UNITS[unit]))

    def step_bytes(self, *, one_wave: int, resting: int) -> int:
        """What it leaves for step memory."""
        if self.ratio is not None:
            return int(self.ratio * one_wave)
        assert self.bytes is not None
        return self.bytes - resting
