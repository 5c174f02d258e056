"""Characters to train on: the sources of Python's own standard library."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavelet.jobs.batches import RandomBatches, ordered_batches

__all__ = ["NUM_CHARACTERS", "Text", "TextBatch", "next_character_loss", "standard_library_text"]

TextBatch: TypeAlias = tuple[Tensor, Tensor]
"""Characters and, for each, the one that follows: two int64 tensors of shape ``(batch, length)``."""

NUM_CHARACTERS = 96
"""The newline is 0, the printable ASCII characters follow from 1 (space); everything else becomes a space."""

_MAX_CHARACTERS = 4_000_000
_VALIDATION_SHARE = 0.1


class Text(NamedTuple):
    """Numbered characters as uint8 tensors of one dimension; validation is what follows the training part."""

    train: Tensor
    validation: Tensor

    def loader(self, length: int, batch_size: int) -> RandomBatches[TextBatch]:
        """Random windows of `length` characters of the training part."""
        windows = _windows(self.train, length)
        return RandomBatches(len(windows), batch_size, lambda numbers: _split(windows[numbers]))

    def validation_batches(self, length: int, batch_size: int, num_batches: int) -> list[TextBatch]:
        """`num_batches` batches of windows, spread evenly over the validation part."""
        windows = _windows(self.validation, length)
        windows = windows[:: len(windows) // (num_batches * batch_size)]
        batches = ordered_batches(len(windows), batch_size, lambda numbers: _split(windows[numbers]))
        return batches[:num_batches]


def standard_library_text() -> Text:
    """The first 4 million characters of the standard library's top-level sources, sorted by file name.

    Raises:
        ValueError: this Python comes without its sources.
    """
    return _read(Path(sysconfig.get_paths()["stdlib"]))


def next_character_loss(model: nn.Module, batch: TextBatch) -> Tensor:
    """Cross-entropy of the next character in nats, mean over ``(batch, length)``; the model returns logits."""
    characters, following = batch
    logits: Tensor = model(characters)
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


@cache
def _read(folder: Path) -> Text:
    source = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))[: 2 * _MAX_CHARACTERS]
    if len(source) < _MAX_CHARACTERS // 8:
        raise ValueError(f"There are hardly any Python sources in {folder}: use a Python that comes with its sources.")
    characters = source.replace(b"\r\n", b"\n").translate(_table())[:_MAX_CHARACTERS]
    text = torch.from_numpy(numpy.frombuffer(characters, dtype=numpy.uint8).copy())
    num_train = int(len(text) * (1 - _VALIDATION_SHARE))
    return Text(text[:num_train], text[num_train:])


def _table() -> bytes:
    numbers = {10: 0} | {code: code - 31 for code in range(32, 127)}
    return bytes(numbers.get(code, 1) for code in range(256))


def _windows(text: Tensor, length: int) -> Tensor:
    """A view of shape ``(windows, length + 1)``; neighbours share one character, never a target."""
    return text.unfold(0, length + 1, length)


def _split(windows: Tensor) -> TextBatch:
    windows = windows.long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
