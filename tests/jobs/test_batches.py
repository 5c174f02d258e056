"""Loaders: drawn from the global generator alone, and apart on every rank."""

import pytest
import torch
import torch.distributed as dist

from wavelet.jobs.batches import RandomBatches, ordered_batches


def numbers(num_samples, batch_size):
    return RandomBatches(num_samples, batch_size, lambda drawn: drawn)


def pretend(monkeypatch, rank, world_size):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: world_size)


def test_a_pass_has_full_batches_only():
    batches = list(numbers(10, 4))
    assert len(numbers(10, 4)) == len(batches) == 2
    assert all(batch.shape == (4,) and batch.dtype == torch.int64 for batch in batches)


def test_batches_cover_all_samples_evenly():
    torch.manual_seed(0)
    loader = numbers(8, 4)
    drawn = torch.cat([batch for _ in range(500) for batch in loader])
    counts = torch.bincount(drawn, minlength=8)
    assert len(counts) == 8
    assert (counts - 500).abs().max() < 5 * (4000 * 1 / 8 * 7 / 8) ** 0.5


def test_the_generators_state_is_the_position():
    torch.manual_seed(3)
    loader = iter(numbers(1000, 4))
    for _ in range(5):
        next(loader)
    state = torch.get_rng_state()
    following = [next(loader) for _ in range(5)]
    torch.set_rng_state(state)
    resumed = [batch for batch, _ in zip(numbers(1000, 4), range(5), strict=False)]
    assert all(map(torch.equal, following, resumed))


def test_nothing_is_drawn_ahead():
    torch.manual_seed(0)
    first, *_ = torch.randint(100, (4,)), torch.rand(1)
    expected = torch.randint(100, (4,))
    torch.manual_seed(0)
    loader = iter(numbers(100, 4))
    assert torch.equal(next(loader), first)
    torch.rand(1)
    assert torch.equal(next(loader), expected)


def test_ranks_share_no_sample_and_have_as_many_batches(monkeypatch):
    drawn, lengths = [], []
    for rank in range(3):
        pretend(monkeypatch, rank, 3)
        torch.manual_seed(0)
        loader = numbers(20, 2)
        lengths.append(len(loader))
        drawn.append({int(number) for _ in range(50) for batch in loader for number in batch})
    assert lengths == [3, 3, 3]
    assert drawn == [set(range(rank, 18, 3)) for rank in range(3)]


def test_ranks_that_come_later_count(monkeypatch):
    loader = numbers(20, 2)
    pretend(monkeypatch, 1, 2)
    assert len(loader) == 5
    assert all((batch % 2 == 1).all() for batch in loader)


def test_one_real_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert len(list(numbers(20, 2))) == 10
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_a_batch_size_out_of_range_is_refused(batch_size):
    with pytest.raises(ValueError, match=rf"batch_size={batch_size} is not possible: give 1 to 10"):
        numbers(10, batch_size)


def test_a_batch_must_fit_into_one_ranks_samples(monkeypatch):
    pretend(monkeypatch, 0, 4)
    with pytest.raises(ValueError, match="give 1 to 2"):
        numbers(10, 3)


def test_ordered_batches_are_whole_and_in_order():
    assert [batch.tolist() for batch in ordered_batches(7, 3, lambda drawn: drawn)] == [[0, 1, 2], [3, 4, 5]]
    assert len(ordered_batches(6, 3, lambda drawn: drawn)) == 2
