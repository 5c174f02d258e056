"""Strategies on whole clusters: limits, what makes them slower, stragglers, and what they are compared with."""

import dataclasses
import math

import numpy as np
import pytest

from tests.planning.clusters import PAIR, TWO
from wavelet.planning.cluster import Cluster
from wavelet.planning.comparison import compare, over_bandwidths, over_ranks, simulate_strategy
from wavelet.planning.costs import Link
from wavelet.planning.layers import Layers
from wavelet.planning.strategies import dream, local, naive, wait_free, waves
from wavelet.profiling.profile import NO_CONTENTION

MIXED = Layers((1.0, 2.0, 0.5, 1.5), (3.0, 1.0, 2.5, 2.0), (9.0, 1.0, 6.0, 14.0), update=0.5, contention=NO_CONTENTION)
STRATEGIES = [naive(), wait_free(7), waves(2, 7), local(4), dream(4)]
SERIAL = [strategy for strategy in STRATEGIES if strategy.waves == 1]


def seconds(strategy, cluster, layers=MIXED):
    return simulate_strategy(strategy, layers, cluster, layers.alone).seconds


def stragglers(hosts, probability=0.1, slowdown=3.0, **more):
    return Cluster(
        hosts=hosts,
        inter=Link(math.inf, 0.0),
        straggler_probability=probability,
        straggler_slowdown=slowdown,
        **more,
    )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_without_a_network_to_wait_for_there_is_compute_alone(strategy):
    """Two waves that share a host compute as long as one."""
    from wavelet.planning.layers import SHARED

    layers = dataclasses.replace(MIXED, contention=SHARED)
    for cluster in (Cluster(hosts=64, inter=Link(math.inf, 0.0)), Cluster(hosts=1, inter=Link(1.0, 1.0))):
        found = simulate_strategy(strategy, layers, cluster, layers.alone)
        assert found.seconds == pytest.approx(MIXED.compute)
        assert found.compute_seconds == pytest.approx(MIXED.compute)
        assert found.efficiency == pytest.approx(1)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_what_is_slower_is_never_faster(strategy):
    """A slower link, a longer latency, more ranks, a slower host, more and slower stragglers."""
    rows = [
        [Cluster(hosts=8, inter=Link(rate, 0.01)) for rate in (100.0, 30.0, 10.0, 3.0, 1.0, 0.1)],
        [Cluster(hosts=8, inter=Link(10.0, latency)) for latency in (0.0, 0.01, 0.1, 1.0, 10.0)],
        [Cluster(hosts=hosts, inter=Link(10.0, 0.1)) for hosts in (1, 2, 4, 8, 64, 4096)],
        [Cluster(hosts=hosts, inter=Link(10.0, 0.1), all_reduce="tree") for hosts in (1, 2, 4, 8, 64, 4096)],
        [Cluster(hosts=2, inter=Link(10.0, 0.1), speeds=(1.0, speed)) for speed in (1.0, 0.8, 0.5, 0.1)],
        [stragglers(8, probability, 3.0) for probability in (0.0, 0.05, 0.2, 0.7, 1.0)],
        [stragglers(8, 0.2, slowdown) for slowdown in (1.0, 1.5, 2.0, 10.0)],
    ]
    for clusters in rows:
        found = [seconds(strategy, cluster) for cluster in clusters]
        assert found == sorted(found)


def test_the_order_of_the_strategies():
    """Overlap never loses against none, and a longer period of local SGD never against a shorter one."""
    for rate in (0.5, 5.0, 50.0):
        cluster = Cluster(hosts=8, inter=Link(rate, 0.0))
        assert seconds(wait_free(7), cluster) <= seconds(naive(), cluster)
        assert seconds(waves(2, 7), cluster) <= seconds(wait_free(7), cluster)
        assert seconds(dream(4), cluster) <= seconds(local(4), cluster)
        periods = [seconds(local(period), cluster) for period in (1, 2, 4, 8)]
        assert periods == sorted(periods, reverse=True)


def test_a_synchronous_exchange_waits_for_the_slowest_host():
    """The second host computes in 22 s what takes 11, and then come 11 s of all-reduce; one waits for the other."""
    cluster = dataclasses.replace(PAIR, speeds=(1.0, 0.5))
    layers = dataclasses.replace(TWO, input=0, copy=0)
    found = simulate_strategy(naive(), layers, cluster, layers.alone)
    # Backward ends at 10 and at 20; all-reduce to 31; updates end at 32 and at 33.
    assert found.seconds == pytest.approx(33)
    assert found.compute_seconds == pytest.approx((11 + 22) / 2)
    assert found.exposed_seconds == pytest.approx(11)
    assert found.waiting_seconds == pytest.approx((11 + 0) / 2)
    assert found.efficiency == pytest.approx(2 / 33 / (1 / 11 + 1 / 22))


def test_ranks_of_a_host_are_as_fast_as_the_host():
    cluster = Cluster(hosts=2, ranks_per_host=3, inter=PAIR.inter, speeds=(1.0, 0.5))
    assert cluster.slowdowns(2).tolist() == [[1, 1, 1, 2, 2, 2]] * 2
    assert cluster.resized(12).rank_speeds.tolist() == [1, 1, 1, 0.5, 0.5, 0.5] * 2
    assert cluster.resized(2).num_ranks == 2
    with pytest.raises(ValueError, match="4 ranks are not whole hosts of 3"):
        cluster.resized(4)


def test_communication_that_takes_computing_time():
    """Layer 2 is down at 2 and sent from 2 to 4, which takes half of the core: of 4 s of backward 1 is done by then.
    Layer 1 is down at 7, and sent to 8."""
    layers = Layers((0.0, 0.0), (4.0, 2.0), (1.0, 2.0))
    assert seconds(wait_free(0), PAIR, layers) == pytest.approx(7)
    found = simulate_strategy(wait_free(0), layers, dataclasses.replace(PAIR, cpu_seconds_per_byte=0.5), layers.alone)
    assert (found.seconds, found.compute_seconds, found.exposed_seconds) == pytest.approx((8, 7, 1))


def test_layers_that_are_sent_early_are_free_of_waiting_but_not_of_computing_time():
    """Layer 2 goes in both iterations of a period, layer 1 in one, which without cost to the core take 6 and 7. Layer 2
    is down at 2 and takes half of the core until 4: the backward ends at 7, and layer 1 is sent to 8. Local SGD sends
    beside nothing, for 3 s in two iterations of 6."""
    layers = Layers((0.0, 0.0), (4.0, 2.0), (1.0, 2.0))
    costly = dataclasses.replace(PAIR, cpu_seconds_per_byte=0.5)
    assert [seconds(dream(2), cluster, layers) for cluster in (PAIR, costly)] == pytest.approx([6.5, 7.5])
    assert [seconds(local(2), cluster, layers) for cluster in (PAIR, costly)] == pytest.approx([7.5, 7.5])


def test_communication_that_takes_all_computing_time():
    """Each byte takes 2 s of the core: sent from 2 to 6, while nothing is computed; down at 10, sent to 12."""
    layers = Layers((0.0, 0.0), (4.0, 2.0), (1.0, 2.0))
    assert seconds(wait_free(0), dataclasses.replace(PAIR, cpu_seconds_per_byte=2.0), layers) == pytest.approx(12)


def test_the_same_seed_gives_the_same_and_another_one_another():
    for strategy in STRATEGIES:
        first, again, other = (simulate_strategy(strategy, MIXED, stragglers(16, seed=s), 1.0) for s in (1, 1, 2))
        assert first == again
        assert first.seconds != other.seconds


def test_who_is_slow_does_not_depend_on_what_else_is_simulated():
    assert (stragglers(16).slowdowns(9)[:4] == stragglers(16).slowdowns(4)).all()
    assert (stragglers(16).slowdowns(4)[:, :5] == stragglers(5).slowdowns(4)).all()


def test_stragglers_against_what_is_expected():
    """One all-reduce an iteration: it takes as long as the slowest of N ranks, and with period H as the slowest sum."""
    ranks, probability, slowdown = 64, 0.02, 2.0
    cluster = stragglers(ranks, probability, slowdown)
    drawn = cluster.slowdowns(2000)
    expected = 1 + (slowdown - 1) * (1 - (1 - probability) ** ranks)
    spread = (slowdown - 1) / 2 / math.sqrt(2000)
    assert abs(drawn.max(axis=1).mean() - expected) < 4 * spread
    layers = dataclasses.replace(MIXED, update=0.0)
    for period, warm_up in ((1, 6), (4, 8), (12, 12)):
        sums = drawn[warm_up : warm_up + 48].reshape(-1, period, ranks).sum(axis=1)
        assert seconds(local(period), cluster, layers) == pytest.approx(sums.max(axis=1).sum() / 48 * layers.compute)
    assert seconds(naive(), cluster, layers) == pytest.approx(drawn[6:54].max(axis=1).mean() * layers.compute)


def test_a_rank_alone_waits_for_nobody():
    """It is slow as often as it is slow; the first 6 iterations, in whole periods of 4, do not count."""
    drawn = stragglers(1).slowdowns(56)[:, 0] * MIXED.compute
    for strategy in SERIAL:
        warm_up = 6 if strategy.period == 1 else 8
        assert seconds(strategy, stragglers(1)) == pytest.approx(drawn[warm_up : warm_up + 48].mean())


def test_ranks_and_bandwidths():
    cluster = Cluster(hosts=4, inter=Link(10.0, 0.1))
    setting = (STRATEGIES, lambda _: MIXED)
    whole = compare(*setting, cluster, MIXED.alone)
    assert [outcome.strategy for outcome in whole] == [strategy.name for strategy in STRATEGIES]
    assert over_ranks(*setting, cluster, MIXED.alone, [1, 4])[1] == whole
    assert over_bandwidths(*setting, cluster, MIXED.alone, [1.0, 10.0])[1] == whole
    for outcome in whole:
        parts = outcome.compute_seconds + outcome.exposed_seconds + outcome.waiting_seconds
        assert parts == pytest.approx(outcome.seconds)


def test_thousands_of_ranks_are_simulated():
    """As many as there may be, each with its own slow iterations, in steps of 300 layers."""
    rng = np.random.default_rng(0)
    forward, backward, size = (tuple(rng.random(300)) for _ in range(3))
    layers = Layers(forward, backward, size)
    cluster = dataclasses.replace(stragglers(4096, 0.01), inter=Link(100.0, 1e-4), all_reduce="tree")
    for outcome in compare(STRATEGIES, lambda _: layers, cluster, layers.alone):
        assert 0 < outcome.efficiency < 1
