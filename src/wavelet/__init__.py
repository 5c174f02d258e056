"""Wavelet: train a PyTorch model faster in the memory that it already uses, in two interleaved waves of batches."""

from __future__ import annotations

from wavelet import exchange
from wavelet.checkpoints import CheckpointError, Checkpoints
from wavelet.engine import Wavelet
from wavelet.exchange import ExchangeError
from wavelet.jobs.job import Job
from wavelet.jobs.position import LoaderPosition
from wavelet.measure import profile
from wavelet.planning.plan import BudgetError, Plan
from wavelet.planning.plan import make_plan as plan
from wavelet.profiling.profile import Profile
from wavelet.step import LostBatchError, Step
from wavelet.waves.turns import NoProgressError

__all__ = [
    "BudgetError",
    "CheckpointError",
    "Checkpoints",
    "ExchangeError",
    "Job",
    "LoaderPosition",
    "LostBatchError",
    "NoProgressError",
    "Plan",
    "Profile",
    "Step",
    "Wavelet",
    "__version__",
    "exchange",
    "plan",
    "profile",
]

__version__ = "0.1.0"
