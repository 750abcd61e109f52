"""Cases of `memory_truth.py`: several data sets in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from truth_case import Case

import memload
from memload.planning.result import MARGIN

SETS = {"few": (300, 900_000), "many": (1200, 250_000), "small": (4000, 40_000)}  # rows, and bytes of each
COMMON: dict[str, Any] = {"shuffle": True, "options": memload.EngineOptions(direct=False, threads=2, depth=2)}
CAST = {"cast": {"data": memload.Cast(torch.float32, norm_removed=True)}}
EPOCHS = 2


def make_sets(folder: Path) -> None:
    """Rows of uint8."""
    for name, shape in SETS.items():
        rows = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape)
        rows[:] = 1


def opened(folder: Path) -> dict[str, Any]:
    """All data sets."""
    return {name: memload.open(folder / f"{name}.npy") for name in SETS}


def planned(folder: Path, settings: dict[str, Any]) -> Any:
    """The plan for a machine that is described."""
    return memload.plan(opened(folder), **{"ram": "16GB", **COMMON, **settings})


def placed(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The data sets as they are planned."""
    by_set = planned(folder, settings).by_set
    return {name: ds.with_tier(**by_set[name].options, progress=False) for name, ds in opened(folder).items()}


def loop(batches: Iterable[Any]) -> None:
    """Holds a batch while it asks for the next, as loops do."""
    for _ in batches:
        pass


def run_mixed(folder: Path, settings: dict[str, Any]) -> None:
    """Passes of one loader over all."""
    for_plan = ("tier", "cache_bytes", "ram")
    given = {key: value for key, value in {**COMMON, **settings}.items() if key not in for_plan}
    loader = memload.FastLoader(memload.concat(placed(folder, settings)), **given)
    for _ in range(EPOCHS):
        loop(loader)


def run_apart(folder: Path, settings: dict[str, Any]) -> None:
    """Passes of a loader for each, side by side."""
    sizes = settings["batch_size"]
    given = {**COMMON, **{key: settings[key] for key in ("cast",) if key in settings}}
    loaders = [memload.FastLoader(ds, sizes[name], **given) for name, ds in placed(folder, settings).items()]
    for _ in range(EPOCHS):
        loop(zip(*loaders, strict=False))


def case(
    name: str,
    run: Callable[[Path, dict[str, Any]], None],
    settings: dict[str, Any],
    *,
    quick: bool = False,
    margin: float | None = None,
) -> Case:
    """A case of these settings; with `margin`, in a group of the predicted bytes and so much more of them."""

    def predict(folder: Path) -> dict[str, Any]:
        predicted = planned(folder, settings).ram.predicted
        return {"predicted": predicted, **({} if margin is None else {"limit": int(predicted * (1 + margin))})}

    return Case(
        f"sets: {name}",
        lambda folder: run(folder, settings),
        predict,
        make_sets,
        quick=quick,
    )


MIXED = {"batch_size": 64, "collate_fn": memload.group_collate}
SIZES = {"batch_size": {"few": 16, "many": 32, "small": 128}}
PLACES = {"tier": {"few": "ram", "many": "hybrid", "small": "mmap"}, "cache_bytes": {"many": "100MB"}}
SHORT = {"tier": "auto", "ram": "500MB"}  # of the 730 MB of rows, a part goes behind a cache
CASES = [
    case("three, mixed", run_mixed, MIXED, quick=False),
    case("three, mixed, cast", run_mixed, {**MIXED, **CAST}, quick=True),
    case("three, mixed, in order", run_mixed, {**MIXED, "shuffle": False}, quick=False),
    case("three, mixed, on three tiers", run_mixed, {**MIXED, **PLACES}, quick=False),
    case("three, a loader each, cast", run_apart, {**SIZES, **CAST}, quick=False),
    case("three, a loader each, on three tiers", run_apart, {**SIZES, **PLACES}, quick=False),
    case("three, a loader each, tiers chosen", run_apart, {**SIZES, "tier": "auto"}, quick=False),
    case("three, mixed, cast, in a group", run_mixed, {**MIXED, **CAST}, margin=MARGIN),
    case("three, mixed, on three tiers, in a group", run_mixed, {**MIXED, **PLACES}, margin=MARGIN),
    case("three, a loader each, on three tiers, in a group", run_apart, {**SIZES, **PLACES}, margin=MARGIN),
    case("three, a loader each, tiers chosen for 500 MB", run_apart, {**SIZES, **SHORT}, margin=MARGIN),
]
