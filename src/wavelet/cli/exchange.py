"""How ranks agree, from what was typed."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavelet.cli.options import Refusal, refusing
from wavelet.cli.ranks import num_ranks

if TYPE_CHECKING:
    from wavelet import Wavelet
    from wavelet.exchange import Choice

__all__ = [
    "BlockMomentum",
    "Compress",
    "ExchangeName",
    "MaxNorm",
    "Nesterov",
    "Period",
    "Strategy",
    "Warmup",
    "make_exchange",
    "show_plan",
]


class Strategy(str, enum.Enum):
    """The exchanges, the default first."""

    allreduce = "allreduce"
    localsgd = "localsgd"
    celgc = "celgc"
    bmuf = "bmuf"
    biasedlocalsgd = "biasedlocalsgd"
    dreamddp = "dreamddp"


ExchangeName = Annotated[Strategy, typer.Option("--exchange", help="Under torchrun: how the ranks agree.")]
Period = Annotated[int | None, typer.Option(min=1, help="Updates between two means, for all but allreduce.")]
Warmup = Annotated[int, typer.Option(min=0, help="Updates of allreduce that come first.")]
Compress = Annotated[str | None, typer.Option(help="allreduce: bf16, fp16 or powersgd.")]
MaxNorm = Annotated[float | None, typer.Option(help="celgc: largest norm of a step.")]
BlockMomentum = Annotated[float | None, typer.Option(help="bmuf: momentum.", show_default="1 - 1/ranks")]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="bmuf: go on from where the momentum leads.")]

_BELONG = {
    "period": {Strategy.localsgd, Strategy.celgc, Strategy.bmuf, Strategy.biasedlocalsgd, Strategy.dreamddp},
    "warmup": {Strategy.localsgd, Strategy.celgc, Strategy.bmuf, Strategy.biasedlocalsgd},
    "compress": {Strategy.allreduce},
    "max_norm": {Strategy.celgc},
    "block_momentum": {Strategy.bmuf},
    "nesterov": {Strategy.bmuf},
}


def make_exchange(strategy: Strategy, typed: list[str], **arguments: Any) -> Choice | None:
    """The exchange that was asked for; None for the engine's own choice.

    Args:
        strategy: which.
        typed: the options that were typed, as ``--max-norm``, of those that choose and of ``arguments``.
        arguments: of all strategies; what was not typed is left to the strategy.

    Raises:
        Refusal: an option belongs to another strategy or is missing, there is one rank, or a value makes no sense.
    """
    from wavelet import exchange

    if not typed:
        return None
    if num_ranks() == 1:
        verb = "is" if len(typed) == 1 else "are"
        raise Refusal(
            f"{' and '.join(typed)} {verb} for several ranks: begin with torchrun --nproc-per-node 2 -m wavelet"
        )
    given = {name: value for name, value in arguments.items() if f"--{name.replace('_', '-')}" in typed}
    for name in given:
        if strategy not in _BELONG[name]:
            others = ", ".join(each.value for each in Strategy if each in _BELONG[name])
            raise Refusal(f"--{name.replace('_', '-')} belongs to --exchange {others}, not to {strategy.value}")
    for name in ("period", "max_norm"):
        if strategy in _BELONG[name] and name not in given:
            raise Refusal(f"--exchange {strategy.value} needs --{name.replace('_', '-')}")
    kinds: dict[Strategy, type[Choice]] = {
        Strategy.allreduce: exchange.AllReduce,
        Strategy.localsgd: exchange.LocalSGD,
        Strategy.celgc: exchange.CELGC,
        Strategy.bmuf: exchange.BMUF,
        Strategy.biasedlocalsgd: exchange.BiasedLocalSGD,
        Strategy.dreamddp: exchange.DreamDDP,
    }
    with refusing(ValueError):
        return kinds[strategy](**given)


def show_plan(engine: Wavelet) -> None:
    """Which layer goes when, where layers go at different times."""
    from wavelet.exchange.dream_ddp import Partial

    exchange = engine._exchange
    if isinstance(exchange, Partial) and (plan := exchange.plan) is not None:
        print(plan)
