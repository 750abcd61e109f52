"""`memload plan`: predicts the memory of loading a dataset, here or on another machine, and measures it."""

from __future__ import annotations

import argparse
from typing import Any

from memload.casts.rule import Cast
from memload.cli.cast_options import cast_of
from memload.cli.options import stated
from memload.cli.prediction import measured
from memload.cli.trained_options import trained
from memload.dataset.opening import open  # noqa: A004 - memload's own
from memload.engine.tiers.tier import Tier
from memload.loader.fast_loader import FastLoader
from memload.memory.guards import check_memory
from memload.monitoring.plots import with_ending
from memload.planning.planner import plan
from memload.planning.result import Plan
from memload.planning.shape import DatasetShape


def run(options: argparse.Namespace) -> int:
    """Print the plan, and with `--measure` the measured memory; return 1 if something does not fit."""
    if options.measure is not None and options.measure < 1:
        raise ValueError(f"--measure is a number of batches, at least 1; got {options.measure}")
    if options.measure and (options.processes or 1) > 1:
        raise ValueError("--measure loads in one process only: leave --processes out")
    if options.log and not options.plot:
        raise ValueError("--log is drawn into a plot: give --plot as well")
    data = _data(options)
    found = plan(
        data,
        options.batch_size,
        tier=options.tier,
        ram_dtype=_casts(options.ram_dtype, "--ram-dtype") or None,
        cache_bytes=options.cache_bytes,
        device=options.device,
        processes=1 if options.measure else options.processes,
        ram=options.ram,
        gpu=options.gpu,
        disk=options.disk,
        **trained(options),
        **_settings(options),
    )
    print(found)
    if options.plot:
        found.plot(options.plot, log=options.log)
        print(f"drawn: {with_ending(options.plot)}")
    if options.measure:
        print(flush=True)
        _check_fits_here(found)
        print(measured(found, lambda: _loader(data, found, options), options.measure))
    return 0 if found.fits else 1


def _check_fits_here(found: Plan) -> None:
    """Raise MemorySpaceError if the plan, perhaps of another machine, does not fit into the memory here."""
    need = found.ram.without("process")  # which exists already
    check_memory(need, "what --measure would load", "leave --measure out, or load less: --tier mmap, fewer rows")


def _loader(data: Any, found: Plan, options: argparse.Namespace) -> FastLoader[Any]:
    """Return the planned loader, on the planned tier."""
    dataset = data.zeros() if isinstance(data, DatasetShape) else data
    if found.tier is Tier.RAM:
        dataset = dataset.with_tier("ram", ram_dtype=_casts(options.ram_dtype, "--ram-dtype") or None, progress=False)
    elif found.tier is not Tier.MMAP:
        cache = found.ram.of("cache of rows") if found.tier is Tier.HYBRID else None
        dataset = dataset.with_tier(found.tier, cache_bytes=cache)
    return FastLoader(dataset, options.batch_size, **_settings(options))


def _data(options: argparse.Namespace) -> Any:
    if bool(options.path) == bool(options.field or options.rows):
        raise ValueError("give a path, or --rows and --field of a dataset that does not exist yet")
    if options.path:
        return open(options.path, **stated(options))
    if not (options.rows and options.field):
        raise ValueError("a dataset that does not exist yet needs both --rows and --field")
    return DatasetShape(options.rows, dict(map(_field, options.field)))


def _field(text: str) -> tuple[str, tuple[str, tuple[int, ...]]]:
    name, _, rest = text.partition(":")
    dtype, _, sides = rest.partition(":")
    try:
        return name, (dtype, tuple(int(side) for side in sides.replace("x", ",").split(",") if side))
    except ValueError:
        raise ValueError(f"--field: expected NAME:DTYPE:SHAPE such as stim:uint8:425,425,3, got {text!r}") from None


def _casts(given: list[str] | None, option: str) -> dict[str, Cast]:
    pairs = [text.partition("=") for text in given or ()]
    for name, sign, _ in pairs:
        if not (name and sign):
            raise ValueError(f"{option}: expected NAME=DTYPE such as stim=bfloat16, got {name!r}")
    return {name: cast_of(wanted, option) for name, _, wanted in pairs}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given arguments of FastLoader."""
    given = {
        "shuffle": not options.no_shuffle,
        "cast": _casts(options.cast, "--cast") or None,
        "depth": options.depth,
        "threads": options.threads,
        "num_workers": options.num_workers,
        "prefetch_factor": options.prefetch_factor,
    }
    return {name: value for name, value in given.items() if value is not None}
