"""Schedules as data: which block waits for what, what that costs in bytes and seconds, and the search for the best."""

from wavelet.planning.chain import Chain
from wavelet.planning.interlock import Interlock, least_budget, worst_state
from wavelet.planning.overlap import OtherWaits, exposed_seconds, other_waits
from wavelet.planning.partial_sync import PartialSyncPlan, partial_sync
from wavelet.planning.search import best_interlock
from wavelet.planning.simulate import seconds_per_batch, simulate

__all__ = [
    "Chain",
    "Interlock",
    "OtherWaits",
    "PartialSyncPlan",
    "best_interlock",
    "exposed_seconds",
    "least_budget",
    "other_waits",
    "partial_sync",
    "seconds_per_batch",
    "simulate",
    "worst_state",
]
