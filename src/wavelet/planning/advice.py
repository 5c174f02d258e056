"""Which strategy to take: of those that are about as fast as the fastest, the one that changes the training least."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from wavelet.planning.comparison import Outcome

__all__ = ["NEARLY", "Area", "areas", "to_take"]

NEARLY = 1.05
"""An iteration that takes up to so many times as long as the fastest is as good: no model of a cluster is better."""


class Area(NamedTuple):
    """Neighbouring bandwidths at which the same strategy is to be taken.

    Args:
        strategy: its name.
        first: the lowest of the bandwidths, in bytes a second.
        last: the highest.
    """

    strategy: str
    first: float
    last: float


def to_take(outcomes: Sequence[Outcome]) -> Outcome:
    """The first that is about as fast as the fastest; not the naive one, than which DDP is never slower.

    Args:
        outcomes: of strategies on one cluster, ordered by how much they change the training.
    """
    chosen = [outcome for outcome in outcomes if outcome.strategy != "naive"]
    fastest = min(outcome.seconds for outcome in chosen)
    return next(outcome for outcome in chosen if outcome.seconds <= NEARLY * fastest)


def areas(rows: Sequence[tuple[float, Sequence[Outcome]]]) -> list[Area]:
    """The bandwidths divided by what is to be taken.

    Args:
        rows: for each bandwidth, ascending, the strategies there.
    """
    taken = [(to_take(outcomes).strategy, rate) for rate, outcomes in rows]
    runs = [(name, [rate for _, rate in run]) for name, run in groupby(taken, key=lambda each: each[0])]
    return [Area(name, rates[0], rates[-1]) for name, rates in runs]
