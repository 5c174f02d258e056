"""The command line under torchrun: the ranks meet, rank 0 speaks, and a failure ends the process at once."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

__all__ = ["is_first", "leave", "meet", "num_ranks", "recorded", "seed_rank"]

Result = TypeVar("Result")


def num_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks torchrun has started; 1 without it."""
    text = environment.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1


def is_first() -> bool:
    """Whether this process is rank 0, which prints and writes files."""
    return num_ranks() == 1 or os.environ.get("RANK") == "0"


def seed_rank(seed: int) -> None:
    """After the job is made, which is the same on all ranks: let each draw for itself, or two would train on alike
    samples and drop the same activations."""
    if num_ranks() > 1:
        from wavelet.jobs.seeds import set_seeds

        set_seeds((seed + int(os.environ["RANK"])) % 2**32)


@contextlib.contextmanager
def meet() -> Iterator[None]:
    """Inside, torch.distributed is initialised if there are several ranks, and only rank 0 prints."""
    if num_ranks() == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    # The store of torchrun outlives a restart, and in it the addresses of the ranks of before (seen in torch 2.13).
    attempt = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)  # type: ignore[attr-defined]
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=size)
    with contextlib.ExitStack() as quiet:
        if not is_first():
            quiet.enter_context(contextlib.redirect_stdout(quiet.enter_context(open(os.devnull, "w"))))  # noqa: PTH123
        yield
    dist.destroy_process_group()


def recorded(function: Callable[..., Result]) -> Callable[..., Result]:
    """With several ranks: let torchrun show what ``function`` raises, for the rank that raised first."""
    if num_ranks() == 1:
        return function
    from torch.distributed.elastic.multiprocessing.errors import record

    wrapped: Any = record(function)
    return wrapped  # type: ignore[no-any-return]


def leave(code: int) -> int:
    """End with ``code``; at once after a failure among ranks: threads of a broken process group may wait for long."""
    if code and num_ranks() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
