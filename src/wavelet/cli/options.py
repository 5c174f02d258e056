"""What the commands share: refusals, the options that several have, and loading a job."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavelet.report.jsonfile import JsonFile

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = [
    "BatchSize",
    "Force",
    "JobName",
    "Json",
    "Refusal",
    "Rule",
    "Seed",
    "given",
    "json_file",
    "load_job",
    "refusing",
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
Force = Annotated[bool, typer.Option("--force", help="Overwrite the JSON file.")]


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
