"""The built-in jobs by name; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from wavelet.jobs.job import Job

__all__ = ["built_in", "describe", "names"]

_DESCRIPTIONS = {
    "char-lstm": "two-layer LSTM on the characters of Python's standard library",
    "char-gpt": "small transformer with dropout on the characters of Python's standard library",
    "digits-cnn": "residual convolutions with BatchNorm on scikit-learn's handwritten digits",
    "digits-mobile": "depthwise convolutions with BatchNorm on scikit-learn's handwritten digits",
    "mlp-small-ops": "deep perceptron of many tiny operators, bound by the interpreter: the hard case",
}


def names() -> tuple[str, ...]:
    """The names of the built-in jobs."""
    return tuple(_DESCRIPTIONS)


def describe(name: str) -> str:
    """What the built-in job `name` trains on what, in one line."""
    return _DESCRIPTIONS[name]


def built_in(name: str) -> Callable[..., Job]:
    """The function ``job(*, seed, batch_size)`` that makes the built-in job `name`."""
    module = import_module(f"wavelet.jobs.{name.replace('-', '_')}")
    return cast("Callable[..., Job]", module.job)
