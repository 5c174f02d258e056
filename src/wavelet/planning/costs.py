"""What an all-reduce costs, in seconds and in bytes: α-β costs of a ring, a binary tree, and rings in two levels.

α is the latency of a message and 1/β the bandwidth of a link, as in Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH" (2005) and Shi et al., "A DAG Model of Synchronous Stochastic Gradient
Descent in Distributed Deep Learning" (2018). The sums themselves count as nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Algorithm", "Link", "all_reduce_seconds", "sent_bytes", "two_level_seconds"]

Algorithm = Literal["ring", "tree"]


@dataclass(frozen=True)
class Link:
    """What joins two ranks.

    Args:
        bytes_per_second: in each direction, both at once; may be infinite.
        latency: seconds of a message of no bytes.
    """

    bytes_per_second: float
    latency: float

    def seconds(self, size: float) -> float:
        """Of one message of so many bytes: α + S/B."""
        return self.latency + size / self.bytes_per_second


def all_reduce_seconds(algorithm: Algorithm, num_ranks: int, size: float, link: Link) -> float:
    """Seconds until every rank has the sum.

    Args:
        algorithm: ``"ring"``: 2(N−1) steps, each of S/N bytes: 2(N−1)(α + S/(N·B)). ``"tree"``: the sum goes up a
            binary tree and down again, whole at each of its ⌈log₂ N⌉ levels: 2⌈log₂ N⌉(α + S/B).
        num_ranks: N; one rank alone needs nothing.
        size: S, the bytes that each rank gives; nothing to give costs nothing.
        link: of every rank.
    """
    if num_ranks == 1 or size == 0:
        return 0.0
    if algorithm == "ring":
        return 2 * (num_ranks - 1) * link.seconds(size / num_ranks)
    return 2 * math.ceil(math.log2(num_ranks)) * link.seconds(size)


def two_level_seconds(
    algorithm: Algorithm, num_hosts: int, ranks_per_host: int, size: float, inter: Link, intra: Link
) -> float:
    """Seconds of an all-reduce that goes inside each host first: reduce-scatter there, all-reduce among hosts, gather.

    Inside a host each rank gets the sum of a share of S/r bytes, in a ring of r−1 steps. The r ranks of a host then
    all-reduce their shares among the hosts side by side, over the host's one link, which carries S bytes in all; and
    another r−1 steps give every rank everything.

    Args:
        algorithm: among hosts.
        num_hosts: how many.
        ranks_per_host: r.
        size: S, the bytes that each rank gives.
        inter: the link of each host.
        intra: of each rank to the other ranks of its host.
    """
    if size == 0:
        return 0.0
    inside = 2 * (ranks_per_host - 1) * intra.seconds(size / ranks_per_host)
    return inside + all_reduce_seconds(algorithm, num_hosts, size, inter)


def sent_bytes(num_ranks: int, size: float) -> float:
    """Bytes that a rank sends in an all-reduce of ``size`` bytes: 2(N−1)/N · S.

    In a ring each rank sends so many. In a tree, and in two levels, the ranks differ, and this is their mean.
    """
    return 2 * (num_ranks - 1) / num_ranks * size
