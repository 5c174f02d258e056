"""What one step of a model costs, block by block: in bytes, and in seconds for each number of waves."""

from __future__ import annotations

import dataclasses
import hashlib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from wavelet.devices import tensors_in
from wavelet.profiling.loading import check_numbers, reading
from wavelet.profiling.recorders import BlockBytes, BlockSeconds

__all__ = ["NO_CONTENTION", "Contention", "Profile", "Smaller", "Timing", "fits", "model_print", "shapes_in"]

Shapes = tuple[tuple[int, ...], ...]


class Contention(NamedTuple):
    """Seconds of work beside one other wave's, over its seconds alone; each further wave adds as much again."""

    forward: float = 1.0
    backward: float = 1.0


NO_CONTENTION = Contention()


@dataclass(frozen=True)
class Timing:
    """Seconds of one batch among K waves.

    Args:
        threads: intra-op threads of each wave.
        seconds: of its work alone.
        contention: how much it is slowed down beside the other waves', running freely.
        tight: the same under the interlock of the smallest budget, where waves hand memory to each other.
        between: seconds of the caller's own between two forwards.
    """

    threads: int
    seconds: BlockSeconds
    contention: Contention = NO_CONTENTION
    tight: Contention = NO_CONTENTION
    between: float = 0.0


class Smaller(NamedTuple):
    """A smaller batch: its samples, and the most bytes that it holds."""

    samples: int
    peak: int


@dataclass(frozen=True)
class Profile:
    """One step of a model with one batch.

    Args:
        model: a print of the model's outline, by which a plan for another model is refused.
        device: ``cpu`` or ``cuda``.
        blocks: the name of the module whose call starts each block; None for the first, which starts with the forward.
        calls: how often a forward calls each module.
        bytes: of each block.
        timings: for each number of waves that was measured.
        samples: in the batch.
        shapes: of the tensors in each batch that was measured; a batch within none of them is measured anew.
        batch_bytes: of the batch, where it lies on the device before the step; counted in ``bytes`` too.
        parameter_bytes: of all parameters, as one replica has them.
        gradient_bytes: of one gradient for each trainable parameter.
        buffer_bytes: of all buffers.
        optimizer_bytes: of the optimizer's state.
        smaller: the bytes of a smaller batch, if it was measured.
        exchange_bytes: that the exchange of several ranks holds between updates; 0 where a rank trained alone.
    """

    model: str
    device: str
    blocks: tuple[str | None, ...]
    calls: Mapping[str, int]
    bytes: BlockBytes
    timings: Mapping[int, Timing]
    samples: int
    shapes: tuple[Shapes, ...]
    batch_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    buffer_bytes: int
    optimizer_bytes: int
    smaller: Smaller | None = None
    exchange_bytes: int = 0

    @property
    def num_blocks(self) -> int:
        """L."""
        return len(self.blocks)

    @property
    def peak(self) -> int:
        """The most bytes that one batch holds while it runs alone."""
        return max(*self.bytes.rising, *self.bytes.falling, self.bytes.turn)

    def timing(self, num_waves: int) -> Timing:
        """The timing measured with this number of waves, or with the nearest."""
        return self.timings[min(self.timings, key=lambda measured: (abs(measured - num_waves), measured))]

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` takes."""
        return dataclasses.asdict(self) | {
            "timings": [{"waves": waves, **dataclasses.asdict(timing)} for waves, timing in self.timings.items()]
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Profile:
        """The profile that `to_json` gave.

        Raises:
            ValueError: there are fields missing, or others.
        """
        with reading(fields, "Profile") as values:
            values["blocks"] = tuple(values["blocks"])
            rows = dict(values["bytes"])
            turn = rows.pop("turn")
            values["bytes"] = BlockBytes(**{name: tuple(row) for name, row in rows.items()}, turn=turn)
            values["timings"] = {entry["waves"]: _timing(entry) for entry in values["timings"]}
            values["shapes"] = tuple(tuple(map(tuple, shapes)) for shapes in values["shapes"])
            values["smaller"] = None if values["smaller"] is None else Smaller(*values["smaller"])
            loaded = cls(**values)
            loaded._check()
            return loaded

    def _check(self) -> None:
        """Refuse numbers that cannot have been measured.

        Raises:
            ValueError: naming what is wrong.
        """
        rows = (self.bytes.saved, self.bytes.gradients, self.bytes.rising, self.bytes.falling)
        named = all(block is None or isinstance(block, str) for block in self.blocks)
        if not self.blocks or not named or any(len(row) != len(self.blocks) for row in rows):
            raise ValueError("its blocks and their bytes do not fit together")
        if not self.timings or any(len(row) != len(self.blocks) for row in _second_rows(self.timings)):
            raise ValueError("its timings do not fit its blocks")
        check_numbers({"samples": self.samples}, least=1)
        names = ("batch", "parameter", "gradient", "buffer", "optimizer", "exchange")
        check_numbers({f"{name}_bytes": getattr(self, f"{name}_bytes") for name in names})
        for row in (*rows[1:], (self.bytes.turn,)):
            check_numbers({f"bytes of block {block}": value for block, value in enumerate(row, start=1)})
        for seconds in _second_rows(self.timings):
            check_numbers({f"seconds of block {block}": value for block, value in enumerate(seconds, start=1)})

    def __str__(self) -> str:
        from wavelet.report.profile import profile_text

        return profile_text(self)


def _second_rows(timings: Mapping[int, Timing]) -> Iterator[tuple[float, ...]]:
    for timing in timings.values():
        yield from (timing.seconds.forward, timing.seconds.backward)


def _timing(entry: Mapping[str, Any]) -> Timing:
    seconds = entry["seconds"]
    measured = BlockSeconds(tuple(seconds["forward"]), tuple(seconds["backward"]), seconds["update"])
    free, tight = Contention(*entry["contention"]), Contention(*entry["tight"])
    return Timing(entry["threads"], measured, free, tight, entry["between"])


def model_print(model: nn.Module) -> str:
    """Short text that differs between models with other modules, parameters or buffers; values do not matter."""
    tensors: Sequence[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    outline = [
        *(f"{name}: {type(module).__qualname__}" for name, module in model.named_modules()),
        *(f"{name}: {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors),
    ]
    return hashlib.sha256("\n".join(outline).encode()).hexdigest()[:16]


def shapes_in(batch: Any) -> Shapes:
    """The shapes of the tensors in a batch, in a fixed order."""
    return tuple(tuple(tensor.shape) for tensor in tensors_in(batch))


def fits(shapes: Shapes, measured: Iterable[Shapes]) -> bool:
    """Whether a batch of these shapes is nowhere larger than one of those measured."""
    return any(
        len(shapes) == len(others)
        and all(
            len(shape) == len(other) and all(map(operator.le, shape, other))
            for shape, other in zip(shapes, others, strict=True)
        )
        for others in measured
    )
