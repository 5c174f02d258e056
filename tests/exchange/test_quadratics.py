"""Where weights end on quadratics, as the formulas say."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import wavelet
from wavelet.exchange import CELGC, DreamDDP, LocalSGD

from .ranks import run

pytestmark = pytest.mark.distributed


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))


def quadratic(rank, size, choices, steps):
    """½h(w − c)² on each rank, h = (1, .5, 2, 1.5), c = (0, 1, 2, 3), rate 0.1, under each exchange.

    The weight before each update, after the last one, and after the flush.
    """
    h, c = (1, 0.5, 2, 1.5)[rank], float(rank)
    found = []
    for kind, arguments in choices:
        net, seen = Point(), []

        def loss(net, batch, seen=seen):
            seen.append(net.w.item())
            return 0.5 * h * (net.w - c) ** 2

        plain = torch.optim.SGD(net.parameters(), lr=0.1)
        with wavelet.Wavelet(net, plain, loss, waves=1, exchange=kind(**arguments)) as engine:
            for _ in range(steps):
                engine.step(torch.zeros(1))
            engine.drain()
            last = net.w.item()
        found.append((seen, last, net.w.item()))
    return found


def test_on_quadratics_weights_end_where_the_formulas_say():
    points = {1: 1.8, 2: 1.78378, 4: 1.75260, 10: 1.67225}
    choices = [(LocalSGD, {"period": period}) for period in points]
    found = run(quadratic, 4, [*choices, (DreamDDP, {"period": 1, "measure": False})], 140)
    for *local, dream in found:
        for (_, _, w), point in zip(local, points.values(), strict=True):
            assert w == pytest.approx(point, abs=1e-5)
        assert dream[2] == pytest.approx(1.772737, abs=1e-6)  # the mean, delayed by one update
    assert len({ranks[-1][1] for ranks in found}) == 4  # before the flush they are apart


def test_a_step_of_celgc_never_exceeds_its_bound_and_without_one_it_is_local_sgd():
    bounded, unbounded = {"period": 4, "max_norm": 0.01}, {"period": 4, "max_norm": float("inf")}
    found = run(quadratic, 2, [(CELGC, bounded), (CELGC, unbounded), (LocalSGD, {"period": 4})], 12)
    moved = set()
    for (seen, _, _), without, local in found:
        for number in range(3):
            moved |= {abs(b - a) for a, b in pairwise(seen[4 * number : 4 * number + 4])}
        assert without == local
    assert max(moved) <= 0.01
    assert max(moved) == pytest.approx(0.01, rel=1e-4)
