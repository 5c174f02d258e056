"""The CPU device: memory that a step frees stays with the process, and the caller keeps its cores."""

import os
import platform
import subprocess
import sys

import pytest
import torch

import wavelet

from ..models import batches, loss, mlp

FAULTS = """
import resource, threading, torch
from wavelet.devices import make_device

def step():
    held = [torch.ones(2**18) for _ in range(16)]

def count():
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

for prepare in (lambda: None, lambda: make_device(torch.device("cpu"), 2, "auto")):
    prepare()
    for _ in range(23):
        step()
    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="another allocator may be loaded")
def test_freed_memory_is_kept():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    without, with_device = map(int, done.stdout.split())
    assert without > 20_000, "16 MiB a step, given back and faulted in again"
    assert with_device < 1_000


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_between_steps_the_caller_may_use_all_its_cores():
    """Loader workers that it starts there inherit them."""
    before = os.sched_getaffinity(0)
    seen = []
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wavelet.Wavelet(model, optimizer, loss) as engine:
        for batch in batches(5):
            engine.step(batch)
            seen.append(os.sched_getaffinity(0))
    assert seen == [before] * 5
