"""What all exchanges among ranks do through their channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wavelet.exchange.channel import Channel
from wavelet.exchange.exchange import Exchange, Setting

__all__ = ["AmongRanks"]


class AmongRanks(Exchange):
    """An exchange over a channel.

    Args:
        channel: to the other ranks.
    """

    def __init__(self, channel: Channel) -> None:
        self.num_ranks = channel.ranks.size
        self._channel = channel

    def attach(self, setting: Setting) -> None:
        super().attach(setting)
        self._channel.attach(setting)

    def watch(self, describe: Callable[[], dict[str, Any]], on_failure: Callable[[BaseException], None]) -> None:
        self._channel.watch(describe, on_failure)

    def of_first(self, value: Any) -> Any:
        return self._channel.ranks.of_first(value)

    def fail(self, error: BaseException) -> None:
        self._channel.fail(error)

    def forget(self) -> None:
        self._channel.forget()

    def close(self) -> None:
        self._channel.close()
