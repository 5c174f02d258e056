"""What each way to train gives on a cluster: seconds of an iteration and what they are spent on, over ranks and links.

Efficiency is the speed over that of the same ranks if each trained for itself, in the ordinary loop, at its own speed
and without stragglers. Waves that gain in compute can have more than 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wavelet.planning.cluster import Cluster
from wavelet.planning.events import happen
from wavelet.planning.layers import Layers
from wavelet.planning.strategies import Strategy

__all__ = ["Outcome", "compare", "over_bandwidths", "over_ranks", "simulate_strategy"]

WARM_UP, MEASURED = 6, 12
"""Iterations, at least; without stragglers everything is periodic after a few."""

MEASURED_WITH_STRAGGLERS = 48

LayersFor = Callable[[Strategy], Layers]
"""Seconds depend on how many waves share a host."""


@dataclass(frozen=True)
class Outcome:
    """One strategy on one cluster. Seconds are means over iterations, and the three parts, which add up to the
    iteration, over ranks too.

    Args:
        strategy: its name.
        of_weights: whether weights are exchanged, every H iterations, and not gradients.
        num_ranks: N.
        seconds: of an iteration, as the last rank ends it.
        compute_seconds: in which a rank computes.
        exposed_seconds: in which it does not, while an exchange is going on.
        waiting_seconds: in which it does not, and no exchange is going on: for slower ranks, or for input.
        sent_bytes: by a rank, an iteration.
        samples_per_second: of all ranks.
        efficiency: see above.
    """

    strategy: str
    of_weights: bool
    num_ranks: int
    seconds: float
    compute_seconds: float
    exposed_seconds: float
    waiting_seconds: float
    sent_bytes: float
    samples_per_second: float
    efficiency: float


def simulate_strategy(strategy: Strategy, layers: Layers, cluster: Cluster, alone: float) -> Outcome:
    """Simulate one strategy in the steady state.

    Args:
        strategy: which.
        layers: what it computes and sends; of its number of waves.
        cluster: on what.
        alone: seconds of an iteration of one rank of speed 1 in the ordinary loop.
    """
    cycle = math.lcm(strategy.period, strategy.waves)
    least = MEASURED_WITH_STRAGGLERS if cluster.has_stragglers else MEASURED
    warm_up, measured = (cycle * -(-count // cycle) for count in (WARM_UP, least))
    # Batches of the next waves compute beside the last iterations that count, as beside all others.
    tasks = strategy.tasks(layers, cluster, warm_up + measured + strategy.waves)
    happened = happen(tasks, cluster, layers.contention)
    first, last = warm_up - 1, warm_up + measured - 1
    seconds = float(happened.ends[last].max() - happened.ends[first].max()) / measured
    computed, exposed = (
        float(np.average(each[last] - each[first], weights=happened.num_ranks)) / measured
        for each in (happened.computed, happened.exposed)
    )
    # Ranks do not end an iteration at the same moment, so their means can be a little more than what the last one took.
    computed = min(computed, seconds)
    exposed = min(exposed, seconds - computed)
    sizes = [task.size for task in tasks if task.kind == "exchange" and 0 <= task.iteration - warm_up < measured]
    return Outcome(
        strategy=strategy.name,
        of_weights=strategy.of_weights,
        num_ranks=cluster.num_ranks,
        seconds=seconds,
        compute_seconds=computed,
        exposed_seconds=exposed,
        waiting_seconds=seconds - computed - exposed,
        sent_bytes=sum(map(cluster.sent_bytes, sizes)) / measured,
        samples_per_second=layers.samples * cluster.num_ranks / seconds,
        efficiency=cluster.num_ranks / seconds / (float(cluster.rank_speeds.sum()) / alone),
    )


def compare(strategies: Sequence[Strategy], layers_for: LayersFor, cluster: Cluster, alone: float) -> list[Outcome]:
    """Every strategy on one cluster.

    Args:
        strategies: which.
        layers_for: what each computes and sends.
        cluster: on what.
        alone: seconds of an iteration of one rank of speed 1 in the ordinary loop.
    """
    return [simulate_strategy(strategy, layers_for(strategy), cluster, alone) for strategy in strategies]


def over_ranks(
    strategies: Sequence[Strategy], layers_for: LayersFor, cluster: Cluster, alone: float, counts: Sequence[int]
) -> list[list[Outcome]]:
    """The same for each number of ranks; see `Cluster.resized`."""
    return [compare(strategies, layers_for, cluster.resized(count), alone) for count in counts]


def over_bandwidths(
    strategies: Sequence[Strategy], layers_for: LayersFor, cluster: Cluster, alone: float, rates: Sequence[float]
) -> list[list[Outcome]]:
    """The same for each bandwidth between hosts, in bytes a second."""
    return [compare(strategies, layers_for, cluster.with_bandwidth(rate), alone) for rate in rates]
