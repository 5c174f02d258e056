"""A model whose blocks hold memory that a ledger counts exactly: what the promise is checked against."""

import random
import threading
import time

import torch
from torch import nn

CPU = torch.device("cpu")


class Ledger:
    """Bytes that saved tensors hold, over all threads, with the most so far."""

    def __init__(self):
        self._lock = threading.Lock()
        self.held = self.peak = 0

    def take(self, count):
        with self._lock:
            self.held += count
            self.peak = max(self.peak, self.held)

    def reset(self):
        with self._lock:
            self.peak = self.held


class _Hold(torch.autograd.Function):
    """Saves a tensor of its own until its backward, and sleeps on the way up and down."""

    @staticmethod
    def forward(ctx, x, block):
        block.ledger.take(block.saved)
        block.sleep()
        ctx.block = block
        ctx.save_for_backward(torch.zeros(block.saved // 4))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        block = ctx.block
        (held,) = ctx.saved_tensors
        assert held.nbytes == block.saved
        block.ledger.take(block.transient)
        block.sleep()
        block.ledger.take(-block.transient - block.saved)
        return gradient.clone(), None


class Block(nn.Module):
    """A small layer that holds ``saved`` bytes between forward and backward, and ``transient`` more in backward."""

    def __init__(self, ledger, saved, transient=0, pause=0.0, seed=None):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.ledger, self.saved, self.transient, self.pause, self.seed = ledger, saved, transient, pause, seed

    def sleep(self):
        if self.pause:
            time.sleep(random.Random(f"{self.seed}{time.perf_counter()}").random() * self.pause)

    def forward(self, x):
        held = _Hold.apply(self.inner(x), self)
        return held

    def __deepcopy__(self, memo):
        new = Block(self.ledger, self.saved, self.transient, self.pause, self.seed)
        new.load_state_dict(self.state_dict())
        memo[id(self)] = new
        return new
