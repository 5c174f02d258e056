"""The choice of streams."""

import pytest
import torch

from wavelet.devices import make_device
from wavelet.devices.cuda import Cuda


@pytest.mark.parametrize(
    ("streams", "backend", "mode", "advised"),
    [
        ("auto", "native", "shared", False),
        ("auto", "cudaMallocAsync", "separate", False),
        ("separate", "native", "separate", True),
        ("separate", "cudaMallocAsync", "separate", False),
        ("shared", "native", "shared", False),
        ("shared", "cudaMallocAsync", "shared", False),
    ],
)
def test_the_choice_of_streams(machine, streams, backend, mode, advised):
    machine.backend = backend
    device = Cuda(torch.device("cpu"), 3, streams)
    assert device.stream_mode == mode
    assert len(machine.streams) - 1 == (3 if mode == "separate" else 1)
    advice = device.advice()
    assert (advice is not None) == advised
    if advised:
        assert "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync" in advice and "streams='shared'" in advice


def test_a_model_on_a_gpu_gets_the_cuda_device(machine):
    assert isinstance(make_device(torch.device("cuda", 0), 2, "shared"), Cuda)
