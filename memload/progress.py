"""A progress bar for work that takes longer than a second, and the few lines that such work has to say."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Protocol, cast

from tqdm import tqdm


class Bar(Protocol):
    """What counts the bytes that were done."""

    def update(self, n: float) -> object:
        """Count `n` bytes more."""


def byte_bar(label: str, total: int | None, show: bool | None, done: int = 0) -> AbstractContextManager[Bar]:
    """Return a bar that counts bytes; otherwise as `bar`."""
    return bar(label, total, show, done)


def bar(
    label: str, total: int | None, show: bool | None, done: int = 0, unit: str = "B"
) -> AbstractContextManager[Bar]:
    """Return a bar with rate and remaining time; `with` closes it.

    Args:
        label: what is being done.
        total: how many there are in all; None if not known, then no remaining time is shown.
        show: True or False; None shows it where standard error is a terminal. Work under a second shows nothing.
        done: of `total`, how many were done before.
        unit: what is counted.
    """
    made = tqdm(
        desc=label,
        total=total,
        initial=done,
        unit=unit,
        unit_scale=True,
        delay=1,
        disable=None if show is None else not show,
        leave=False,
        dynamic_ncols=True,
    )
    return cast("AbstractContextManager[Bar]", made)


def note(text: str, show: bool | None) -> None:
    """Print a line to standard error, unless `show` is False; a bar stays below it."""
    if show is not False:
        tqdm.write(f"memload: {text}", file=sys.stderr)
