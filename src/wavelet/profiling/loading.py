"""From JSON to profiles and plans: what does not fit is refused in one sentence, before anything trusts it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["check_numbers", "reading"]


@contextmanager
def reading(fields: object, what: str) -> Iterator[dict[str, Any]]:
    """The fields as a dict; whatever goes wrong with them inside is a ValueError that says what ``what`` must be.

    Raises:
        ValueError: they are no mapping, or not those that ``to_json`` gave.
    """
    if not isinstance(fields, Mapping):
        kind = "text: json.loads() makes a mapping of it" if isinstance(fields, str) else f"a {type(fields).__name__}"
        raise ValueError(f"{what}.from_json() takes the mapping that to_json() gave, and was given {kind}.")
    try:
        yield dict(fields)
    except KeyError as error:
        raise ValueError(f"this is no {what} of this version of wavelet: {error.args[0]!r} is missing.") from error
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise ValueError(f"this is no {what} that to_json() gave: {_reason(error)}.") from error


def check_numbers(names: Mapping[str, object], *, least: float = 0) -> None:
    """Refuse what is no finite number from ``least`` on.

    Raises:
        ValueError: naming the first.
    """
    for name, value in names.items():
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not good or value < least:  # type: ignore[operator]
            raise ValueError(f"{name!r} is {value!r}")


def _reason(error: Exception) -> str:
    """What our own checks say; Python's errors about the inside of a conversion help nobody."""
    return str(error) if isinstance(error, ValueError) and str(error).startswith(("'", "its ")) else "a field is broken"
