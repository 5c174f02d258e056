"""The memory allocators a process can run under: the C library's, tcmalloc where it is installed, Wavelet's pool."""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from wavelet.devices.allocator import VARIABLE, PoolUnavailable, find_or_build, pool_in_use

__all__ = ["INSTALL_TCMALLOC", "allocator_in_use", "environment", "find_tcmalloc", "standard_allocator"]

INSTALL_TCMALLOC = "apt-get install libtcmalloc-minimal4"

_NAMES = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
_FOLDERS = ("/usr/lib", f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/local/lib", "/lib64")
_KNOWN = ("tcmalloc", "jemalloc", "mimalloc")


def standard_allocator() -> str:
    """The name of the C library's own allocator: `glibc`, or `system` elsewhere."""
    return "glibc" if platform.libc_ver()[0] == "glibc" else "system"


def find_tcmalloc() -> Path | None:
    """The tcmalloc library in the usual folders, on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    candidates = (Path(folder, name) for name in _NAMES for folder in _FOLDERS)
    return next((path for path in candidates if path.exists()), None)


def allocator_in_use() -> str:
    """The allocator of this process: the pool if torch has it, else by the libraries that are loaded."""
    if pool_in_use():
        return "wavelet's pool"
    try:
        loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return standard_allocator()
    return next((name for name in _KNOWN if f"lib{name}" in loaded), standard_allocator())


def environment(allocator: str, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process that is to run under `allocator`, whatever this one runs under.

    Raises:
        ValueError: `allocator` is not known or not installed.
    """
    names = {key: value for key, value in base.items() if key not in ("LD_PRELOAD", VARIABLE)}
    if allocator == standard_allocator():
        return names
    if allocator == "pool":
        try:
            find_or_build()  # once, here: a process that is measured finds it built
        except PoolUnavailable as error:
            raise ValueError(f"the pool cannot be had: {error}") from error
        return {**names, VARIABLE: "pool"}
    if allocator != "tcmalloc":
        raise ValueError(f"unknown allocator {allocator!r}: choose from {standard_allocator()}, tcmalloc, pool")
    library = find_tcmalloc()
    if library is None:
        raise ValueError(f"tcmalloc is not installed; on Debian: {INSTALL_TCMALLOC}")
    return {**names, "LD_PRELOAD": str(library)}
