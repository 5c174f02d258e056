"""`wavelet doctor`: says what this machine offers, and what would make waves faster on it.

The fields of its JSON: ``machine``, ``versions``, and ``checks``, each with ``name``, ``status`` (``good``, ``advice``
or ``missing``) and ``sentence``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Literal

from wavelet.bench.allocators import INSTALL_TCMALLOC, allocator_in_use, find_tcmalloc, standard_allocator
from wavelet.cli.options import Force, Json, json_file
from wavelet.devices.allocator import VARIABLE, find_compiler, install_from_environment
from wavelet.report.machine import available_cores, machine, versions
from wavelet.report.tables import Table, show

__all__ = ["doctor"]

_MARKS = {"good": "✓", "advice": "!", "missing": "✗"}


@dataclass(frozen=True)
class Check:
    """One thing looked at: `good`, `advice` (works, could be better) or `missing`, and a sentence on it."""

    name: str
    status: Literal["good", "advice", "missing"]
    sentence: str


def doctor(json: Json = None, force: Force = False) -> None:
    """Say what this machine offers to Wavelet."""
    target = json_file(json, force)
    checks = list(_checks())
    table = Table("Wavelet on this machine", ("", "what", "finding"))
    for check in checks:
        table.row(_MARKS[check.status], check.name, check.sentence)
    show(table)
    if target:
        findings = {"checks": [asdict(check) for check in checks]}
        target.write({"command": "doctor", "machine": machine(), "versions": versions(), **findings})


def _checks() -> Iterator[Check]:
    found = versions()
    for name in ("python", "torch", "wavelet"):
        yield Check(name, "good", str(found[name]))
    yield _cores()
    yield _denormals()
    yield _allocator()
    yield _compiler()
    yield _cuda()
    yield _distributed()
    yield _digits()


def _cores() -> Check:
    import torch

    cores, threads = available_cores(), torch.get_num_threads()
    if cores == 1:
        return Check("cores", "advice", "One core: two waves have little to overlap here.")
    return Check("cores", "good", f"{cores} cores, {threads} intra-op threads; waves divide the threads.")


def _denormals() -> Check:
    import torch

    if torch.set_flush_denormal(True):
        return Check("denormals", "good", "Tiny numbers can be flushed to zero; the commands do so.")
    return Check(
        "denormals", "missing", "Tiny numbers cannot be flushed to zero here: steps may slow down near zero loss."
    )


def _allocator() -> Check:
    try:
        install_from_environment()
    except ValueError as error:
        return Check("allocator", "missing", str(error))
    used = allocator_in_use()
    if used != standard_allocator():
        return Check("allocator", "good", f"{used} is in use.")
    advice = [f"{used} is in use; tcmalloc is often faster: {_how_to_preload()}"]
    if sys.platform.startswith("linux") and find_compiler():
        advice.append(f"Or one heap for all waves, in less memory: set {VARIABLE}=pool")
    return Check("allocator", "advice", " ".join(advice))


def _how_to_preload() -> str:
    library = find_tcmalloc()
    return f"set LD_PRELOAD to {library}." if library else f"{INSTALL_TCMALLOC}."


def _compiler() -> Check:
    compiler = find_compiler()
    if compiler:
        return Check("compiler", "good", f"{compiler[0]} is there, so --compile can work.")
    return Check("compiler", "advice", "No C++ compiler: --compile will fail on the CPU; install g++.")


def _cuda() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("cuda", "good", "No CUDA device: waves run on the CPU.")
    from wavelet.devices import make_device

    device = torch.device("cuda", torch.cuda.current_device())
    about = f"{torch.cuda.get_device_name(device)}, allocator back end {torch.cuda.get_allocator_backend()}"
    advice = make_device(device, 2, "separate").advice()
    return Check("cuda", "advice", f"{about}. {advice}") if advice else Check("cuda", "good", f"{about}.")


def _distributed() -> Check:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return Check("distributed", "missing", "No gloo: bench cannot run DDP; use --against plain.")
    others = {"nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    names = ["gloo", *(name for name, there in others.items() if there)]
    return Check("distributed", "good", f"torch.distributed has {', '.join(names)}.")


def _digits() -> Check:
    if find_spec("sklearn"):
        return Check("scikit-learn", "good", "The digits jobs have their data.")
    return Check("scikit-learn", "missing", "The digits jobs lack their data: pip install scikit-learn")
