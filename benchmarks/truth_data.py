"""Cases of `memory_truth.py`: passes over rows of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from truth_case import Case

import memload

CAST = {"data": memload.Cast(torch.float32, norm_removed=True)}
SETTINGS: dict[str, Any] = {"batch_size": 32, "shuffle": True, "cast": CAST}


def make_rows(folder: Path) -> None:
    """Rows of 512 KB of uint8."""
    rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.uint8, (256, 1 << 19))
    rows[:] = np.arange(1 << 19) % 251


def predict_cast(folder: Path) -> dict[str, Any]:
    """The RAM of a pass on a machine that is described."""
    plan = memload.plan(memload.open(folder / "rows.npy"), ram="16GB", **SETTINGS)
    return {"predicted": plan.ram.predicted}


def run_cast(folder: Path) -> None:
    """Two passes."""
    loader = memload.FastLoader(memload.open(folder / "rows.npy"), **SETTINGS)
    for _ in range(2):
        for batch in loader:
            batch["data"].sum()


CASES = [Case("loader: cast to float32", run_cast, predict_cast, make_rows, quick=True)]
