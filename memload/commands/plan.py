"""`memload plan`: what loading a data set will take, here or on a machine to be asked for; and what it does take."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from memload.casts.rule import Cast
from memload.commands.prediction import measured
from memload.commands.source_options import add_source_options, stated
from memload.commands.trained_options import add_trained_options, trained
from memload.dtypes import as_torch_dtype
from memload.loader import FastLoader
from memload.memory.guards import check_memory
from memload.opening import open  # noqa: A004 - memload's own
from memload.planning.planner import plan
from memload.planning.result import Plan
from memload.planning.shape import DatasetShape
from memload.tiers.tier import Tier

HELP = "Predict how much RAM, GPU memory and disk space loading a data set takes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload plan`."""
    parser.add_argument("path", nargs="*", help="what memload.open takes; several are one data set")
    add_source_options(parser.add_argument_group("how to open it"))
    shape = parser.add_argument_group("a data set that does not exist yet, instead of a path")
    shape.add_argument("--rows", type=int, help="how many")
    shape.add_argument("--field", action="append", metavar="NAME:DTYPE:SHAPE", help="such as stim:uint8:425,425,3")
    loader = parser.add_argument_group("how it is loaded")
    loader.add_argument("--batch-size", type=int, default=32, help="rows per batch (default %(default)s)")
    loader.add_argument("--cast", action="append", metavar="NAME=DTYPE", help="a field that is cast while gathering")
    loader.add_argument("--tier", choices=[str(tier) for tier in Tier], help="where rows are kept (default: mapped)")
    loader.add_argument("--ram-dtype", action="append", metavar="NAME=DTYPE", help="a field that --tier ram casts once")
    loader.add_argument("--cache-bytes", help="what --tier hybrid may take, such as 40GB")
    loader.add_argument("--device", help="cuda, if batches are to be on the GPU")
    loader.add_argument("--no-shuffle", action="store_true", help="rows in order")
    for name, text in (
        ("depth", "batches gathered ahead"),
        ("threads", "threads that gather"),
        ("num-workers", "worker processes of the stock loader; threads of FastLoader"),
        ("prefetch-factor", "batches that each worker of the stock loader makes ahead; FastLoader's depth"),
    ):
        loader.add_argument(f"--{name}", type=int, help=text)
    loader.add_argument("--processes", type=int, help="on one machine, such as one for each GPU (default: 1)")
    add_trained_options(parser.add_argument_group("what is trained on it"))
    machine = parser.add_argument_group("a machine to be asked for (default: what is free here)")
    machine.add_argument("--ram", help="such as 64GB")
    machine.add_argument("--gpu", help="of one GPU, such as 80GB")
    machine.add_argument("--disk", help="such as 1.4TB")
    parser.add_argument("--measure", type=int, metavar="N", help="load N batches here, and say what that took")


def run(options: argparse.Namespace) -> int:
    """Print the plan, and what was measured if that is asked for and fits here; 1 if something does not fit."""
    if options.measure is not None and options.measure < 1:
        raise ValueError(f"--measure is a number of batches, at least 1; got {options.measure}")
    if options.measure and (options.processes or 1) > 1:
        raise ValueError("--measure loads in one process, which says nothing of several: leave --processes out")
    data = _data(options)
    found = plan(
        data,
        options.batch_size,
        tier=options.tier,
        ram_dtype=_dtypes(options.ram_dtype, "--ram-dtype") or None,
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
    if options.measure:
        print(flush=True)
        _check_fits_here(found)
        print(measured(found, lambda: _loader(data, found, options), options.measure))
    return 0 if found.fits else 1


def _check_fits_here(found: Plan) -> None:
    """Raise MemorySpaceError if what was planned, perhaps for another machine, does not fit into this one's memory."""
    need = found.ram.without("process")  # which is there
    check_memory(need, "what --measure would load", "leave --measure out, or load less of it: --tier mmap, fewer rows")


def _loader(data: Any, found: Plan, options: argparse.Namespace) -> FastLoader[Any]:
    """The loader that was planned, on the tier that was planned."""
    dataset = data.zeros() if isinstance(data, DatasetShape) else data
    if found.tier is Tier.RAM:
        dataset = dataset.with_tier("ram", ram_dtype=_dtypes(options.ram_dtype, "--ram-dtype") or None, progress=False)
    elif found.tier is not Tier.MMAP:
        cache = found.ram.of("cache of rows") if found.tier is Tier.HYBRID else None
        dataset = dataset.with_tier(found.tier, cache_bytes=cache)
    return FastLoader(dataset, options.batch_size, **_settings(options))


def _data(options: argparse.Namespace) -> Any:
    if bool(options.path) == bool(options.field or options.rows):
        raise ValueError("give a path, or --rows and --field of a data set that does not exist yet")
    if options.path:
        return open(options.path, **stated(options))
    if not (options.rows and options.field):
        raise ValueError("a data set that does not exist yet needs both --rows and --field")
    return DatasetShape(options.rows, dict(map(_field, options.field)))


def _field(text: str) -> tuple[str, tuple[str, tuple[int, ...]]]:
    name, _, rest = text.partition(":")
    dtype, _, sides = rest.partition(":")
    try:
        return name, (dtype, tuple(int(side) for side in sides.replace("x", ",").split(",") if side))
    except ValueError:
        raise ValueError(f"--field: expected NAME:DTYPE:SHAPE such as stim:uint8:425,425,3, got {text!r}") from None


def _dtypes(given: list[str] | None, option: str) -> dict[str, torch.dtype]:
    pairs = [text.partition("=") for text in given or ()]
    for name, sign, _ in pairs:
        if not (name and sign):
            raise ValueError(f"{option}: expected NAME=DTYPE such as stim=bfloat16, got {name!r}")
    return {name: as_torch_dtype(dtype) for name, _, dtype in pairs}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of FastLoader that were given."""
    casts = {name: Cast(dtype, norm_removed=True) for name, dtype in _dtypes(options.cast, "--cast").items()}
    given = {
        "shuffle": not options.no_shuffle,
        "cast": casts or None,
        "depth": options.depth,
        "threads": options.threads,
        "num_workers": options.num_workers,
        "prefetch_factor": options.prefetch_factor,
    }
    return {name: value for name, value in given.items() if value is not None}
