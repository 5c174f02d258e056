"""From what a user types to a job: a built-in name, ``path.py`` or ``path.py:function``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from wavelet.jobs.catalogue import built_in, names
from wavelet.jobs.job import Job
from wavelet.jobs.seeds import set_seeds

__all__ = ["JobFileError", "load"]


class JobFileError(RuntimeError):
    """The user's job file raised an exception, which is this one's ``__cause__``."""


def load(spec: str, *, seed: int = 0, batch_size: int | None = None) -> Job:
    """Make the job that `spec` names.

    The global random generators of PyTorch, NumPy and Python are set to `seed` first. A job file is run as an import
    would run it, with its folder first on ``sys.path``; the folder stays there, so that later imports work too.

    Args:
        spec: a built-in job, ``path.py`` (its function ``job``) or ``path.py:function``.

    Keyword Args:
        seed: 0 to 2**32 - 1; handed to the function if it takes ``seed``, and the job's `Job.seed` in any case.
        batch_size: samples in one batch of one rank, for a function that takes ``batch_size``; None: the job's own.

    Raises:
        ValueError: no such job, file or function; a function that takes or returns something else; an argument out
            of range.
        JobFileError: the job file raised an exception.
    """
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise ValueError(f"batch_size={batch_size!r} is not possible: give a whole number from 1.")
    set_seeds(seed)
    if spec in names():
        function = built_in(spec)
        return function(**_arguments(function, spec, seed, batch_size))
    path, name = _split(spec)
    function, what = _find(path, name), f"{name}() in {path}"
    arguments = _arguments(function, what, seed, batch_size)
    set_seeds(seed)
    with _blaming(path):
        job = function(**arguments)
    if not isinstance(job, Job):
        raise ValueError(f"{what} returned an object of type {type(job).__name__}: let it return a wavelet.Job.")
    return replace(job, seed=seed, name=job.name or path.stem)


def _split(spec: str) -> tuple[Path, str]:
    path, name = (spec, "job") if spec.endswith(".py") else spec.rpartition(":")[::2]
    if not path.endswith(".py"):
        nearest = "".join(f" (did you mean {near}?)" for near in get_close_matches(spec, names(), n=1))
        allowed = f"{', '.join(names())}, or a file as path.py or path.py:function"
        raise ValueError(f"There is no job {spec!r}{nearest}: name one of {allowed}.")
    return Path(path), name


def _find(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise ValueError(f"There is no file {path}: give the path of a Python file that has a function {name}().")
    module = _run(path.resolve())
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{path} has no function {name!r}: write one, or name another as {path}:function.")
    return function  # type: ignore[no-any-return]  # callable() tells nothing about what it returns


def _run(path: Path) -> ModuleType:
    folder = str(path.parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    spec = spec_from_file_location(f"wavelet_job_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look up a class's module by name
    with _blaming(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        raise JobFileError(f"{path.name} raised {type(error).__name__}: {error}") from error


def _arguments(function: Callable[..., Any], what: str, seed: int, batch_size: int | None) -> dict[str, int]:
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    arguments = {"seed": seed} if takes_any or "seed" in signature.parameters else {}
    if batch_size is not None:
        if not takes_any and "batch_size" not in signature.parameters:
            raise ValueError(f"{what} takes no batch_size: add the argument, or leave the batch size to the job.")
        arguments["batch_size"] = batch_size
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{what} cannot be called ({error}): it is given seed and batch_size by name.") from None
    return arguments
