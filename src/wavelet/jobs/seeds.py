"""The random generators that training draws from: set them all, or leave them all as they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

__all__ = ["check_seed", "kept_random_state", "set_seeds"]


def check_seed(seed: int) -> None:
    """Refuse a seed that some generator would not take.

    Raises:
        ValueError: `seed` is not a whole number from 0 to 2**32 - 1 (NumPy's range).
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed!r} is not possible: give a whole number from 0 to {2**32 - 1}.")


def set_seeds(seed: int) -> None:
    """Set PyTorch's, NumPy's and Python's global generators to `seed`.

    Raises:
        ValueError: see `check_seed`.
    """
    check_seed(seed)
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Whatever is drawn inside, the global generators are afterwards as they were before."""
    python_state, numpy_state, torch_state = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        torch.cuda.set_rng_state_all(cuda)
