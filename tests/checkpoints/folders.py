"""What the tests of checkpoints look at: folders, filled and listed, a data set, and a disk that refuses."""

import errno
import os

import torch
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.utils.data import TensorDataset

import wavelet


def fill(folder, *steps, **options):
    """Checkpoints of these steps, with the step as a value."""
    with wavelet.Checkpoints(folder, **{"keep": 9, **options}) as checkpoints:
        for step in steps:
            checkpoints.save(step, number=step, tensor=torch.full((100,), float(step)))


def steps_in(folder):
    return sorted(path.name for path in folder.iterdir())


def names(*steps):
    return [f"step-{step:08d}" for step in steps]


class Numbered(TensorDataset):
    """Reads its samples with noise from the global generator."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        super().__init__(torch.randn(40, 8, generator=generator), torch.randint(0, 4, (40,), generator=generator))

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(8), y


def refuse_writing(monkeypatch):
    create = FileSystem.create_stream

    def full(self, path, mode):
        if "w" in mode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(self, path, mode)

    monkeypatch.setattr(FileSystem, "create_stream", full)
