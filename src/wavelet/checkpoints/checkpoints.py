"""`Checkpoints`: the last ones of a run, in a folder."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, NamedTuple

from wavelet.checkpoints.contents import Contents, Found
from wavelet.checkpoints.errors import CheckpointError, reason
from wavelet.checkpoints.folder import Folder
from wavelet.checkpoints.interrupts import interrupts_later
from wavelet.checkpoints.parts import is_stateful
from wavelet.checkpoints.ranks import Ranks
from wavelet.forking import quiet_before_fork

__all__ = ["Checkpoints", "Loaded"]


class Loaded(NamedTuple):
    """What `Checkpoints.load` found.

    Args:
        step: of the checkpoint.
        values: the parts that were plain values.
        num_ranks: how many ranks had saved it.
    """

    step: int
    values: dict[str, Any]
    num_ranks: int


class Checkpoints:
    """The last checkpoints of a run, in a folder; each is whole or not there.

    Where torch.distributed is initialised, all ranks make this object and call each of its methods at the same batch,
    and ``folder`` is one that they share. What the ranks have in common is written once, evenly by all of them.

    Args:
        folder: made at the first save.
        keep: how many checkpoints stay.
        asynchronous: copy to the CPU's memory and write beside the training; an error then rises in the next call.
            A save that comes while the one before is still being written waits for it.
        group: the ranks that save together, as a ProcessGroup or a DeviceMesh of one dimension; all by default. Saving
            uses a gloo group of its own among them.

    Raises:
        ValueError: ``keep`` is below 1, or there is a file in place of the folder.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 2, asynchronous: bool = True, group: Any = None
    ) -> None:
        from wavelet.checkpoints import storage  # half a second, which no batch shall wait for

        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise ValueError(f"keep={keep!r} is not possible: give a whole number from 1.")
        self._storage = storage
        self._folder = Folder(folder)
        self._keep = keep
        self._asynchronous = asynchronous
        self._ranks = Ranks(group)
        self._before: int | None = None  # the step that the next save comes after; None: nothing loaded or saved
        self._writing: tuple[int, Future[None]] | None = None
        quiet_before_fork(self)

    def save(self, step: int, **parts: Any) -> None:
        """Save ``parts`` as the checkpoint of ``step``.

        Args:
            step: of the whole run, such as the number of batches; grows from save to save.
            parts: an engine; anything else with ``state_dict`` and ``load_state_dict``, saved once a rank; or tensors
                and plain values, of which rank 0's are taken.

        Raises:
            ValueError: the folder holds checkpoints of a run that was not loaded, ``step`` does not grow, a part holds
                something that cannot be saved, or the ranks differ.
            CheckpointError: the system refuses, now or in the save before.
        """
        self._ranks.check()
        self.wait()
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ValueError(f"step={step!r} is not possible: give a whole number from 0.")
        self._ranks.of_first(lambda: self._prepare(step))
        what = f"step {step} was not saved"
        contents = self._ranks.together(lambda: Contents(parts, self._ranks, copy=self._asynchronous), what)
        if len(set(self._ranks.gather((step, contents.fingerprint)))) > 1:
            raise ValueError(f"{what}: the ranks came with other steps, parts or models; they must be the same.")
        done: Future[None] = Future()
        before = -1 if self._before is None else self._before
        with interrupts_later():  # or what is written might be published, and waited for, by nobody
            upload = self._storage.write(self._folder.partial(step), contents.tensors, self._ranks)
            upload.add_done_callback(lambda upload: self._finish(step, before, upload, done))
            self._writing = step, done
        if not self._asynchronous:
            try:
                self.wait()
            except KeyboardInterrupt:
                self._wait_until_idle()  # what is being written is the training's own memory
                raise

    def latest(self) -> int | None:
        """The step of the newest whole checkpoint; None if there is none. Warns of newer ones that are torn."""
        self._ranks.check()
        self.wait()
        whole = self._ranks.of_first(self._whole)
        return whole[-1] if whole else None

    def load(self, step: int | None = None, **parts: Any) -> Loaded:
        """Load ``parts`` from the checkpoint of ``step``, by default from the newest whole one.

        With as many ranks as had saved it, the run goes on bitwise as if it had not stopped. With more or fewer, all
        ranks take what was shared, and the buffers of rank 0; a rank keeps its random state, or is given one that comes
        from rank 0's; gradients of an open round are dropped, with a warning, and a new round begins.

        Saves that follow come after this step: later checkpoints are removed when the next one is complete.

        Args:
            step: rank 0's choice counts.
            parts: those that load themselves; the values that were saved are returned in any case.

        Raises:
            ValueError: there is no such checkpoint or part, or a part refuses what was saved.
            CheckpointError: it cannot be read.
        """
        self._ranks.check()
        self.wait()
        for name, part in parts.items():
            if not is_stateful(part):
                raise ValueError(f"{name} has no load_state_dict: leave it out, and take it from the values returned.")
        candidates = self._ranks.of_first(lambda: self._candidates(step))
        for number, candidate in enumerate(candidates):
            try:
                loaded, states, dropped = self._read(candidate, list(parts))
                break
            except CheckpointError as error:
                if number == len(candidates) - 1:
                    raise
                self._warn(f"{error} The checkpoint before it is taken.")

        def give() -> None:
            for name, part in parts.items():
                part.load_state_dict(states[name])

        self._ranks.together(give, f"step {candidate} was not loaded")
        if dropped:
            self._warn(
                f"{self._folder.of(candidate)} was saved by {loaded.num_ranks} ranks in an open round: its gradients "
                "are dropped, and a new round begins."
            )
        self._before = candidate
        return loaded

    def start_over(self) -> None:
        """Begin a new run: the checkpoints that are there are removed when the first new one is complete."""
        self.wait()
        self._before = -1

    def wait(self) -> None:
        """Return when nothing is being written any more.

        Raises:
            CheckpointError: the last save failed. What was whole before still is.
        """
        if self._writing is not None:
            step, done = self._writing
            done.exception()  # here Ctrl-C may come, and leave all as it is
            self._writing = None
            done.result()
            self._before = step

    def close(self) -> None:
        """Wait, and give up the process group. Raises as `wait` does; closing twice is allowed."""
        try:
            self.wait()
        finally:
            self._ranks.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CheckpointError as failure:
            if kind is None:
                raise
            warnings.warn(str(failure), stacklevel=2)  # what has happened first is what matters

    # On rank 0.

    def _whole(self) -> list[int]:
        whole, torn = self._folder.split()
        for step, flaw in torn.items():
            if not whole or step > whole[-1]:
                self._warn(f"{self._folder.of(step)} is torn, {flaw}: it is left out.")
        return whole

    def _candidates(self, step: int | None) -> list[int]:
        if step is None:
            whole = self._whole()
            if not whole:
                raise ValueError(f"{self._folder.path} holds no whole checkpoint: start afresh instead.")
            return whole[::-1]
        whole, torn = self._folder.split()
        if step in torn:
            raise ValueError(f"{self._folder.of(step)} is torn, {torn[step]}: give another step of {whole}.")
        if step not in whole:
            there = f"there are {', '.join(map(str, whole))}" if whole else "there is none"
            raise ValueError(f"{self._folder.path} holds no checkpoint of step {step}: {there}.")
        return [step]

    def _prepare(self, step: int) -> None:
        try:
            if self._before is None:
                whole, _ = self._folder.split()
                if whole:
                    raise ValueError(
                        f"{self._folder.path} holds checkpoints of another run (the newest of step {whole[-1]}): "
                        "load() one to go on, start_over() to replace them, or give another folder."
                    )
            elif step < self._before:
                raise ValueError(f"step={step} comes after step {self._before}: steps must grow.")
            self._folder.prepare()
        except OSError as error:
            raise CheckpointError(f"step {step} was not saved in {self._folder.path} ({reason(error)}).") from error

    # On all ranks.

    def _finish(self, step: int, before: int, upload: Future[Any], done: Future[None]) -> None:
        """Called when all is written, or when that has failed on some rank; not on the caller's thread."""
        error = upload.exception()
        try:
            failure = self._ranks.of_first(lambda: self._publish(step, before, error))
        except Exception as broken:  # the other ranks are gone
            error, failure = broken, reason(broken)
        if failure is None:
            done.set_result(None)
        else:
            sentence = f"step {step} was not saved in {self._folder.path} ({failure})"
            failed = CheckpointError(f"{sentence}. The checkpoints that were there are whole.")
            failed.__cause__ = error
            done.set_exception(failed)

    def _publish(self, step: int, before: int, error: BaseException | None) -> str | None:
        """Let the new checkpoint appear; or remove it, and say what has failed."""
        if error is None:
            try:
                replaced = [each for each in self._folder.steps() if each > before or each == step]
                self._folder.publish(step, replaced, self._keep)
            except OSError as refused:
                error = refused
        if error is not None:
            self._folder.give_up(step)
        return None if error is None else reason(error)

    def _read(self, step: int, names: list[str]) -> tuple[Loaded, dict[str, Any], bool]:
        return self._ranks.together(lambda: self._read_alone(step, names), f"step {step} was not loaded")

    def _read_alone(self, step: int, names: list[str]) -> tuple[Loaded, dict[str, Any], bool]:
        try:
            found = Found(self._storage.Stored(self._folder.of(step)), self._ranks)
        except OSError as error:
            raise CheckpointError(f"{self._folder.of(step)} cannot be read ({reason(error)}).") from error
        for name in names:
            if name not in found.names or found.kind(name) == "value":
                raise ValueError(
                    f"{self._folder.of(step)} holds no part {name!r} that loads itself: it has "
                    f"{', '.join(sorted(found.names)) or 'none'}."
                )
        states, dropped = found.states(names)
        return Loaded(step, found.values(), found.num_ranks), states, dropped

    def _warn(self, sentence: str) -> None:
        if self._ranks.rank == 0:
            warnings.warn(sentence, stacklevel=3)

    def _wait_until_idle(self) -> None:
        """Before a fork: a worker could inherit a lock of the thread that writes."""
        if self._writing is not None:
            wait([self._writing[1]])
