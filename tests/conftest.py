"""Fixtures shared by all tests: fixed threads, and no wave's thread left behind."""

import os
import threading

# Before torch loads OpenMP: threads that wait must not spin, or several test processes on few cores stand still.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch


@pytest.fixture(autouse=True)
def _two_threads():
    torch.set_flush_denormal(False)  # a bench that ran in this process has set it
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_thread_left():
    """Every test leaves the process without a wave's thread, unless it says ``abandons_threads``."""
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("wavelet ")]
    assert not left, f"threads left: {left}"
