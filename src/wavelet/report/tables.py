"""Tables on a terminal: readable at 80 columns, in a pipe and without colour."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Table", "as_text", "show"]


@dataclass
class Table:
    """Rows of text under a title. Columns after the first are flush right if named in `numbers`."""

    title: str
    columns: Sequence[str]
    numbers: Sequence[str] = ()
    sections: list[list[Sequence[str]]] = field(default_factory=lambda: [[]])

    def row(self, *cells: str) -> None:
        """Add a row to the last section."""
        assert len(cells) == len(self.columns)
        self.sections[-1].append(cells)

    def section(self) -> None:
        """Start a new section, set apart by a line."""
        self.sections.append([])


def show(table: Table, console: Console | None = None) -> None:
    """Print `table` to `console` (standard output by default)."""
    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table as RichTable
    from rich.text import Text

    target = console or RichConsole(highlight=False)
    grid = RichTable(
        title=Text(table.title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    for name in table.columns:
        grid.add_column(Text(name), justify="right" if name in table.numbers else "left", overflow="fold")
    for section in table.sections:
        for cells in section:
            grid.add_row(*map(Text, cells))
        grid.add_section()
    target.print(grid)


def as_text(table: Table, width: int = 80) -> str:
    """`table` as plain text."""
    from rich.console import Console as RichConsole

    console = RichConsole(file=io.StringIO(), width=width, highlight=False)
    show(table, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
