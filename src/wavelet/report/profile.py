"""A profile as a table: the chain of blocks with what each costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavelet.report.numbers import significant
from wavelet.report.tables import Table, as_text

if TYPE_CHECKING:
    from wavelet.profiling.profile import Profile

__all__ = ["block_table", "profile_text"]


def profile_text(profile: Profile) -> str:
    """The table of blocks, and what a step holds besides."""
    return as_text(block_table(profile)) + "\n".join(_about(profile))


def block_table(profile: Profile) -> Table:
    """One row a block, in forward order; seconds are those with the fewest waves that were measured."""
    timing = profile.timings[min(profile.timings)]
    table = Table(
        f"{profile.num_blocks} blocks, one batch of {profile.samples}, alone on {timing.threads} thread"
        + "s" * (timing.threads > 1),
        ("block", "starts at", "saved", "grads", "peak up", "peak down", "up", "down"),
        numbers=("saved", "grads", "peak up", "peak down", "up", "down"),
    )
    bytes_, seconds = profile.bytes, timing.seconds
    for index, name in enumerate(profile.blocks):
        table.row(
            str(index + 1),
            name or "the beginning",
            _mib(bytes_.saved[index]),
            _mib(bytes_.gradients[index]),
            _mib(bytes_.rising[index]),
            _mib(bytes_.falling[profile.num_blocks - 1 - index]),
            _ms(seconds.forward[index]),
            _ms(seconds.backward[index]),
        )
    table.section()
    totals = (sum(bytes_.saved), sum(bytes_.gradients), max(bytes_.rising), max(bytes_.falling))
    table.row("all", "", *map(_mib, totals), _ms(sum(seconds.forward)), _ms(sum(seconds.backward)))
    return table


def _about(profile: Profile) -> list[str]:
    update = min(profile.timings.items())[1].seconds.update
    lines = [
        "MiB and ms; peaks are of all that a batch holds while the block runs, up and down.",
        f"The turn (exchange and update) takes {_ms(update)} ms and holds up to {_mib(profile.bytes.turn)} MiB.",
        f"A replica has {_mib(profile.parameter_bytes)} MiB of parameters, {_mib(profile.gradient_bytes)} of "
        f"gradients, {_mib(profile.optimizer_bytes)} of optimizer state.",
    ]
    for waves, timing in profile.timings.items():
        if waves > 1:
            up, down = timing.contention
            lines.append(f"With {waves} waves, work beside work takes {up:.2f} (up) and {down:.2f} (down) as long.")
    return lines


def _mib(count: int) -> str:
    return f"{count / 2**20:.2f}"


def _ms(seconds: float) -> str:
    return significant(seconds * 1e3, 3)
