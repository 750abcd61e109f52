"""Settings that fit where a plan of several data sets does not: which set stays on its tier, and which one goes.

Settings of models are those of a single data set, see `memload.planning.alternatives`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from memload.engine.tiers.tier import LEAST_CACHE_BYTES, Tier
from memload.planning.accounts import read_buffers
from memload.planning.alternatives import nothing_fits, of_models, of_weights, sentence
from memload.planning.request import Request
from memload.planning.result import Plan
from memload.sizes import format_size

_CACHE_SHARE = 0.9  # of the remaining RAM, for caches of rows
_MOST_SETS = 12  # of which all selections are compared


def ways_out_of_sets(request: Request, refused: Plan, compute: Callable[[Request], Plan]) -> tuple[str, ...]:
    """Return settings of the data sets that fit, in sentences with figures; empty if the plan itself fits."""
    if refused.fits:
        return ()
    found = []
    ways = (_tiers(request, refused), of_weights(request, refused), _models(request, refused), _smaller(request))
    for words, changed in itertools.chain(*ways):
        plan = compute(changed)
        if plan.fits:
            found.append(sentence(words, plan))
            if words.startswith("batch_size"):
                break  # the largest that fits
    return tuple(found) or (nothing_fits(refused),)


def _models(request: Request, refused: Plan) -> Iterator[tuple[str, Request]]:
    if refused.gpu is not None and refused.gpu.fits is False:
        yield from of_models(request, refused.machine, shrinks=True)


def _tiers(request: Request, refused: Plan) -> Iterator[tuple[str, Request]]:
    if refused.ram.fits is False:
        in_ram = {name: refused.ram.of("rows in RAM", name) for name in refused.by_set}
        in_ram = {name: nbytes for name, nbytes in in_ram.items() if nbytes}
        if in_ram:
            room = (refused.ram.free or 0) - refused.ram.without("rows in RAM")
            kept = largest_that_fit(in_ram, room)
            away = [name for name in in_ram if name not in kept]
            cache = _caches(refused, away, room - sum(in_ram[name] for name in kept))
            if cache:
                yield _moved(request, refused, dict.fromkeys(away, Tier.HYBRID), cache)
            yield _moved(request, refused, dict.fromkeys(away, Tier.MMAP), {})
    if refused.gpu is not None and refused.gpu.fits is False:
        there = {name: refused.gpu.of("rows on the GPU", name) for name in refused.by_set}
        there = {name: nbytes for name, nbytes in there.items() if nbytes}
        if there:
            room = (refused.gpu.free or 0) - refused.gpu.without("rows on the GPU")
            kept = largest_that_fit(there, room)
            away = [name for name in there if name not in kept]
            words, changed = _moved(request, refused, dict.fromkeys(away, Tier.MMAP), {})
            yield words, replace(changed, device=request.device or "cuda")


def largest_that_fit(sizes: Mapping[str, int], room: int) -> tuple[str, ...]:
    """Return the names of the data sets that fill the room best; of more than 12, the largest first.

    Example:
        >>> largest_that_fit({"a": 6, "b": 5, "c": 4}, 9)
        ('b', 'c')
    """
    if len(sizes) <= _MOST_SETS:
        all_of = (some for n in range(len(sizes) + 1) for some in itertools.combinations(sizes, n))
        fitting = (some for some in all_of if sum(sizes[name] for name in some) <= room)
        return max(fitting, key=lambda some: sum(sizes[name] for name in some), default=())
    kept: list[str] = []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if sizes[name] <= room:
            kept.append(name)
            room -= sizes[name]
    return tuple(kept)


def _caches(refused: Plan, away: list[str], left: int) -> dict[str, int]:
    """Return the cache of each data set that goes behind one, in proportion to sizes; empty if there is no room."""
    whole = sum(refused.by_set[name].stored_bytes for name in away)
    buffers = sum(read_buffers(refused.by_set[name].loader or refused.data) for name in away)
    room = left * _CACHE_SHARE / refused.processes - buffers
    caches = {name: int(room * refused.by_set[name].stored_bytes / max(1, whole)) for name in away}
    large_enough = all(nbytes >= LEAST_CACHE_BYTES for nbytes in caches.values())
    return caches if large_enough and room < whole else {}


def _moved(
    request: Request, refused: Plan, moved: Mapping[str, Tier], caches: Mapping[str, int]
) -> tuple[str, Request]:
    """Return the request with some data sets on other tiers, and the arguments that say so."""
    tiers = {name: str(moved.get(name, one.tier)) for name, one in refused.by_set.items()}
    casts = {name: one.ram_dtype for name, one in refused.by_set.items() if one.ram_dtype}
    kept = {name: cast for name, cast in casts.items() if name not in moved}
    sizes = {name: one.cache_bytes for name, one in refused.by_set.items() if one.cache_bytes} | dict(caches)
    words = f"tier={_shown(tiers)}"
    if sizes:
        words += f", cache_bytes={_shown({name: format_size(nbytes) for name, nbytes in sizes.items()})}"
    loader = request.loader
    if gathered := {name: cast for name, cast in casts.items() if name in moved}:
        words += f", {' and '.join(gathered)} cast while gathering"
        loader = {**loader, "cast": _with_casts(loader.get("cast"), gathered, list(refused.by_set))}
    changed = replace(request, tier=tiers, ram_dtype=kept or None, cache_bytes=sizes or None, loader=loader)
    return words, changed


def _with_casts(given: Any, added: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    by_set = bool(given) and all(one is None or isinstance(one, Mapping) for one in given.values())
    own = {name: (given.get(name) if by_set else given) or {} for name in names} if given else {}
    return {name: {**own.get(name, {}), **added.get(name, {})} for name in names}


def _smaller(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield the request with the batches of all loaders in smaller and smaller parts."""
    sizes, parts = request.batch_size, request.accumulate
    while True:
        each = list(sizes.values()) if isinstance(sizes, Mapping) else [sizes]
        if any(size % 2 for size in each):
            return
        sizes = {name: n // 2 for name, n in sizes.items()} if isinstance(sizes, Mapping) else sizes // 2
        parts *= 2
        shown = _shown(sizes) if isinstance(sizes, Mapping) else sizes
        changed = replace(request, batch_size=sizes, accumulate=parts, sample=None)
        yield f"batch_size={shown}, {parts} of them accumulated", changed


def _shown(by_name: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f'"{k}": {v}' if isinstance(v, int) else f'"{k}": "{v}"' for k, v in by_name.items()) + "}"
