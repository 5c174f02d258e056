"""The job char-lstm: a two-layer LSTM guesses the next character of Python's standard library."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wavelet.jobs.job import Job
from wavelet.jobs.seeds import set_seeds
from wavelet.jobs.text import NUM_CHARACTERS, next_character_loss, standard_library_text

__all__ = ["CharLSTM", "job"]

_LENGTH = 128


class CharLSTM(nn.Module):
    """Characters ``(batch, length)`` → logits of the next ones ``(batch, length, 96)``."""

    def __init__(self, width: int = 128, num_layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_CHARACTERS, width)
        self.layers = nn.LSTM(width, width, num_layers, batch_first=True)
        self.head = nn.Linear(width, NUM_CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        hidden, _ = self.layers(self.embedding(characters))
        logits: Tensor = self.head(hidden)
        return logits


def job(*, seed: int = 0, batch_size: int = 16) -> Job:
    """Windows of 128 characters, Adam, gradients clipped at norm 1."""
    set_seeds(seed)
    text = standard_library_text()
    model = CharLSTM()
    return Job(
        model,
        torch.optim.Adam(model.parameters(), lr=4e-3),
        next_character_loss,
        text.loader(_LENGTH, batch_size),
        validation=text.validation_batches(_LENGTH, 32, num_batches=16),
        clip_grad_norm=1.0,
        seed=seed,
        name="char-lstm",
    )
