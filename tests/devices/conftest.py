"""A machine that stands in for a GPU."""

import pytest
import torch

import wavelet
import wavelet.devices.cuda
from wavelet.devices.cuda import Cuda

from .cuda_stand_in import Machine


@pytest.fixture
def machine(monkeypatch):
    made = Machine()

    def record_stream(tensor, stream):
        made.record(tensor, stream)

    class Torch:
        """torch, with the machine for a GPU."""

        cuda = made.cuda

        def __getattr__(self, name):
            return getattr(torch, name)

        def empty(self, *args, pin_memory=False, **kwargs):
            return torch.empty(*args, **kwargs)

    monkeypatch.setattr(wavelet.devices.cuda, "torch", Torch())
    monkeypatch.setattr("wavelet.lifecycle.make_device", Cuda)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream, raising=False)
    torch.set_num_threads(1)
    return made
