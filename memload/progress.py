"""A progress bar for work that takes longer than a second, and single lines of text beside the bar."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AbstractContextManager
from typing import Protocol, cast

from tqdm import tqdm


class Bar(Protocol):
    """A counter of the bytes that were processed."""

    def update(self, n: float) -> object:
        """Count `n` bytes more."""


class _Bar(tqdm):  # type: ignore[type-arg]
    """A bar whose lock is this process's own.

    tqdm's lock is shared with forked processes: one that is killed while it holds it stops all others for ever.
    """

    monitor_interval = 0  # no thread, which would hold the lock when others fork


def _own_lock() -> None:
    _Bar.set_lock(threading.RLock())


_own_lock()
os.register_at_fork(after_in_child=_own_lock)  # another thread may have held it


def byte_bar(label: str, total: int | None, show: bool | None, done: int = 0) -> AbstractContextManager[Bar]:
    """Return a bar that counts bytes; see `bar` for the arguments."""
    return bar(label, total, show, done)


def bar(
    label: str, total: int | None, show: bool | None, done: int = 0, unit: str = "B", after: float = 1.0
) -> AbstractContextManager[Bar]:
    """Return a bar with rate and remaining time; ``with`` closes it.

    Args:
        label: what is being done.
        total: the number of units in all; None if it is not known, and no remaining time is shown then.
        show: whether to show the bar; None shows it if standard error is a terminal.
        done: how many units of `total` were done before.
        unit: the name of the unit that is counted.
        after: seconds of work before the bar appears.
    """
    ncols, nrows = (None, None) if _has_size() else (80, 24)
    made = _Bar(
        desc=label,
        total=total,
        initial=done,
        unit=unit,
        unit_scale=True,
        delay=after,
        miniters=1,
        disable=None if show is None else not show,
        leave=False,
        ncols=ncols,
        nrows=nrows,
        dynamic_ncols=nrows is None,
    )
    return cast("AbstractContextManager[Bar]", made)


def _has_size() -> bool:
    """Return whether standard error has a size; a terminal without one, as containers give it, would show no bar."""
    try:
        return all(os.get_terminal_size(sys.stderr.fileno()))
    except (OSError, ValueError, AttributeError):  # no terminal, a closed stream, or none
        return True


def note(text: str, show: bool | None) -> None:
    """Print a line to standard error, unless `show` is False; a bar stays below it."""
    if show is not False:
        _Bar.write(f"memload: {text}", file=sys.stderr)
