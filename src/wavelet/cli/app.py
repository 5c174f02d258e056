"""The commands put together, and the exit code of whatever happens in them."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated

import typer

from wavelet.bench.launch import RunFailed
from wavelet.cli.advise import advise
from wavelet.cli.bench import bench
from wavelet.cli.doctor import doctor
from wavelet.cli.jobs import jobs
from wavelet.cli.options import Refusal
from wavelet.cli.plan import plan
from wavelet.cli.profile import profile
from wavelet.cli.ranks import is_first, leave, meet, num_ranks, recorded
from wavelet.cli.simulate import simulate
from wavelet.cli.train import train
from wavelet.jobs import JobFileError

__all__ = ["app", "run"]

# typer may carry a click of its own, so click's error for wrong usage is reached through typer.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
for command in (jobs, train, profile, plan, advise, simulate, bench, doctor):
    app.command()(command)


@app.callback(invoke_without_command=True)
def wavelet(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Train PyTorch models in interleaved waves of batches."""
    if version:
        from wavelet.report.machine import versions

        print(versions()["wavelet"])
    elif context.invoked_subcommand is None:
        print(context.get_help())
    elif num_ranks() > 1 and context.invoked_subcommand != "train":
        raise Refusal(f"wavelet {context.invoked_subcommand} works in one process: start it without torchrun")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command (of `sys.argv` by default).

    Returns:
        0 when it is done, 1 when the run failed, 2 when what was asked makes no sense, 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a character must not lose the result
    try:
        with meet():
            code = recorded(app)(args=arguments, prog_name="wavelet", standalone_mode=False) or 0
    except UsageError as error:
        return _complain(2, error.format_message())  # type: ignore[attr-defined]
    except Refusal as refusal:
        return _complain(2, str(refusal))
    except (KeyboardInterrupt, typer.Abort):  # Abort is what older versions of typer make of it
        code = 130
    except RunFailed as failure:
        print(failure.details, file=sys.stderr)
        return _complain(1, f"the run failed: {failure.reason}")
    except JobFileError as error:
        traceback.print_exception(error.__cause__)
        return _complain(1, str(error))
    except Exception as error:
        traceback.print_exception(type(error), error, _from_the_command_on(error.__traceback__))
        return _complain(1, f"the run failed: {type(error).__name__}: {error}")
    return _complain(130, "interrupted") if code == 130 else leave(int(code))


def _from_the_command_on(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in a command, without the frames that lead there."""
    leading = (__name__, "typer", "click")
    while trace and trace.tb_next and trace.tb_frame.f_globals["__name__"].startswith(leading):
        trace = trace.tb_next
    return trace


def _complain(code: int, sentence: str) -> int:
    if code != 2 or is_first():  # all ranks refuse the same
        rank = "" if num_ranks() == 1 else f" (rank {os.environ.get('RANK')})"
        print(f"wavelet{rank}: {sentence}", file=sys.stderr)
    return leave(code)
