"""The promise of memory: what the user asks for, what is learnt from the first batches, and the plan that is kept."""

from wavelet.memory.memory import Memory
from wavelet.memory.request import Request
from wavelet.memory.study import Watch

__all__ = ["Memory", "Request", "Watch"]
