"""Signs of life where the store itself is what has failed: nobody waits for it."""

import threading
import time
from types import SimpleNamespace

import pytest

from wavelet.exchange import pulse as module
from wavelet.exchange.pulse import ExchangeError, Pulse


class Store:
    """A store of this process, which stops answering on command."""

    def __init__(self):
        self.values, self.cut = {}, threading.Event()

    def _answer(self):
        while self.cut.is_set():
            time.sleep(0.01)

    def set(self, key, value):
        self._answer()
        self.values[key] = value

    def get(self, key):
        self._answer()
        return self.values[key]

    def check(self, keys):
        self._answer()
        return all(key in self.values for key in keys)

    def compare_set(self, key, old, new):
        self._answer()
        return self.values.setdefault(key, new)

    def add(self, key, amount):
        self._answer()
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]


@pytest.fixture
def store(monkeypatch, no_thread_left):  # which looks after this one has waited
    found = Store()
    monkeypatch.setattr(Pulse, "_connect", lambda self: found)
    monkeypatch.setattr(module, "SECONDS", 0.05)
    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    yield found
    found.cut.clear()
    wait_for(lambda: not any(thread.name == "wavelet pulse" for thread in threading.enumerate()))


def pulse_of(rank, failures=None, doing="training"):
    group = SimpleNamespace(rank=lambda: rank, size=lambda: 2)
    return Pulse(
        group, "run", lambda: {"batches": 7, "doing": doing}, (failures if failures is not None else []).append
    )


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_store_that_never_answers_is_itself_the_explanation(store):
    pulse = pulse_of(1)
    store.cut.set()
    error = pulse.explain(RuntimeError("[pair.cc:5] Timed out waiting 57000ms"))
    assert isinstance(error, ExchangeError)
    assert error.suspect == 0
    assert "the host of rank 0 is gone or cut off (Timed out waiting 57000ms)" in str(error)
    pulse.tell("never mind")  # returns
    pulse.stop(together=False)


def test_the_rank_without_signs_is_named_with_what_it_did_last(store):
    other, pulse = pulse_of(1, doing="in the backward of batch 6"), pulse_of(0)
    wait_for(lambda: "sign 1" in store.values)
    other.stop(together=False)
    error = pulse.explain(RuntimeError("Connection closed by peer"))
    assert error.suspect == 1
    assert "rank 1 gives no sign of life; it was last seen in the backward of batch 6" in str(error)
    pulse.stop(together=False)


def test_a_rank_that_says_why_it_stops_is_believed_once(store):
    heard = []
    failing, pulse = pulse_of(1), pulse_of(0, heard)
    failing.tell("KeyError: 'a'")
    failing.tell("a second thought")
    failing.stop(together=False)
    wait_for(lambda: heard)
    pulse.stop(together=False)
    assert str(heard[0]) == "rank 1 has stopped: KeyError: 'a'"


def test_ranks_leave_together(store):
    first, second = pulse_of(0), pulse_of(1)
    leaving = threading.Thread(target=first.stop, kwargs={"together": True})
    leaving.start()
    second.stop(together=True)
    leaving.join(20)
    assert not leaving.is_alive()
    assert store.values["closed"] == 2
