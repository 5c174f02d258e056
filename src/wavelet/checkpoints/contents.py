"""From the parts that are to be saved to named tensors, and back, on one rank of several."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from wavelet.checkpoints import parts as kinds
from wavelet.checkpoints.errors import CheckpointError
from wavelet.checkpoints.outline import Place, check, flatten, packed, places, rebuild, unpacked
from wavelet.checkpoints.ranks import Ranks

if TYPE_CHECKING:
    from wavelet.checkpoints.storage import Stored

__all__ = ["Contents", "Found"]

VERSION = 1


class Contents:
    """What this rank has to write: its share of the state that all ranks have, and its own.

    Args:
        parts: by name; see `Checkpoints.save`.
        ranks: those that save together.
        copy: take copies on the CPU, so that training can go on while they are written.

    Raises:
        ValueError: a part holds something that cannot be saved.
    """

    def __init__(self, parts: Mapping[str, Any], ranks: Ranks, *, copy: bool) -> None:
        shared: dict[str, Tensor] = {}
        own: dict[str, Tensor] = {}
        shared_outline, own_outline = {}, {}
        kinds_of_parts: dict[str, str] = {}
        for name, part in parts.items():
            kind, state = kinds.kind_and_state(part, ranks.size)
            kinds_of_parts[name] = kind
            mine = None
            if kind == "engine":
                state, mine = kinds.split(state)
            elif kind == "stateful":
                state, mine = None, state
            elif ranks.rank > 0:
                state = None
            shared_outline[name] = flatten(state, f"shared/{name}", shared if kind == "engine" else own)
            own_outline[name] = flatten(mine, f"rank{ranks.rank}/{name}", own)
            check([shared_outline[name], own_outline[name]], f"the part {name!r}")
        own |= kinds.share_of(shared, ranks.rank, ranks.size)
        self.tensors = {key: value.to("cpu", copy=True) for key, value in own.items()} if copy else own
        outlines: dict[str, Any] = {_outline_of(ranks.rank): own_outline}
        if ranks.rank == 0:
            outlines["outline"] = {
                "version": VERSION,
                "num_ranks": ranks.size,
                "kinds": kinds_of_parts,
                "shared": shared_outline,
            }
        self.tensors |= {key: packed(outline) for key, outline in outlines.items()}
        entries = sorted((key, tuple(value.shape), str(value.dtype)) for key, value in shared.items())
        self.fingerprint = hashlib.sha256(repr((entries, kinds_of_parts)).encode()).hexdigest()
        """The same on all ranks whose checkpoints fit together."""


class Found:
    """What a checkpoint that was opened has for this rank.

    Args:
        stored: the checkpoint.
        ranks: those that load together.

    Raises:
        CheckpointError: it cannot be read.
    """

    def __init__(self, stored: Stored, ranks: Ranks) -> None:
        self._stored = stored
        self._rank = ranks.rank
        self._outline = self._unpack("outline")
        if self._outline["version"] != VERSION:
            raise CheckpointError(f"it was written in version {self._outline['version']}, and this one reads {VERSION}")
        self.num_ranks: int = self._outline["num_ranks"]
        self._same_number = self.num_ranks == ranks.size
        self.names = set(self._outline["kinds"])

    def values(self) -> dict[str, Any]:
        """The parts that are plain values."""
        outlines, names = self._outline["shared"], self._outline["kinds"]
        return self._build({name: outlines[name] for name in names if self.kind(name) == "value"})

    def states(self, names: list[str]) -> tuple[dict[str, Any], bool]:
        """The states of parts that load themselves, for this rank; and whether gradients had to be dropped."""
        first = self._unpack(_outline_of(0))
        mine = self._unpack(_outline_of(self._rank)) if _outline_of(self._rank) in self._stored else None
        needed: dict[Any, Any] = {}
        for name in names:
            needed[name, "shared"] = self._outline["shared"][name]
            needed[name, "own"] = (first if mine is None else mine)[name]
            if not self._same_number:
                needed[name, "first"] = first[name]
        found, states, dropped = self._build(needed), {}, False
        for name in names:
            own = found[name, "own"]
            if self._outline["kinds"][name] == "engine":
                if not self._same_number:
                    before = own if mine is not None else None
                    own, drops = kinds.for_another_number(found[name, "first"], before, self._rank)
                    dropped = dropped or drops
                states[name] = kinds.joined(found[name, "shared"], own)
            else:
                states[name] = own
        return states, dropped

    def kind(self, name: str) -> str:
        """Which kind of part it was."""
        return str(self._outline["kinds"][name])

    def _unpack(self, key: str) -> Any:
        return unpacked(self._stored.read([Place(key, None)])[key])

    def _build(self, outlines: Mapping[Any, Any]) -> dict[Any, Any]:
        tensors = self._stored.read(place for outline in outlines.values() for place in places(outline))
        return {name: rebuild(outline, tensors) for name, outline in outlines.items()}


def _outline_of(rank: int) -> str:
    return f"rank{rank}/outline"
