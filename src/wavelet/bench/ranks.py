"""The systems that are compared over ranks, and what all of them do with a job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from wavelet.bench.results import Results

__all__ = [
    "BUCKETS",
    "BY_DEFAULT",
    "PRECISIONS",
    "Precision",
    "RankMeasurement",
    "RankPlan",
    "RankResults",
    "RankSystem",
    "choose_rank_systems",
    "sent_by_ring",
]

Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
"""What gradients are sent in; systems are compared with those of the same."""

BUCKETS: tuple[int, ...] = (1, 5, 25, 100)
"""The sizes in MB that are tried for DDP."""


@dataclass(frozen=True)
class RankSystem:
    """One way to train a job on several ranks, or one of the two limits.

    Args:
        kind: `ddp`; `waves`, Wavelet; `compute`, the plain loop on each rank without any exchange; `all-reduce`, the
            exchange alone.
        precision: what gradients are sent in.
        bucket_mb: of DDP; None: what DDP takes by itself.
        static_graph: of DDP.
        views: DDP's gradients are views of its buckets, which saves a copy.
        accumulate: batches for one exchange and one update of DDP, by its `no_sync`.
    """

    kind: Literal["ddp", "waves", "compute", "all-reduce"]
    precision: Precision = "fp32"
    bucket_mb: int | None = None
    static_graph: bool = False
    views: bool = False
    accumulate: int = 1
    waves: int = 1
    update: str | None = None

    @property
    def name(self) -> str:
        """What tables call it."""
        names = {"ddp": "DDP", "waves": f"Wavelet {self.update}"}
        parts = [
            names.get(self.kind, f"{self.kind} alone"),
            "" if self.precision == "fp32" else self.precision,
            f"{self.bucket_mb} MB" if self.bucket_mb else "",
            "static" if self.static_graph else "",
            "views" if self.views else "",
            f"no_sync {self.accumulate}" if self.accumulate > 1 else "",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def trains(self) -> bool:
        """Whether it trains one model on all ranks."""
        return self.kind in ("ddp", "waves")

    @property
    def exchanges(self) -> float:
        """How often it sends all gradients, for one batch of each rank."""
        if self.kind == "compute":
            return 0.0
        return 1 / self.waves if self.update == "synchronous" else 1 / self.accumulate

    @property
    def like_for_like(self) -> bool:
        """Whether it sends all gradients and updates once for every batch."""
        return self.trains and self.exchanges == 1


BY_DEFAULT = {precision: RankSystem("ddp", precision) for precision in PRECISIONS}
"""DDP as it is when nothing is chosen."""


@dataclass(frozen=True)
class RankPlan:
    """What every system does with a job.

    Args:
        job: the job's name in tables.
        spec: a built-in job or a job file.
        ranks: how many.
        rate: of each rank's link; None: the ranks share one host, and what is sent is not measured.
        warmup: batches of each rank before the clock starts.
        batches: timed batches of each rank.
        seed: of the first round; round r uses ``seed + r``.
        batch_size: samples in one batch of one rank; the job's own if None.
    """

    job: str
    spec: str
    ranks: int
    rate: str | None
    batches: int
    rounds: int
    warmup: int = 6
    seed: int = 0
    batch_size: int | None = None


@dataclass(frozen=True)
class RankMeasurement:
    """One run of one system: the clock is that of all ranks together, memory is summed over them.

    Args:
        batches: timed batches of each rank.
        samples: those of all ranks.
        sent_bytes_per_batch: of one rank, the mean over ranks; computed if the ranks have no links of their own.
        training_loss: rank 0's; None where nothing is trained. As the two of the validation.
    """

    system: RankSystem
    round: int
    seed: int
    batches: int
    samples: int
    seconds: float
    seconds_per_batch: float
    sent_bytes_per_batch: float
    training_loss: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    peak_resident_bytes: int


RankResults = Results[RankPlan, RankSystem, RankMeasurement]


def choose_rank_systems(tuned: dict[Precision, int | None]) -> list[RankSystem]:
    """The systems of one table, in the order in which they take turns.

    Args:
        tuned: for each precision DDP's best bucket size, from a calibration; None where there is none.
    """
    systems = [RankSystem("compute")]
    for precision in PRECISIONS:
        systems += [RankSystem("all-reduce", precision), BY_DEFAULT[precision]]
        best = replace(BY_DEFAULT[precision], bucket_mb=tuned[precision])
        variants = [best, replace(best, static_graph=True), replace(best, views=True)]
        systems += [variant for variant in variants[: None if precision == "fp32" else 1] if variant not in systems]
        systems.append(RankSystem("waves", precision, waves=2, update="neighbour"))
    return [
        *systems,
        RankSystem("ddp", accumulate=2),
        RankSystem("waves", waves=2, update="synchronous"),
    ]


def sent_by_ring(gradient_bytes: int, ranks: int, system: RankSystem) -> float:
    """What one rank must send for one batch: a ring passes all but one of `ranks` parts on, twice."""
    share = 0.5 if system.precision == "bf16" else 1.0
    return 2 * (ranks - 1) / ranks * gradient_bytes * share * system.exchanges
