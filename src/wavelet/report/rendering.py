"""Makes a page from its template: one HTML document with its style, its script and the figures' library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wavelet.report.style import DARK, LIGHT, Colours

__all__ = ["in_both_schemes", "render"]

_FOLDER = Path(__file__).parent
_SCHEMES = {"light": LIGHT, "dark": DARK}


def in_both_schemes(draw: Callable[[Colours], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A figure in light and in dark, between which the page's script chooses."""
    return {name: draw(colours) for name, colours in _SCHEMES.items()}


def render(kind: str, series: Mapping[str, Callable[[Colours], Sequence[str]]], **fields: Any) -> str:
    """One HTML document that loads nothing.

    Args:
        kind: of the page: its template is ``page.KIND.html.jinja``, and its script ``page.KIND.js``.
        series: colours that only this page has: number i of *name* is there as ``--name-i``.
        fields: what the template shows, among them ``page``, with a title, and ``figures``, for the script.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"page.{kind}.html.jinja").render(
        **fields,
        schemes={name: _variables(colours, series) for name, colours in _SCHEMES.items()},
        plotly=Markup(get_plotlyjs()),
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup((_FOLDER / f"page.{kind}.js").read_text(encoding="utf-8")),
    )


def _variables(colours: Colours, series: Mapping[str, Callable[[Colours], Sequence[str]]]) -> dict[str, str]:
    """The colours of a scheme by the names that the style knows them by."""
    roles = {role: colour for role, colour in dataclasses.asdict(colours).items() if isinstance(colour, str)}
    numbered = {
        f"{name}-{index}": colour for name, found in series.items() for index, colour in enumerate(found(colours))
    }
    return roles | numbered
