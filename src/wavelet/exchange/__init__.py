"""How ranks agree: by the mean of their gradients, by the mean of their weights now and then, or not at all."""

from __future__ import annotations

from wavelet.exchange.all_reduce import AllReduce
from wavelet.exchange.biased import BiasedLocalSGD
from wavelet.exchange.bmuf import BMUF
from wavelet.exchange.celgc import CELGC
from wavelet.exchange.choice import Choice
from wavelet.exchange.dream_ddp import DreamDDP
from wavelet.exchange.exchange import Alone, Count, Exchange, Gradients, Setting
from wavelet.exchange.high_loss import HighLossSampler
from wavelet.exchange.local_sgd import LocalSGD, pr_sgd_period
from wavelet.exchange.making import check_exchange, connect
from wavelet.exchange.pulse import ExchangeError

__all__ = [
    "BMUF",
    "CELGC",
    "AllReduce",
    "Alone",
    "BiasedLocalSGD",
    "Choice",
    "Count",
    "DreamDDP",
    "Exchange",
    "ExchangeError",
    "Gradients",
    "HighLossSampler",
    "LocalSGD",
    "Setting",
    "check_exchange",
    "connect",
    "pr_sgd_period",
]
