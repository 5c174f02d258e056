"""What the engine was asked for, kept until the number of waves is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from wavelet.exchange import Choice
from wavelet.forward import LossFunction
from wavelet.memory import Request

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Arguments of `wavelet.Wavelet`, checked."""

    loss: LossFunction
    autocast: torch.dtype | None
    grad_scaler: torch.amp.GradScaler | None
    compile: bool
    streams: str
    replicate: Callable[[], nn.Module] | None
    timeout: float
    request: Request | None
    exchange: Choice | None
    chosen: bool
    """Whether the number of waves was left to us, so that the ranks must agree on it."""
