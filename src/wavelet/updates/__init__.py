"""The three update rules behind one small :class:`~wavelet.updates.rule.UpdateRule`."""

from __future__ import annotations

from .delayed import Delayed
from .hyper_parameters import HyperParameters, changed_entries, read_hyper_parameters, same_value
from .loss_scale import LossScale
from .neighbour import Neighbour
from .optimizer import OptimizerCopy, check_optimizer
from .rule import UpdateRule, UpdateSettings
from .synchronous import Synchronous

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
