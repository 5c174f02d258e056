"""Numbers as people read them: three or four digits and a unit."""

import math

__all__ = ["count", "mebibytes", "ratio", "significant"]


def significant(value: float | None, digits: int = 4) -> str:
    """`value` with `digits` significant digits and no exponent below a million; a dash for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e6:
        return f"{value:.{digits - 1}e}"
    before_point = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(digits - before_point, 0)}f}"


def count(value: int) -> str:
    """A count in thousands or millions: 950, 41.2 k, 3.1 M."""
    for limit, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return str(value)


def mebibytes(value: int | None) -> str:
    """Bytes as whole MiB, without the unit."""
    return "–" if value is None else f"{value / 2**20:.0f}"


def ratio(value: float | None) -> str:
    """A ratio with two decimals."""
    return "–" if value is None else f"{value:.2f}"
