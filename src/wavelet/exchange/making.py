"""From the user's choice to the exchange of one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from wavelet.exchange.all_reduce import AllReduce
from wavelet.exchange.channel import Channel
from wavelet.exchange.choice import Choice, Training
from wavelet.exchange.exchange import Alone, Exchange
from wavelet.exchange.ranks import Ranks, group_of

__all__ = ["check_exchange", "connect"]


def check_exchange(
    choice: object,
    timeout: float,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    update: str,
    waves: int | str,
    clip: float | None,
) -> Choice | None:
    """The exchange that is wanted; None for a rank that trains alone.

    Args:
        choice: what the user gave as ``exchange``.
        timeout, model, optimizer, update, waves, clip: as the engine was given them.

    Raises:
        ValueError: it is no exchange, it would outlast the engine's ``timeout``, the model has sparse gradients, or it
            has no meaning with the rest.
    """
    if choice is None:
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return None
        choice = AllReduce(timeout=min(60.0, timeout / 2))
    if isinstance(choice, Alone):
        return None
    if not isinstance(choice, Choice):
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
    num_ranks = dist.get_world_size(group_of(choice.group))
    choice.check(Training(optimizer, update, waves, clip, num_ranks))
    return None if num_ranks == 1 else choice


def connect(
    choice: Choice | None, device: torch.device, facts: Mapping[str, Any], tensors: Sequence[Tensor]
) -> Exchange:
    """Meet the other ranks: all must have the same ``facts``, and ``tensors`` become those of rank 0.

    Raises:
        ValueError: the ranks differ.
    """
    if choice is None:
        return Alone()
    ranks = Ranks(group_of(choice.group), device, choice.timeout - min(6.0, choice.timeout / 4))
    ranks.check_alike({**facts, **choice.facts()})
    ranks.broadcast(tensors)
    return choice.make(Channel(ranks))
