"""Saving and resuming in `wavelet train`."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavelet.bench.loops import WavesLoop
from wavelet.checkpoints import CheckpointError, Checkpoints
from wavelet.cli.options import Refusal, refusing
from wavelet.jobs.position import LoaderPosition

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = ["Every", "Keep", "Resume", "Save", "Saver", "check_saving", "make_saver"]

Save = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Save checkpoints here.")]
Every = Annotated[int | None, typer.Option(min=1, help="Batches between checkpoints.", show_default="the end alone")]
Resume = Annotated[str, typer.Option(help="Go on from a checkpoint: auto (the newest, if any), never, or its step.")]
Keep = Annotated[int, typer.Option(min=1, help="Checkpoints that stay.")]


def check_saving(save: Path | None, resume: str, typed: list[str]) -> int | str:
    """What to resume from: ``auto``, ``never`` or a step.

    Args:
        save: the folder, if any.
        resume: as it was typed.
        typed: those of the other options that were typed.

    Raises:
        Refusal: they make no sense.
    """
    if save is None and typed:
        belong = "belongs" if len(typed) == 1 else "belong"
        raise Refusal(f"{' and '.join(typed)} {belong} to --save: give it a folder for the checkpoints")
    if resume.isdecimal():
        return int(resume)
    if resume not in ("auto", "never"):
        raise Refusal(f"--resume {resume} makes no sense: give auto, never or the step of a checkpoint")
    return resume


def make_saver(
    folder: Path,
    job: Job,
    loop: WavesLoop,
    options: dict[str, Any],
    *,
    epochs: int | None,
    every: int | None,
    keep: int,
) -> Saver:
    """What saves this run.

    Args:
        folder: for the checkpoints; made if it is not there.
        job: what is trained.
        loop: trains it.
        options: what was asked of the loop.
        epochs: passes over the data; None for no end.
        every: batches between checkpoints; None for one at the end alone.
        keep: checkpoints that stay.

    Raises:
        Refusal: the folder cannot be written.
    """
    run = {
        "job": job.name,
        "seed": job.seed,
        "samples per batch": job.samples_per_batch,
        "optimizer": type(job.optimizer).__name__,
        **{name: options[name] for name in ("update", "waves", "accumulate", "resync", "compile")},
    }
    with refusing(ValueError):
        checkpoints = Checkpoints(folder, keep=keep)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Refusal(f"--save {folder}: the folder cannot be written ({error.strerror})") from error
    return Saver(checkpoints, folder, loop, LoaderPosition(job.loader, epochs), run, every)


class Saver:
    """Hands out a run's batches, and saves behind every so many of them and at the end.

    Args:
        checkpoints: where to save.
        folder: how messages call it.
        loop: what is trained.
        position: the batches.
        run: what must be the same in a run that goes on.
        every: batches between checkpoints; None for one at the end alone.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        folder: Path,
        loop: WavesLoop,
        position: LoaderPosition[Any],
        run: dict[str, Any],
        every: int | None,
    ) -> None:
        self.num_batches = 0
        """Handed out since the run began, in this process or before."""
        self._checkpoints, self._folder, self._loop, self._position = checkpoints, folder, loop, position
        self._run, self._every = run, every
        self._saved: int | None = None
        self._end: int | None = None  # where ranks end behind other batches: the last of all

    def begin(self, resume: int | str, *, force: bool) -> None:
        """Go on from a checkpoint, or start afresh.

        Args:
            resume: see `check_saving`.
            force: let a fresh start replace the checkpoints that are there.

        Raises:
            Refusal: there is no such checkpoint, it is of another run, or checkpoints are in the way.
        """
        with refusing(ValueError, CheckpointError), _warnings_as_sentences():
            newest = self._checkpoints.latest()
            if resume == "never" and newest is not None and not force:
                raise Refusal(
                    f"{self._folder} holds checkpoints (the newest of step {newest}): add --resume auto to go on from "
                    "it, or --force to start afresh"
                )
            if resume == "never" or (resume == "auto" and newest is None):
                self._checkpoints.start_over()
                return
            found = self._checkpoints.load(None if resume == "auto" else int(resume))
            self._check(found.step, found.values.get("run", {}))
            self._checkpoints.load(found.step, engine=self._loop.engine, batches=self._position)
            self.num_batches = self._saved = found.step

    def batches(self) -> Iterator[Any]:
        """The batches that are left; when one is asked for, those before it have been handed in.

        All ranks save together, so behind the last batch of the rank that has the fewest they do so at the end alone.
        """
        lefts = self._checkpoints._ranks.gather(self._position.num_left())
        ends = [self.num_batches + left for left in lefts if left is not None]
        last = min(ends) if len(ends) == len(lefts) else None
        self._end = max(ends) if last is not None and last < max(ends) else None
        for batch in self._position:
            self.num_batches += 1
            yield batch
            if self._every and self.num_batches % self._every == 0 and (last is None or self.num_batches <= last):
                self._save()

    def finish(self) -> None:
        """Save behind the last batch, and wait until that is written."""
        if self._end is not None:
            self._loop.flush()  # in which a rank that has run out helps the others
            self.num_batches = self._end
        if self.num_batches != self._saved:
            self._save()
        self._checkpoints.wait()

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _warnings_as_sentences():
            self._checkpoints.__exit__(kind, error, trace)

    def _save(self) -> None:
        engine = self._loop.engine
        run = {**self._run, "waves": engine.waves}
        self._checkpoints.save(self.num_batches, engine=engine, batches=self._position, run=run)
        self._saved = self.num_batches

    def _check(self, step: int, saved: dict[str, Any]) -> None:
        for name, mine in self._run.items():
            theirs = saved.get(name)
            if theirs != mine and not (name == "waves" and mine == "auto"):
                raise Refusal(
                    f"the checkpoint of step {step} in {self._folder} was saved with {name} {theirs}, and this run has "
                    f"{name} {mine}: give the same, or another folder to --save"
                )


@contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print(f"wavelet: {warning.message}", file=sys.stderr)
