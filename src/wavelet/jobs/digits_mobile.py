"""The job digits-mobile: a network of depthwise convolutions, as on phones, recognises handwritten digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wavelet.jobs.digits import digit_batches, digit_loss, digit_metric
from wavelet.jobs.job import Job
from wavelet.jobs.seeds import set_seeds

__all__ = ["DigitsMobile", "job"]

_SIZE = 16


class InvertedResidual(nn.Module):
    """Widen, convolve each channel alone, narrow; beside an identity. ``(batch, channels, height, width)`` → same."""

    def __init__(self, channels: int, expansion: int) -> None:
        super().__init__()
        wide = expansion * channels
        self.branch = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.branch(x)
        return output


class DigitsMobile(nn.Module):
    """Images ``(batch, 1, size, size)`` → logits ``(batch, 10)``."""

    def __init__(self, channels: int = 32, num_blocks: int = 6, expansion: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.Hardswish()
        )
        self.blocks = nn.Sequential(*(InvertedResidual(channels, expansion) for _ in range(num_blocks)))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.stem(images))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def job(*, seed: int = 0, batch_size: int = 16) -> Job:
    """Digits enlarged to 16×16, SGD with momentum and weight decay."""
    set_seeds(seed)
    loader, validation = digit_batches(_SIZE, batch_size)
    model = DigitsMobile()
    return Job(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
        digit_loss,
        loader,
        validation=validation,
        metric=digit_metric,
        seed=seed,
        name="digits-mobile",
    )
