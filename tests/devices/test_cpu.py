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


WITHOUT_CUDA = """
import sys, types, torch
from torch import nn

def forbidden(name):
    def call(*args, **kwargs):
        caller = sys._getframe(1).f_code.co_filename
        if "wavelet" in caller:
            raise AssertionError(f"torch.cuda.{{name}} is called by {{caller}}")
        return originals[name](*args, **kwargs)
    return call

originals = {{name: value for name, value in vars(torch.cuda).items() if isinstance(value, types.FunctionType)}}
for name in originals:
    setattr(torch.cuda, name, forbidden(name))
sys.path.insert(0, {root!r})
import wavelet
from tests.models import mlp, loss, batches
for checkpointing in (None, "plain"):
    for rule in ("neighbour", "synchronous", "delayed"):
        model = mlp(depth=1, checkpointing=checkpointing)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with wavelet.Wavelet(model, optimizer, loss, update=rule, clip_grad_norm=1.0) as engine:
            for batch in batches(4):
                engine.step(batch)
            engine.load_state_dict(engine.state_dict())
assert "wavelet.devices.cuda" not in sys.modules
assert not torch.cuda.is_initialized()
print("trained")
"""


def test_the_cpu_path_never_touches_cuda(pytestconfig):
    code = WITHOUT_CUDA.format(root=str(pytestconfig.rootpath))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
