"""`Tiered`: the part of a dataset that moves its rows to another tier and describes their tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from memload.columns.fields import Field
from memload.engine.tiers.placing import TierOptions, as_tier, check_option_names, placed, reasons_of, tiers_of
from memload.engine.tiers.pressure import caches_of
from memload.engine.tiers.tier import ON_GPU, Tier
from memload.sizes import format_size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Base = DataclassInstance
else:
    Base = object

_D = TypeVar("_D", bound="Tiered")


def _device_tier(field: Field) -> Tier | None:
    from memload.device.pinned_memory import PinnedField
    from memload.device.resident import ResidentField
    from memload.device.split_tier import SplitColumn

    if isinstance(field, ResidentField):
        return Tier.SPLIT if isinstance(field.column, SplitColumn) else Tier.DEVICE
    return Tier.PINNED if isinstance(field, PinnedField) else None


class Tiered(Base):
    """A dataset whose fields may be kept on any tier."""

    fields: Mapping[str, Field]

    def with_tier(
        self: _D,
        tier: Tier | str,
        *,
        ram_dtype: Any = None,
        compressed: bool = False,
        share: bool = False,
        cache_bytes: int | str | None = None,
        on_pressure: str | None = None,
        device_bytes: int | str | None = None,
        progress: bool | None = None,
        device: Any = None,
        **unknown: NoReturn,
    ) -> _D:
        """Return this dataset with its rows on another tier; batches are the same. See docs/tiers.md.

        Select rows first: "ram" loads only the rows of a selection. Datasets that are joined later keep their tiers.

        Args:
            tier: "mmap", "direct", "ram", "hybrid", "auto", "device", "pinned" or "split"; `memload.Tier` describes
                them. For the last three, see `memload.to_device`.
            ram_dtype: with "ram", the fields to cast once, while they are loaded: {"stim": torch.bfloat16}, or a
                `memload.Cast`. Other fields stay as they are.
            compressed: with "ram", keep chunks compressed and decode them for each batch, which takes less memory and
                more time.
            share: with "ram", all processes of this user on this machine that load the same rows share one copy. The
                first process loads, the others wait; the last to end frees it.
            cache_bytes: with "hybrid", the budget of the cache, as 4 << 30 or "4GB"; default: half of the free memory.
            on_pressure: with "hybrid", "shrink" lets the cache free memory when this process runs short of it.
            device_bytes: with "split", the bytes of rows in the memory of each GPU, as 60 << 30 or "60GB".
            progress: whether loading shows a bar; None shows it on a terminal.
            device: with "device", "pinned" and "split", the GPU, such as "cuda:1"; the current one if not given.

        Raises:
            MemorySpaceError: the rows do not fit; nothing was loaded.
            TypeError, ValueError, KeyError: an option does not fit the tier, or the dataset.
            ShardReadError: a file cannot be read.

        Example:
            >>> import memload, numpy, tempfile
            >>> path = tempfile.mkdtemp() + "/movie.npy"
            >>> numpy.save(path, numpy.arange(12.0).reshape(4, 3))
            >>> ds = memload.open(path).with_tier("ram", ram_dtype={"data": "bfloat16"})
            >>> ds.tier, ds[1]["data"].dtype
            (<Tier.RAM: 'ram'>, torch.bfloat16)
        """
        check_option_names(unknown, "with_tier")
        options = TierOptions(ram_dtype, compressed, share, cache_bytes, on_pressure, device_bytes, progress)
        where = as_tier(tier)
        options.check_for(where)
        if where in ON_GPU:
            from memload.device.on_request import loaded_there

            there = "cuda" if device is None else device
            return replace(self, fields=loaded_there(self.fields, there, where, options.device_bytes, None, progress))
        if device is not None:
            raise TypeError(
                f'device= is for tier="device", "pinned" and "split", not "{where}"; a loader takes it for all tiers'
            )
        return replace(self, fields=placed(self.fields, where, options))

    @property
    def tier(self) -> Tier | None:
        """The tier of all rows; None if parts differ.

        Arrays that were in memory from the beginning count as "ram", rows of a store as "mmap": what was fetched of
        them is mapped.
        """
        resident = {_device_tier(field) for field in self.fields.values()}
        if resident != {None}:
            return resident.pop() if len(resident) == 1 else None
        named = {{"memory": "ram", "remote": "mmap"}.get(name, name) for name in tiers_of(self.fields.values())}
        return Tier(named.pop()) if len(named) == 1 else None

    @property
    def tier_reason(self) -> str:
        """One sentence that gives the reason for the choice of tier="auto"; empty if another tier was given."""
        return "; ".join(reasons_of(self.fields.values()))


def origin_words(fields: Mapping[str, Field]) -> str:
    """Return the part of a dataset's repr that names the origin of its rows."""
    if any(field.resident for field in fields.values()):
        from memload.device.resident import resident_device
        from memload.device.split_tier import where_split

        return where_split(fields) or f"on {resident_device(fields)}"
    storages = {storage for field in fields.values() for storage in field.column.storages}
    files = sorted({storage.name for storage in storages if storage.mapped or (storage.is_image and storage.name)})
    if not files:
        return "in memory"
    shown = f"in {files[0]}" if len(files) == 1 else f"in {len(files)} files, the first {files[0]}"
    return shown if all(storage.mapped or storage.is_image for storage in storages) else f"{shown}, and in memory"


def tier_words(fields: Mapping[str, Field]) -> str:
    """Return the part of a dataset's repr that names its tiers; empty for mapped files and arrays in memory."""
    words = [name for name in tiers_of(fields.values()) if name != "memory"]
    if words in ([], ["mmap"]):
        return ""
    cached = sum(cache.budget for cache in caches_of(fields.values()))
    told = [f"hybrid with a cache of {format_size(cached)}" if name == "hybrid" else name for name in words]
    return f", tier {' and '.join(told)}"
