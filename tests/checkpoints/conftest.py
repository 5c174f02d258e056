"""Writing that takes its time."""

import time

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemWriter


@pytest.fixture
def slow_writing(monkeypatch):
    """Writing that surely has not begun when `save` returns; the training goes on meanwhile."""
    write = FileSystemWriter.write_data

    def later(self, plan, planner):
        time.sleep(0.3)
        return write(self, plan, planner)

    monkeypatch.setattr(FileSystemWriter, "write_data", later)
