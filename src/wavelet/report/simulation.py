"""The tables of a simulated cluster, and the sentences below them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wavelet.report.numbers import significant
from wavelet.report.tables import Table

if TYPE_CHECKING:
    from wavelet.planning.advice import Area
    from wavelet.planning.comparison import Outcome

__all__ = ["areas_sentence", "bandwidth_table", "efficiency_table", "outcome_table", "rate_text", "verdict"]

_COLUMNS = ("strategy", "ms", "exposed", "waiting", "MB sent", "samples/s", "efficiency")


def outcome_table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """One row a strategy: those that exchange every iteration, then those that do not."""
    table = Table(title, _COLUMNS, numbers=_COLUMNS[1:])
    for section, chosen in enumerate(_divided(outcomes)):
        if section:
            table.section()
        for outcome in chosen:
            seconds = (outcome.seconds, outcome.exposed_seconds, outcome.waiting_seconds)
            table.row(
                outcome.strategy,
                *map(_ms, seconds),
                significant(outcome.sent_bytes / 1e6),
                significant(outcome.samples_per_second),
                f"{outcome.efficiency:.2f}",
            )
    return table


def efficiency_table(rows: Sequence[Sequence[Outcome]]) -> Table:
    """Efficiency of each strategy over the number of ranks.

    Args:
        rows: for each number of ranks, the same strategies.
    """
    numbers = [str(row[0].num_ranks) for row in rows]
    table = Table("Efficiency over ranks", ("strategy", *numbers), numbers=numbers)
    for column in zip(*rows, strict=True):
        table.row(column[0].strategy, *(f"{outcome.efficiency:.2f}" for outcome in column))
    return table


def bandwidth_table(rows: Sequence[tuple[float, Sequence[Outcome]]]) -> Table:
    """Samples a second of each strategy over the bandwidth between hosts, and which to take there.

    Args:
        rows: bytes a second, and the same strategies.
    """
    from wavelet.planning.advice import to_take

    names = [outcome.strategy for outcome in rows[0][1]]
    table = Table("Samples/s over bandwidths", ("bandwidth", *names, "take"), numbers=names)
    for rate, row in rows:
        speeds = (significant(outcome.samples_per_second) for outcome in row)
        table.row(rate_text(rate), *speeds, to_take(row).strategy)
    return table


def areas_sentence(areas: Sequence[Area]) -> str:
    """Which strategy to take at which bandwidths."""
    from wavelet.planning.advice import NEARLY

    parts = []
    for area in areas:
        first, last = rate_text(area.first), rate_text(area.last)
        parts.append(
            f"{area.strategy} at {first}" if area.first == area.last else f"{area.strategy} from {first} to {last}"
        )
    return (
        f"Take {', '.join(parts)}: the first in the table's order that is at most {NEARLY - 1:.0%} slower than the "
        "fastest, since those after it change the training more."
    )


def verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """Which is the fastest: of those that exchange every iteration, and of those that do not."""
    every, seldom = (min(chosen, key=lambda outcome: outcome.seconds) for chosen in _divided(outcomes))
    sentences = [
        f"Of those that exchange every gradient, {every.strategy} is the fastest: {_speed(every)}.",
        f"Of those that exchange weights less often, {seldom.strategy} is: {_speed(seldom)}. Its ranks train apart "
        "in between, so compare the losses too.",
    ]
    if seldom.seconds >= every.seconds:
        sentences[1] = f"Exchanging weights less often gains nothing here: {seldom.strategy} has {_speed(seldom)}."
    return sentences


def rate_text(bytes_per_second: float) -> str:
    """A bandwidth as people write it: 100 Mbit/s, 1 Gbit/s."""
    bits = bytes_per_second * 8
    for limit, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= limit:
            return f"{float(f'{bits / limit:.3g}'):g} {unit}"
    return f"{bits:g} bit/s"


def _divided(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    weights = [outcome for outcome in outcomes if outcome.of_weights]
    return [outcome for outcome in outcomes if not outcome.of_weights], weights


def _ms(seconds: float) -> str:
    """With four digits; what is less than a thousandth of a millisecond is rounding."""
    return significant(seconds * 1e3) if seconds > 1e-6 else "0"


def _speed(outcome: Outcome) -> str:
    return f"{significant(outcome.seconds * 1e3, 3)} ms an iteration, efficiency {outcome.efficiency:.2f}"
