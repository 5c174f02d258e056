"""The face: the user's model and optimizer, read before each batch and made the newest weights at each drain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wavelet.fingerprint import fingerprint
from wavelet.updates import HyperParameters, UpdateRule, changed_entries, read_hyper_parameters
from wavelet.waves.buffers import BufferSlots
from wavelet.waves.hidden_state import plain_attributes
from wavelet.waves.replica import Replica

__all__ = ["Face"]


class Face:
    """The user's objects stay the one place to change things; what is changed holds for the batches handed in later.

    Between two drains the face's weights may not be read: their storage belongs to a wave.

    Args:
        model: the user's model.
        optimizer: the user's optimizer.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.parameters: list[nn.Parameter] = list(model.parameters())
        self._names = [name for name, _ in model.named_parameters()]
        self._modules = list(model.modules())
        self._attributes = list(plain_attributes(self._modules))
        self._first_attributes = self._read_attributes()
        self._buffers = BufferSlots(model)
        self._seen = self._wanted = read_hyper_parameters(optimizer)
        self._remember_groups()
        self._prints: list[Tensor] = []
        self._states: dict[Any, Any] = {}

    # Read before each batch.

    def read(self) -> HyperParameters:
        """The entries of the parameter groups that the user wants, now."""
        now = read_hyper_parameters(self.optimizer, self._seen)
        if now is not self._seen:
            self._wanted = tuple(
                {**wanted, **changed_entries(seen, new)}
                for wanted, seen, new in zip(self._wanted, self._seen, now, strict=False)
            )
            self._seen = now[: len(self._wanted)]
        return self._wanted

    def optimizer_was_replaced(self) -> bool:
        """Whether the user loaded the optimizer or changed which parameters are in its groups."""
        return self._loaded() or self._members != self._group_members()

    def give_optimizer(self, rule: UpdateRule) -> None:
        """Let every wave adopt the loaded optimizer, or the added groups. All waves must be idle.

        Raises:
            ValueError: an added group holds a parameter that is not in the model.
        """
        if not self._groups_fit():
            raise ValueError("a parameter group was given a parameter that is not in the model.")
        now = read_hyper_parameters(self.optimizer)
        if self._loaded():
            rule.adopt_optimizer(self.optimizer)
            self._seen = self._wanted = now
        else:
            self.read()
            rule.regroup(self.optimizer)
            self._seen = (*self._seen[: len(now)], *now[len(self._seen) :])
            self._wanted = (*self._wanted[: len(now)], *now[len(self._wanted) :])
        self._remember_groups()

    def apply_modes(self, replica: Replica) -> None:
        """Make modes, ``requires_grad`` and plain attributes of an idle wave's replica those of the face."""
        replica.set_attributes(self._attributes, self._first_attributes, self._read_attributes())
        replica.set_modes(
            training=[module.training for module in self._modules],
            trainable=[parameter.requires_grad for parameter in self.parameters],
        )

    def gradients_seen(self) -> list[Any]:
        """What identifies the gradients on the user's own parameters, which no wave should touch."""
        return [None if p.grad is None else (id(p.grad), p.grad._version) for p in self.parameters]

    # At a drain, and when going on after it.

    def publish(self, rule: UpdateRule, buffers: list[Tensor | None], *, final: bool = False) -> None:
        """Make the user's objects the newest weights (the same storage), optimizer state, buffers and loss scale.

        Args:
            rule: owns the newest weights.
            buffers: those that the last forward left.
            final: nothing will be adopted from the face any more, so no fingerprints are taken.
        """
        for parameter, newest in zip(self.parameters, rule.weights[rule.newest], strict=True):
            if parameter.data_ptr() != newest.data_ptr() or parameter.numel() == 0:
                parameter.data = newest.data
        if not final and self.optimizer_was_replaced() and self._groups_fit():
            self.give_optimizer(rule)
        if not self.optimizer_was_replaced():
            rule.optimizer_of(rule.newest).publish(self.optimizer, self.read())
            self._seen = read_hyper_parameters(self.optimizer, self._seen)
        self._buffers.load(buffers)
        if rule.loss_scale is not None:
            rule.loss_scale.publish()
        self._states = dict(self.optimizer.state)
        self._prints = [] if final else [fingerprint(parameter) for parameter in self.parameters]

    def show_loaded(self, wanted: HyperParameters) -> None:
        """Show the entries of the parameter groups that a loaded state had."""
        for group, entries in zip(self.optimizer.param_groups, wanted, strict=True):
            group.update(entries)
        self._wanted = wanted
        self._seen = read_hyper_parameters(self.optimizer)
        self._remember_groups()

    def adopt(self, rule: UpdateRule, buffers: list[Tensor | None]) -> None:
        """Let every wave take over what the user wrote since `publish`: weights, buffers, loss scale.

        Raises:
            ValueError: the model's parameters are other objects or have other shapes than before.
        """
        if [id(p) for p in self.model.parameters()] != [id(p) for p in self.parameters]:
            raise ValueError("the model's parameters were replaced by others: make a new engine for the new model.")
        for index, (parameter, before) in enumerate(zip(self.parameters, self._prints, strict=True)):
            weight = rule.weights[rule.newest][index]
            if parameter.shape != weight.shape or parameter.dtype != weight.dtype:
                raise ValueError(
                    f"{self._names[index]!r} has changed from {tuple(weight.shape)}, {weight.dtype} to "
                    f"{tuple(parameter.shape)}, {parameter.dtype}: make a new engine for the new model."
                )
            if not torch.equal(fingerprint(parameter), before):
                rule.write(index, parameter.data)
        if not _same_entries(self.optimizer.state, self._states) and not self._loaded():
            rule.adopt_optimizer(self.optimizer)
        self._buffers.save(buffers)
        if rule.loss_scale is not None:
            rule.loss_scale.adopt()

    def _read_attributes(self) -> list[Any]:
        return [vars(self._modules[index]).get(name) for index, name in self._attributes]

    def _remember_groups(self) -> None:
        self._members = self._group_members()
        self._group_list = self.optimizer.param_groups

    def _groups_fit(self) -> bool:
        known = {id(parameter) for parameter in self.parameters}
        return all(member in known for group in self._group_members() for member in group)

    def _loaded(self) -> bool:
        """``load_state_dict`` gives an optimizer a new list of groups."""
        return self.optimizer.param_groups is not self._group_list

    def _group_members(self) -> list[list[int]]:
        return [[id(parameter) for parameter in group["params"]] for group in self.optimizer.param_groups]


def _same_entries(now: Mapping[Any, Any], before: Mapping[Any, Any]) -> bool:
    """Whether the same keys have the very same values."""
    return len(now) == len(before) and all(now.get(key) is value for key, value in before.items())
