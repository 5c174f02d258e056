"""Which cores each wave runs on: K+1 threads (the waves' and the caller's) take turns on K shares of the cores.

The caller runs a wave's forward while that wave's thread sleeps, so the two can have one share of the cores. Left to
itself the kernel often wakes a thread on a core where another wave is busy, which cost 10 to 25 % on two cores.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["pin", "share_cores"]


def share_cores(num_shares: int) -> list[set[int]]:
    """The cores of this thread in ``num_shares`` equal shares, or none where that cannot be done.

    Hardware threads of one core stay together; cores are dealt in turn, so that fast and slow ones are mixed alike.
    """
    if num_shares < 2 or not hasattr(os, "sched_getaffinity"):
        return []
    allowed = os.sched_getaffinity(0)
    cores = sorted({min(siblings): siblings for siblings in (_siblings(cpu) & allowed for cpu in allowed)}.items())
    each = len(cores) // num_shares
    dealt = [siblings for _, siblings in cores[: each * num_shares]]
    return [set().union(*dealt[share::num_shares]) for share in range(num_shares)] if each else []


def pin(cores: set[int]) -> None:
    """Let the calling thread run on ``cores`` alone."""
    os.sched_setaffinity(0, cores)


def _siblings(cpu: int) -> set[int]:
    """The hardware threads of the core that ``cpu`` belongs to."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return {cpu}
    siblings = {cpu}
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        siblings.update(range(int(first), int(last or first) + 1))
    return siblings
