"""The page of a simulated cluster: one HTML file with figures and tables that works offline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wavelet.report.simulation import efficiency_table, outcome_table, rate_text
from wavelet.report.simulation_figures import bandwidth_figure, colour_of, efficiency_figure, parts_figure
from wavelet.report.style import DARK, LIGHT

if TYPE_CHECKING:
    from wavelet.planning.cluster import Cluster
    from wavelet.planning.comparison import Outcome

__all__ = ["SimulationPage", "render_simulation"]


@dataclass(frozen=True)
class SimulationPage:
    """What a page shows.

    Args:
        title: the model and the cluster.
        cluster: that was simulated.
        outcomes: of each strategy on it.
        over_ranks: for each number of ranks, the strategies.
        over_bandwidths: for each bandwidth in bytes a second, the strategies.
        sentences: the verdict.
        about: command, versions and the like.
    """

    title: str
    cluster: Cluster
    outcomes: Sequence[Outcome]
    over_ranks: Sequence[Sequence[Outcome]]
    over_bandwidths: Sequence[tuple[float, Sequence[Outcome]]]
    sentences: Sequence[str]
    about: dict[str, str] = field(default_factory=dict)


def render_simulation(page: SimulationPage) -> str:
    """One HTML document that loads nothing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    schemes = {"light": LIGHT, "dark": DARK}
    own = page.cluster.inter.bytes_per_second
    figures = {
        "parts": {name: parts_figure(page.outcomes, scheme) for name, scheme in schemes.items()},
        "ranks": {name: efficiency_figure(page.over_ranks, scheme) for name, scheme in schemes.items()},
        "bandwidth": {name: bandwidth_figure(page.over_bandwidths, own, scheme) for name, scheme in schemes.items()},
    }
    names = [outcome.strategy for outcome in page.outcomes]
    return environment.get_template("page.simulation.html.jinja").render(
        page=page,
        schemes={
            name: dataclasses.asdict(scheme) | {"strategies": [colour_of(each, scheme) for each in names]}
            for name, scheme in schemes.items()
        },
        names=names,
        own=rate_text(own),
        figures=figures,
        tables=[outcome_table("At this bandwidth", page.outcomes), efficiency_table(page.over_ranks)],
        plotly=Markup(get_plotlyjs()),
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),
        script=Markup((folder / "page.simulation.js").read_text(encoding="utf-8")),
    )
