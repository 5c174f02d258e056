"""Which runs the benchmark makes, and the file that keeps each finished one so that nothing is measured twice."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wavelet.arguments import AUTO_RESYNC

__all__ = [
    "BATCHES",
    "CASES",
    "JOBS",
    "SEEDS",
    "TUNING_SEED",
    "Case",
    "Record",
    "Run",
    "Store",
    "best_rate",
    "next_rates",
    "study",
    "tuned",
    "tuning_runs",
    "verdict_runs",
]


@dataclass(frozen=True)
class Case:
    """A job with its own momentum (None), or with another: the first beta of Adam, the momentum of SGD."""

    job: str
    momentum: float | None = None

    @property
    def name(self) -> str:
        """As tables and pictures call it."""
        return self.job if self.momentum is None else f"{self.job}, momentum {self.momentum:g}"


LOW = 0.5
JOBS = ("char-lstm", "char-gpt", "digits-cnn")
CASES = (*(Case(job) for job in JOBS), Case("char-lstm", LOW), Case("char-gpt", LOW))
BATCHES = {"char-lstm": (8, 2400), "char-gpt": (4, 2000), "digits-cnn": (16, 720)}
"""For each job: samples in a batch, and batches in a run. An update of the plain loop uses two batches."""
FIRST_RATES = {
    Case("char-lstm"): (4e-3, 8e-3, 0.016),
    Case("char-gpt"): (5e-4, 1e-3, 2e-3),
    Case("digits-cnn"): (0.0125, 0.025, 0.05),
    Case("char-lstm", LOW): (8e-3, 0.016, 0.032),
    Case("char-gpt", LOW): (5e-4, 1e-3, 2e-3),
}
"""Where the tuning starts; it doubles or halves on while the best rate is at an edge."""
TUNING_SEED = 100
SEEDS = (1, 2, 3, 4, 5)
STUDY_SEEDS = (1, 2)
RESYNCS = {"char-lstm": (None, 2, 8), "digits-cnn": (None, 2, 8), "char-gpt": ()}
"""Beside the default; none where runs take longest."""


@dataclass(frozen=True)
class Run:
    """One training run. `rule`: one of Wavelet's three, or "plain", the ordinary loop that accumulates two batches."""

    job: str
    rule: str
    resync: int | None
    rate: float
    seed: int
    batch_size: int
    num_batches: int
    momentum: float | None = None

    @property
    def case(self) -> Case:
        """What is trained; the rest says how."""
        return Case(self.job, self.momentum)


@dataclass(frozen=True)
class Record:
    """What a run measured.

    Args:
        samples: where it was evaluated, in samples seen.
        losses: validation loss there, in nats; None where it was not finite.
        accuracies: share of digits recognised there; empty for jobs without a metric.
        training_losses: of every batch.
        updates: where the drift was measured, in updates of one wave.
        drifts: L2 norm of the difference between the two waves' weights there.
        weight_norms: L2 norm of the first wave's weights there.
        checks: checksums of the initial weights and of all batches; equal for runs that are paired.
        seconds: how long it took, beside another run on the same machine.
        versions: as `wavelet.report.machine.versions`.
    """

    run: Run
    samples: list[int]
    losses: list[float | None]
    accuracies: list[float]
    training_losses: list[float | None]
    updates: list[int]
    drifts: list[float | None]
    weight_norms: list[float | None]
    checks: list[int]
    seconds: float
    versions: dict[str, Any]

    @property
    def loss(self) -> float:
        """The last validation loss; infinite if training failed."""
        return self.loss_at(-1)

    def loss_at(self, point: int) -> float:
        """The validation loss at that evaluation; infinite if training failed."""
        loss = self.losses[point]
        return float("inf") if loss is None else loss


class Store:
    """All records: those of an earlier results.json, and a file with one record a line that grows with every run.

    Args:
        path: the growing file; made with the first record.
        results: an earlier results.json, which may be missing.
    """

    def __init__(self, path: Path, results: Path) -> None:
        self.path = path
        self.records: dict[Run, Record] = {}
        earlier = json.loads(results.read_text(encoding="utf-8"))["runs"] if results.exists() else []
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for fields in (*earlier, *map(json.loads, lines)):
            record = Record(run=Run(**fields.pop("run")), **fields)
            self.records[record.run] = record

    def add(self, record: Record) -> None:
        """Keep `record`, on disk before this returns: the whole file is written anew and renamed."""
        self.records[record.run] = record
        part = self.path.with_suffix(".part")
        with part.open("w", encoding="utf-8") as file:
            for each in self.records.values():
                file.write(json.dumps(asdict(each), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)

    def find(self, case: Case, rule: str, resync: int | None, rate: float, seed: int) -> Record | None:
        """The record of that run with the present numbers of samples and batches."""
        return self.records.get(_run(case, rule, resync, rate, seed))

    def of(self, case: Case) -> list[Record]:
        """All records of that case with the present numbers of samples and batches."""
        size = BATCHES[case.job]
        return [
            record
            for run, record in self.records.items()
            if run.case == case and (run.batch_size, run.num_batches) == size
        ]


def tuned(store: Store, case: Case) -> dict[float, float]:
    """The last validation loss of the plain loop on the tuning seed, for each rate that was tried."""
    return {
        record.run.rate: record.loss
        for record in store.of(case)
        if record.run.rule == "synchronous" and record.run.seed == TUNING_SEED
    }


def next_rates(store: Store, case: Case) -> list[float]:
    """The rates that the tuning tries next; none when the best one has a worse one on either side."""
    rates = tuned(store, case)
    missing = [rate for rate in FIRST_RATES[case] if rate not in rates]
    if missing:
        return missing
    best = best_rate(store, case)
    if best == max(rates):
        return [best * 2]
    return [best / 2] if best == min(rates) else []


def best_rate(store: Store, case: Case) -> float:
    """The rate with the lowest validation loss of the plain loop on the tuning seed."""
    rates = tuned(store, case)
    return min(rates, key=lambda rate: rates[rate])


def tuning_runs(store: Store, case: Case) -> list[Run]:
    """The runs that the tuning needs next."""
    return [_run(case, "synchronous", None, rate, TUNING_SEED) for rate in next_rates(store, case)]


def verdict_runs(store: Store, case: Case) -> list[Run]:
    """The paired runs that the verdict rests on."""
    rate = best_rate(store, case)
    rules = (("synchronous", None), ("neighbour", AUTO_RESYNC))
    seeds = SEEDS if case.momentum is None else SEEDS[:3]
    return [_run(case, rule, resync, rate, seed) for seed in seeds for rule, resync in rules]


def study(store: Store, case: Case) -> list[Run]:
    """The runs beside the verdict, with the job's own momentum: the ordinary loop once, `delayed`, other resyncs."""
    if case.momentum is not None:
        return []
    rate = best_rate(store, case)
    plain = [_run(case, "plain", None, rate, STUDY_SEEDS[0])]
    delayed = [_run(case, "delayed", None, part * rate, seed) for part in (1.0, 0.5) for seed in STUDY_SEEDS]
    resyncs = [_run(case, "neighbour", every, rate, seed) for every in RESYNCS[case.job] for seed in STUDY_SEEDS]
    return [*plain, *delayed, *resyncs]


def _run(case: Case, rule: str, resync: int | None, rate: float, seed: int) -> Run:
    return Run(case.job, rule, resync, rate, seed, *BATCHES[case.job], case.momentum)
