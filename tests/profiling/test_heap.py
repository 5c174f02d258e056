"""The heap recorder, against allocations whose sizes are known."""

import itertools

import torch

from wavelet.profiling.heap import record_heap

KIB = 256  # float32 elements


def test_marks_say_what_is_held_and_the_peak_since_the_mark_before():
    kept = []

    def work(mark):
        kept.append(torch.empty(16 * KIB))
        mark("kept 16")
        passing = torch.empty(100 * KIB)
        del passing
        mark("100 passed")
        kept.append(torch.empty(4 * KIB))

    marks = record_heap(work, torch.device("cpu"))
    assert [(mark.name, mark.held // 1024, mark.peak // 1024) for mark in marks] == [
        ("kept 16", 16, 16),
        ("100 passed", 16, 116),
        ("end", 20, 20),
    ]
    assert all(one.seconds <= other.seconds for one, other in itertools.pairwise(marks))


def test_a_backward_is_seen():
    weight = torch.ones(64 * KIB, requires_grad=True)

    def work(mark):
        loss = (weight * 2).sum()
        mark("forward")
        loss.backward()

    forward, end = record_heap(work, torch.device("cpu"))
    assert forward.peak >= 64 * 1024
    assert end.held // 1024 == 64, "the gradient"
