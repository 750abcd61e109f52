"""Fields on another tier: the same rows, kept otherwise while they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

from memload._core import Column, EventCounts, EventItems, Ragged, RowCache, Slices, Storage, Tiles, Windows
from memload.casts.native import CASTABLE
from memload.casts.rule import Cast, casts_by_field, warn_of_scale
from memload.columns.fields import Field
from memload.columns.ragged_fields import RaggedField
from memload.dtypes import code_of, dtype_name
from memload.engine.tiers.tier import LEAST_CACHE_BYTES, ON_GPU, Tier
from memload.memory.budget import local_processes
from memload.sizes import format_size, parse_size

if TYPE_CHECKING:
    from memload.engine.tiers.choosing import Needs, TierChoice


@dataclass(frozen=True)
class TierOptions:
    """What a tier is set to; see `memload.Dataset.with_tier`.

    Raises:
        ValueError, TypeError: an option is nothing of its kind.
    """

    ram_dtype: Any = None
    compressed: bool = False
    share: bool = False
    cache_bytes: int | str | None = None
    on_pressure: str | None = None
    device_bytes: int | str | None = None
    progress: bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.cache_bytes is not None:
            budget = parse_size(self.cache_bytes)
            object.__setattr__(self, "cache_bytes", budget)
            if budget < LEAST_CACHE_BYTES:
                raise ValueError(f"cache_bytes is at least 1 MiB, got {format_size(budget)}")
        if self.device_bytes is not None:
            object.__setattr__(self, "device_bytes", parse_size(self.device_bytes))
        if self.on_pressure not in (None, "shrink"):
            raise ValueError(f'on_pressure is "shrink" or None, got {self.on_pressure!r}')

    def check_for(self, tier: Tier) -> None:
        """Raise TypeError if an option was given that is for another tier."""
        of_ram = [name for name in ("ram_dtype", "compressed", "share") if getattr(self, name)]
        of_cache = [name for name in ("cache_bytes", "on_pressure") if getattr(self, name) is not None]
        of_split = [] if self.device_bytes is None else ["device_bytes"]
        owners = {Tier.RAM: of_ram, Tier.HYBRID: of_cache, Tier.SPLIT: of_split}
        allowed = {**owners, Tier.AUTO: ["ram_dtype", "on_pressure"]}.get(tier, [])
        for owner, names in owners.items():
            for name in names:
                if name not in allowed:
                    raise TypeError(f'{name}= is for tier="{owner}"; the tier here is "{tier}"')
        if tier is Tier.SPLIT and not of_split:
            raise TypeError('tier="split" takes device_bytes=, the bytes of rows on each GPU, such as "60GB"')

    def casts(self, fields: Mapping[str, Field]) -> dict[str, Cast]:
        """Return what becomes of each field that is cast.

        Raises:
            KeyError: there is no such field.
            TypeError, ValueError: it cannot be cast.
        """
        casts = casts_by_field(self.ram_dtype, "ram_dtype")
        for name, cast in casts.items():
            if name not in fields:
                raise KeyError(f"ram_dtype= names the field {name!r}; there are {list(fields)}")
            if isinstance(fields[name], RaggedField) or fields[name].dtype.is_complex:
                raise ValueError(f"field {name!r} is {fields[name].described}: it cannot be cast in RAM; leave it out")
            if code_of(fields[name].dtype) not in CASTABLE:
                stored = dtype_name(fields[name].dtype)
                raise ValueError(
                    f"ram_dtype= of the field {name!r}: rows of {stored} cannot be cast to {dtype_name(cast.dtype)} on "
                    f"their way into RAM; leave the field out, and give its cast to FastLoader(cast=), which takes "
                    f"{stored}"
                )
            if cast.layout is not None or cast.augment is not None:
                raise ValueError(f"field {name!r}: layout= and augment= are the loader's, in its cast=")
            warn_of_scale(name, cast, fields[name].meant)
        return casts


def check_option_names(given: Iterable[str], taker: str) -> None:
    """Raise TypeError if one of these is no option of any tier; `taker` is what was called."""
    known = [*(one.name for one in dataclass_fields(TierOptions)), "device"]
    unknown = [name for name in given if name not in known]
    if unknown:
        named = " and ".join(f"{name}=" for name in unknown)
        raise TypeError(f"{taker} takes no {named}; options of tiers are {', '.join(known)}")


def as_tier(tier: object) -> Tier:
    """Return the tier of that name. Raises ValueError if there is none."""
    try:
        return Tier(str(tier))
    except ValueError:
        raise ValueError(f"tier is one of {', '.join(repr(str(one)) for one in Tier)}; got {tier!r}") from None


def placed(fields: Mapping[str, Field], tier: Tier, options: TierOptions) -> dict[str, Field]:
    """Return the fields on that tier.

    Raises:
        MemorySpaceError: it does not fit.
        TypeError, ValueError, KeyError: an option does not fit the tier or the fields.
    """
    options.check_for(tier)
    casts = options.casts(fields)
    for name, one in fields.items():
        if not isinstance(one.column, Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems):
            raise ValueError(
                f"the rows of field {name!r} lie on a device: choose a tier for the dataset they came from"
            )
    if tier in ON_GPU:
        raise ValueError(
            f'tier="{tier}" keeps rows where a GPU reads them: it is made by memload.to_device(dataset, ...), not here'
        )
    if tier is Tier.AUTO:
        return _automatically(fields, options, casts)
    if tier is Tier.RAM:
        return _in_ram(fields, options, casts, "")
    if tier is Tier.HYBRID:
        return _behind_cache(fields, options, "")
    return _on_files(fields, tier, None, "")


def needs_of(fields: Mapping[str, Field], casts: Mapping[str, Cast]) -> Needs:
    """Return what these fields ask of a tier."""
    from memload.engine.tiers.choosing import Needs
    from memload.engine.tiers.loading import bytes_once

    once = {name: bytes_once(one) for name, one in fields.items()}
    rows = sum(once.values())
    stored = decoded = 0
    for name, one in fields.items():
        if any(storage.mapped for storage in one.column.storages):
            stored += min(once[name], one.rows * one.stored.read_bytes) if one.stored.decoded_bytes else once[name]
            decoded += 0 if isinstance(one, RaggedField) else one.stored.decoded_bytes  # these stay as they are
    cast = rows + sum(
        once[name] * cast.dtype.itemsize // fields[name].dtype.itemsize - once[name] for name, cast in casts.items()
    )
    return Needs(rows, stored, decoded=decoded > 0, cast=cast if casts else 0)


def tiers_of(fields: Iterable[Field]) -> list[str]:
    """Return the names of the tiers of these fields' storages, each once: "memory" for what was in it before."""
    storages = (storage for one in fields for storage in one.column.storages)
    return list(dict.fromkeys(s.tier if s.mapped or s.tier == "ram" else "memory" for s in storages))


def reasons_of(fields: Iterable[Field]) -> list[str]:
    """Return why they are kept so, each reason once."""
    storages = (storage for one in fields for storage in one.column.storages)
    return list(dict.fromkeys(storage.reason for storage in storages if storage.reason))


def _automatically(fields: Mapping[str, Field], options: TierOptions, casts: Mapping[str, Cast]) -> dict[str, Field]:
    from memload.engine.tiers.choosing import choose
    from memload.engine.tiers.loading import loaded_elsewhere
    from memload.memory.guards import free_memory

    needs, processes = needs_of(fields, casts), local_processes()
    free, own = free_memory(shared=processes > 1)  # asked before it is known whether another process has begun
    choice = choose(needs, free, processes=processes, own=own)
    if processes > 1:
        options = replace(options, share=True)
        if choice.tier is not Tier.RAM and (casts or needs.decoded):
            there = loaded_elsewhere(fields, casts, compressed=options.compressed)
            choice = choose(needs, free + there, processes=processes, own=own)
    if casts and choice.tier is not Tier.RAM:
        raise _cannot_cast(choice)
    return placed_as_chosen(fields, choice, options, casts)


def placed_as_chosen(
    fields: Mapping[str, Field],
    choice: TierChoice,
    options: TierOptions,
    casts: Mapping[str, Cast] | None = None,
) -> dict[str, Field]:
    """Return the fields on the tier that was chosen for them, with its reason.

    Raises:
        MemorySpaceError: it does not fit any more.
    """
    if choice.tier is Tier.RAM:
        return _in_ram(fields, options, casts or {}, choice.reason)
    if choice.tier is Tier.HYBRID:
        return _behind_cache(fields, replace(options, cache_bytes=choice.cache_bytes), choice.reason)
    return _on_files(fields, choice.tier, None, choice.reason)


def _cannot_cast(choice: TierChoice) -> ValueError:
    return ValueError(
        f"rows are cast ahead only where they are kept in RAM, and this set is not ({choice.not_in_ram}; "
        f"{choice.reason}): leave ram_dtype= out, and give the loader cast="
    )


def _in_ram(
    fields: Mapping[str, Field], options: TierOptions, casts: Mapping[str, Cast], reason: str
) -> dict[str, Field]:
    from memload.engine.tiers.loading import loaded

    for one in fields.values():
        one.check_in_place()
    return loaded(
        fields,
        casts,
        compressed=options.compressed,
        share=options.share,
        reason=reason,
        progress=options.progress,
    )


def _behind_cache(fields: Mapping[str, Field], options: TierOptions, reason: str) -> dict[str, Field]:
    from memload.engine.tiers.choosing import RAM_SHARE
    from memload.memory.guards import check_memory, free_memory

    budget, processes = options.cache_bytes, local_processes()
    if budget is None:
        stored, (free, own) = needs_of(fields, {}).stored, free_memory()
        share = free // processes if own is None else min(free // processes, own.left)
        budget = max(LEAST_CACHE_BYTES, min(int(RAM_SHARE * share), stored + stored // 8 + LEAST_CACHE_BYTES))
    assert isinstance(budget, int)
    check_memory(budget, 'the cache of tier="hybrid"', "give a smaller cache_bytes=", processes=processes)
    cache = RowCache(budget, shrinks=options.on_pressure == "shrink")
    return _on_files(fields, Tier.HYBRID, cache, reason)


def _on_files(fields: Mapping[str, Field], tier: Tier, cache: RowCache | None, reason: str) -> dict[str, Field]:
    """The fields on files that are mapped anew, each once."""
    from memload.columns.parts import on_storages

    made: dict[Storage, Storage] = {}

    def exchange(storage: Storage) -> Storage:
        if storage.origin is not None:
            raise ValueError(
                f'tier="{tier}": these rows lie in a store, {storage.name}; memload.open(..., cache=) keeps them on a '
                'disk, and tier="ram" loads them'
            )
        if storage.closed or not (storage.mapped or storage.is_image):
            return storage
        if storage.is_image and not storage.name:
            raise ValueError(
                f'tier="{tier}": these rows were cast or decoded on their way into RAM, and no file has them so; '
                "choose a tier for the dataset as it was opened"
            )
        if storage not in made:
            past_cache = tier is not Tier.MMAP
            made[storage] = Storage.map_file(storage.name, past_cache, cache, str(tier), reason, storage.files)
        return made[storage]

    return {name: replace(one, column=on_storages(one.column, exchange)) for name, one in fields.items()}
