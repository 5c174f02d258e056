"""An mkdocs hook: takes into the site what pages link to outside docs/, so that links work here and there.

Examples are copied as files; READMEs and pictures of benchmarks become pages. Roles of docstrings such as
``:meth:`drain` `` are shown as plain code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OUTSIDE = (
    "examples/*.py",
    "examples/*.toml",
    *(f"benchmarks/**/{kind}" for kind in ("README.md", "*.png", "*.svg", "*.toml")),
)
LIST_OF_BENCHMARKS = "<!-- the benchmarks, listed when the site is built -->"


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside."""
    for path in _outside():
        address = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links that are right in the repository into links that are right in the site."""
    if page.file.src_uri.startswith("benchmarks/"):
        return re.sub(r"\]\((?:\.\./)+docs/", "](" + "../" * page.file.src_uri.count("/"), markdown)
    markdown = re.sub(r"\]\(\.\./(examples|benchmarks)/", r"](\1/", markdown)
    return markdown.replace(LIST_OF_BENCHMARKS, _list_of_benchmarks())


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Show the roles of docstrings as plain code."""
    return re.sub(r":(?:meth|class|func|attr|mod|data):<code>~?(?:[\w.]*\.)?(\w+)</code>", r"<code>\1</code>", html)


def _outside() -> list[Path]:
    return sorted({path for pattern in OUTSIDE for path in ROOT.glob(pattern)})


def _list_of_benchmarks() -> str:
    readmes = [path for path in _outside() if path.name == "README.md"]
    return "\n".join(f"- [{_title(path)}]({path.relative_to(ROOT).as_posix()})" for path in readmes)


def _title(readme: Path) -> str:
    first = next((line for line in readme.read_text(encoding="utf-8").splitlines() if line.startswith("# ")), "")
    return first.removeprefix("# ") or readme.parent.name
