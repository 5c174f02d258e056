"""How the page's figures look, in light and in dark: colours, type and axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DARK", "LIGHT", "Colours", "axis", "layout", "plain", "rounded"]


@dataclass(frozen=True)
class Colours:
    """One colour for each meaning. The kinds of work differ in lightness too, so that hue is never needed."""

    paper: str
    card: str
    ink: str
    soft: str
    line: str
    accent: str
    ready: str
    forward: str
    backward: str
    turn: str
    wait: str
    waves: tuple[str, ...]

    def wave(self, index: int) -> str:
        """The colour of a wave's memory."""
        return self.waves[index % len(self.waves)]


LIGHT = Colours(
    paper="#ffffff",
    card="#f4f6f8",
    ink="#1c2127",
    soft="#56606c",
    line="#dde2e7",
    accent="#1f6fb2",
    ready="#a9b1ba",
    forward="#3fb8a4",
    backward="#a8437f",
    turn="#1c2127",
    wait="#c3cad2",
    waves=("#4f8fd0", "#eda13a", "#94a83b", "#8b93c9"),
)
DARK = Colours(
    paper="#14181d",
    card="#1d232a",
    ink="#e8ecf0",
    soft="#a3adb8",
    line="#323a44",
    accent="#6bb1ee",
    ready="#6a737e",
    forward="#4cc7b2",
    backward="#c4619d",
    turn="#dbe1e7",
    wait="#47515d",
    waves=("#4f8fd0", "#e09a3a", "#94a83b", "#8b93c9"),
)


def layout(colours: Colours, *, height: int) -> dict[str, Any]:
    font = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif", "size": 13}
    return {
        "template": "none",
        "height": height,
        "showlegend": False,
        "hovermode": "closest",
        "paper_bgcolor": colours.paper,
        "plot_bgcolor": colours.paper,
        "font": font | {"color": colours.ink},
        "hoverlabel": {"bgcolor": colours.card, "bordercolor": colours.line, "font": font | {"color": colours.ink}},
        "margin": {"l": 98, "r": 20, "t": 12, "b": 52},
    }


def axis(colours: Colours) -> dict[str, Any]:
    return {"gridcolor": colours.line, "linecolor": colours.line, "tickfont": {"color": colours.soft}}


def rounded(value: float) -> float:
    return float(f"{value:.7g}")


def plain(figure: Any) -> dict[str, Any]:
    fields: dict[str, Any] = figure.to_plotly_json()
    fields["layout"].pop("template", None)
    return fields
