"""The page of a simulated cluster: one HTML file with figures and tables that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wavelet.planning.advice import areas
from wavelet.report.rendering import in_both_schemes, render
from wavelet.report.simulation import areas_sentence, bandwidth_table, efficiency_table, outcome_table, rate_text
from wavelet.report.simulation_figures import bandwidth_figure, colour_of, efficiency_figure, parts_figure

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
    own = page.cluster.inter.bytes_per_second
    names = [outcome.strategy for outcome in page.outcomes]
    return render(
        "simulation",
        {"strategy": lambda colours: [colour_of(name, colours) for name in names]},
        page=page,
        names=names,
        own=rate_text(own),
        advice=areas_sentence(areas(page.over_bandwidths)),
        figures={
            "parts": in_both_schemes(lambda colours: parts_figure(page.outcomes, colours)),
            "ranks": in_both_schemes(lambda colours: efficiency_figure(page.over_ranks, colours)),
            "bandwidth": in_both_schemes(lambda colours: bandwidth_figure(page.over_bandwidths, own, colours)),
        },
        tables=[
            outcome_table("At this bandwidth", page.outcomes),
            bandwidth_table(page.over_bandwidths),
            efficiency_table(page.over_ranks),
        ],
    )
