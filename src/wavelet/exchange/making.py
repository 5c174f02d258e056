"""From the user's choice to the exchange of one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wavelet.exchange.all_reduce import AllReduce
from wavelet.exchange.channel import Channel
from wavelet.exchange.exchange import Alone, Exchange
from wavelet.exchange.ordered import OrderedAllReduce
from wavelet.exchange.ranks import Ranks, group_of

__all__ = ["check_exchange", "connect"]

Choice = AllReduce | Alone | None


def check_exchange(choice: object, timeout: float, model: nn.Module) -> AllReduce | None:
    """The all-reduce that is wanted; None for a rank that trains alone.

    Raises:
        ValueError: it is no exchange, it would outlast the engine's ``timeout``, or the model has sparse gradients.
    """
    if choice is None:
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return None
        choice = AllReduce(timeout=min(60.0, timeout / 2))
    if isinstance(choice, Alone):
        return None
    if not isinstance(choice, AllReduce):
        raise ValueError(
            f"exchange is a {type(choice).__name__}: give one of wavelet.exchange, such as AllReduce() or Alone()."
        )
    if choice.timeout >= timeout:
        raise ValueError(
            f"the exchange gives up after {choice.timeout:g} s and the engine after timeout={timeout:g} s: the "
            "exchange's timeout must be the shorter one, or nobody says which rank is missing."
        )
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise ValueError(f"{name!r} has sparse gradients, which ranks do not exchange: make it with sparse=False.")
    return None if dist.get_world_size(group_of(choice.group)) == 1 else choice


def connect(
    choice: AllReduce | None, device: torch.device, facts: Mapping[str, Any], tensors: Sequence[Tensor]
) -> Exchange:
    """Meet the other ranks: all must have the same ``facts``, and ``tensors`` become those of rank 0.

    Raises:
        ValueError: the ranks differ.
    """
    if choice is None:
        return Alone()
    ranks = Ranks(group_of(choice.group), device, choice.timeout - min(3.0, choice.timeout / 4))
    settings = {"compress": choice.compress, "bucket_mb": choice.bucket_mb, "check_every": choice.check_every}
    ranks.check_alike({**facts, **settings})
    ranks.broadcast(tensors)
    return OrderedAllReduce(choice, Channel(ranks))
