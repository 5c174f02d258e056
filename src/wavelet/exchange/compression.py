"""What is sent instead of a bucket: itself, lower precision with error feedback, or PowerSGD's factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

from wavelet.exchange.buckets import Bucket, Layout, Parcel

__all__ = ["Compression", "LowRank", "Lower"]


class Compression:
    """Sends a bucket as it is."""

    in_turn = False
    """Whether it runs collectives of its own, one after the other, which must not meet those of later exchanges."""

    scales = True
    """Whether a bucket may hold gradients that have been divided already, without any difference in what is sent."""

    def first(self, wave: int, number: int, bucket: Bucket) -> Tensor | None:
        """What a bucket holds before the gradients come."""
        return None

    def pack(self, wave: int, number: int, flat: Tensor) -> Tensor:
        """What to sum over the ranks for bucket ``number``."""
        return flat

    def unpack(self, flat: Tensor, sent: Tensor) -> Tensor:
        """The bucket with the sum."""
        return flat

    def restart(self) -> None:
        """The buckets are others from now on."""

    def resting_bytes(self, layout: Layout, parameters: Sequence[nn.Parameter], num_waves: int) -> int:
        """The most bytes that are kept from exchange to exchange, and those of exchanges unlike the first."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """What is kept from exchange to exchange: the tensors themselves."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""


class Lower(Compression):
    """Sends bf16 or fp16, half the bytes, with error feedback: what rounding took is added to the wave's next gradient.

    The numbers are those of torch's ``bf16_compress_hook`` and ``fp16_compress_hook``, which divide by the number of
    ranks before they sum. Error feedback: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019.
    """

    def __init__(self, dtype: torch.dtype, num_ranks: int) -> None:
        self._dtype = dtype
        self.scales = dtype == torch.bfloat16  # fp16 loses small gradients
        # Where dividing is exact and bf16 cannot overflow, it is left out on both sides.
        self._divisor = 1 if dtype == torch.bfloat16 and num_ranks & (num_ranks - 1) == 0 else num_ranks
        self._errors: dict[str, Tensor] = {}

    def first(self, wave: int, number: int, bucket: Bucket) -> Tensor | None:
        return self._errors.get(f"{wave} {number}")

    def pack(self, wave: int, number: int, flat: Tensor) -> Tensor:
        if flat.dtype.itemsize <= self._dtype.itemsize:
            return flat
        sent = flat.to(self._dtype)
        flat -= sent  # from now on it is the error, to which the wave's next gradients are added
        # An infinite gradient, or one too large for fp16, must not poison later ones. A GPU is not asked: that stalls.
        if not flat.is_cpu or not bool(flat.sum().isfinite()):
            torch.nan_to_num_(flat, nan=0.0, posinf=0.0, neginf=0.0)
        self._errors[f"{wave} {number}"] = flat
        return sent.div_(self._divisor) if self._divisor > 1 else sent

    def unpack(self, flat: Tensor, sent: Tensor) -> Tensor:
        if sent is flat:
            return flat
        whole = sent.to(flat.dtype)
        return whole.mul_(self._divisor) if self._divisor > 1 else whole

    def restart(self) -> None:
        self._errors.clear()

    def resting_bytes(self, layout: Layout, parameters: Sequence[nn.Parameter], num_waves: int) -> int:
        wide = [bucket for bucket in layout.buckets if bucket.dtype.itemsize > self._dtype.itemsize]
        return num_waves * sum(bucket.nbytes for bucket in wide)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._errors)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._errors = dict(state)


class LowRank(Compression):
    """PowerSGD by torch's own hook: matrices as two factors of rank 1, with error feedback (Vogels et al., 2019).

    The hook runs three collectives one after the other, so an exchange runs in its turn; the other wave computes
    meanwhile. The first `START` exchanges are not compressed.
    """

    in_turn = True
    scales = False
    START = 10

    def __init__(self, group: dist.ProcessGroup) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        self._hook = powerSGD_hook.powerSGD_hook
        self._state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=self.START)

    def draws(self, number: int) -> bool:
        """Whether the next exchange of a bucket draws random numbers, by swapping the global random state."""
        return bool(self._state.iter >= self.START and number not in self._state.q_memory_dict)

    def start(self, number: int, parcel: Parcel) -> torch.futures.Future[Any]:
        """Begin the exchange of one bucket, which then holds the mean."""
        return self._hook(self._state, _HookBucket(number, parcel))

    def restart(self) -> None:
        for kept in (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict):
            kept.clear()

    def resting_bytes(self, layout: Layout, parameters: Sequence[nn.Parameter], num_waves: int) -> int:
        errors = sum(bucket.nbytes for bucket in layout.buckets)
        factors = sum(
            (matrix.shape[0] + matrix.shape[1:].numel()) * matrix.element_size()
            for matrix in (parameters[index] for index in layout.order)
            if matrix.dim() > 1
        )
        # The hook copies a bucket and what it does not compress in it, and makes the new error beside the old one.
        return errors + 2 * factors + 3 * max((bucket.nbytes for bucket in layout.buckets), default=0)

    def state_dict(self) -> dict[str, Any]:
        state = self._state
        kind, keys, *others = state.rng.get_state()
        return {
            "iter": state.iter,
            "rng": [kind, torch.tensor(numpy.asarray(keys, dtype=numpy.int64)), *others],
            **{
                name: {str(number): tensor for number, tensor in getattr(state, name).items()}
                for name in ("error_dict", "p_memory_dict", "q_memory_dict")
            },
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self._state.iter = saved["iter"]
        kind, keys, *others = saved["rng"]
        self._state.rng.set_state((kind, keys.numpy().astype(numpy.uint32), *others))
        for name in ("error_dict", "p_memory_dict", "q_memory_dict"):
            setattr(self._state, name, {int(number): tensor for number, tensor in saved[name].items()})


class _HookBucket:
    """A bucket as DDP's communication hooks see one."""

    def __init__(self, number: int, parcel: Parcel) -> None:
        self._number, self._parcel = number, parcel
        self._bucket = parcel.layout.buckets[number]
        flat = parcel.flats[number]
        assert flat is not None
        self._flat = flat[: self._bucket.num_elements]

    def index(self) -> int:
        return self._number

    def buffer(self) -> Tensor:
        return self._flat

    def is_last(self) -> bool:
        return self._number == len(self._parcel.layout.buckets) - 1

    def gradients(self) -> list[Tensor]:
        return [self._parcel.matrix(self._flat, slot) for slot in self._bucket.slots]
