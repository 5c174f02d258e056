"""The heap recorder, against allocations whose sizes are known."""

import pytest
import torch

from wavelet.profiling.heap import HeapRecord

KIB = 256  # float32 elements


def test_marks_say_what_is_held_and_the_peak_since_the_mark_before():
    kept = []

    with HeapRecord(torch.device("cpu")) as record:
        kept.append(torch.empty(16 * KIB))
        record.mark("kept 16")
        passing = torch.empty(100 * KIB)
        del passing
        record.mark("100 passed")
        kept.append(torch.empty(4 * KIB))
    assert [(mark.name, mark.held // 1024, mark.peak // 1024) for mark in record.marks] == [
        ("kept 16", 16, 16),
        ("100 passed", 16, 116),
        ("end", 20, 20),
    ]


def test_a_backward_is_seen():
    weight = torch.ones(64 * KIB, requires_grad=True)

    with HeapRecord(torch.device("cpu")) as record:
        loss = (weight * 2).sum()
        record.mark("forward")
        loss.backward()
    forward, end = record.marks
    assert forward.peak >= 64 * 1024
    assert end.held // 1024 == 64, "the gradient"


def test_bytes_that_count_elsewhere():
    with HeapRecord(torch.device("cpu")) as record:
        kept = torch.empty(16 * KIB)
        record.discount(10 * 1024)
        record.mark("now")
    assert [(mark.held // 1024, mark.peak // 1024) for mark in record.marks] == [(6, 16), (6, 6)]
    assert kept.nbytes == 16 * 1024


def test_a_profiler_of_the_users_is_a_clear_error():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(ValueError, match="one is running already"):
            HeapRecord(torch.device("cpu")).__enter__()


def test_nothing_is_printed(capfd):
    old = torch.ones(1000)
    with HeapRecord(torch.device("cpu")):
        del old
    assert capfd.readouterr() == ("", "")
