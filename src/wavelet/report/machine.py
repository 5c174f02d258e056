"""What results were measured on: the machine, the versions, and the memory that this process has used."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["available_cores", "machine", "peak_resident_bytes", "versions"]


def available_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Fields `cpu` (model name), `cores` (available here), `memory_bytes` and `system`."""
    return {
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": available_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        "system": platform.platform(),
    }


def versions() -> dict[str, Any]:
    """Fields `python`, `torch`, `wavelet` and `git_commit` (None for an installed package)."""
    import torch

    import wavelet

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "wavelet": wavelet.__version__,
        "git_commit": _git_commit(),
    }


def peak_resident_bytes() -> int:
    """The largest resident memory of this process so far, in bytes."""
    # On Linux, ru_maxrss survives exec, so a small child reports its parent's peak; VmHWM starts anew.
    high_water = _first_value("/proc/self/status", "VmHWM")
    if high_water is not None:
        return int(high_water.split()[0]) * 1024
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _first_value(path: str, key: str) -> str | None:
    """The value of the first line `key: value` of a file in /proc; None where there is none."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)
    except OSError:
        return None


def _git_commit() -> str | None:
    """The commit this package was checked out at, ending in -dirty after changes."""
    here = Path(__file__)
    # An installed package may lie inside somebody else's repository: the file itself must be tracked.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
