"""Writing that takes its time."""

import time

import pytest

from wavelet.checkpoints import storage


@pytest.fixture
def slow_writing(monkeypatch):
    """Writing that surely has not begun when `save` returns; the training goes on meanwhile."""
    write = storage._write_file

    def later(path, tensors):
        time.sleep(0.3)
        return write(path, tensors)

    monkeypatch.setattr(storage, "_write_file", later)
