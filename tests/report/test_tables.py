"""Tables keep their numbers whole on narrow terminals."""

import io

from rich.console import Console

from wavelet.report.tables import Table, show


def rendered(width):
    table = Table("A table", ("system", "samples/s", "ratio"), numbers=("samples/s", "ratio"))
    table.row("plain, 2 threads", "863.2", "1.00 best")
    table.row("Wavelet [neighbour]", "1515.0", "1.74")
    table.section()
    table.row("compiled, 2 threads", "900.1", "1.00 best")
    console = Console(file=io.StringIO(), width=width)
    show(table, console)
    return console.file.getvalue()


def test_wide_enough_for_one_line_a_row():
    lines = [line.rstrip() for line in rendered(80).splitlines()]
    assert lines[0] == "A table"
    assert any(line.split() == ["Wavelet", "[neighbour]", "1515.0", "1.74"] for line in lines)
    assert sum("───" in line for line in lines) == 1
    assert lines.index(" compiled, 2 threads       900.1   1.00 best") > 0


def test_narrow_terminals_fold_words_and_cut_nothing():
    text = rendered(40)
    assert max(map(len, text.splitlines())) <= 40
    for word in ("863.2", "1515.0", "[neighbour]", "compiled", "1.74", "best"):
        assert word in text
    assert "…" not in text
