"""How ranks agree: by the mean of their gradients, exchanged in one order everywhere, or not at all."""

from __future__ import annotations

from wavelet.exchange.all_reduce import AllReduce
from wavelet.exchange.exchange import Alone, Count, Exchange, Gradients, Setting
from wavelet.exchange.making import check_exchange, connect
from wavelet.exchange.pulse import ExchangeError

__all__ = [
    "AllReduce",
    "Alone",
    "Count",
    "Exchange",
    "ExchangeError",
    "Gradients",
    "Setting",
    "check_exchange",
    "connect",
]
