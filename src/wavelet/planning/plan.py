"""The plan: how many waves, the interlock, and what is promised and predicted for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from wavelet.planning.budget import Budget
from wavelet.planning.chain import Chain
from wavelet.planning.interlock import Interlock, least_budget
from wavelet.planning.resting import resting_bytes
from wavelet.planning.search import MOST_WAVES, best_interlock
from wavelet.planning.simulate import seconds_per_batch
from wavelet.profiling.loading import check_numbers, reading
from wavelet.profiling.profile import NO_CONTENTION, Contention, Profile, Timing, model_print

__all__ = [
    "BudgetError",
    "Plan",
    "chain_of",
    "check_waves",
    "contention_under",
    "make_plan",
    "one_wave_bytes",
    "predict",
]

SMALL_BYTES = 3 * 2**17
"""Allowed on top for Python's objects and libraries that allocate on their own."""

WORTH_A_WAVE = 1.02
"""One more wave must be this much faster to be chosen."""


class BudgetError(ValueError):
    """The budget is below what one wave needs."""


@dataclass(frozen=True)
class Plan:
    """What the engine runs by under a budget, and what it promises.

    Args:
        waves: K.
        update: the rule.
        accumulate: micro-batches that a wave gives to one update.
        interlock: where a rising batch waits.
        budget_bytes: allowed, resting and step memory together.
        resting_bytes: held when all waves are idle.
        one_wave_step_bytes: the peak of step memory with one wave alone.
        peak_step_bytes: never exceeded by step memory, whatever the timing.
        samples_per_second: predicted.
        one_wave_samples_per_second: predicted for one wave with all threads, where that was measured.
        profile: what it was planned from.
    """

    waves: int
    update: str
    accumulate: int
    interlock: Interlock
    budget_bytes: int
    resting_bytes: int
    one_wave_step_bytes: int
    peak_step_bytes: int
    samples_per_second: float
    one_wave_samples_per_second: float | None
    profile: Profile

    def check(self, model: nn.Module, waves: int | str, update: str, accumulate: int) -> int:
        """The number of waves, unless it is used for anything else than it was made for.

        Raises:
            ValueError: naming what differs.
        """
        if self.profile.model != model_print(model):
            raise ValueError("the plan was made for another model: make one from a profile of this model.")
        for name, planned, given in (
            ("waves", self.waves, self.waves if waves == "auto" else waves),
            ("update", self.update, update),
            ("accumulate", self.accumulate, accumulate),
        ):
            if planned != given:
                raise ValueError(f"the plan was made for {name}={planned!r}, not for {given!r}: make one for that.")
        return self.waves

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` takes."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"interlock": self.interlock.entries, "profile": self.profile.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` gave.

        Raises:
            ValueError: there are fields missing, or others.
        """
        with reading(fields, "Plan") as values:
            values["interlock"] = Interlock(tuple(map(tuple, values["interlock"])))
            values["profile"] = Profile.from_json(values["profile"])
            plan = cls(**values)
            plan._check_promise()
            return plan

    def _check_promise(self) -> None:
        """Trust no file: walk the states again.

        Raises:
            ValueError: the plan was changed after it was made.
        """
        names = ("budget_bytes", "resting_bytes", "one_wave_step_bytes", "peak_step_bytes", "samples_per_second")
        check_numbers({name: getattr(self, name) for name in names})
        check_waves(self.waves)
        chain = chain_of(self.profile, self.waves)
        if self.interlock.num_waves != self.waves or self.interlock.num_blocks != self.profile.num_blocks:
            raise ValueError("its interlock is not for its waves and blocks")
        allowed = least_budget(chain, self.interlock) + _beside(self.profile)
        if allowed > self.peak_step_bytes:
            raise ValueError(f"its interlock allows {allowed} bytes of step memory, more than it promises")

    def __str__(self) -> str:
        from wavelet.report.plan import plan_text

        return plan_text(self)


def make_plan(
    profile: Profile,
    budget: str | int | Budget,
    waves: int | Literal["auto"] = "auto",
    *,
    update: str = "neighbour",
    accumulate: int = 1,
) -> Plan:
    """The fastest schedule that provably stays within a budget (invariant I2).

    Args:
        profile: of the model with the largest batch.
        budget: ``"1.25x"`` bounds step memory relative to one wave's; ``"2GiB"`` or a number of bytes bounds resting
            and step memory together.
        waves: K, or ``"auto"`` for the fastest of those that the profile measured.
        update: the rule that will be used.
        accumulate: micro-batches that a wave will give to one update.

    Raises:
        BudgetError: the budget is below what one wave needs; the message says how much that is.
        ValueError: an argument makes no sense.
    """
    if not isinstance(profile, Profile):
        raise ValueError(f"profile is a {type(profile).__name__}: it must come from wavelet.profile().")
    allowed = Budget.of(budget)
    check_waves(waves)
    if waves != "auto":
        return _plan_for(profile, allowed, waves, update, accumulate)
    best: Plan | None = None
    refusal: BudgetError | None = None
    for count in sorted(profile.timings):
        try:
            plan = _plan_for(profile, allowed, count, update, accumulate)
        except BudgetError as error:  # replicas of more waves may leave too little
            refusal = refusal or error
            continue
        if best is None or plan.samples_per_second > WORTH_A_WAVE * best.samples_per_second:
            best = plan
    if best is None:
        assert refusal is not None
        raise refusal
    return best


def check_waves(waves: int | str) -> None:
    """Refuse a number of waves that cannot be planned for.

    Raises:
        ValueError: it is not ``"auto"`` and not from 1 to 3.
    """
    if waves != "auto" and (not isinstance(waves, int) or isinstance(waves, bool) or not 1 <= waves <= MOST_WAVES):
        raise ValueError(f"waves={waves!r} cannot be planned for: use 1 to {MOST_WAVES}, or 'auto'.")


def chain_of(profile: Profile, waves: int) -> Chain:
    """The chain of a profile, with the seconds of one wave among ``waves``."""
    timing = profile.timing(waves)
    first, *others = timing.seconds.forward
    forward = (first + timing.between, *others)
    backward, update = timing.seconds.backward, timing.seconds.update
    return Chain((0, *profile.bytes.rising), (*profile.bytes.falling, profile.bytes.turn, 0), forward, backward, update)


def one_wave_bytes(profile: Profile) -> int:
    """The peak of step memory with one wave alone."""
    return profile.peak + _beside(profile)


def _beside(profile: Profile) -> int:
    """Step memory besides what the batches in flight hold: the batch that the loader has ready, and small things."""
    return profile.batch_bytes + SMALL_BYTES


def _plan_for(profile: Profile, budget: Budget, waves: int, update: str, accumulate: int) -> Plan:
    resting = resting_bytes(profile, waves, update, accumulate)
    one_wave, beside = one_wave_bytes(profile), _beside(profile)
    allowed = budget.step_bytes(one_wave=one_wave, resting=resting)
    if allowed < one_wave:
        raise BudgetError(_too_small(profile, allowed, one_wave, resting))
    chain = chain_of(profile, waves)
    interlock = best_interlock(chain, waves, allowed - beside)
    alone = profile.timings.get(1)
    return Plan(
        waves=waves,
        update=update,
        accumulate=accumulate,
        interlock=interlock,
        budget_bytes=resting + allowed,
        resting_bytes=resting,
        one_wave_step_bytes=one_wave,
        peak_step_bytes=least_budget(chain, interlock) + beside,
        samples_per_second=predict(profile, interlock, update, accumulate),
        one_wave_samples_per_second=None if alone is None else profile.samples / _seconds_alone(alone),
        profile=profile,
    )


def predict(profile: Profile, interlock: Interlock, update: str, accumulate: int) -> float:
    """Samples a second under an interlock, by simulation with the measured contention."""
    waves = interlock.num_waves
    contention = contention_under(profile, interlock)
    round_size = waves * accumulate if update == "synchronous" else 0
    return profile.samples / seconds_per_batch(chain_of(profile, waves), interlock, contention, round_size=round_size)


def contention_under(profile: Profile, interlock: Interlock) -> Contention:
    """Between that of waves that run freely and that of a table whose block j waits for position j."""
    if interlock.num_waves == 1:
        return NO_CONTENTION
    tightest = interlock.num_blocks * (interlock.num_blocks + 1) / 2
    share = min(1.0, sum(entry[0] for entry in interlock.entries) / tightest)
    timing = profile.timing(interlock.num_waves)
    free, tight = timing.contention, timing.tight
    return Contention(*(one + share * (other - one) for one, other in zip(free, tight, strict=True)))


def _seconds_alone(timing: Timing) -> float:
    seconds = timing.seconds
    return sum(seconds.forward) + sum(seconds.backward) + seconds.update + timing.between


def _too_small(profile: Profile, allowed: int, one_wave: int, resting: int) -> str:
    left = _at_least(allowed) if allowed > 0 else "nothing"
    given = f"the budget leaves {left} for step memory, and one wave alone needs {_at_least(one_wave)}"
    samples = _samples_that_fit(profile, allowed)
    smaller = f", or batches of {samples} samples instead of {profile.samples}" if samples else ""
    return f"{given}: allow at least {_at_least(resting + one_wave)}{smaller}."


def _samples_that_fit(profile: Profile, allowed: int) -> int | None:
    """From two batch sizes: bytes are about linear in the samples."""
    if profile.smaller is None or profile.smaller.samples >= profile.samples:
        return None
    each = (profile.peak - profile.smaller.peak) / (profile.samples - profile.smaller.samples)
    always = profile.peak - each * profile.samples + SMALL_BYTES
    each += profile.batch_bytes / profile.samples
    return int((allowed - always) / each) if each > 0 and allowed > always + each else None


def _at_least(count: int) -> str:
    """Bytes as MiB with a unit, rounded up: so many are enough."""
    return f"{math.ceil(count / 2**20 * 10) / 10:,.1f} MiB"
