"""Images to train on: scikit-learn's 1797 handwritten digits, enlarged and shifted at random."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavelet.jobs.batches import RandomBatches, ordered_batches

__all__ = ["DigitBatch", "digit_batches", "digit_loss", "digit_metric"]

DigitBatch: TypeAlias = tuple[Tensor, Tensor]
"""Images, float32 of shape ``(batch, 1, size, size)`` from 0 to 1, and labels, int64 of shape ``(batch,)``."""

_NUM_VALIDATION = 360
_VALIDATION_BATCH = 60


def digit_batches(size: int, batch_size: int) -> tuple[RandomBatches[DigitBatch], list[DigitBatch]]:
    """A loader of randomly shifted images (by at most an eighth of `size`), and the validation batches, unshifted.

    The last 360 digits, written by other people than the first, are the validation data.

    Raises:
        ValueError: `batch_size` is out of range.
        ImportError: scikit-learn is missing.
    """
    images, labels = _load()
    images = F.interpolate(images, size=(size, size), mode="bilinear")
    margin = size // 8
    num_shifts = 2 * margin + 1
    # A view of shape (samples, 1, shift down, shift right, size, size).
    shifted = F.pad(images, [margin] * 4).unfold(2, size, 1).unfold(3, size, 1)

    def training_batch(numbers: Tensor) -> DigitBatch:
        down, right = torch.randint(num_shifts, (2, len(numbers)))
        return shifted[numbers, :, down, right], labels[numbers]

    def validation_batch(numbers: Tensor) -> DigitBatch:
        numbers = num_train + numbers
        return images[numbers], labels[numbers]

    num_train = len(images) - _NUM_VALIDATION
    loader = RandomBatches(num_train, batch_size, training_batch)
    return loader, ordered_batches(_NUM_VALIDATION, _VALIDATION_BATCH, validation_batch)


def digit_loss(model: nn.Module, batch: DigitBatch) -> Tensor:
    """Cross-entropy in nats, mean over the batch; the model returns logits ``(batch, 10)``."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def digit_metric(model: nn.Module, batch: DigitBatch) -> Tensor:
    """Share of digits recognised, 0 to 1."""
    images, labels = batch
    guesses: Tensor = model(images).argmax(1)
    return guesses.eq(labels).float().mean()


@cache
def _load() -> DigitBatch:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("The digits come with scikit-learn: install it with `pip install scikit-learn`.") from error
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(digits.target, dtype=torch.int64)
