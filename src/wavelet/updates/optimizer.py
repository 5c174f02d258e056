"""A copy of the user's optimizer that updates other parameters: a wave's own, or the one of a shared trajectory."""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wavelet.updates.gradients import Gradients
from wavelet.updates.hyper_parameters import HyperParameters, changed_entries, read_hyper_parameters, same_value

__all__ = ["OptimizerCopy", "check_optimizer", "stand_in"]

Mapped = dict[int, Any]

_TORCHS_OWN = {"state", "param_groups", "defaults"}


def check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Refuse optimizers that waves cannot run.

    Raises:
        ValueError: for an optimizer that needs a closure, or that updates parameters outside ``model``.
    """
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer is a {type(optimizer).__name__}: it must be a torch.optim.Optimizer.")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} needs a closure that evaluates the model again, which waves cannot give it: "
            "use an optimizer whose step() needs only gradients."
        )
    known = {id(parameter) for parameter in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        if any(id(parameter) not in known for parameter in group["params"]):
            raise ValueError(
                f"parameter group {number} holds a parameter that is not in the model: make it part of the model."
            )


class OptimizerCopy:
    """A copy of ``original`` for the parameters ``own`` in place of ``theirs``.

    Args:
        original: the user's optimizer.
        theirs: the user's parameters, in the order of ``model.parameters()``.
        own: the parameters that this copy updates, in the same order.
    """

    def __init__(self, original: Optimizer, theirs: Sequence[nn.Parameter], own: Sequence[nn.Parameter]) -> None:
        self.own = list(own)
        self._theirs = list(theirs)
        self.adopt(original)

    def adopt(self, original: Optimizer) -> None:
        """Become a copy of ``original`` as it is now: groups, states, attributes."""
        mapped: Mapped = {id(old): new for old, new in zip(self._theirs, self.own, strict=True)}
        self.optimizer: Optimizer = _copy_optimizer(original, mapped)
        self.applied = read_hyper_parameters(self.optimizer)

    def regroup(self, original: Optimizer) -> None:
        """Give each group the members that ``original``'s has; groups that were added come with their entries."""
        mapped = {id(old): new for old, new in zip(self._theirs, self.own, strict=True)}
        groups = self.optimizer.param_groups
        del groups[len(original.param_groups) :]
        for group, theirs in zip(groups, original.param_groups, strict=False):
            group["params"] = [mapped[id(parameter)] for parameter in theirs["params"]]
        for added in original.param_groups[len(groups) :]:
            self.optimizer.add_param_group(_copy(added, dict(mapped)))
        entries = read_hyper_parameters(self.optimizer)
        self.applied = (*self.applied[: len(groups)], *entries[len(self.applied) :])

    def apply(self, hyper_parameters: HyperParameters) -> None:
        """Take over the entries that the user changed; others may hold state of the optimizer."""
        if hyper_parameters is self.applied:
            return
        for group, old, new in zip(self.optimizer.param_groups, self.applied, hyper_parameters, strict=False):
            group.update({name: _clone(value) for name, value in changed_entries(old, new).items()})
        self.applied = hyper_parameters

    def step(self, gradients: Gradients, hyper_parameters: HyperParameters, clip_grad_norm: float | None) -> None:
        """Clip ``gradients`` and update the parameters with them; frozen parameters stay."""
        self.apply(hyper_parameters)
        for parameter, gradient in zip(self.own, gradients, strict=True):
            parameter.grad = gradient if parameter.requires_grad else None
        try:
            if clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(self._updated(), clip_grad_norm)
            self.optimizer.step()
        finally:
            for parameter in self.own:
                parameter.grad = None

    def publish(self, face: Optimizer, wanted: HyperParameters) -> None:
        """Make ``face``'s state this optimizer's state (the same objects), and show the entries that it changed itself.

        Args:
            face: the user's optimizer.
            wanted: the user's entries; one that was changed and not applied yet stays as the user wrote it.
        """
        back: Mapped = {id(own): theirs for theirs, own in zip(self._theirs, self.own, strict=True)}
        pairs = list(zip(_family(face), _family(self.optimizer), strict=True))
        for shown, newest in pairs:
            state = {back.get(id(key), key): value for key, value in newest.state.items()}
            shown.state.clear()
            shown.state.update(state)
            back[id(newest)] = shown
            for name in _TORCHS_OWN & vars(newest).keys():  # a second name of one of these stays one
                back[id(vars(newest)[name])] = vars(shown)[name]
        for shown, newest in pairs:
            for name, value in vars(newest).items():
                if name not in _TORCHS_OWN and not name.endswith("_hooks") and not callable(value):
                    vars(shown)[name] = _copy(value, back)
        groups = zip(face.param_groups, self.optimizer.param_groups, self.applied, wanted, strict=True)
        for shown_group, group, applied, users in groups:
            entries = {name: value for name, value in group.items() if name != "params"}
            for name, value in changed_entries(applied, entries).items():
                if name not in users or (name in applied and same_value(users[name], applied[name])):
                    shown_group[name] = _clone(value)

    def state_bytes(self) -> int:
        """Of all tensors in the optimizer's state."""
        return sum(value.nbytes for _, state in self.states() for value in state.values() if isinstance(value, Tensor))

    def states(self) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """The parameters that have optimizer state, with it, in a fixed order."""
        for parameter in self.own:
            state = self.optimizer.state.get(parameter)
            if state:
                yield parameter, state

    def _updated(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def stand_in(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter that shares ``parameter``'s storage and has its attributes, for an optimizer to hold."""
    new = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
    vars(new).update(vars(parameter))
    return new


def _family(optimizer: Optimizer) -> list[Optimizer]:
    """An optimizer and those that it wraps, also in lists and dicts, in a fixed order."""
    found = [optimizer]

    def look(value: Any) -> None:
        if isinstance(value, Optimizer) and value not in found:
            found.append(value)
            look(list(vars(value).values()))
        elif isinstance(value, dict):
            look(list(value.values()))
        elif type(value) in (list, tuple):
            for item in value:
                look(item)

    look([value for name, value in vars(optimizer).items() if name not in ("state", "param_groups")])
    return found


def _copy_optimizer(original: Optimizer, mapped: Mapped) -> Optimizer:
    """Copy ``__dict__`` with parameters mapped; deepcopy would drop hooks and the attributes of subclasses."""
    if id(original) in mapped:
        return mapped[id(original)]  # type: ignore[no-any-return]
    new: Optimizer = object.__new__(type(original))
    mapped[id(original)] = new
    for name, value in vars(original).items():
        if name.endswith("_hooks"):
            vars(new)[name] = value  # shared: a hook that the user adds later runs here too
        elif isinstance(value, MethodType) and value.__self__ is original:
            # A scheduler replaces step by a wrapper that steps the original: leave it out.
            if not hasattr(value, "_wrapped_by_lr_sched"):
                vars(new)[name] = MethodType(value.__func__, new)
        elif not hasattr(value, "_wrapped_by_lr_sched"):
            vars(new)[name] = _copy(value, mapped)
    return new


def _copy(value: Any, mapped: Mapped) -> Any:
    if id(value) in mapped:
        return mapped[id(value)]
    if isinstance(value, Tensor):
        new: Any = value.detach().clone()
    elif isinstance(value, Optimizer):
        return _copy_optimizer(value, mapped)
    elif isinstance(value, Mapping):
        new = copy.copy(value)
        mapped[id(value)] = new
        new.clear()
        new.update((_key(key, mapped), _copy(item, mapped)) for key, item in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        new = type(value)(*(_copy(item, mapped) for item in value))
    elif type(value) is tuple:
        new = tuple(_copy(item, mapped) for item in value)
    elif isinstance(value, (list, deque, set)):
        new = copy.copy(value)
        new.clear()
        items = (_copy(item, mapped) for item in value)
        new.update(items) if isinstance(value, set) else new.extend(items)
    else:
        return value
    mapped[id(value)] = new
    return new


def _key(key: Any, mapped: Mapped) -> Any:
    return mapped.get(id(key), key) if isinstance(key, Tensor) else key


def _clone(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
