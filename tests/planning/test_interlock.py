"""The interlock's promise, against a walk of every interleaving that shares no code with the planner."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavelet.planning import Chain, Interlock, best_interlock, least_budget, seconds_per_batch

small = st.integers(0, 4)


@st.composite
def chains(draw, max_blocks=4):
    num_blocks = draw(st.integers(1, max_blocks))

    def row():
        return tuple(draw(small) for _ in range(num_blocks))

    parts = {
        "saved": row(),
        "gradients": row(),
        "forward_transient": row(),
        "backward_transient": row(),
        "update_transient": draw(small),
    }
    seconds = {
        "forward_seconds": (1.0,) * num_blocks,
        "backward_seconds": (2.0,) * num_blocks,
        "update_seconds": draw(st.sampled_from([0.0, 1.0])),
    }
    return Chain.of_parts(**parts, **seconds), parts


def walk(parts, table):
    """The most bytes in any state that can be reached, one event at a time, from five batches that have not begun.

    A batch's place: 0 to L rising (in that block), then L + 1 + i where i counts what its backward has left, up to
    2L + 1, and 2L + 2 once its turn is done.
    """
    num_blocks, waves = len(table), len(table[0]) + 1
    count = waves + 3

    def held(place):
        if place <= num_blocks:
            return 0 if place == 0 else sum(parts["saved"][:place]) + parts["forward_transient"][place - 1]
        left = place - num_blocks - 1
        if left == num_blocks + 1:
            return 0
        gradients = sum(parts["gradients"][num_blocks - left :]) if left else 0
        if left == num_blocks:
            return gradients + parts["update_transient"]
        block = num_blocks - left - 1
        return sum(parts["saved"][: block + 1]) + gradients + parts["backward_transient"][block]

    def may_step(places, n):
        place, end = places[n], 2 * num_blocks + 2
        if place == end:
            return False
        if place == 0 and ((n > 0 and places[n - 1] <= num_blocks) or (n >= waves and places[n - waves] != end)):
            return False
        if place < num_blocks:
            for back, needed in enumerate(table[place], start=1):
                if n >= back and places[n - back] - num_blocks - 1 < needed:
                    return False
        return place != end - 1 or n == 0 or places[n - 1] == end

    start = (0,) * count
    seen, waiting, most = {start}, [start], 0
    while waiting:
        places = waiting.pop()
        most = max(most, sum(map(held, places)))
        for n in range(count):
            if may_step(places, n):
                after = (*places[:n], places[n] + 1, *places[n + 1 :])
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
    return most


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains(), st.data())
def test_the_worst_state_is_that_of_a_walk_through_all_interleavings(drawn, data):
    chain, parts = drawn
    waves = data.draw(st.sampled_from([2, 2, 3])) if chain.num_blocks <= 2 else 2
    columns = [
        sorted(
            data.draw(
                st.lists(st.integers(0, chain.num_blocks + 1), min_size=chain.num_blocks, max_size=chain.num_blocks)
            )
        )
        for _ in range(waves - 1)
    ]
    table = Interlock(tuple(zip(*columns, strict=True)))
    assert least_budget(chain, table) == walk(parts, table.entries)


def all_tables(num_blocks, waves):
    column = [c for c in product(range(num_blocks + 2), repeat=num_blocks) if list(c) == sorted(c)]
    for columns in product(column, repeat=waves - 1):
        yield Interlock(tuple(zip(*columns, strict=True)))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains(max_blocks=3), st.sampled_from([1.0, 1.1, 1.3, 1.6, 2.0]))
def test_two_waves_get_the_fastest_of_all_tables_that_fit(drawn, ratio):
    chain, parts = drawn
    budget = int(chain.peak * ratio)
    found = best_interlock(chain, 2, budget)
    assert walk(parts, found.entries) <= budget
    fitting = [table for table in all_tables(chain.num_blocks, 2) if walk(parts, table.entries) <= budget]
    assert seconds_per_batch(chain, found) == min(seconds_per_batch(chain, table) for table in fitting)
    assert all(mine <= other for table in fitting for mine, other in zip(found.entries, table.entries, strict=True)), (
        "the least table of all"
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(chains(max_blocks=2), st.sampled_from([1.0, 1.2, 1.6, 2.0, 2.6, 3.0]))
def test_three_waves_fit_and_no_entry_can_be_lowered(drawn, ratio):
    chain, parts = drawn
    budget = int(chain.peak * ratio)
    found = best_interlock(chain, 3, budget)
    assert walk(parts, found.entries) <= budget
    for block, back in product(range(chain.num_blocks), range(2)):
        lowered = [list(entry) for entry in found.entries]
        lowered[block][back] -= 1
        try:
            table = Interlock(tuple(map(tuple, lowered)))
        except ValueError:
            continue
        assert walk(parts, table.entries) > budget


def test_three_waves_on_a_long_chain_fit_too():
    """Searched in groups of blocks: the bound holds for the table of blocks, of which every state is looked at."""
    saved = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]
    chain = Chain.of_parts(saved, [1] * 17, backward_transient=[2, 7] * 8 + [2], forward_seconds=(1.0,) * 17)
    for ratio in (1.0, 1.4, 2.2):
        budget = int(chain.peak * ratio)
        found = best_interlock(chain, 3, budget)
        assert found.num_blocks == 17
        assert least_budget(chain, found) <= budget


def uniform(num_blocks, ratio):
    """Forward 1 unit and backward 2 in all, no gradients: as the interlock of a budget of ``ratio`` batches."""
    chain = Chain.of_parts(
        (1,) * num_blocks,
        (0,) * num_blocks,
        forward_seconds=(1 / num_blocks,) * num_blocks,
        backward_seconds=(2 / num_blocks,) * num_blocks,
    )
    return chain, best_interlock(chain, 2, int(ratio * num_blocks))


@pytest.mark.parametrize(("ratio", "units"), [(1.0, 2.0), (1.25, 1.5), (2.0, 1.5)])
def test_seconds_of_schedules_made_by_hand(ratio, units):
    """With many blocks: at 1.0 a forward goes only as fast as the other's backward empties the memory before it."""
    assert seconds_per_batch(*uniform(80, ratio)) == pytest.approx(units, abs=0.05)


def test_one_wave_takes_forward_and_backward():
    chain, _ = uniform(8, 2.0)
    assert seconds_per_batch(chain, best_interlock(chain, 1, 8)) == pytest.approx(3.0)


def test_the_naive_rules_counterexamples():
    """What gradients grow to while activations shrink, and what two waves hold that only wait for backward."""
    growing = Chain.of_parts((1, 1), (0, 3))
    assert least_budget(growing, Interlock(((0,), (0,)))) == 8
    assert least_budget(growing, best_interlock(growing, 2, 5)) <= 5
    waiting = Chain.of_parts((2, 2), (1, 1))
    assert waiting.peak == 4
    assert least_budget(waiting, Interlock(((2,), (2,)))) == 6
    assert least_budget(waiting, best_interlock(waiting, 2, 4)) == 4


def test_a_budget_below_one_batch_is_refused():
    with pytest.raises(ValueError, match="one batch alone needs 4 bytes"):
        best_interlock(Chain.of_parts((2, 2), (0, 0)), 2, 3)


@pytest.mark.parametrize("entries", [(), ((0,), (0, 0)), ((3,), (2,)), ((0,), (4,)), ((-1,), (0,))])
def test_tables_that_make_no_sense_are_refused(entries):
    with pytest.raises(ValueError, match=r"interlock needs|positions must"):
        Interlock(entries)
