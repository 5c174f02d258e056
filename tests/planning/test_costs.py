"""What an all-reduce costs, against numbers worked out by hand."""

import math

import pytest

from wavelet.planning.costs import Link, all_reduce_seconds, sent_bytes, two_level_seconds
from wavelet.planning.quantities import bits_per_second, seconds_in

LINK = Link(bytes_per_second=100.0, latency=0.5)


def test_a_ring():
    """Four ranks, 400 bytes: 6 steps of 100 bytes, each 0.5 + 1 s."""
    assert all_reduce_seconds("ring", 4, 400.0, LINK) == 9.0


@pytest.mark.parametrize(("num_ranks", "levels"), [(2, 1), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_a_tree(num_ranks, levels):
    """Up and down, 400 bytes at each level: 0.5 + 4 s."""
    assert all_reduce_seconds("tree", num_ranks, 400.0, LINK) == 2 * levels * 4.5


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_one_rank_and_no_bytes_cost_nothing(algorithm):
    assert all_reduce_seconds(algorithm, 1, 400.0, LINK) == 0.0
    assert all_reduce_seconds(algorithm, 8, 0.0, LINK) == 0.0
    assert two_level_seconds(algorithm, 2, 4, 0.0, LINK, LINK) == 0.0


def test_a_ring_of_many_ranks_needs_twice_the_bytes_and_a_tree_log_n_times():
    free = Link(100.0, 0.0)
    assert all_reduce_seconds("ring", 4096, 400.0, free) == pytest.approx(2 * 4095 / 4096 * 4)
    assert all_reduce_seconds("tree", 4096, 400.0, free) == 2 * 12 * 4


def test_latency_is_what_a_tree_saves():
    slow = Link(1e9, 1e-3)
    assert all_reduce_seconds("tree", 1024, 1e3, slow) < all_reduce_seconds("ring", 1024, 1e3, slow) / 50


def test_two_levels():
    """Two hosts of four ranks, 400 bytes. Inside: 2 · 3 steps of 100 bytes, each 0.1 + 0.1 s. Among hosts: 2 steps in
    which the four ranks of a host send 200 bytes together: 0.5 + 2 s."""
    assert two_level_seconds("ring", 2, 4, 400.0, LINK, Link(1000.0, 0.1)) == pytest.approx(6 * 0.2 + 2 * 2.5)


def test_two_levels_with_one_rank_a_host_are_one_level():
    nothing = Link(1.0, 1.0)
    assert two_level_seconds("ring", 8, 1, 400.0, LINK, nothing) == all_reduce_seconds("ring", 8, 400.0, LINK)


def test_bytes_that_a_rank_sends():
    """Three ranks: in a ring each sends 4 messages of S/3; in a tree 2 go up and 2 go down, of S, from 3 ranks."""
    assert sent_bytes(3, 300.0) == pytest.approx(4 * 100.0) == pytest.approx(4 * 300.0 / 3)
    assert sent_bytes(1, 300.0) == 0.0


def test_rates_and_times_as_users_write_them():
    assert [bits_per_second(text) for text in ("8kbit", "1.5mbit", "10gbit")] == [8000, 1_500_000, 10**10]
    assert [seconds_in(text) for text in ("2s", "1ms", "0.5us", "10ns")] == pytest.approx([2, 1e-3, 5e-7, 1e-8])
    for text in ("1", "1 ms", "-1ms", "1m", "", "ms"):
        with pytest.raises(ValueError, match="makes no sense"):
            seconds_in(text)
    assert math.isclose(seconds_in("0ms"), 0)
