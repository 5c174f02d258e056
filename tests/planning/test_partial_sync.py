"""Plans of partial synchronisation, against every division of few layers and a link that is played event by event."""

import json
import math
from itertools import chain, combinations_with_replacement, pairwise, permutations, product

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavelet.planning import PartialSyncPlan, exposed_seconds, other_waits, partial_sync
from wavelet.planning.overlap import LayerTimes
from wavelet.planning.partition import contiguous_parts
from wavelet.planning.trades import traded

counts = st.integers(0, 6)
"""Small whole numbers, so that sums are exact and layers often tie or just fit."""

floats = st.floats(0, 10, allow_subnormal=False)

MANY = settings(max_examples=120, deadline=None, derandomize=True)


def layers_of(seconds, most):
    pairs = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=most)
    return pairs.map(lambda layers: tuple(zip(*layers, strict=True)))


def played(backward, communication, layers):
    """The wait, from a play of what happens: a gradient gets there, or a sending ends and the next one begins."""
    events = []
    now = 0.0
    for layer, seconds in enumerate(backward):
        now += seconds
        events.append((now, 0, layer))
    end_of_backward = last_sent = now
    queue, sending, events = [], False, sorted(events)
    while events:
        now, kind, layer = events.pop(0)
        if kind == 0 and layer in layers:
            queue.append(layer)
        if kind == 1:
            sending = False
            last_sent = max(last_sent, now)
        if queue and not sending:
            sending = True
            layer = queue.pop(0)
            events = sorted([*events, (now + communication[layer], 1, layer)])
    return last_sent - end_of_backward


def total(backward, communication, parts):
    return math.fsum(played(backward, communication, part) for part in parts)


def least_of_stretches(backward, communication, period):
    count = len(backward)
    return min(
        total(backward, communication, [range(*ends) for ends in pairwise((0, *inner, count))])
        for inner in combinations_with_replacement(range(count + 1), period - 1)
    )


def least_of_all(backward, communication, period):
    return min(
        total(backward, communication, [[n for n, part in enumerate(parts) if part == h] for h in range(period)])
        for parts in product(range(period), repeat=len(backward))
    )


def own_layers(plan):
    return [sorted(set(layers) - set(extra)) for layers, extra in zip(plan.assignment, plan.extra, strict=True)]


def check_promises(plan, backward, communication, period):
    """What every plan keeps, recomputed from the plan's layers alone."""
    assert plan.period == period == len(plan.waits)
    assert sorted(chain(*own_layers(plan))) == list(range(len(backward))), "each once, besides the early ones"
    for layers, extra, own, wait in zip(plan.assignment, plan.extra, own_layers(plan), plan.waits, strict=True):
        assert list(layers) == sorted(set(layers))
        assert set(extra) <= set(layers)
        assert wait == exposed_seconds(backward, communication, layers)
        assert wait == pytest.approx(played(backward, communication, layers), abs=1e-9 * plan.times.ready[-1])
        assert wait <= exposed_seconds(backward, communication, own), "filling costs nothing"
    assert plan.wait_seconds == math.fsum(plan.waits)
    assert plan.wait_seconds <= plan.contiguous_wait_seconds * (1 + 1e-9)


def test_the_worked_case():
    """Four equal layers: the first two are sent behind the backward, the last two cannot be."""
    backward, communication = [1.0] * 4, [1.5] * 4
    plan = partial_sync(backward, communication, 2)
    assert own_layers(plan) == [[0, 1], [2, 3]]
    assert plan.waits == (0.0, 2.0)
    assert plan.wait_seconds == plan.contiguous_wait_seconds == 2.0
    assert plan.optimal and not plan.improved
    assert plan.extra == ((), (0,)), "the link idles until layer 2 is there: room for layer 0, from 1.0 to 2.5"
    assert exposed_seconds(backward, communication, range(4)) == 3.0
    assert other_waits(backward, communication, 2) == plan.others == (6.0, 6.0)


def test_layers_that_do_not_adjoin_can_wait_less():
    """Layer 1 needs the link until the end, and layers 0 and 2 just fit together: a stretch cannot leave 1 out."""
    plan = partial_sync([1, 1, 4, 4], [5, 8, 4, 0], 2)
    assert (plan.contiguous_wait_seconds, plan.wait_seconds) == (4.0, 0.0)
    assert {0, 2} < set(plan.assignment[0]) and plan.assignment[1] == (1, 3)
    assert plan.improved and plan.optimal


@MANY
@given(layers_of(counts, 8), st.integers(1, 4))
def test_stretches_are_the_best_of_all_stretches(layers, period):
    plan = partial_sync(*layers, period)
    check_promises(plan, *layers, period)
    assert plan.contiguous_wait_seconds == least_of_stretches(*layers, period)


@MANY
@given(layers_of(counts, 6), st.integers(1, 3))
def test_few_layers_get_the_best_of_all_divisions(layers, period):
    plan = partial_sync(*layers, period)
    assert plan.wait_seconds == least_of_all(*layers, period)
    assert plan.optimal


@MANY
@given(layers_of(floats, 6), st.integers(1, 3))
def test_fractions_of_seconds(layers, period):
    plan = partial_sync(*layers, period)
    check_promises(plan, *layers, period)
    nearly = 1e-9 * (sum(layers[0]) + sum(layers[1]))
    assert plan.contiguous_wait_seconds == pytest.approx(least_of_stretches(*layers, period), abs=nearly)
    assert plan.wait_seconds == pytest.approx(least_of_all(*layers, period), abs=nearly)


def random_layers(seed, num_layers, load):
    """With a load of 1 all communication of a period takes as long as all its backwards, of 10 iterations."""
    draw = numpy.random.default_rng(seed)
    backward, communication = draw.uniform(0.2, 1.8, num_layers), draw.lognormal(0, 1, num_layers)
    return backward.tolist(), (communication * load * 10 * backward.sum() / communication.sum()).tolist()


@pytest.mark.parametrize(("num_layers", "load"), [(30, 0.9), (40, 0.5), (40, 0.9), (80, 0.6)])
def test_many_layers(num_layers, load):
    """Here the search leaves divisions out, and trades come after it."""
    layers = random_layers(num_layers, num_layers, load)
    plan = partial_sync(*layers, 10)
    check_promises(plan, *layers, 10)
    assert plan.improved
    assert not plan.optimal
    assert plan == partial_sync(*layers, 10), "the same numbers give the same plan"
    units = partial_sync(*([seconds * 2**20 for seconds in each] for each in layers), 10)
    assert units.assignment == plan.assignment, "in any unit"


@pytest.mark.parametrize("seed", range(8))
def test_trades_end_where_no_move_and_no_swap_waits_less(seed):
    layers = random_layers(seed, 20, 0.3)
    times = LayerTimes.of(*layers)
    before = contiguous_parts(times, 4)
    parts = traded(times, before)
    least = total(*layers, parts)
    assert least <= total(*layers, before)
    assert sorted(chain(*parts)) == list(range(20))
    for one, other in permutations(range(4), 2):
        for gone, taken in product([[], *([layer] for layer in parts[one])], [[], *([n] for n in parts[other])]):
            others = [part for index, part in enumerate(parts) if index not in (one, other)]
            new_one, new_other = {*parts[one], *taken} - {*gone}, {*parts[other], *gone} - {*taken}
            assert total(*layers, [*others, new_one, new_other]) >= least * (1 - 1e-8)


@MANY
@given(layers_of(counts, 8), st.integers(2, 4))
def test_nothing_more_fits(layers, period):
    """Every early layer that could still be sent without waiting longer is sent."""
    plan = partial_sync(*layers, period)
    for sent, wait in zip(plan.assignment, plan.waits, strict=True):
        for layer in set(range(len(layers[0]))) - set(sent):
            assert exposed_seconds(*layers, [*sent, layer]) > wait


def test_filling_prefers_what_drifted_apart_for_long_and_would_go_on_to():
    """Two layers fit behind each backward: all of them go every other time, though the first were the first again."""
    plan = partial_sync([0, 0, 0, 0, 8], [4, 4, 4, 4, 0], 4)
    assert own_layers(plan) == [[0, 1], [2, 3, 4], [], []]
    assert plan.assignment == ((0, 1, 4), (2, 3, 4), (0, 1, 4), (2, 3, 4))


def test_period_1_sends_everything():
    plan = partial_sync([1, 2, 3], [4, 5, 6], 1)
    assert plan.assignment == ((0, 1, 2),)
    assert plan.waits == (10.0,)
    assert plan.others == (10.0, 15.0)


def test_more_iterations_than_layers():
    plan = partial_sync([1, 1], [1, 5], 5)
    check_promises(plan, [1, 1], [1, 5], 5)
    assert plan.wait_seconds == 5.0
    assert all(0 in layers for layers in plan.assignment), "layer 0 always fits"
    assert sum(1 in layers for layers in plan.assignment) == 1


@pytest.mark.parametrize("unit", [0.0, 5e-324, 1e-300, 1e290])
def test_no_time_and_much_time(unit):
    layers = [unit * 3, 0, unit * 2, unit], [unit, unit * 4, 0, unit * 7]
    plan = partial_sync(*layers, 2)
    check_promises(plan, *layers, 2)
    assert plan.wait_seconds == unit * 8, "layer 3 is sent from 7 to 14 units, and the backward ends at 6"
    assert str(plan)


def test_a_layer_of_most_of_the_time():
    layers = [1e-12, *[1e300] * 4], [1.5e300] * 5
    plan = partial_sync(*layers, 2)
    check_promises(plan, *layers, 2)
    assert str(plan)


@pytest.mark.parametrize(
    ("backward", "communication", "period", "message"),
    [
        ([1, -1], [1, 1], 2, r"backward_seconds\[1\] is -1: use a finite number of seconds, 0 or more"),
        ([1, 1], [math.nan, 1], 2, r"communication_seconds\[0\] is nan"),
        ([1, 1], [1, math.inf], 2, r"communication_seconds\[1\] is inf"),
        ([1, "1"], [1, 1], 2, r"backward_seconds\[1\] is '1'"),
        ([True], [1], 2, r"backward_seconds\[0\] is True"),
        ([1, 1], [1], 2, "has 2 entries and communication_seconds 1: give one of each"),
        ([], [], 2, "backward_seconds is empty"),
        ([1e308, 1e308], [1, 1], 2, "too large to add up"),
        ([1], [1], 0, "period=0 makes no sense: use a whole number"),
        ([1], [1], -3, "period=-3"),
        ([1], [1], 1.0, r"period=1\.0"),
        ([1], [1], True, "period=True"),
    ],
)
def test_arguments_that_make_no_sense(backward, communication, period, message):
    for plan in (partial_sync, other_waits):
        with pytest.raises(ValueError, match=message):
            plan(backward, communication, period)


@pytest.mark.parametrize(
    ("layers", "message"),
    [([2], "layer 2 is not there: use indices from 0 to 1"), ([-1], "layer -1"), ([0, 0], "named twice")],
)
def test_layers_that_are_not_there(layers, message):
    with pytest.raises(ValueError, match=message):
        exposed_seconds([1, 1], [1, 1], layers)


def test_seconds_of_one_iteration():
    assert exposed_seconds([1, 1], [1, 3], []) == 0
    assert exposed_seconds([1, 1], [1, 3], [0]) == 0
    assert exposed_seconds([1, 1], [1, 3], [1, 0]) == 3, "in backward order, however they are named"
    assert exposed_seconds(numpy.float32([1, 1]), numpy.array([2, 3]), [0, 1]) == 4


def test_to_json_and_back():
    plan = partial_sync(*random_layers(0, 12, 0.4), 3)
    again = PartialSyncPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.assignment == plan.assignment and isinstance(again.assignment[0], tuple)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"waits": [0.0, 1.0]}, "'waits' are not those of its layers"),
        ({"waits": [0.0]}, "not for the same number of iterations"),
        ({"extra": [[], []]}, "every layer once"),
        ({"extra": [[], [1]]}, "not among those of their iteration"),
        ({"assignment": [[0], [0, 2, 3]]}, "every layer once"),
        ({"assignment": [[1, 0], [0, 2, 3]]}, "indices of layers, ascending"),
        ({"assignment": [[0, 1], [0, 2, 4]]}, "indices of layers, ascending"),
        ({"assignment": [[0, 1], [0, 2, 3.0]]}, "indices of layers, ascending"),
        ({"assignment": [], "extra": [], "waits": []}, "same number of iterations"),
        ({"backward_seconds": [1, 1, 1, math.nan]}, r"'backward_seconds\[3\]' is nan"),
        ({"backward_seconds": [1, 1, 1]}, "no times, or not both"),
        ({"contiguous_wait_seconds": 1.0}, "less than it waits"),
        ({"optimal": 1}, "'optimal' is 1"),
        ({"more": 1}, "a field is broken"),
        ({"assignment": None}, "a field is broken"),
    ],
)
def test_files_that_were_changed(change, message):
    fields = json.loads(json.dumps(partial_sync([1.0] * 4, [1.5] * 4, 2).to_json()))
    with pytest.raises(ValueError, match=message):
        PartialSyncPlan.from_json({**fields, **change})


def test_files_that_lack_something():
    fields = partial_sync([1.0] * 4, [1.5] * 4, 2).to_json()
    for name in fields:
        with pytest.raises(ValueError, match=f"'{name}' is missing|a field is broken"):
            PartialSyncPlan.from_json({key: value for key, value in fields.items() if key != name})
    with pytest.raises(ValueError, match="takes the mapping"):
        PartialSyncPlan.from_json(json.dumps(fields))
