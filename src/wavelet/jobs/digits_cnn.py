"""The job digits-cnn: a residual network of convolutions and BatchNorm recognises handwritten digits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavelet.jobs.digits import digit_batches, digit_loss, digit_metric
from wavelet.jobs.job import Job
from wavelet.jobs.seeds import set_seeds

__all__ = ["DigitsCNN", "job"]

_SIZE = 16


class Residual(nn.Module):
    """Two 3×3 convolutions beside an identity, ``(batch, channels, height, width)`` → the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.branch(x))


class DigitsCNN(nn.Module):
    """Images ``(batch, 1, size, size)`` → logits ``(batch, 10)``."""

    def __init__(self, channels: int = 32, num_blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(num_blocks)))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.stem(images))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def job(*, seed: int = 0, batch_size: int = 32) -> Job:
    """Digits enlarged to 16×16, SGD with Nesterov momentum and weight decay."""
    set_seeds(seed)
    loader, validation = digit_batches(_SIZE, batch_size)
    model = DigitsCNN()
    return Job(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True),
        digit_loss,
        loader,
        validation=validation,
        metric=digit_metric,
        seed=seed,
        name="digits-cnn",
    )
