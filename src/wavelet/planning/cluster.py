"""A cluster: hosts with ranks, the links between them, how fast each is, and what its all-reduce costs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from wavelet.planning.costs import Algorithm, Link, all_reduce_seconds, sent_bytes, two_level_seconds

__all__ = ["MOST_RANKS", "Cluster", "Floats"]

Floats = NDArray[np.float64]

MOST_RANKS = 65_536
"""Above, a simulation with stragglers takes minutes, and no number of this model has been compared with anything."""


@dataclass(frozen=True)
class Cluster:
    """Hosts, all with as many ranks and the same link.

    Args:
        hosts: how many.
        inter: the link of each host to the others.
        ranks_per_host: how many train on each.
        intra: the link of each rank to the others of its host; None: an all-reduce does not care for hosts, and
            ``inter`` counts everywhere.
        all_reduce: among hosts; inside a host it is a ring.
        speeds: of each host, relative to the one whose seconds are given; of more hosts it goes round. Empty: all 1.
        straggler_probability: that a rank is slow in an iteration; for each rank and iteration on its own.
        straggler_slowdown: how many times as long its computation then takes.
        seed: of who is slow when.
        cpu_seconds_per_byte: of a rank's computing time that communication takes, for each byte that it sends.

    Raises:
        ValueError: a number that cannot be, in one sentence.
    """

    hosts: int
    inter: Link
    ranks_per_host: int = 1
    intra: Link | None = None
    all_reduce: Algorithm = "ring"
    speeds: tuple[float, ...] = ()
    straggler_probability: float = 0.0
    straggler_slowdown: float = 1.0
    seed: int = 0
    cpu_seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        _check(self.hosts >= 1, "hosts", self.hosts, "at least 1")
        _check(self.ranks_per_host >= 1, "ranks_per_host", self.ranks_per_host, "at least 1")
        _check(self.num_ranks <= MOST_RANKS, "hosts × ranks_per_host", self.num_ranks, f"at most {MOST_RANKS:,}")
        _check(self.all_reduce in get_args(Algorithm), "allreduce", self.all_reduce, '"ring" or "tree"')
        for name, link in (("", self.inter), ("intra_", self.intra)):
            if link is not None:
                _check(link.bytes_per_second > 0, f"{name}bandwidth", link.bytes_per_second, "above 0")
                _check(0 <= link.latency < np.inf, f"{name}latency", link.latency, "from 0 on")
        for speed in self.speeds:
            _check(0 < speed < np.inf, "a speed", speed, "above 0, where 1 is the host whose seconds are given")
        _check(0 <= self.straggler_probability <= 1, "straggler_probability", self.straggler_probability, "from 0 to 1")
        _check(1 <= self.straggler_slowdown < np.inf, "straggler_slowdown", self.straggler_slowdown, "from 1 on")
        _check(self.seed >= 0, "seed", self.seed, "from 0 on")
        _check(0 <= self.cpu_seconds_per_byte < np.inf, "cpu_seconds_per_byte", self.cpu_seconds_per_byte, "from 0 on")

    @property
    def num_ranks(self) -> int:
        """N."""
        return self.hosts * self.ranks_per_host

    @property
    def rank_speeds(self) -> Floats:
        """Of each rank, host by host."""
        speeds = np.resize(np.array(self.speeds or (1.0,), dtype=np.float64), self.hosts)
        return np.repeat(speeds, self.ranks_per_host)

    @property
    def has_stragglers(self) -> bool:
        """Whether anything is random."""
        return self.straggler_probability > 0 and self.straggler_slowdown > 1

    def all_reduce_seconds(self, size: float) -> float:
        """Seconds of an all-reduce of ``size`` bytes, from when the last rank is there; see `wavelet.planning.costs`.

        Where communication takes computing time, it cannot be faster than that computing.
        """
        if self.intra is None:
            seconds = all_reduce_seconds(self.all_reduce, self.num_ranks, size, self.inter)
        else:
            seconds = two_level_seconds(self.all_reduce, self.hosts, self.ranks_per_host, size, self.inter, self.intra)
        return max(seconds, self.cpu_seconds(size))

    def sent_bytes(self, size: float) -> float:
        """Bytes that a rank sends, on average, in an all-reduce of ``size`` bytes."""
        return sent_bytes(self.num_ranks, size)

    def cpu_seconds(self, size: float) -> float:
        """Seconds of computing time that an all-reduce of ``size`` bytes takes from a rank."""
        return self.cpu_seconds_per_byte * self.sent_bytes(size)

    def slowdowns(self, num_iterations: int) -> Floats:
        """How many times as long a rank computes in an iteration: one row an iteration, one column a rank.

        Iteration n is slow for the same ranks whatever the strategy, the number of iterations and the number of ranks.
        """
        rows = np.repeat(1 / self.rank_speeds[None, :], num_iterations, axis=0)
        if self.has_stragglers:
            for number in range(num_iterations):
                drawn = np.random.default_rng((self.seed, number)).random(self.num_ranks)
                rows[number, drawn < self.straggler_probability] *= self.straggler_slowdown
        return rows

    def resized(self, num_ranks: int) -> Cluster:
        """The same hosts, so many that they have ``num_ranks``; fewer than one host has: one host with so many.

        Raises:
            ValueError: they would not be whole hosts.
        """
        if num_ranks < self.ranks_per_host:
            return dataclasses.replace(self, hosts=1, ranks_per_host=num_ranks)
        if num_ranks % self.ranks_per_host:
            raise ValueError(
                f"{num_ranks} ranks are not whole hosts of {self.ranks_per_host}: give multiples of "
                f"{self.ranks_per_host}, or fewer than one host has"
            )
        return dataclasses.replace(self, hosts=num_ranks // self.ranks_per_host)

    def with_bandwidth(self, bytes_per_second: float) -> Cluster:
        """The same hosts with links of another bandwidth between them."""
        return dataclasses.replace(self, inter=dataclasses.replace(self.inter, bytes_per_second=bytes_per_second))


def _check(good: bool, name: str, value: Any, allowed: str) -> None:
    if not good:
        shown = repr(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
        raise ValueError(f"{name} is {shown}: it must be {allowed}")
