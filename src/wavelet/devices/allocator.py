"""An optional CPU allocator for torch, compiled when it is first wanted: one heap for all threads.

Waves free in one thread what another allocated. glibc keeps a heap for each thread, so the valley that one wave leaves
is not there for the other, and resident memory is a multiple of what is allocated. The pool (``pool.hpp``) gives
blocks from 64 KiB on from one heap, best fit. Set ``WAVELET_CPU_ALLOCATOR=pool`` to have it; Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

__all__ = [
    "VARIABLE",
    "PoolStats",
    "PoolUnavailable",
    "find_compiler",
    "find_or_build",
    "give_back",
    "install_from_environment",
    "install_pool",
    "pool_in_use",
    "pool_stats",
    "reset_peak",
]

VARIABLE = "WAVELET_CPU_ALLOCATOR"

_FOLDER = Path(__file__).parent
_SOURCES = ("pool.cpp", "pool.hpp", "pool_block.hpp")
_COMPILER_LIMIT = 120.0

_library: ctypes.CDLL | None = None
_lock = threading.Lock()


class PoolStats(NamedTuple):
    """Bytes `allocated` through the pool now, small blocks too, their `peak` since the last reset, and bytes
    `reserved` for blocks of 64 KiB and more. What was allocated before the pool was installed does not count."""

    allocated: int
    peak: int
    reserved: int


class PoolUnavailable(Exception):
    """The pool cannot be had; the message is a sentence without its full stop."""


def install_from_environment() -> None:
    """Install the pool if ``WAVELET_CPU_ALLOCATOR`` is ``pool``; warns once where that fails.

    Raises:
        ValueError: the variable is neither ``pool`` nor ``system``.
    """
    wanted = os.environ.get(VARIABLE, "system")
    if wanted not in ("pool", "system"):
        raise ValueError(f"{VARIABLE}={wanted!r} is not known: use 'pool' or 'system'.")
    if wanted == "pool" and not pool_in_use():
        _install_or_warn()


def install_pool() -> None:
    """Give torch the pool for all CPU memory that it allocates from now on; before the model is best.

    Raises:
        PoolUnavailable: not on Linux, no compiler, or it does not compile.
    """
    global _library
    with _lock:
        if _library is not None:
            return
        library = _load(find_or_build())
        if not library.wavelet_pool_install():
            raise PoolUnavailable("torch has an allocator of a higher priority, or there are no addresses left")
        _library = library


def pool_in_use() -> bool:
    """Whether torch allocates from the pool."""
    return _library is not None


def pool_stats() -> PoolStats | None:
    """Exact counts of bytes; None where the pool is not in use."""
    if _library is None:
        return None
    numbers = (ctypes.c_size_t * 3)()
    _library.wavelet_pool_stats(numbers)
    return PoolStats(*numbers)


def reset_peak() -> None:
    """Let the peak begin again at what is allocated now; nothing where the pool is not in use."""
    if _library is not None:
        _library.wavelet_pool_reset_peak()


def give_back() -> None:
    """Give the pages of all free blocks to the system now, as before a measurement; nothing without the pool."""
    if _library is not None:
        _library.wavelet_pool_give_back()


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler: ``$CXX`` (with its arguments), g++ or clang++."""
    candidates = (shlex.split(os.environ.get("CXX", "")), ["g++"], ["clang++"])
    return next((command for command in candidates if command and shutil.which(command[0])), None)


def find_or_build() -> Path:
    """The compiled pool: one that lies beside this file, or in the cache, or built into it now.

    Raises:
        PoolUnavailable: not on Linux, no compiler, or it does not compile.
    """
    if not sys.platform.startswith("linux"):
        raise PoolUnavailable("it is for Linux")
    built = next(_prebuilt(), None)
    if built is not None:
        return built
    compiler = find_compiler()
    if compiler is None:
        raise PoolUnavailable("there is no C++ compiler: install g++")
    command = [*compiler, str(_FOLDER / "pool.cpp"), *_flags()]
    target = _cache() / f"pool-{_fingerprint(command)}.so"
    if not target.exists():
        _build(command, target)
    return target


@functools.cache
def _install_or_warn() -> None:
    try:
        install_pool()
    except PoolUnavailable as error:
        warnings.warn(f"{VARIABLE}=pool: {error}; the system's allocator stays.", RuntimeWarning, stacklevel=4)


def _prebuilt() -> Iterator[Path]:
    """Libraries beside this file that were compiled for this torch: the interface of its allocators may change."""
    for path in sorted(_FOLDER.glob("pool*.so")):
        with contextlib.suppress(PoolUnavailable):
            if _load(path).wavelet_pool_torch().decode() == _torch_version():
                yield path


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        library.wavelet_pool_torch.restype = ctypes.c_char_p
        library.wavelet_pool_install.restype = ctypes.c_bool
    except (OSError, AttributeError) as error:
        raise PoolUnavailable(f"it cannot be loaded: {error}") from error
    return library


def _flags() -> list[str]:
    # torch.utils.cpp_extension would say the same, but needs setuptools.
    torch_folder = Path(torch.__file__).parent
    return [
        *("-std=c++17", "-O2", "-fPIC", "-shared"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f'-DWAVELET_TORCH="{_torch_version()}"',
        *("-isystem", str(torch_folder / "include")),
        *(f"-L{torch_folder / 'lib'}", "-lc10"),
    ]


def _torch_version() -> str:
    return torch.__version__.partition("+")[0]


def _fingerprint(command: list[str]) -> str:
    """Changes with the sources, the torch, the compiler and its flags."""
    digest = hashlib.sha256("\0".join([torch.__version__, *command]).encode())
    for name in _SOURCES:
        digest.update((_FOLDER / name).read_bytes())
    return digest.hexdigest()[:16]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "wavelet")


def _build(command: list[str], target: Path) -> None:
    """Under a name of its own first: other processes may build too, and a build may be interrupted."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
            output = Path(folder, target.name)
            full = [*command, "-o", str(output)]
            done = subprocess.run(full, capture_output=True, text=True, timeout=_COMPILER_LIMIT, check=False)
            if done.returncode != 0:
                errors = [line.strip() for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
                raise PoolUnavailable(f"{command[0]} failed: {errors[0]}")
            output.replace(target)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:  # RuntimeError: no home folder
        raise PoolUnavailable(f"it could not be built: {error}") from error
