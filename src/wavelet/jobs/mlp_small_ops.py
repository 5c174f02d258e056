"""The job mlp-small-ops: a deep, narrow perceptron of many tiny operators, bound by the interpreter: the hard case."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wavelet.jobs.digits import digit_batches, digit_loss, digit_metric
from wavelet.jobs.job import Job
from wavelet.jobs.seeds import set_seeds

__all__ = ["SmallOpsMLP", "job"]

_SIZE = 8


class GatedBlock(nn.Module):
    """A gated layer beside an identity, ``(batch, width)`` → the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.value = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(x)
        mixed = self.output(torch.tanh(self.value(normal)) * torch.sigmoid(self.gate(normal)))
        output: Tensor = x + self.scale * mixed
        return output


class SmallOpsMLP(nn.Module):
    """Images ``(batch, 1, 8, 8)`` → logits ``(batch, 10)``."""

    def __init__(self, width: int = 32, num_blocks: int = 128) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(_SIZE * _SIZE, width))
        self.blocks = nn.Sequential(*(GatedBlock(width) for _ in range(num_blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(images)))
        return logits


def job(*, seed: int = 0, batch_size: int = 32) -> Job:
    """Digits at their own 8×8, plain SGD."""
    set_seeds(seed)
    loader, validation = digit_batches(_SIZE, batch_size)
    model = SmallOpsMLP()
    return Job(
        model,
        torch.optim.SGD(model.parameters(), lr=0.2),
        digit_loss,
        loader,
        validation=validation,
        metric=digit_metric,
        seed=seed,
        name="mlp-small-ops",
    )
