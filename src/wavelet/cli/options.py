"""What the commands share: refusals, the options that several have, and loading a job."""

from __future__ import annotations

import contextlib
import enum
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavelet.report.jsonfile import JsonFile
from wavelet.report.machine import machine, versions
from wavelet.report.outputfile import OutputFile

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = [
    "Accumulate",
    "BatchSize",
    "Force",
    "JobName",
    "Json",
    "Refusal",
    "Report",
    "Rule",
    "Seed",
    "Threads",
    "about",
    "first_batches",
    "given",
    "json_file",
    "load_job",
    "num_threads",
    "output_file",
    "refusing",
    "set_threads",
    "waves_to_measure",
]


class Refusal(Exception):
    """What was asked makes no sense; the message is one sentence for the user."""


class Rule(str, enum.Enum):
    """The update rules, the default first."""

    neighbour = "neighbour"
    synchronous = "synchronous"
    delayed = "delayed"


JobName = Annotated[str, typer.Argument(metavar="JOB", help="A built-in job, or path.py or path.py:function.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of all random generators.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples in a batch.", show_default="the job's own")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the results here.")]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Also write a page with pictures here.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Intra-op threads.", show_default="all cores")]
Accumulate = Annotated[int, typer.Option(min=1, help="Batches for one update.")]


@contextlib.contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn exceptions of these kinds, whose messages are written for users, into refusals."""
    try:
        yield
    except kinds as error:
        raise Refusal(str(error)) from error


def json_file(path: Path | None, force: bool) -> JsonFile | None:
    """The file to write at the end, checked now.

    Raises:
        Refusal: it cannot be written, or it exists and `force` is false.
    """
    if path is None:
        return None
    with refusing(ValueError):
        return JsonFile(path, force=force)


def output_file(path: Path | None, force: bool) -> OutputFile | None:
    """The same for a file of text."""
    if path is None:
        return None
    with refusing(ValueError):
        return OutputFile(path, force=force)


def set_threads(threads: int | None) -> None:
    """Before the job is made: flush denormals, take the pool if it is asked for, and set the intra-op threads.

    Raises:
        Refusal: the allocator that is asked for is not known.
    """
    import rich.style  # noqa: F401  # draws from Python's generator when first imported: before it is seeded or loaded
    import torch

    from wavelet.devices.allocator import install_from_environment

    with refusing(ValueError):
        install_from_environment()
    torch.set_flush_denormal(True)
    if threads:
        torch.set_num_threads(threads)


def num_threads() -> int:
    """Intra-op threads of this process."""
    import torch

    return torch.get_num_threads()


def waves_to_measure(text: str) -> tuple[int, ...]:
    """The numbers in a list such as ``1,2``.

    Raises:
        Refusal: one is no number from 1 to 3.
    """
    parts = [part.strip() for part in text.split(",")]
    if any(part not in ("1", "2", "3") for part in parts):
        raise Refusal(f"--waves {text} makes no sense: give numbers from 1 to 3, such as 1,2")
    return tuple(sorted({int(part) for part in parts}))


def first_batches(job: Job, count: int) -> list[Any]:
    """The first batches of a job, fewer if its loader has fewer.

    Raises:
        ValueError: it has none.
    """
    found = list(itertools.islice(job.loader, count))
    if not found:
        raise ValueError("the job's loader has no batch")
    return found


def about(job: Job, seed: int) -> dict[str, Any]:
    """Fields that results of a job have in common."""
    setting = {"job": job.name, "seed": seed, "samples_per_batch": job.samples_per_batch, "threads": num_threads()}
    return {**setting, "machine": machine(), "versions": versions()}


def given(context: typer.Context, *names: str) -> list[str]:
    """Those of the options `names` that stand on the command line, written as there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        f"--{name.replace('_', '-')}" for name, source in sources.items() if source and source.name == "COMMANDLINE"
    ]


def load_job(spec: str, *, seed: int, batch_size: int | None) -> Job:
    """A built-in job, or one from a file.

    Raises:
        Refusal: there is no such job, it cannot have this batch size, or its data are not installed.
        JobFileError: the job file raised an exception.
    """
    import wavelet.jobs

    with refusing(ValueError, ImportError):
        return wavelet.jobs.load(spec, seed=seed, batch_size=batch_size)
