"""Each way to train on small cases worked out by hand, and all of them against the recurrence of the graph."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.planning.clusters import PAIR, TWO, reference
from wavelet.planning import Chain, Interlock, seconds_per_batch
from wavelet.planning.cluster import Cluster
from wavelet.planning.comparison import simulate_strategy
from wavelet.planning.costs import Link
from wavelet.planning.dag import Bucket, make_buckets
from wavelet.planning.events import happen
from wavelet.planning.layers import SHARED, Layers
from wavelet.planning.strategies import dream, local, naive, wait_free, waves
from wavelet.profiling.profile import NO_CONTENTION, Contention

ONE = Layers((1.0,), (2.0,), (4.0,), update=1.0, contention=NO_CONTENTION)


def outcome(strategy, layers=TWO, cluster=PAIR):
    return simulate_strategy(strategy, layers, cluster, layers.alone)


def ends(strategy, layers, count=3, cluster=PAIR):
    """When the update of each iteration ends on the first kind of rank."""
    happened = happen(strategy.tasks(layers, cluster, count), cluster, layers.contention)
    return happened.ends[:, 0].tolist()


def parts(found):
    return found.seconds, found.compute_seconds, found.exposed_seconds, found.waiting_seconds


def test_naive_is_the_sum():
    """Input 1, copy 1, forward 3, backward 7, all-reduce 11, update 1."""
    assert parts(outcome(naive())) == pytest.approx((24, 11, 11, 2))


def test_wait_free_backpropagation():
    """Forward to 3; layer 2 is down at 7 and sent from 7 to 13; layer 1 is down at 10 and sent to 18; updated at 19."""
    assert ends(wait_free(0), dataclasses.replace(TWO, input=0, copy=0)) == pytest.approx([19, 38, 57])
    found = outcome(wait_free(0))
    assert parts(found) == pytest.approx((19, 11, 8, 0))
    assert found.sent_bytes == 11


def test_one_bucket_leaves_when_all_is_down():
    """Down at 10, sent to 21, updated at 22."""
    assert parts(outcome(wait_free(math.inf))) == pytest.approx((22, 11, 11, 0))


def test_slow_input_is_what_an_iteration_takes():
    """max(t_io + t_h2d, …): the loader works on the next batch meanwhile."""
    found = outcome(wait_free(0), dataclasses.replace(TWO, input=30.0, copy=2.0))
    assert parts(found) == pytest.approx((32, 11, 8, 13))


@given(some.lists(some.tuples(*[some.floats(0.01, 10)] * 3), min_size=1, max_size=8), some.floats(0, 100))
@settings(max_examples=50, deadline=None)
def test_the_recurrence_of_wait_free_backpropagation(numbers, fetch):
    """τ_c(l) = max(τ_b(l) + t_b(l), τ_c(l+1) + t_c(l+1)), from the last layer to the first."""
    forward, backward, size = zip(*numbers, strict=True)
    begins, sent = sum(forward), 0.0
    for each, own in reversed(list(zip(backward, size, strict=True))):
        begins += each
        sent = max(begins, sent) + own
    layers = Layers(forward, backward, size, update=0.5, input=fetch)
    assert outcome(wait_free(0), layers).seconds == pytest.approx(max(fetch, sent + 0.5))


def test_two_waves_hide_the_exchange_behind_the_next_batch():
    """Batch 0: up to 1, down to 3, sent 3–7, updated at 8. Batch 1: up 1–2, down to 4, sent 7–11, updated at 12.
    Batch 2, when its wave is free: up 8–9, down to 11, sent 11–15, updated at 16."""
    assert ends(waves(2, 0), ONE) == pytest.approx([8, 12, 16])
    assert ends(wait_free(0), ONE) == pytest.approx([8, 16, 24])


def test_two_waves_that_share_a_host():
    """Work beside work takes twice as long. Up: 0–1, and batch 1 beside the backward: 1–3. Both are down beside each
    other: batch 0 at 5, batch 1 alone from then on, at 6. Sent 5–9 and 9–13, updated at 10 and 14. Batch 2: up 10–11,
    down at 13, sent 13–17, updated at 18."""
    assert ends(waves(2, 0), dataclasses.replace(ONE, contention=SHARED)) == pytest.approx([10, 14, 18])


def test_the_interlock_holds_a_forward_back():
    """Before block 2, batch n waits until batch n−1 has had its turn. Batch 0: up to 2, down to 4, sent to 6. Batch 1:
    block 1 2–3, block 2 6–7, down to 9, sent to 11. Batch 2: block 1 7–8, block 2 11–12, down to 14, sent to 16."""
    layers = Layers((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), contention=NO_CONTENTION)
    assert ends(waves(2, math.inf, Interlock(((0,), (3,)))), layers) == pytest.approx([6, 11, 16])
    assert ends(waves(2, math.inf, Interlock(((0,), (0,)))), layers) == ends(waves(2, math.inf), layers)


def test_local_sgd():
    """Forward 3, backward 7, update 1, twice; then 11 bytes. Nothing beside anything."""
    found = outcome(local(2))
    assert parts(found) == pytest.approx(((2 * 11 + 11) / 2, 11, 5.5, 0))
    assert found.sent_bytes == 5.5


def test_dream_ddp():
    """Four layers of 1 s backward and 1.5 s on the link, after a forward of 1 s. Iteration 0 sends the last two layers:
    down at 2 and 3, sent to 3.5 and 5, with the backward; updated at 6. Iteration 1, from 6: the first two are down at
    10 and 11, sent to 11.5 and 13, 2 after the backward; the last one is down at 8 and goes once more before them, for
    nothing; updated at 14."""
    layers = Layers((0.25,) * 4, (1.0,) * 4, (1.5,) * 4, update=1.0)
    assert ends(dream(2), layers, 4) == pytest.approx([6, 14, 20, 28])
    found = outcome(dream(2), layers)
    assert parts(found) == pytest.approx((7, 6, 1, 0))
    assert found.sent_bytes == 5 * 1.5 / 2


def test_a_period_longer_than_there_are_layers():
    """Layer 2 goes behind every backward, from 4 to 7; layer 1 in one iteration of five, 5 s after its backward."""
    layers = dataclasses.replace(TWO, bytes=(5.0, 3.0), input=0, copy=0)
    assert ends(dream(5), layers, 5) == pytest.approx([16, 27, 38, 49, 60])
    assert outcome(dream(5), layers).sent_bytes == pytest.approx((5 * 3 + 5) / 5)


def test_a_layer_without_weights_is_not_sent():
    layers = Layers((0.5, 0.5), (1.0, 1.0), (0.0, 1.0))
    cluster = dataclasses.replace(PAIR, inter=Link(1.0, 10.0))
    assert ends(dream(1), layers, 1, cluster) == pytest.approx([23]), "2 messages, each 10 s late, from 2 on"


@given(some.data())
@settings(max_examples=40, deadline=None)
def test_one_wave_is_ddp(data):
    layers = data.draw(any_layers())
    size = data.draw(some.sampled_from([0.0, 1.0, 5.0, math.inf]))
    assert ends(waves(1, size), layers, 5) == pytest.approx(ends(wait_free(size), layers, 5))


@some.composite
def any_layers(draw, contention=SHARED):
    seconds = some.floats(0, 5, allow_subnormal=False)
    count = draw(some.integers(1, 5))
    rows = [tuple(draw(some.lists(seconds, min_size=count, max_size=count))) for _ in range(3)]
    update, fetch, copy = (draw(seconds) for _ in range(3))
    return Layers(*rows, update=update + 0.1, input=fetch, copy=copy, contention=contention)


ALL = [naive(), wait_free(0), wait_free(4), waves(1, 0), waves(2, 4), waves(3, 0), local(3), dream(1), dream(3)]


@given(any_layers(NO_CONTENTION), some.sampled_from(ALL), some.integers(0, 9))
@settings(max_examples=120, deadline=None)
def test_every_strategy_is_its_graph(layers, strategy, seed):
    """Against the recurrence, rank by rank: slow hosts and stragglers, and no work slowed down by other work."""
    cluster = Cluster(
        hosts=4,
        inter=Link(2.0, 0.3),
        speeds=(1.0, 0.5, 1.0, 2.0),
        straggler_probability=0.4,
        straggler_slowdown=3.0,
        seed=seed,
    )
    tasks = strategy.tasks(layers, cluster, 7)
    slowdowns = cluster.slowdowns(7)
    wanted = reference(tasks, slowdowns)
    happened = happen(tasks, cluster, layers.contention)
    kinds, which = np.unique(slowdowns, axis=1, return_inverse=True)
    assert happened.num_ranks.sum() == 4
    for rank, kind in enumerate(np.ravel(which)):
        assert (kinds[:, kind] == slowdowns[:, rank]).all()
        updates = [end[rank] for task, end in zip(tasks, wanted, strict=True) if task.kind == "update"]
        assert happened.ends[:, kind] == pytest.approx(updates)
    moments = [end for task, end in zip(tasks, wanted, strict=True) if task.kind == "exchange"]
    assert happened.exchanges[:, 1] == pytest.approx([end[0] for end in moments])


@given(some.data())
@settings(max_examples=60, deadline=None)
def test_waves_without_a_network_are_those_of_one_device(data):
    """Against the simulation of one device, which was written for itself: contention and interlocks too."""
    seconds = some.floats(0.05, 3)
    count, num_waves = data.draw(some.integers(1, 4)), data.draw(some.integers(1, 3))
    forward, backward = (
        tuple(data.draw(some.lists(seconds, min_size=count, max_size=count))) for _ in ("forward", "backward")
    )
    update = data.draw(seconds)
    contention = data.draw(some.builds(Contention, some.floats(1, 3), some.floats(1, 3)))
    positions = [sorted(data.draw(some.integers(0, count + 1)) for _ in range(count)) for _ in range(num_waves - 1)]
    interlock = Interlock(tuple(zip(*positions, strict=True)) if positions else ((),) * count)
    chain = Chain.of_parts(
        [0] * count, [0] * count, forward_seconds=forward, backward_seconds=backward, update_seconds=update
    )
    layers = Layers(forward, backward, (1.0,) * count, update=update, contention=contention)
    alone = Cluster(hosts=1, inter=PAIR.inter)
    tasks = waves(num_waves, 0, interlock).tasks(layers, alone, 36)
    turns = happen(tasks, alone, contention).ends[:, 0]
    wanted = seconds_per_batch(chain, interlock, contention)
    assert (turns[35] - turns[11]) / 24 == pytest.approx(wanted)


def test_buckets_close_when_they_are_full():
    """In backward order 6, 0, 5, 1, 7 bytes; a layer without gradients needs no exchange."""
    layers = Layers((1.0,) * 5, (1.0,) * 5, (7.0, 1.0, 5.0, 0.0, 6.0))
    assert make_buckets(layers, 0) == [Bucket(6, 1), Bucket(5, 3), Bucket(1, 4), Bucket(7, 5)]
    assert make_buckets(layers, 10) == [Bucket(11, 3), Bucket(8, 5)]
    assert make_buckets(layers, math.inf) == [Bucket(19, 5)]
    assert make_buckets(layers, 0, only=(3, 0)) == [Bucket(6, 1), Bucket(1, 4)]
    assert make_buckets(Layers((1.0,), (1.0,), (0.0,)), 0) == []


def test_every_task_waits_for_tasks_before_it():
    for strategy in ALL:
        tasks = strategy.tasks(TWO, PAIR, 9)
        assert all(number < place for place, task in enumerate(tasks) for number in task.after)
        updates = [task.iteration for task in tasks if task.kind == "update"]
        assert updates == list(range(9))
        exchanges = [task.iteration for task in tasks if task.kind == "exchange"]
        assert all(before <= after for before, after in pairwise(exchanges))
