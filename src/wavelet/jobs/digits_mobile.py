"""The job digits-mobile: a network of depthwise convolutions, as on phones, recognises handwritten digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wavelet.jobs.digits import digit_batches, digit_loss, digit_metric
from wavelet.jobs.job import Job
from wavelet.jobs.seeds import set_seeds

__all__ = ["DigitsMobile", "job"]

_SIZE = 16


class SqueezeExcite(nn.Module):
    """Scales each channel by what the whole image says of it, ``(batch, channels, h, w)`` → the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 4, 1),
            nn.ReLU(),
            nn.Conv2d(channels // 4, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x * self.gate(x)
        return output


class InvertedResidual(nn.Module):
    """Widen, convolve each channel alone, narrow, ``(batch, channels, h, w)`` → ``(batch, width, h/stride, w/stride)``.

    Beside an identity where input and output have one shape.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.is_residual = (channels, 1) == (width, stride)
        self.branch = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            SqueezeExcite(wide),
            nn.Conv2d(wide, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.branch(x)
        return x + output if self.is_residual else output


class DigitsMobile(nn.Module):
    """Images ``(batch, 1, size, size)`` → logits ``(batch, 10)``, in three stages that halve the image."""

    def __init__(self, channels: int = 16, blocks_per_stage: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.Hardswish()
        )
        blocks = [InvertedResidual(channels, channels, stride=1) for _ in range(blocks_per_stage)]
        for width in (2 * channels, 4 * channels):
            blocks.append(InvertedResidual(width // 2, width, stride=2))
            blocks += [InvertedResidual(width, width, stride=1) for _ in range(blocks_per_stage - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(4 * channels, 10)

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
        torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4),
        digit_loss,
        loader,
        validation=validation,
        metric=digit_metric,
        seed=seed,
        name="digits-mobile",
    )
