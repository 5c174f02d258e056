"""One order on every rank: whatever order parts become ready in, they start by exchange and number."""

import random
import threading

import pytest

from wavelet.exchange.line import Line


@pytest.mark.parametrize("seed", range(20))
def test_parts_start_in_order_whatever_comes_first(seed):
    chance = random.Random(seed)
    sizes = [chance.randint(1, 4) for _ in range(6)]
    parts = [(exchange, number) for exchange, size in enumerate(sizes) for number in range(size)]
    started, line = [], Line()
    for exchange, size in enumerate(sizes):
        line.open(exchange, size)
    shuffled = chance.sample(parts, len(parts))
    threads = [
        threading.Thread(target=lambda part=part: line.put(*part, lambda: started.append(part))) for part in shuffled
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started == parts


def test_an_exchange_may_end_after_its_header():
    started, line = [], Line()
    line.open(0, 3)
    line.put(0, 0, lambda: started.append("header"))
    line.open(1, 1)
    line.put(1, 0, lambda: started.append("next"))
    assert started == ["header"]
    line.end(0, 1)
    assert started == ["header", "next"]
