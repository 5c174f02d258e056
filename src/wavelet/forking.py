"""Forks beside running waves: a worker forked in the middle of a backward can inherit a held lock and hang."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["quiet_before_fork"]


class _Quiets(Protocol):
    def _wait_until_idle(self) -> None: ...


_engines: weakref.WeakSet[_Quiets] = weakref.WeakSet()


def quiet_before_fork(engine: _Quiets) -> None:
    """Let the waves of ``engine`` finish what they do before its caller forks, as a data loader's workers are made.

    A fork in another thread waits for nothing: it has no say over what the caller's forward may be interrupted by.
    """
    if not _engines and hasattr(os, "register_at_fork") and not _registered:
        os.register_at_fork(before=_wait_for_all)
        _registered.append(True)
    _engines.add(engine)


_registered: list[bool] = []


def _wait_for_all() -> None:
    for engine in list(_engines):
        engine._wait_until_idle()
