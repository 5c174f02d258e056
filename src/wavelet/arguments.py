"""What the engine accepts: each mistake gets one sentence that says what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from wavelet.devices import map_tensors
from wavelet.devices.random_state import RandomState
from wavelet.updates import RULES, UpdateSettings

__all__ = ["AUTO_RESYNC", "check", "check_draws", "check_gradients_seen", "check_objects", "split_result"]

AUTO_RESYNC = 32
"""What ``resync="auto"`` means, in updates of a wave's own; benchmarks/convergence justifies it."""


def check(
    waves: int | str,
    update: str,
    accumulate: int,
    resync: object,
    clip_grad_norm: float | None,
    autocast: torch.dtype | None,
    timeout: float,
    compile: bool,
) -> UpdateSettings:
    """The settings of the update rule, once every number makes sense.

    Raises:
        ValueError: naming the first one that does not.
    """
    if waves != "auto":
        _check_count("waves", waves)
    _check_count("accumulate", accumulate)
    if not isinstance(update, str) or update not in RULES:
        raise ValueError(f"update={update!r} is not known: use one of {', '.join(map(repr, RULES))}.")
    if resync is not None and not (isinstance(resync, str) and resync == "auto"):
        _check_count("resync", resync)
        if update != "neighbour":
            raise ValueError(
                f"resync={resync} has no meaning under update={update!r}, where waves do not drift apart: leave it out."
            )
    if clip_grad_norm is not None and not _is_number_above_0(clip_grad_norm):
        raise ValueError(f"clip_grad_norm={clip_grad_norm!r} makes no sense: use a number above 0, or None.")
    if autocast is not None and autocast not in (torch.bfloat16, torch.float16):
        raise ValueError(f"autocast={autocast} is not a lower precision: use torch.bfloat16 or torch.float16, or None.")
    if not _is_number_above_0(timeout):
        raise ValueError(f"timeout={timeout!r} makes no sense: use a number of seconds above 0.")
    if not isinstance(compile, bool):
        raise ValueError(f"compile={compile!r} makes no sense: use True or False.")
    every = AUTO_RESYNC if resync == "auto" else resync
    if update != "neighbour":
        every = None
    assert every is None or isinstance(every, int)
    return UpdateSettings(accumulate=accumulate, clip_grad_norm=clip_grad_norm, resync=every)


def _is_number_above_0(value: object) -> bool:
    return isinstance(value, (int, float, numpy.floating)) and not isinstance(value, bool) and bool(value > 0)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} makes no sense: use a whole number of at least 1.")


def check_objects(
    model: object, optimizer: Optimizer, loss: object, scheduler: Any, grad_scaler: object, replicate: object
) -> None:
    """Refuse objects of the wrong kind, and schedulers that the engine cannot step.

    Raises:
        ValueError: naming the object.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}: it must be a torch.nn.Module.")
    if not callable(loss):
        raise ValueError(f"loss is a {type(loss).__name__}: it must be a function of (model, batch).")
    if replicate is not None and (isinstance(replicate, nn.Module) or not callable(replicate)):
        raise ValueError(f"replicate is a {type(replicate).__name__}: it must be a function that builds a fresh model.")
    if grad_scaler is not None and not isinstance(grad_scaler, torch.amp.GradScaler):
        raise ValueError(f"grad_scaler is a {type(grad_scaler).__name__}: it must be a torch.amp.GradScaler.")
    if torch.is_inference_mode_enabled():
        raise ValueError("the engine was made under torch.inference_mode(), where nothing can train: make it outside.")
    if scheduler is None:
        return
    if not callable(getattr(scheduler, "step", None)):
        raise ValueError(f"scheduler is a {type(scheduler).__name__}: it must be a learning-rate scheduler, or None.")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError("ReduceLROnPlateau needs a metric: call its step(metric) yourself after engine.step(batch).")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError("scheduler belongs to another optimizer: give it the optimizer that the engine has.")


def split_result(result: object) -> tuple[Tensor, Mapping[str, Any]]:
    """The loss and the other entries, detached.

    Raises:
        ValueError: there is no scalar loss that requires a gradient.
    """
    outputs: Mapping[str, Any] = {}
    if isinstance(result, Mapping):
        if "loss" not in result:
            raise ValueError(f"the loss function gave a mapping without 'loss' (it has {', '.join(map(str, result))}).")
        outputs = {
            key: map_tensors(value, lambda item: item.detach() if isinstance(item, Tensor) else item)
            for key, value in result.items()
            if key != "loss"
        }
        result = result["loss"]
    if not isinstance(result, Tensor):
        raise ValueError(
            f"the loss function gave a {type(result).__name__}: it must give a scalar tensor, or a mapping."
        )
    if result.numel() != 1:
        raise ValueError(f"the loss has shape {tuple(result.shape)}: it must be a scalar, for example its mean().")
    if not result.requires_grad:
        raise ValueError(
            "the loss does not require a gradient: is it detached, computed under no_grad, or is everything frozen?"
        )
    return result, outputs


def check_gradients_seen(before: list[Any], after: list[Any]) -> None:
    """Refuse a loss that trained the user's own model object.

    Raises:
        ValueError: gradients have arrived on the user's model instead of a wave's replica.
    """
    if any(new is not None and new != old for old, new in zip(before, after, strict=True)):
        raise ValueError(
            "the loss was computed with the original model, not with the one that loss(model, batch) was given: "
            "use that argument; if you do, a copy of the model calls the original, so pass replicate=."
        )


def check_draws(before: RandomState) -> None:
    """Refuse a backward or an update that drew random numbers since ``before`` was taken.

    Raises:
        ValueError: the random state has changed.
    """
    if not before.is_current():
        raise ValueError(
            "the backward or the update draws random numbers, which in a wave's thread fall at a moment that nobody "
            "chose: draw them in the forward, or use waves=1."
        )
