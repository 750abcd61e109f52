"""A progress bar for work that takes longer than a second."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def byte_bar(label: str, total: int | None, show: bool | None) -> tqdm[Any]:
    """Return a bar that counts bytes, with rate and remaining time; `with` closes it.

    Args:
        label: what is being done.
        total: bytes in all; None if not known, then no remaining time is shown.
        show: True or False; None shows it where standard error is a terminal. Work under a second shows nothing.
    """
    disable = None if show is None else not show
    return tqdm(
        desc=label, total=total, unit="B", unit_scale=True, delay=1, disable=disable, leave=False, dynamic_ncols=True
    )
