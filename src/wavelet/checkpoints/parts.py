"""What is in a checkpoint: which state all ranks share, and which each has for itself."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy
import torch
from torch import Tensor

from wavelet.engine import Wavelet

__all__ = ["for_another_number", "is_stateful", "joined", "kind_and_state", "share_of", "split"]

_OWN = ("num_batches", "position", "buffers", "random", "exchange")
_OWN_KEPT = ("gradients", "total", "num_folded")
"""Of what a rule keeps: the sums of gradients that have not been exchanged between the ranks yet."""


def is_stateful(part: object) -> bool:
    """Whether a part saves and loads itself; others are values."""
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))


def kind_and_state(part: Any, num_ranks: int) -> tuple[str, Any]:
    """What is to be saved of a part, not copied; and its kind.

    An ``engine``, of which all ranks have the weights in common; ``stateful``, saved once a rank; or a ``value``,
    rank 0's. Engines whose ranks train apart, for ever or for a while, have nothing in common.

    Raises:
        ValueError: the engine exchanges among other ranks than those that save.
    """
    if isinstance(part, Wavelet):
        state, num_exchanging = part._live_state(), part._exchange.num_ranks
        if num_exchanging not in (1, num_ranks):
            raise ValueError(
                f"the engine exchanges among {num_exchanging} ranks, and these checkpoints are of {num_ranks}: give "
                "both the same group."
            )
        return "engine" if num_exchanging == num_ranks and part._exchange.alike else "stateful", state
    return ("stateful", part.state_dict()) if is_stateful(part) else ("value", part)


def split(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """An engine's state: what is the same on all ranks, and what is this rank's own."""
    kept = state["kept"]
    own: dict[str, Any] = {name: state[name] for name in _OWN}
    own["kept"] = {name: kept[name] for name in _OWN_KEPT if name in kept}
    shared = {name: value for name, value in state.items() if name not in own}
    shared["kept"] = {name: value for name, value in kept.items() if name not in own["kept"]}
    return shared, own


def joined(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The reverse of `split`."""
    return {**shared, **own, "kept": {**shared["kept"], **own["kept"]}}


def for_another_number(first: dict[str, Any], own: dict[str, Any] | None, rank: int) -> tuple[dict[str, Any], bool]:
    """An engine's own part where there are more or fewer ranks than there were; and whether gradients were dropped.

    Args:
        first: that of the rank 0 that was saved, whose buffers all take.
        own: that of this rank, whose random state it keeps; None if there was no such rank.
        rank: this rank.
    """
    kept = first["kept"]
    is_open = any(kept["num_folded"])
    closed = {
        "gradients": [[None] * len(wave) for wave in kept["gradients"]],
        "num_folded": [0] * len(kept["num_folded"]),
        **({"total": [None] * len(kept["total"])} if "total" in kept else {}),
    }
    position = 0 if is_open else first["position"]
    drawn = _seeded(first["random"], rank) if own is None else own["random"]
    return {**first, "position": position, "kept": closed, "random": drawn, "exchange": None}, is_open


def _seeded(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """A random state for ``rank``, which comes from rank 0's ``state`` and differs from that of every other rank."""
    digest = hashlib.sha256(state["torch"].numpy().tobytes() + str(rank).encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    kind, keys, *rest = numpy.random.RandomState(seed).get_state(legacy=True)
    device: Tensor | None = state["device"]
    if device is not None:  # CUDA's: a seed and an offset, eight bytes each
        device = torch.frombuffer(bytearray(digest[:8] + bytes(len(device) - 8)), dtype=torch.uint8)
    return {
        "python": random.Random(seed).getstate(),
        "numpy": (str(kind), torch.from_numpy(numpy.asarray(keys).astype("int64")), *rest),
        "torch": torch.Generator().manual_seed(seed).get_state(),
        "device": device,
    }


def share_of(tensors: dict[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """Those of the tensors, which all ranks have, that ``rank`` of ``size`` is to write: each once, evenly by bytes."""
    loads = [0] * size
    mine = {}
    for key in sorted(tensors, key=lambda key: (-tensors[key].nbytes, key)):
        writer = loads.index(min(loads))
        loads[writer] += tensors[key].nbytes
        if writer == rank:
            mine[key] = tensors[key]
    return mine
