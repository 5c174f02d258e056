"""The systems that are compared, and how many batches each process of a system trains."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["System", "choose_systems", "round_up", "warmup_batches"]


@dataclass(frozen=True)
class System:
    """One way to train a job.

    Args:
        kind: `plain`, the ordinary loop; `ddp`, DistributedDataParallel over gloo; `waves`, Wavelet; `ceiling`, plain
            loops side by side that share nothing.
        threads: intra-op threads of each process (divided among its waves by the engine).
        compile: the model, of the plain loop or of every wave.
    """

    kind: Literal["plain", "ddp", "waves", "ceiling"]
    threads: int
    processes: int = 1
    waves: int = 1
    update: str | None = None
    compile: bool = False

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.kind == "plain":
            return f"{'compiled' if self.compile else 'plain'}, {self.threads} thread" + "s" * (self.threads > 1)
        if self.kind == "ddp":
            return f"DDP, {self.processes} processes"
        if self.kind == "ceiling":
            return f"ceiling: {self.processes} × plain"
        if self.waves == 1:
            return "Wavelet, one wave"
        return "Wavelet, compiled" if self.compile else f"Wavelet {self.update}"


def choose_systems(
    *,
    against: Collection[str],
    waves: int,
    updates: Sequence[str],
    threads: Sequence[int],
    compile: bool = True,
    extras: bool = True,
) -> list[System]:
    """The systems of one table, in the order in which they take turns.

    Args:
        against: `plain` and, with it, `ddp`.
        waves: K ≥ 2 of Wavelet, and the number of processes of DDP and of the ceiling.
        updates: the rules to run; the first one also runs compiled.
        threads: the intra-op thread counts of the plain loop, ascending; the last is all cores.
        compile: add the compiled loop and compiled waves.
        extras: add Wavelet with one wave and the ceiling.
    """
    cores = threads[-1]
    share = max(1, cores // waves)
    systems = [System("plain", count) for count in threads]
    systems += [System("waves", cores, waves=waves, update=rule) for rule in updates]
    if "ddp" in against:
        systems.append(System("ddp", share, processes=waves))
    if extras:
        systems.append(System("waves", cores, update=updates[0]))
        systems.append(System("ceiling", share, processes=waves))
    if compile:
        systems += [System("plain", count, compile=True) for count in threads]
        systems.append(System("waves", cores, waves=waves, update=updates[0], compile=True))
    return systems


def round_up(batches: int, waves: int) -> int:
    """`batches`, raised until each of `waves` processes or waves has equally many."""
    return math.ceil(batches / waves) * waves


def warmup_batches(waves: int) -> int:
    """Batches before the clock starts: past every wave's first steps."""
    return round_up(2 * waves + 2, waves)
