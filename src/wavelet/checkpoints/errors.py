"""What is raised where a checkpoint cannot be written or read, and the reason in a few words."""

from __future__ import annotations

from typing import Any

__all__ = ["CheckpointError", "reason"]


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. Those that were whole before still are."""


def reason(error: BaseException) -> str:
    """Why something failed, in a few words: of several ranks' errors the system's own, or the first."""
    failures: dict[int, Any] = getattr(error, "failures", {})  # of DCP's CheckpointException
    errors = [error, *(wrapped[0] for wrapped in failures.values())]
    errors += [link for each in list(errors) for link in _links(each)]
    for each in errors:
        if isinstance(each, OSError) and each.strerror:
            return each.strerror
    first = errors[1] if failures else errors[0]
    if isinstance(first, CheckpointError):  # another rank's reason
        return str(first)
    line = next(iter(str(first).splitlines()), "")
    return f"{type(first).__name__}: {line}" if line else type(first).__name__


def _links(error: BaseException) -> list[BaseException]:
    """The errors that led to this one, the nearest first."""
    found: list[BaseException] = []
    link = error.__cause__ or error.__context__
    while link is not None and link not in found:
        found.append(link)
        link = link.__cause__ or link.__context__
    return found
