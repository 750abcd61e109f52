"""The placement of the rows of a planned run: their tier, and their bytes on it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from memload._core import Storage
from memload.caching.forms import Form
from memload.caching.map_results import DrawingError, Results
from memload.casts.rule import Cast
from memload.columns.fields import Field
from memload.columns.ragged_forms import Ragged
from memload.dataset.dataset import Dataset
from memload.dataset.groups import GroupedDataset
from memload.dataset.mapped import MappedDataset
from memload.engine.gather_spec import NotNative
from memload.engine.readers import resolve
from memload.engine.settings import SMALL_ROW
from memload.engine.tiers.choosing import RAM_SHARE, Needs, TierChoice, choose, fits_on_disk
from memload.engine.tiers.loading import bytes_once
from memload.engine.tiers.placing import TierOptions, needs_of
from memload.engine.tiers.pressure import caches_of
from memload.engine.tiers.tier import LEAST_CACHE_BYTES, Tier
from memload.memory.limits import MemoryLimit
from memload.planning.network import Network
from memload.planning.request import Request
from memload.planning.shape import DatasetShape, zero_field
from memload.sizes import parse_size

IN_RAM = (Tier.RAM, Tier.PINNED, Tier.SPLIT)
PAST_CACHE = (Tier.DIRECT, Tier.HYBRID)


@dataclass(frozen=True)
class Placement:
    """The rows of a dataset, and the tier that holds them.

    Attributes:
        dataset: the dataset as the loader reads it from its tier.
        tier: the tier; AUTO before `settled`.
        stored_bytes: bytes of all rows, as they are stored.
        once_bytes: the same, with each stored row once, however many windows or selected rows contain it.
        held_bytes: bytes of the rows that a tier in RAM or on a GPU has to load, without rows that are in memory.
        cache_bytes: bytes that the caches of the tier "hybrid" may still take in each process; 0 without a cache; None:
            a size that suits the machine.
        files: the names of the files that are read.
        file_bytes: the bytes of these files.
        device_bytes: bytes of the rows that lie on each GPU.
        shared: whether the processes share the rows on their GPUs, and those in pinned RAM.
        past_bytes: bytes of the files that members of a dataset read past the page cache, on tiers of their own.
        array_bytes: bytes of rows that are in RAM already, whatever the tier.
        planned: whether the data do not exist yet.
        casts: whether rows are cast when they are loaded.
        results: a dataset of zeros with the form of a function's results, which "auto" may keep instead of the rows.
        written_bytes: bytes of results that are written to the disk first.
        apart: whether each process makes results of its own, since no file holds them.
        reason: the reason of "auto" for the tier; empty if the tier was given.
    """

    dataset: Any
    tier: Tier
    stored_bytes: int
    once_bytes: int
    held_bytes: int
    cache_bytes: int | None
    files: tuple[str, ...]
    file_bytes: int
    array_bytes: int
    planned: bool
    casts: bool
    results: Dataset | None = None
    written_bytes: int = 0
    apart: bool = False
    reason: str = ""
    past_bytes: int = 0
    device_bytes: int = 0
    shared: bool = False

    @classmethod
    def of(cls, request: Request) -> Placement:
        """Return the placement that a request describes.

        Raises:
            TypeError: the data are a path, or no dataset that the native engine reads.
            ValueError: tier, dtypes and cache contradict each other.
        """
        data, casts = request.data, request.ram_casts
        if isinstance(data, str | os.PathLike):
            raise TypeError(f"{str(data)!r} is a path, not a dataset: give memload.open({str(data)!r})")
        tier = _tier_of(data) if request.tier is None else Tier(request.tier)
        if casts and tier not in (Tier.RAM, Tier.PINNED, Tier.AUTO):
            raise ValueError(f'ram_dtype= is for rows that are loaded into RAM: tier="ram", not {str(tier)!r}')
        if request.cache_bytes is not None and tier is not Tier.HYBRID:
            raise ValueError(f'cache_bytes= is for tier="hybrid"; the tier is {str(tier)!r}')
        TierOptions(cache_bytes=request.cache_bytes)  # checks the size
        if (request.device_bytes is not None or request.tier is Tier.SPLIT) and (
            request.device_bytes is None or tier is not Tier.SPLIT
        ):
            raise ValueError(
                'tier="split" and device_bytes=, the bytes of rows on the GPU, go together; the tier is '
                f"{str(tier)!r}, and device_bytes={request.device_bytes!r}"
            )
        dataset = data.zeros() if isinstance(data, DatasetShape) else data
        planned = dataset is not data
        fields = _fields(dataset)
        storages = [] if planned else _storages(fields.values())
        files = {storage.name: storage.nbytes for storage in storages if storage.mapped}
        through_cache = {one.name for one in storages if one.mapped and one.tier not in PAST_CACHE}
        held = recast(dataset, casts) if casts else dataset
        once = {key: one.nbytes if planned else bytes_once(one) for key, one in fields.items()}
        stored = sum(once.values())
        gpus = request.processes if request.share_rows else 1
        share = -(-stored // gpus)
        on_device = {Tier.DEVICE: share, Tier.SPLIT: min(share, int(request.device_bytes or 0))}.get(tier, 0)
        to_load = [key for key, one in fields.items() if planned or key in casts or _in_files(one)]
        return cls(
            dataset=held,
            tier=tier,
            stored_bytes=_nbytes(dataset, fields),
            once_bytes=stored,
            held_bytes=max(0, stored - gpus * on_device)
            if tier is Tier.SPLIT
            else sum(
                once[key] * one.dtype.itemsize // fields[key].dtype.itemsize
                for key, one in _fields(held).items()
                if key in to_load
            ),
            cache_bytes=_cache_of(request, tier, fields),
            files=tuple(files),
            file_bytes=sum(files.values()),
            array_bytes=sum(storage.nbytes for storage in storages if not storage.mapped),
            planned=planned,
            casts=bool(casts),
            results=_results_of(data) if tier is Tier.AUTO else None,
            past_bytes=sum(nbytes for name, nbytes in files.items() if name not in through_cache),
            device_bytes=on_device,
            shared=request.share_rows,
        )

    def settled(self, free_ram: int, free_disk: int, processes: int, own: MemoryLimit | None = None) -> Placement:
        """Return the placement with the tier that "auto" chooses, and with the size of the cache.

        Args:
            free_ram: bytes that the rows of all processes may take together.
            free_disk: free bytes of the disk for a cache of transformed rows.
            processes: the number of processes on the machine.
            own: the limit of a single process, with the bytes that it leaves for rows; None without a limit.

        Raises:
            ValueError: rows are to be cast when they are loaded, and RAM does not hold them.
        """
        if self.tier is Tier.AUTO:
            choice = self.choice(free_ram, free_disk, processes, own)
            if choice.of_results:
                return self._of_results(choice, free_disk)
            if self.casts and choice.tier is not Tier.RAM:
                raise ValueError(
                    f"rows are cast ahead only where they are kept in RAM, and these are not ({choice.not_in_ram}; "
                    f"{choice.reason}): leave "
                    "ram_dtype= out, and give the loader cast="
                )
            return replace(self, tier=choice.tier, cache_bytes=choice.cache_bytes, reason=choice.reason)
        if self.cache_bytes is None:
            whole = self.once_bytes + self.once_bytes // 8 + LEAST_CACHE_BYTES
            share = free_ram // processes if own is None else min(free_ram // processes, own.left)
            return replace(self, cache_bytes=max(LEAST_CACHE_BYTES, min(int(RAM_SHARE * share), whole)))
        return self

    def choice(self, free_ram: int, free_disk: int, processes: int = 1, own: MemoryLimit | None = None) -> TierChoice:
        """Return the tier that "auto" chooses, by the table of docs/tiers.md."""
        rows = self.once_bytes
        if self.planned:
            needs = Needs(rows, rows, cast=self.held_bytes if self.casts else 0)
        else:
            needs = replace(needs_of(_fields(self.dataset), {}), rows=rows, cast=self.held_bytes if self.casts else 0)
            if self.casts:
                needs = replace(needs, stored=rows)
        made = 0 if self.results is None else self.results.nbytes
        needs = replace(needs, transformed=made, shared=fits_on_disk(made, free_disk))
        return choose(needs, free_ram, free_disk, processes, own)

    def _of_results(self, choice: TierChoice, free_disk: int) -> Placement:
        """Return the placement of a function's results, which the loader then reads instead of the rows."""
        assert self.results is not None
        made, in_ram = self.results.nbytes, choice.tier is Tier.RAM
        return replace(
            self,
            dataset=self.results,
            tier=choice.tier,
            stored_bytes=made,
            once_bytes=made,
            held_bytes=made if in_ram else 0,
            written_bytes=0 if in_ram else made,
            apart=in_ram and not fits_on_disk(made, free_disk),
            reason=choice.reason,
        )

    def copies(self, processes: int) -> int:
        """Return the number of copies of the rows that these processes have in RAM."""
        pinned = self.tier in (Tier.PINNED, Tier.SPLIT) and not self.shared
        return processes if self.apart or pinned else 1

    @property
    def reads_past_cache(self) -> bool:
        """Whether rows may be read past the page cache: by their tier, or as large rows that were not read before."""
        if self.tier in PAST_CACHE or (self.tier is Tier.MMAP and self.past_bytes):
            return True
        large = max((field.row_bytes for field in _fields(self.dataset).values()), default=0) > SMALL_ROW
        return self.tier is Tier.MMAP and self.mapped_bytes > 0 and large

    def network(self, loader: dict[str, Any]) -> Network | None:
        """Return what an epoch of a loader with these arguments fetches from stores; None if no row lies in one."""
        fields = [] if self.planned else [one for one in _fields(self.dataset).values() if hasattr(one, "column")]
        return Network.of(fields, len(self.dataset), loader, kept=self.tier in IN_RAM) if fields else None

    @property
    def mapped_bytes(self) -> int:
        """Bytes of files that are mapped, and that the page cache can hold."""
        return self.written_bytes or (self.stored_bytes if self.planned else self.file_bytes - self.past_bytes)


def recast(dataset: Any, casts: Mapping[str, Cast]) -> Dataset:
    """Return a dataset of the same form in which the cast fields have other dtypes, and zeros as values.

    Raises:
        TypeError: it is no memload dataset.
        KeyError: there is no such field.
        ValueError: a field cannot be cast when it is loaded.
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(f"ram_dtype= is for the datasets of memload, not for {type(dataset).__name__}")
    fields: dict[str, Field] = dict(dataset.fields)
    for name, cast in TierOptions(ram_dtype=casts).casts(fields).items():
        fields[name] = zero_field(name, cast.dtype, fields[name].shape, len(dataset))
    return replace(dataset, fields=fields)


def _results_of(data: Any) -> Dataset | None:
    """Return a dataset of zeros with the form of a function's results; None if results cannot be stored."""
    if not isinstance(data, MappedDataset) or not len(data):
        return None
    try:
        results = Results(data)
        sampled = results.sampled
    except (DrawingError, TypeError, ValueError):  # a cache refuses its samples, so it runs for every batch
        return None
    fields, lengths = {}, {}
    for name, rows in sampled.items():
        fields[name], differ = _form_of(rows)
        if None in fields[name][1]:
            lengths[name] = (max(sum(differ) / len(differ), 1e-6), max(1, *differ))
    return DatasetShape(results.rows, fields, lengths).zeros()


def _form_of(rows: Any) -> tuple[tuple[Any, tuple[int | None, ...]], list[int]]:
    """Return (dtype, shape) of the rows of a batch, and the lengths of ragged rows; texts count in bytes."""
    form = Form.of(rows)
    if isinstance(rows, Ragged):
        return (form.dtype, form.shape), rows.lengths.tolist()
    if isinstance(rows, torch.Tensor):
        return (form.dtype, form.shape), []
    return (torch.uint8, form.shape), [len(text.encode()) for text in rows]


def _tier_of(data: Any) -> Tier:
    """Return the tier on which a dataset was opened; MMAP for files and arrays, which are read in place."""
    tier = getattr(data, "tier", None)
    return tier if isinstance(tier, Tier) and tier is not Tier.RAM else Tier.MMAP


def _cache_of(request: Request, tier: Tier, fields: Mapping[Any, Field]) -> int | None:
    """Return the bytes that caches of rows may take beyond those that caches of this process hold already."""
    if request.cache_bytes is not None:
        return parse_size(request.cache_bytes)
    caches = caches_of(fields.values())
    if not caches or (request.tier is not None and tier is not Tier.HYBRID):
        return None if tier is Tier.HYBRID else 0
    held = 0 if request.ram is not None else sum(int(cache.stats()["bytes"]) for cache in caches)
    return max(0, sum(cache.budget for cache in caches) - held)


def _fields(dataset: Any) -> dict[Any, Field]:
    """Return the fields of a dataset, or of all its members, each with a key of its own.

    Raises:
        TypeError: the native engine does not read it.
    """
    if isinstance(dataset, Dataset):
        return dict(dataset.fields)
    if isinstance(dataset, GroupedDataset):
        return {(member, name): field for member, ds in dataset.members.items() for name, field in ds.fields.items()}
    try:
        return dict(resolve(dataset).fields)
    except NotNative as answer:
        raise TypeError(f"only datasets that the native engine reads can be planned. {answer}") from None


def _in_files(field: Field) -> bool:
    return any(storage.mapped for storage in field.column.storages)


def _nbytes(dataset: Any, fields: Mapping[Any, Field]) -> int:
    return dataset.nbytes if isinstance(dataset, GroupedDataset) else sum(field.nbytes for field in fields.values())


def _storages(fields: Iterable[Field]) -> list[Storage]:
    """Return the storages of fields, each once."""
    return list(dict.fromkeys(storage for field in fields for storage in field.column.storages))
