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
    """Scales each channel by what the image as a whole says of it."""

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
        return x * self.gate(x)


class InvertedResidual(nn.Module):
    """Widen, convolve each channel alone, narrow; beside an identity where shapes allow."""

    def __init__(self, channels: int, width: int, stride: int, expansion: int, se: bool) -> None:
        super().__init__()
        wide = expansion * channels
        self.is_residual = (channels, 1) == (width, stride)
        self.branch = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            *([SqueezeExcite(wide)] if se else []),
            nn.Conv2d(wide, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.branch(x)
        return x + output if self.is_residual else output


class DigitsMobile(nn.Module):
    """Images ``(batch, 1, size, size)`` → logits ``(batch, 10)``."""

    def __init__(self, channels: int = 16, num_stages: int = 3, blocks_per_stage: int = 3, expansion: int = 4, se: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.Hardswish()
        )
        blocks: list[nn.Module] = []
        width = channels
        for stage in range(num_stages):
            for block in range(blocks_per_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(InvertedResidual(width, width * stride, stride, expansion, se))
                width *= stride
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, 10)

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
