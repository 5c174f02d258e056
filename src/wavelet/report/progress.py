"""Progress bars on standard error, silent where that is not a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar"]


class Bar:
    """One bar with the time left and a note behind it.

    Args:
        total: how many steps make it full; None if that is not known.
    """

    def __init__(self, title: str, total: float | None) -> None:
        self._progress = _progress()
        self._task = self._progress.add_task(title, total=total, note="")

    def update(self, done: float, note: str = "", title: str | None = None) -> None:
        """Move to `done`, with `note` behind the bar and, if given, another title."""
        self._progress.update(self._task, completed=done, note=note, description=title)

    def say(self, sentence: str) -> None:
        """Print a line above the bar, also where the bar is silent."""
        self._progress.console.print(sentence)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, the bar is off the screen, so that standard output can be printed to."""
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        disable=not console.is_terminal,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
