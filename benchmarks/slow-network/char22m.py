"""A job for slow links: char-gpt with twenty-two million parameters, 88 MB of gradients, on the same text.

python benchmarks/slow-network/run.py --job benchmarks/slow-network/char22m.py --rates 500mbit
"""

from __future__ import annotations

import torch

import wavelet
from wavelet.jobs.char_gpt import CharGPT
from wavelet.jobs.text import next_character_loss, standard_library_text

WIDTH, NUM_LAYERS, NUM_HEADS, LENGTH = 512, 7, 8, 64


def job(*, seed: int = 0, batch_size: int = 4) -> wavelet.Job:
    """Windows of 64 characters, dropout 0.1, AdamW with weight decay on matrices only."""
    text = standard_library_text()
    model = CharGPT(WIDTH, NUM_LAYERS, NUM_HEADS)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return wavelet.Job(
        model,
        torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95)),
        next_character_loss,
        text.loader(LENGTH, batch_size),
        validation=text.validation_batches(LENGTH, 16, num_batches=4),
        seed=seed,
        name="char-gpt-22m",
    )
