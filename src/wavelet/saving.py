"""Saving and loading the engine at any batch, so that continuing is bitwise the same as never having stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from wavelet.devices.random_state import RandomState

if TYPE_CHECKING:
    from wavelet.engine import Wavelet

__all__ = ["check_state", "cloned", "load_into", "state_of", "waves_of"]

VERSION = 3


def state_of(engine: Wavelet) -> dict[str, Any]:
    """The whole state of an idle engine: the tensors themselves, which the next batch may change."""
    engine._device.synchronize()
    rule, scheduler = engine._rule, engine._scheduler
    return {
        "version": VERSION,
        "waves": engine.waves,
        "update": engine.update,
        "accumulate": engine.accumulate,
        "num_batches": engine._num_batches,
        "position": engine._position,
        "weights": [[p.detach() for p in wave] for wave in _distinct_weights(engine)],
        "optimizers": [copy.optimizer.state_dict() for copy in rule.optimizers],
        "applied": [copy.applied for copy in rule.optimizers],
        "hyper_parameters": engine._hyper_parameters,
        "wanted": engine._face.read(),
        "kept": rule.kept(),
        "strategy": _strategy(engine),
        "ranks": engine._exchange.num_ranks,
        "alike": engine._exchange.alike,
        "apart": engine._exchange.apart,
        "exchange": engine._exchange.state_dict(),
        "buffers": engine._forward.buffers,
        "random": RandomState(engine._device).state_dict(),
        "loss_scale": None if rule.loss_scale is None else rule.loss_scale.state_dict(),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
    }


def cloned(state: dict[str, Any]) -> dict[str, Any]:
    """The same state in tensors of its own."""
    clones: dict[str, Any] = _map_tensors(state, lambda tensor: tensor.detach().clone())
    return clones


def waves_of(state: dict[str, Any]) -> int:
    """How many waves the engine had; 2 for what is no state."""
    waves = state.get("waves") if isinstance(state, dict) else None
    return waves if isinstance(waves, int) and waves > 0 else 2


def check_state(engine: Wavelet, state: dict[str, Any]) -> None:
    """Refuse a state that this engine cannot continue, before anything is changed.

    Raises:
        ValueError: naming what differs.
    """
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise ValueError(f"this is not a state of version {VERSION} from engine.state_dict().")
    for name in ("waves", "update", "accumulate"):
        if state[name] != getattr(engine, name):
            raise ValueError(
                f"the state was saved with {name}={state[name]!r}, this engine has {name}={getattr(engine, name)!r}: "
                "they must be the same."
            )
    if not state["alike"] and engine._exchange.alike and engine._exchange.num_ranks > 1:
        raise ValueError(
            f"the state was saved with exchange={state['strategy']}, under which each rank has an optimizer state of "
            f"its own, and this engine has {_strategy(engine)}: give its model the weights, and let it begin anew."
        )
    if state["apart"] and state["strategy"] != _strategy(engine):
        raise ValueError(
            f"the state was saved in mid-period with exchange={state['strategy']}, and this engine has "
            f"{_strategy(engine)}: load it with the same, call flush() and save again; that can be loaded."
        )
    if state["apart"] and state["ranks"] != engine._exchange.num_ranks:
        raise ValueError(
            f"the state was saved in mid-period by {state['ranks']} ranks, and there are {engine._exchange.num_ranks}: "
            "load it on as many, call flush() and save again; that can be loaded."
        )
    for saved, own in zip(state["weights"], _distinct_weights(engine), strict=True):
        if [tuple(t.shape) for t in saved] != [tuple(p.shape) for p in own]:
            raise ValueError("the state belongs to a model with other parameters.")
    for saved, copy in zip(state["optimizers"], engine._rule.optimizers, strict=True):
        theirs, ours = ([len(group["params"]) for group in groups] for groups in _groups(saved, copy.optimizer))
        if theirs != ours:
            raise ValueError(
                f"the state was saved with parameter groups of {theirs} parameters, this optimizer's have {ours}."
            )
    for name, mine in (("loss_scale", engine._rule.loss_scale), ("scheduler", engine._scheduler)):
        if (state[name] is None) != (mine is None):
            raise ValueError(f"the state was saved {'without' if state[name] is None else 'with'} a {name}.")


def load_into(engine: Wavelet, state: dict[str, Any]) -> None:
    """Put a checked state into a drained engine, and show it in the user's objects."""
    device = engine._device.device
    state = _map_tensors(state, lambda tensor: tensor.clone())
    rule = engine._rule
    with torch.no_grad():
        for saved, own in zip(state["weights"], _distinct_weights(engine), strict=True):
            for tensor, parameter in zip(saved, own, strict=True):
                parameter.copy_(tensor)
    for copy, optimizer_state, applied in zip(rule.optimizers, state["optimizers"], state["applied"], strict=True):
        _load_optimizer(copy.optimizer, optimizer_state)
        copy.applied = applied
    rule.load_kept(_map_tensors(state["kept"], lambda tensor: tensor.to(device)))
    engine._forward.buffers[:] = _map_tensors(state["buffers"], lambda tensor: tensor.to(device))
    # That of another number of ranks, or of another strategy, means nothing here.
    if state["exchange"] is not None and state["strategy"] == _strategy(engine):
        rule.exchange.load_state_dict(_map_tensors(state["exchange"], lambda tensor: tensor.to(device)))
    rule.exchange.apart = state["apart"]
    if rule.loss_scale is not None:
        rule.loss_scale.load_state_dict(state["loss_scale"])
    if engine._scheduler is not None:
        engine._scheduler.load_state_dict(state["scheduler"])
    engine._num_batches, engine._position = state["num_batches"], state["position"]
    engine._turns.restart(engine._num_batches)
    engine._hyper_parameters = list(state["hyper_parameters"])
    engine._face.show_loaded(state["wanted"])
    engine._face.publish(rule, engine._forward.buffers)
    random_state = RandomState(engine._device)
    random_state.load_state_dict(state["random"])
    random_state.restore()


def _strategy(engine: Wavelet) -> str:
    """How its ranks agree."""
    choice = engine._options.exchange
    return "Alone()" if choice is None else str(choice)


def _distinct_weights(engine: Wavelet) -> list[list[torch.nn.Parameter]]:
    """Each wave's weights; those of one wave where all waves share a storage."""
    return engine._rule.weights[:1] if engine._rule.shares_weights else engine._rule.weights


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load, and keep the types that were saved: torch casts states to the parameter's, so fp32 beside bf16 is lost."""
    optimizer.load_state_dict(saved)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in saved.get("state", {}).items():
        if isinstance(index, int) and isinstance(entries, dict) and index < len(parameters):
            state = optimizer.state[parameters[index]]
            for name, value in entries.items():
                loaded = state.get(name)
                if isinstance(value, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != value.dtype:
                    state[name] = value.to(loaded.device)


def _groups(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """The saved groups, where the optimizer saves them in torch's own way, and those it has."""
    return saved.get("param_groups", optimizer.param_groups), optimizer.param_groups


def _map_tensors(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(item, change) for item in value)
    return value
