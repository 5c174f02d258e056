"""The job char-gpt: a small decoder-only transformer guesses the next character of Python's standard library."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavelet.jobs.job import Job
from wavelet.jobs.seeds import set_seeds
from wavelet.jobs.text import NUM_CHARACTERS, next_character_loss, standard_library_text

__all__ = ["CharGPT", "job"]

_LENGTH = 64


class Attention(nn.Module):
    """Causal self-attention with several heads, ``(batch, length, width)`` → the same."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inputs(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """One pre-norm transformer layer, ``(batch, length, width)`` → the same."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, num_heads, dropout), nn.Dropout(dropout))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        x = x + self.feed_forward(x)
        return x


class CharGPT(nn.Module):
    """Characters ``(batch, length)`` → logits of the next ones ``(batch, length, 96)``."""

    def __init__(self, width: int = 128, num_layers: int = 6, num_heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.characters = nn.Embedding(NUM_CHARACTERS, width)
        self.positions = nn.Embedding(_LENGTH, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, num_heads, dropout) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_CHARACTERS)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                into_residual = name.endswith(("output.weight", "feed_forward.3.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * num_layers) if into_residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, characters: Tensor) -> Tensor:
        positions = self.positions.weight[: characters.shape[1]]
        x = self.dropout(self.characters(characters) + positions)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def job(*, seed: int = 0, batch_size: int = 8) -> Job:
    """Windows of 64 characters, dropout 0.1, AdamW with weight decay on matrices only."""
    set_seeds(seed)
    text = standard_library_text()
    model = CharGPT()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return Job(
        model,
        torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95)),
        next_character_loss,
        text.loader(_LENGTH, batch_size),
        validation=text.validation_batches(_LENGTH, 32, num_batches=8),
        seed=seed,
        name="char-gpt",
    )
