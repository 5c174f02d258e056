"""A fingerprint of a tensor's bytes, to find weights that were written; ``.data`` writes move no version counter."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["fingerprint"]

_COLUMNS = 1024


@torch.no_grad()
def fingerprint(tensor: Tensor) -> Tensor:
    """Four integers (shape ``[4]``, on the tensor's device) that change when an element changes or two are exchanged.

    The bytes, read as integers in rows of 1,024, are summed along rows and columns (modulo 2⁶⁴), and each vector of
    sums is folded plainly and weighted by position.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    # Never as 64-bit integers: two changed top bits would cancel modulo 2⁶⁴.
    numbers = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}[flat.element_size()])
    whole = numbers.numel() // _COLUMNS * _COLUMNS
    table = numbers[:whole].view(-1, _COLUMNS)
    parts = [table.sum(0, dtype=torch.int64), table.sum(1, dtype=torch.int64), numbers[whole:].to(torch.int64)]
    sums = torch.cat(parts)
    weights = torch.arange(1, 2 * sums.numel(), 2, device=sums.device) * 0x9E3779B1
    return torch.stack([sums.sum(), (sums * weights).sum(), (sums * weights * weights).sum(), sums.new_tensor(whole)])
