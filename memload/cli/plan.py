"""`memload plan`: predicts the memory of loading a dataset, here or on another machine, and measures it."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable
from typing import Any

from memload.cli.by_set import by_set, casts, whole_number
from memload.cli.charts import check_plot
from memload.cli.options import sized, stated
from memload.cli.output import is_json, keep, plain, say
from memload.cli.prediction import measured
from memload.cli.source_options import open_data
from memload.cli.trained_options import trained
from memload.dataset.groups import concat, group_collate
from memload.dtypes import as_torch_dtype
from memload.engine.tiers.tier import Tier
from memload.loader.fast_loader import FastLoader
from memload.memory.guards import check_memory
from memload.monitoring.log import read_log
from memload.monitoring.plots import with_ending
from memload.planning.account import Account
from memload.planning.planner import plan
from memload.planning.result import Plan
from memload.planning.shape import DatasetShape


def run(options: argparse.Namespace) -> int:
    """Print the plan, and with `--measure` the measured memory; return 1 if something does not fit."""
    if options.measure is not None and options.measure < 1:
        raise ValueError(f"--measure is a whole number from 1, not {options.measure}")
    if options.measure and (options.processes or 1) > 1:
        raise ValueError("--measure loads in one process only: leave --processes out")
    if options.log and not options.plot:
        raise ValueError("--log is drawn into a plot: give --plot as well")
    if options.beside and not options.plot:
        raise ValueError("--beside is drawn into a plot: give --plot as well")
    check_plot(options.plot, "--plot")
    if options.log:
        read_log(options.log)  # an error in it comes before the plan
    data = _data(options)
    found = _plan(options, data, by_set(options.tier, "--tier"))
    if not is_json(options):
        print(found, flush=True)
    document = of_plan(found)
    if options.plot:
        found.plot(options.plot, beside=_beside(options, data, found), log=options.log)
        document["drawn"] = with_ending(options.plot)
        say(options, f"drawn: {document['drawn']}")
    if options.measure:
        _check_fits_here(found)
        prediction = measured(found, lambda: _loader(data, found, options), options.measure)
        document["measured"] = prediction
        say(options, f"\n{prediction}")
    keep(options, document)
    return 0 if found.fits else 1


def of_plan(found: Plan) -> dict[str, Any]:
    """Return a plan for programs: whether it fits, its accounts, and what else it says."""
    accounts = {"ram": found.ram, "stock": found.stock, "gpu": found.gpu, "disk": found.disk}
    return {
        "fits": found.fits,
        "mem": found.mem,
        "tier": found.tier,
        "tier_reason": found.tier_reason,
        "processes": found.processes,
        "data": found.data,
        "by_set": found.by_set,
        "sets_that_fit": found.sets,
        **{name: account and _of_account(account) for name, account in accounts.items()},
        "notes": found.notes,
        "ways_out": found.ways_out,
    }


def _of_account(account: Account) -> dict[str, Any]:
    return {"predicted": account.predicted, "fits": account.fits, **plain(account)}


def _plan(options: argparse.Namespace, data: Any, tier: Any) -> Plan:
    """Return the plan that the options ask for, with rows on this tier."""
    return plan(
        data,
        _batch_size(options),
        tier=tier,
        ram_dtype=casts(options.ram_dtype, "--ram-dtype", data),
        cache_bytes=by_set(options.cache_bytes, "--cache-bytes", sized),
        device_bytes=sized(options.device_bytes, "--device-bytes"),
        share_rows=options.share_rows,
        device=options.device,
        processes=1 if options.measure else options.processes,
        ram=sized(options.ram, "--ram"),
        gpu=options.gpu,
        disk=sized(options.disk, "--disk"),
        **trained(options),
        **_settings(options, data),
    )


def _beside(options: argparse.Namespace, data: Any, found: Plan) -> dict[str, Plan]:
    """Return the plans of the tiers of `--beside` by name, without the tier of the plan itself."""
    own = None if found.tier is None else str(found.tier)
    return {tier: _plan(_for_tier(options, tier), data, tier) for tier in options.beside or () if tier != own}


def _for_tier(options: argparse.Namespace, tier: str) -> argparse.Namespace:
    """Return the options, but none that only another tier takes, such as `cache_bytes` unless it is "hybrid"."""
    owners = {"ram_dtype": Tier.RAM, "cache_bytes": Tier.HYBRID, "device_bytes": Tier.SPLIT}
    unused = {name: None for name, owner in owners.items() if tier != str(owner)}
    shares = options.share_rows and tier in (str(Tier.DEVICE), str(Tier.SPLIT))
    return argparse.Namespace(**{**vars(options), **unused, "share_rows": shares})


def _check_fits_here(found: Plan) -> None:
    """Raise MemorySpaceError if the plan, perhaps of another machine, does not fit into the memory here."""
    need = found.ram.without("process")  # which exists already
    check_memory(need, "what --measure would load", "leave --measure out, or load less: --tier mmap, fewer rows")


def _loader(data: Any, found: Plan, options: argparse.Namespace) -> Iterable[Any]:
    """Return the planned loader, or the loaders of all data sets together, on the planned tiers."""
    settings = _settings(options, data)
    if not found.by_set:
        dataset = data.zeros() if isinstance(data, DatasetShape) else data
        return FastLoader(_placed(dataset, found, data, options), _batch_size(options), **settings)
    sets = {name: data[name].with_tier(**one.options, progress=False) for name, one in found.by_set.items()}
    if options.mixed:
        return FastLoader(concat(sets), _batch_size(options), **settings)
    size, cast = _batch_size(options), settings.pop("cast", None)
    loaders = [
        FastLoader(ds, size[name] if isinstance(size, dict) else size, cast=_cast_of(cast, name, ds), **settings)
        for name, ds in sets.items()
    ]
    return itertools.zip_longest(*loaders)


def _placed(dataset: Any, found: Plan, data: Any, options: argparse.Namespace) -> Any:
    if found.tier is Tier.RAM:
        return dataset.with_tier("ram", ram_dtype=casts(options.ram_dtype, "--ram-dtype", data), progress=False)
    if found.tier is None or found.tier is Tier.MMAP:
        return dataset
    cache = found.ram.of("cache of rows") if found.tier is Tier.HYBRID else None
    return dataset.with_tier(found.tier, cache_bytes=cache, device_bytes=options.device_bytes)


def _cast_of(cast: Any, name: str, dataset: Any) -> Any:
    """Return the casts of one data set."""
    if cast and all(isinstance(one, dict) for one in cast.values()):
        return cast.get(name)
    return cast and {field: one for field, one in cast.items() if field in dataset.fields}


def _data(options: argparse.Namespace) -> Any:
    shape = " and ".join(name for name in ("--rows", "--field") if getattr(options, name[2:]) is not None)
    if options.path and shape:
        raise ValueError(f"{shape}: of a dataset that does not exist yet; leave it out, or the path {options.path[0]}")
    if not (options.path or shape):
        raise ValueError("give a path, or --rows and --field of a dataset that does not exist yet")
    if options.path:
        data = open_data(options.path, stated(options), options.on, options.how)
        if options.mixed and not isinstance(data, dict):
            raise ValueError("--mixed is for several data sets, and these are one: leave it out")
        return data
    if options.rows is None or not options.field:
        raise ValueError("a dataset that does not exist yet needs both --rows and --field")
    if options.rows < 1:
        raise ValueError(f"--rows is a whole number from 1, not {options.rows}")
    return DatasetShape(options.rows, dict(map(_field, options.field)))


def _batch_size(options: argparse.Namespace) -> Any:
    found = by_set(options.batch_size, "--batch-size", whole_number)
    return 32 if found is None else found


def _field(text: str) -> tuple[str, tuple[str, tuple[int, ...]]]:
    name, _, rest = text.partition(":")
    dtype, _, sides = rest.partition(":")
    try:
        as_torch_dtype(dtype)
        return name, (dtype, tuple(int(side) for side in sides.split(",") if side))
    except (TypeError, ValueError) as error:
        why = f"; {error}" if dtype and isinstance(error, TypeError) else ""
        expected = "expected NAME:DTYPE:SHAPE such as stim:uint8:425,425,3"
        raise ValueError(f"--field: {expected}, got {text!r}{why}") from None


def _settings(options: argparse.Namespace, data: Any) -> dict[str, Any]:
    """Return the given arguments of FastLoader."""
    given = {
        "shuffle": not options.no_shuffle,
        "cast": casts(options.cast, "--cast", data),
        "collate_fn": group_collate if options.mixed else None,
        "depth": options.depth,
        "threads": options.threads,
        "num_workers": options.num_workers,
        "prefetch_factor": options.prefetch_factor,
    }
    return {name: value for name, value in given.items() if value is not None}
