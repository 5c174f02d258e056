"""The documentation is true: examples run, marked code blocks run, and links lead somewhere."""

import itertools
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .processes import completed

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = ROOT / "examples"
JOBS_PAGE = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")

# Hidden code in a comment of its own, or a block under a comment.
RUNS = re.compile(r"^<!-- runs\n(.*?)^-->$|^<!-- runs -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(path):
    return str(path.relative_to(ROOT))


def run(folder, *arguments):
    """Run Python in ``folder``; spinning OpenMP threads would slow down whatever else the machine does."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, *map(str, arguments)]
    return printed(
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False)
    )


def run_script(folder, *arguments):
    """Run a script in ``folder``, by a Python that has torch imported already."""
    return printed(completed(_script, *map(str, arguments), cwd=folder, timeout=150))


def _script(*arguments):
    sys.argv[:] = arguments
    sys.path[0] = str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")


def printed(done):
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def code_of(page):
    """The marked blocks of a page as one script, each at its own lines, so that a traceback names the right one."""
    text = page.read_text(encoding="utf-8")
    script = ""
    for match in RUNS.finditer(text):
        group = 1 if match[1] is not None else 2
        script += "\n" * (text.count("\n", 0, match.start(group)) - script.count("\n")) + match[group]
    return script


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)], ids=name)
def test_marked_blocks_run(page, tmp_path):
    script = tmp_path / f"{page.stem}.py"
    script.write_text(code_of(page), encoding="utf-8")
    run_script(tmp_path, script)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_mark_is_misspelled(page):
    text = page.read_text(encoding="utf-8")
    assert len(RUNS.findall(text)) == len(re.findall(r"^<!-- ?runs?\b", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    """Links within the repository: the file is there, and so is the heading."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        address, _, anchor = target.partition("#")
        path = (page.parent / address).resolve() if address else page
        assert path.exists(), f"{name(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in headings(path), (
                f"{name(page)} links to {target}; {name(path)} has {sorted(headings(path))}"
            )


def headings(path):
    """The anchors of a page's headings, as GitHub and mkdocs both write them."""
    titles = re.findall(r"^#+ +(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation():
    pages = set(re.findall(r"^  - [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert pages == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_every_public_name_is_in_the_reference():
    import wavelet

    names = set(
        re.findall(r"^::: wavelet\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert names == {public for public in wavelet.__all__ if not public.startswith("__")}


def test_the_plain_loop_runs(tmp_path):
    assert run(tmp_path, EXAMPLES / "plain_loop.py", "--epochs", 1).startswith("epoch 1: accuracy 0.")


def test_own_loop_goes_on_where_it_was_saved(tmp_path):
    """Bitwise: the same accuracies as a run that never stopped, on the same weights."""
    never_stopped = run(tmp_path, EXAMPLES / "own_loop.py", "--epochs", 2, "--save", "a.pt")
    first = run(tmp_path, EXAMPLES / "own_loop.py", "--epochs", 1, "--save", "b.pt")
    second = run(tmp_path, EXAMPLES / "own_loop.py", "--epochs", 2, "--save", "b.pt")
    assert first + second == never_stopped
    a, b = (torch.load(tmp_path / name)["engine"]["weights"] for name in ("a.pt", "b.pt"))
    assert all(torch.equal(p, q) for x, y in zip(a, b, strict=True) for p, q in zip(x, y, strict=True))


def test_own_loop_differs_from_the_plain_loop_in_few_lines():
    """The loop itself: one line more, three lines fewer. The rest of the trainer is left as it is."""

    def lines(example):
        text = (EXAMPLES / example).read_text(encoding="utf-8")
        return [line.strip() for line in text.partition("def train(")[2].splitlines() if line.strip()]

    plain, own = lines("plain_loop.py"), lines("own_loop.py")
    added = [line for line in own if line not in plain]
    assert added == [
        "loader, validation = make_data(batch_size=16)",
        "engine = wavelet.Wavelet(model, optimizer, loss)",
        'engine.load_state_dict(saved["engine"])',
        "engine.step(batch)",
        "engine.drain()",
        '"engine": engine.state_dict(),',
        "engine.close()",
    ]


def test_the_job_file_trains_and_its_fields_are_documented(tmp_path):
    job = [EXAMPLES / "my_job.py", "--steps", 20, "--json", "run.json"]
    printed = run(tmp_path, "-m", "wavelet", "train", *job)
    assert "my_job: 2 waves, neighbour" in printed
    assert "validation accuracy" in printed
    document = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    fields = {*document, *document["machine"], *document["versions"]}
    assert not [field for field in fields if f"`{field}`" not in JOBS_PAGE]


def test_fields_of_a_bench_are_documented():
    from dataclasses import fields

    from wavelet.bench.results import Failure
    from wavelet.bench.rounds import Measurement
    from wavelet.bench.systems import System
    from wavelet.bench.verdict import Row, Verdict

    names = {field.name for kind in (Measurement, Failure, Row, Verdict, System) for field in fields(kind)}
    assert not [field for field in names if f"`{field}`" not in JOBS_PAGE]


def test_every_option_is_documented():
    import typer

    from wavelet.cli.app import app

    commands = typer.main.get_command(app).commands
    for name, command in commands.items():
        assert f"`wavelet {name}" in JOBS_PAGE
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert not [option for option in options if option not in JOBS_PAGE], name


def test_the_picture_shows_the_schedule(monkeypatch):
    """Forwards one at a time and updates in order, as the caption says; and its numbers."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "pictures"))
    picture = pytest.importorskip("two_waves", exc_type=ImportError)
    batches = picture.schedule(2)
    for before, after in itertools.pairwise(batches):
        assert before.backward <= after.forward
        assert before.done <= after.update
    for before, after in zip(batches, batches[2:], strict=False):
        assert before.done <= after.forward
    for num_waves, num_done, peak in (1, 4, 1.0), (2, 7, 1.6):
        batches = picture.schedule(num_waves)
        _, tops = picture.stacked(batches, num_waves)
        assert sum(batch.done <= picture.END for batch in batches) == num_done
        assert round(max(tops[-1]), 1) == peak
