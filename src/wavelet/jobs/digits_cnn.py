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
    """Two 3×3 convolutions beside a shortcut, ``(batch, channels, h, w)`` → ``(batch, width, h/stride, w/stride)``."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if (channels, 1) != (width, stride):
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.branch(x))


class DigitsCNN(nn.Module):
    """Images ``(batch, 1, size, size)`` → logits ``(batch, 10)``, in three stages that halve the image."""

    def __init__(self, channels: int = 24, blocks_per_stage: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        blocks = [Residual(channels, channels, stride=1) for _ in range(blocks_per_stage)]
        for width in (2 * channels, 4 * channels):
            blocks.append(Residual(width // 2, width, stride=2))
            blocks += [Residual(width, width, stride=1) for _ in range(blocks_per_stage - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(4 * channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.stem(images))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def job(*, seed: int = 0, batch_size: int = 16) -> Job:
    """Digits enlarged to 16×16, SGD with Nesterov momentum and weight decay."""
    set_seeds(seed)
    loader, validation = digit_batches(_SIZE, batch_size)
    model = DigitsCNN()
    return Job(
        model,
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True),
        digit_loss,
        loader,
        validation=validation,
        metric=digit_metric,
        seed=seed,
        name="digits-cnn",
    )
