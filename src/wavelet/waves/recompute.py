"""Recomputation in a wave's backward (activation checkpointing), kept apart from the caller's random numbers.

Both variants of ``torch.utils.checkpoint`` recompute inside ``torch.random.fork_rng``, which swaps the *global* random
state. In a wave's thread that call therefore first takes the baton (see `Turns`). What the
baton cannot protect, random numbers that the checkpoint does not replay, is refused.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import _StopRecomputationError

from wavelet.profiling.blocks import blocks_of
from wavelet.waves.turns import Turns

__all__ = ["guard_recomputation", "offer_between_blocks"]

_of_this_thread = threading.local()
_plain_fork_rng: Callable[..., Any] = torch.random.fork_rng


def guard_recomputation(baton: Callable[[], AbstractContextManager[None]]) -> None:
    """Called once in a wave's thread: its recomputations hold ``baton()``."""
    _of_this_thread.baton, _of_this_thread.inside = baton, False
    if torch.random.fork_rng is _plain_fork_rng:
        torch.random.fork_rng = _fork_rng


def offer_between_blocks(turns: Turns, model: nn.Module) -> None:
    """Let the caller hand the baton over at the block boundaries of a model that recomputes.

    Not under autocast: leaving autocast in a recomputation would clear the casts that the caller's forward shares.
    """

    def offer(module: nn.Module, inputs: Any) -> None:
        if not torch.is_autocast_enabled(kind):
            turns.offer()

    kind = next(model.parameters()).device.type
    for block in blocks_of(model):
        block.register_forward_pre_hook(offer)


def _fork_rng(*args: Any, **kwargs: Any) -> Any:
    plain = _plain_fork_rng(*args, **kwargs)
    if not hasattr(_of_this_thread, "baton") or _of_this_thread.inside:
        return plain
    return _guarded(plain, forks=bool(kwargs.get("enabled", True)))


@contextmanager
def _guarded(plain: Any, *, forks: bool) -> Iterator[None]:
    with _of_this_thread.baton():
        others = (random.getstate(), numpy.random.get_state(legacy=True))
        drawn = None if forks else torch.get_rng_state()
        _of_this_thread.inside = True
        try:
            with plain:
                yield
        except _StopRecomputationError:  # the checkpoint has all that it needs
            _refuse_draws(others, drawn)
            raise
        finally:
            _of_this_thread.inside = False
        _refuse_draws(others, drawn)


def _refuse_draws(others: tuple[Any, Any], drawn: torch.Tensor | None) -> None:
    python, numpys = others
    now: Any = numpy.random.get_state(legacy=True)
    if random.getstate() != python or now[2:] != numpys[2:] or (now[1] != numpys[1]).any():
        raise RuntimeError(
            "a checkpointed part of the model draws from Python's or NumPy's random numbers, which a checkpoint does "
            "not replay in backward: draw them from torch, or outside the checkpoint."
        )
    if drawn is not None and not torch.equal(drawn, torch.get_rng_state()):
        raise RuntimeError(
            "a checkpoint with preserve_rng_state=False draws random numbers, which are not replayed in backward: "
            "leave preserve_rng_state at True."
        )
