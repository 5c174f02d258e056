"""The arithmetic of the verdict: paired differences, and how much worse than the reference is still as good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["SHARE", "STANDARD_ERRORS", "Verdict", "judge"]

SHARE = 0.02
STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Verdict:
    """How a candidate compares with a reference over the same seeds.

    Args:
        num_pairs: number of seeds.
        reference: mean over the seeds.
        candidate: mean over the seeds.
        worse_by: mean of the paired differences, positive where the candidate is worse.
        standard_error: of that mean; None for a single pair.
        bound: how much worse the candidate may be.
        within: whether it is no worse than that. Being better never violates the bound.
    """

    num_pairs: int
    reference: float
    candidate: float
    worse_by: float
    standard_error: float | None
    bound: float
    within: bool


def judge(reference: Sequence[float], candidate: Sequence[float], *, higher_is_better: bool = False) -> Verdict:
    """Compare two rows of results, seed by seed, against max(2 % of the reference, two standard errors).

    A candidate that is not finite is worse than any bound; its difference then has no standard error.

    Raises:
        ValueError: no pairs, rows of different length, or a reference that is not finite.
    """
    if not reference or len(reference) != len(candidate):
        raise ValueError(f"{len(reference)} references and {len(candidate)} candidates: give pairs, at least one.")
    if not all(map(math.isfinite, reference)):
        raise ValueError("a reference is not finite: tune its rate first.")
    sign = -1.0 if higher_is_better else 1.0
    differences = [sign * (mine - theirs) for theirs, mine in zip(reference, candidate, strict=True)]
    finite = all(map(math.isfinite, candidate))
    worse_by = fmean(differences) if finite else math.inf
    error = stdev(differences) / math.sqrt(len(differences)) if finite and len(differences) > 1 else None
    bound = max(SHARE * abs(fmean(reference)), STANDARD_ERRORS * (error or 0.0))
    mean = fmean(candidate) if finite else sign * math.inf
    return Verdict(len(differences), fmean(reference), mean, worse_by, error, bound, worse_by <= bound)
