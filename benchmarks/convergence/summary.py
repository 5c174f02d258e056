"""What follows from the records: for each job the rules beside `synchronous`, the tuning, and the drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from convergence.runs import SEEDS, Case, Record, Store, best_rate
from convergence.training import CONSTANT_UNTIL, EVALUATE_AT
from convergence.verdict import Verdict, judge
from wavelet.arguments import AUTO_RESYNC

__all__ = ["Drift", "Row", "Rule", "drifts", "paired", "plain_equals", "rows", "rules"]


@dataclass(frozen=True)
class Rule:
    """An update rule with its settings. `share`: of the tuned rate."""

    rule: str
    resync: int | None = None
    share: float = 1.0

    @property
    def name(self) -> str:
        """As tables and pictures call it."""
        auto = " (auto)" if self.resync == AUTO_RESYNC else ""
        resync = f", resync={self.resync}{auto}" if self.rule == "neighbour" else ""
        return self.rule + resync + (f", {self.share:g} × the rate" if self.share != 1 else "")


@dataclass(frozen=True)
class Row:
    """A rule beside `synchronous`, over the seeds that both ran.

    Args:
        deviation: standard deviation of the rule's last validation loss over its seeds; None for one seed.
        loss: the last validation loss.
        before_decay: the validation loss where the rate begins to fall.
        accuracy: the last accuracy, for jobs that have one.
    """

    case: Case
    rule: Rule
    rate: float
    seeds: list[int]
    deviation: float | None
    loss: Verdict
    before_decay: Verdict
    accuracy: Verdict | None


@dataclass(frozen=True)
class Drift:
    """How far the two waves' weights are apart, as L2 norms, means over seeds.

    Args:
        constant: mean over the second half of the rounds at the full rate.
        relative: that, over the norm of the weights.
        last: at the last measurement, where the rate is near 0.
    """

    case: Case
    rule: Rule
    seeds: list[int]
    constant: float
    relative: float
    last: float


def rules(store: Store, case: Case) -> list[Rule]:
    """The rules that the case was trained with at the tuned rate or a share of it, `synchronous` first."""
    rate = best_rate(store, case)
    runs = [record.run for record in store.of(case)]
    found = {Rule(run.rule, run.resync, run.rate / rate) for run in runs if run.seed in SEEDS and run.rule != "plain"}
    order = ("synchronous", "neighbour", "delayed")
    return sorted(found, key=lambda rule: (order.index(rule.rule), rule.resync or 10**6, -rule.share))


def paired(store: Store, case: Case, rule: Rule) -> list[tuple[Record, Record]]:
    """For each seed that both have run: the record of `synchronous`, and that of `rule`.

    Raises:
        RuntimeError: two runs of a pair had other initial weights or other batches.
    """
    rate = best_rate(store, case)
    pairs = []
    for seed in SEEDS:
        one = store.find(case, "synchronous", None, rate, seed)
        other = store.find(case, rule.rule, rule.resync, rule.share * rate, seed)
        if one is not None and other is not None:
            if one.checks != other.checks:
                raise RuntimeError(f"{one.run} and {other.run} are no pair: they saw other weights or batches.")
            pairs.append((one, other))
    return pairs


def rows(store: Store, case: Case) -> list[Row]:
    """The table of a case."""
    middle = EVALUATE_AT.index(CONSTANT_UNTIL)
    found = []
    for rule in rules(store, case):
        pairs = paired(store, case, rule)
        if not pairs:
            continue
        ones, others = [one for one, _ in pairs], [other for _, other in pairs]
        losses = [other.loss for other in others]
        found.append(
            Row(
                case,
                rule,
                others[0].run.rate,
                [other.run.seed for other in others],
                stdev(losses) if len(losses) > 1 else None,
                judge([one.loss for one in ones], losses),
                judge([one.loss_at(middle) for one in ones], [other.loss_at(middle) for other in others]),
                _judge_accuracy(ones, others),
            )
        )
    return found


def drifts(store: Store, case: Case) -> list[Drift]:
    """The drift under each rule that has replicas."""
    found = []
    for rule in rules(store, case):
        records = [record for _, record in paired(store, case, rule)]
        if rule.rule != "synchronous" and records:
            plateau = [_plateau(record, record.drifts) for record in records]
            norms = [_plateau(record, record.weight_norms) for record in records]
            found.append(
                Drift(
                    case,
                    rule,
                    [record.run.seed for record in records],
                    fmean(plateau),
                    fmean(drift / norm for drift, norm in zip(plateau, norms, strict=True)),
                    fmean(_number(record.drifts[-1]) for record in records),
                )
            )
    return found


def plain_equals(store: Store, case: Case) -> bool | None:
    """Whether the ordinary loop and `synchronous` gave the same numbers to the last bit; None if that was not run."""
    rate = best_rate(store, case)
    for seed in SEEDS:
        plain = store.find(case, "plain", None, rate, seed)
        waves = store.find(case, "synchronous", None, rate, seed)
        if plain is not None and waves is not None:
            both = (plain, waves)
            one, other = ((each.losses, each.training_losses, each.weight_norms, each.checks) for each in both)
            return one == other
    return None


def _judge_accuracy(ones: Sequence[Record], others: Sequence[Record]) -> Verdict | None:
    if not ones[0].accuracies:
        return None
    return judge(
        [one.accuracies[-1] for one in ones], [other.accuracies[-1] for other in others], higher_is_better=True
    )


def _plateau(record: Record, values: Sequence[float | None]) -> float:
    last = CONSTANT_UNTIL * record.run.num_batches / 2
    return fmean(
        _number(value) for update, value in zip(record.updates, values, strict=True) if last / 2 < update <= last
    )


def _number(value: float | None) -> float:
    return float("inf") if value is None else value
