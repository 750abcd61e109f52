"""A case of `memory_truth.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def nothing(folder: Path) -> None:
    """Makes no files."""


@dataclass(frozen=True)
class Case:
    """One figure that is stated, and the run that it is about.

    Attributes:
        name: such as "train: ViT, AdamW"; the part before the colon is the group.
        run: runs in a fresh process, with a folder of files; may return what it stated itself, as `predict` does.
        predict: runs in another fresh process, without limit: {"predicted": bytes}, and {"limit": bytes} if the run is
            to be in a control group of the size that was stated. None: the run states it.
        make: makes the files of both, in the process that watches.
        limit: bytes of the control group of the run; None: no limit.
        environment: variables of the run, and of the process that states its figure.
        quick: whether ``--quick`` runs it, too.
        says: what to know about the figure, in a few words.
    """

    name: str
    run: Callable[[Path], dict[str, Any] | None]
    predict: Callable[[Path], dict[str, Any]] | None = None
    make: Callable[[Path], None] = nothing
    limit: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False
    says: str = ""
