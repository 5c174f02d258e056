"""The stand-in for a GPU finds what it is made to find, and accepts what is ordered."""

import torch


def test_the_stand_in_finds_a_read_that_nothing_orders(machine):
    first, second = machine.cuda.Stream(), machine.cuda.Stream()
    with machine.on(first):
        tensor = torch.ones(3) * 2
    with machine.on(second):
        _ = tensor + 1
    assert len(machine.faults) == 1 and "reads what stream 1 still touches" in machine.faults[0]


def test_the_stand_in_finds_a_write_and_memory_taken_too_early(machine):
    first, second = machine.cuda.Stream(), machine.cuda.Stream()
    with machine.on(first):
        tensor = torch.ones(3) * 2
    second.wait_stream(first)
    with machine.on(second):
        _ = tensor + 1
    assert machine.faults == []
    with machine.on(first):
        tensor.mul_(2)
    assert "writes what stream 2 still touches" in machine.faults.pop()
    second.wait_stream(first)
    with machine.on(second):
        _ = tensor + 1
    del tensor
    with machine.on(first):
        torch.ones(3)
    assert "takes memory that stream 2 still touches" in machine.faults.pop()


def test_the_stand_in_accepts_what_events_order(machine):
    first, second = machine.cuda.Stream(), machine.cuda.Stream()
    with machine.on(first):
        tensor = torch.ones(3) * 2
    event = machine.cuda.Event()
    event.record(first)
    second.wait_event(event)
    with machine.on(second):
        _ = tensor + 1
    event.record(second)
    event.synchronize()
    with machine.on(first):
        tensor.mul_(2)
        del tensor
        torch.ones(3)
    assert machine.faults == []
