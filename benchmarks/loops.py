"""The contestants' loops on a case: memload's, the stock loader's and the ceiling's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from harness import Case

from memload.cli import stock_loops
from memload.cli.bench import GatherCeiling, shuffled
from memload.cli.measure import Epoch, run_epoch
from memload.engine.request import EngineOptions
from memload.loader.fast_loader import FastLoader
from memload.memory.budget import default_threads

SEED = 0


@dataclass(frozen=True)
class Loop:
    """Something to run: `run` makes one epoch, `batches` gives one to iterate, `nbytes` is what a loader states."""

    setting: str
    run: Callable[[int | None], Epoch]
    batches: Callable[[], Iterable[Any]]
    nbytes: int = 0


def make_loop(case: Case, kind: str, **options: Any) -> Loop:
    """A loop by its name."""
    loops = {"fast": fast_loop, "stock": stock_loop, "ceiling": ceiling_loop, "fresh": fresh_loop, "mover": mover_loop}
    return loops[kind](case, **options)


def fast_loader(
    case: Case,
    dataset: Any = None,
    *,
    batch_size: int | None = None,
    threads: int | None = None,
    depth: int | None = None,
    isa: str | None = None,
    streaming: bool | None = None,
    persistent: bool = False,
    **converts: Any,
) -> FastLoader[Any]:
    """FastLoader over a case, or over a dataset made of its rows, shuffled; options force what it would choose.

    `persistent` keeps slots and threads between epochs, as the ceiling does. `converts` are given instead of the casts
    of the variant.
    """
    kept = {"num_workers": threads or default_threads(), "persistent_workers": True} if persistent else {}
    return FastLoader(
        case.workload.open(case.folder) if dataset is None else dataset,
        batch_size or case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(SEED),
        options=EngineOptions(threads=threads, depth=depth, isa=isa, streaming=streaming),
        **kept,
        **(converts or {"cast": case.workload.casts(case.variant)}),
    )


def fast_loop(case: Case, **options: Any) -> Loop:
    """memload's loop."""
    loader = fast_loader(case, **options)
    return Loop("memload", lambda limit: run_epoch(loader, limit), lambda: loader, loader.nbytes)


def ceiling_of(case: Case, *, threads: int | None = None, isa: str = "") -> GatherCeiling:
    """The ceiling of the same plan."""
    dataset = case.workload.open(case.folder)
    casts = case.workload.casts(case.variant)
    plan = shuffled(len(dataset), SEED)
    return GatherCeiling(dataset, plan, case.workload.batch_size, threads=threads, cast=casts, isa=isa)


def ceiling_loop(case: Case, **options: Any) -> Loop:
    """The ceiling, as a contestant; it hands out no batches."""
    ceiling = ceiling_of(case, **options)
    return Loop("ceiling", lambda limit: ceiling.best(limit or 0), lambda: iter(()))


def fresh_loop(case: Case) -> Loop:
    """One batch gathered into huge pages that the process has not touched yet; a run gathers that one batch."""
    ceiling = ceiling_of(case)
    return Loop("fresh", lambda _: ceiling.run_fresh(), lambda: iter(()))


def mover_loop(case: Case) -> Loop:
    """One thread that moves the bytes of so many batches and does nothing else."""
    ceiling = ceiling_of(case, threads=1)
    return Loop("mover", lambda limit: ceiling.run(streaming=True, batches=limit or 0), lambda: iter(()))


def stock_loop(case: Case, *, quick: bool = False) -> Loop:
    """The stock loop at its best, with its best casts; `quick` takes plain items and plain casts untried."""
    settings = [stock_loops.StockSetting("items", 0)] if quick else None
    casts = stock_casts(case, quick)
    shard = case.workload.shard(case.folder)
    functions = {name: cast for name, (cast, _) in casts.items()}
    loop = stock_loops.find_best(shard, case.workload.batch_size, functions, settings=settings, seed=SEED)
    words = ", ".join([str(loop.setting), *sorted({words for _, words in casts.values()})])
    return Loop(words, lambda limit: run_epoch(loop, limit), lambda: loop)


def stock_casts(case: Case, quick: bool) -> dict[str, tuple[stock_loops.CastFn, str]]:
    """The best cast of every field that is cast, and which it is."""
    shapes = {name: shape for name, shape, _ in case.workload.fields}
    found: dict[str, tuple[stock_loops.CastFn, str]] = {}
    for name, cast in case.workload.casts(case.variant).items():
        example = torch.zeros(case.workload.batch_size, *shapes[name], dtype=torch.uint8)
        plain = (stock_loops.plain_cast(cast.dtype), "plain cast")
        found[name] = plain if quick else stock_loops.best_cast(cast.dtype, example)
    return found
