"""A plan as a small schedule: the promise in numbers, and where each block waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavelet.report.numbers import significant
from wavelet.report.tables import Table, as_text

if TYPE_CHECKING:
    from wavelet.planning.plan import Plan

__all__ = ["plan_table", "plan_text", "schedule_table"]


def plan_text(plan: Plan) -> str:
    """The promise, the schedule, and whether one wave would do."""
    parts = [as_text(plan_table(plan))]
    if plan.waves > 1:
        parts.append(as_text(schedule_table(plan)))
    return "".join(parts) + verdict(plan)


def plan_table(plan: Plan) -> Table:
    """What is promised and predicted."""
    table = Table(f"Plan: {plan.waves} wave{'s' * (plan.waves > 1)}, {plan.update}", ("", "value"), numbers=("value",))
    table.row("budget, resting and step", _mib(plan.budget_bytes))
    table.row("resting memory", _mib(plan.resting_bytes))
    table.row("step memory of one wave alone", _mib(plan.one_wave_step_bytes))
    ratio = plan.peak_step_bytes / plan.one_wave_step_bytes
    table.row("step memory, never more than", f"{_mib(plan.peak_step_bytes)} ({ratio:.2f}×)")
    table.row("samples/s, predicted", significant(plan.samples_per_second))
    if plan.one_wave_samples_per_second is not None:
        table.row("samples/s, one wave, predicted", significant(plan.one_wave_samples_per_second))
    return table


def schedule_table(plan: Plan) -> Table:
    """Before which block a batch waits for what; blocks that wait for nothing new are left out."""
    table = Table("A batch going up waits", ("before", "of", *(f"until batch n−{k} has" for k in range(1, plan.waves))))
    before: tuple[int, ...] = (0,) * (plan.waves - 1)
    for block, entry in enumerate(plan.interlock.entries, start=1):
        if entry != before:
            cells = (_position(plan, now) if now != old else "″" for now, old in zip(entry, before, strict=True))
            name = plan.profile.blocks[block - 1] or "the beginning"
            table.row(f"block {block}", name, *cells)
        before = entry
    if not table.sections[0]:
        table.row("no block", "", *("nothing to wait for",) * (plan.waves - 1))
    return table


def verdict(plan: Plan) -> str:
    """One sentence on what the waves gain over one wave."""
    alone = plan.one_wave_samples_per_second
    if alone is None:
        return ""
    if plan.waves == 1:
        return "One wave is best here: more would not be faster within this budget.\n"
    gain = plan.samples_per_second / alone
    if gain < 1:
        return f"One wave is better here: {plan.waves} waves reach {gain:.2f} of its speed.\n"
    return f"{plan.waves} waves are {gain:.2f} times as fast as one wave.\n"


def _position(plan: Plan, position: int) -> str:
    num_blocks = plan.interlock.num_blocks
    if position == num_blocks + 1:
        return "had its turn"
    if position == num_blocks:
        return "gone down"
    if position == 0:
        return "gone up"
    return f"left block {num_blocks - position + 1}"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
