"""What a user asks of memory: a budget, blocks, or a plan made before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from wavelet.planning.budget import Budget
from wavelet.planning.plan import Plan, check_waves

__all__ = ["Request", "block_names"]


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Args:
        budget: as in `wavelet.plan`; None with a plan.
        plan: made before; None to make one while training.
        blocks: names of the modules whose calls start the blocks after the first; None to find them.
    """

    budget: Budget | None
    plan: Plan | None
    blocks: tuple[str, ...] | None

    @classmethod
    def of(cls, model: nn.Module, waves: int | str, budget: object, plan: object, blocks: object) -> Request | None:
        """The request, or None where nothing was asked for.

        Raises:
            ValueError: an argument makes no sense.
        """
        if plan is not None and not isinstance(plan, Plan):
            raise ValueError(f"plan is a {type(plan).__name__}: it must come from wavelet.plan().")
        if plan is not None and (budget is not None or blocks is not None):
            raise ValueError("give plan= alone: it has a budget and blocks already.")
        if blocks is not None and budget is None:
            raise ValueError("blocks= has no meaning without budget=: give both, or neither.")
        if budget is None and plan is None:
            return None
        check_waves(waves)
        return cls(None if budget is None else Budget.of(budget), plan, block_names(model, blocks))


def block_names(model: nn.Module, blocks: object) -> tuple[str, ...] | None:
    """The names of modules that a user gave, as names or as modules of ``model``; None for None.

    Raises:
        ValueError: it is no list of these.
    """
    if blocks is None:
        return None
    known = {name: module for name, module in model.named_modules() if name}
    named = {id(module): name for name, module in known.items()}
    if isinstance(blocks, (str, nn.Module)) or not isinstance(blocks, Sequence) or not blocks:
        raise ValueError(f"blocks={blocks!r} makes no sense: give a list of modules of the model, or their names.")
    names: list[str] = []
    for block in blocks:
        name = named.get(id(block), block)
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"blocks names {name!r}, which is no module of the model.")
        names.append(name)
    return tuple(names)
