"""What differs between the CPU and CUDA: streams, events, threads, random state, and moving a batch."""

from __future__ import annotations

import torch

from wavelet.devices.batches import map_tensors, move, tensors_in
from wavelet.devices.cpu import Cpu, flushes_denormals
from wavelet.devices.device import Device, HostValue

__all__ = ["Cpu", "Device", "HostValue", "flushes_denormals", "make_device", "map_tensors", "move", "tensors_in"]

_STREAMS = ("auto", "separate", "shared")


def make_device(device: torch.device, num_waves: int, streams: str = "auto") -> Device:
    """The device that ``num_waves`` waves share.

    Raises:
        ValueError: for an unknown ``streams``, or a device that is neither CPU nor CUDA.
    """
    if streams not in _STREAMS:
        raise ValueError(f"streams={streams!r} is not known: use one of {', '.join(map(repr, _STREAMS))}.")
    if device.type == "cpu":
        return Cpu(device, num_waves)
    if device.type == "cuda":
        from wavelet.devices.cuda import Cuda

        return Cuda(device, num_waves, streams)
    raise ValueError(f"the model is on {device.type!r}, but waves run on 'cpu' or 'cuda': move the model there first.")
