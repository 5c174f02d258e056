"""The three update rules behind one small `UpdateRule`."""

from __future__ import annotations

from wavelet.updates.delayed import Delayed
from wavelet.updates.hyper_parameters import HyperParameters, changed_entries, read_hyper_parameters, same_value
from wavelet.updates.loss_scale import LossScale
from wavelet.updates.neighbour import Neighbour
from wavelet.updates.optimizer import OptimizerCopy, check_optimizer
from wavelet.updates.rule import UpdateRule, UpdateSettings
from wavelet.updates.synchronous import Synchronous

__all__ = [
    "RULES",
    "HyperParameters",
    "LossScale",
    "OptimizerCopy",
    "UpdateRule",
    "UpdateSettings",
    "changed_entries",
    "check_optimizer",
    "read_hyper_parameters",
    "same_value",
]

RULES: dict[str, type[UpdateRule]] = {rule.name: rule for rule in (Neighbour, Synchronous, Delayed)}
