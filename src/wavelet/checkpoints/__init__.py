"""Checkpoints in a folder: written beside the training, whole or not there, for one rank and for several."""

from __future__ import annotations

from wavelet.checkpoints.checkpoints import Checkpoints, Loaded
from wavelet.checkpoints.errors import CheckpointError

__all__ = ["CheckpointError", "Checkpoints", "Loaded"]
