"""Wavelet: train a PyTorch model faster in the memory that it already uses, in two interleaved waves of batches."""

from __future__ import annotations

from wavelet.engine import Wavelet
from wavelet.jobs.job import Job
from wavelet.step import LostBatchError, Step
from wavelet.waves.turns import NoProgressError

__all__ = ["Job", "LostBatchError", "NoProgressError", "Step", "Wavelet", "__version__"]

__version__ = "0.1.0"
