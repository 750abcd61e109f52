"""`ds.map(fn).cache(...)`: the results of deterministic functions of samples, computed once and read on a tier.

mapped -> Results -> a set of shards in the cache's directory -> Dataset on its tier
                  -> memory of this process                   -> Dataset in RAM
                  -> too large for either                     -> mapped, unchanged
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from memload._core import Ragged as RaggedColumn
from memload._core import Storage
from memload.caching.cache_files import entry_path, root_of
from memload.caching.computed import InMemory, OnDisk, Origin, shard_writer
from memload.caching.derivation import key_of, name_of
from memload.caching.map_results import Results
from memload.columns.fields import Field
from memload.columns.parts import on_storages
from memload.columns.ragged_fields import RaggedField
from memload.columns.ragged_forms import Ragged
from memload.columns.ragged_samples import Forms
from memload.dataset.dataset import Dataset
from memload.dataset.groups import GroupedDataset
from memload.dataset.mapped import MappedDataset
from memload.dataset.opening import from_arrays
from memload.dataset.opening import open as open_dataset
from memload.engine.gather_spec import NotNative
from memload.engine.readers import resolve
from memload.engine.tiers.choosing import Needs, TierChoice, choose, fits_on_disk
from memload.engine.tiers.loading import loaded_elsewhere
from memload.engine.tiers.placing import TierOptions, as_tier, check_option_names, needs_of, placed_as_chosen
from memload.engine.tiers.tier import ON_GPU, Tier
from memload.errors import WriterBusyError
from memload.formats.shards.staging import being_written, wait_for_writer
from memload.graphs.datasets import GraphDataset
from memload.memory.budget import disk_free, local_processes
from memload.memory.guards import free_memory
from memload.progress import note


def cached(
    mapped: MappedDataset,
    where: str | Path | Tier,
    tier: Tier | str | None,
    version: str | None,
    progress: bool | None,
    options: Mapping[str, Any],
) -> Dataset | MappedDataset:
    """Return the samples of a mapped dataset as a dataset; see `MappedDataset.cache`."""
    root, wanted = _place(where, tier, options)
    results = Results(mapped)
    if (name := _drawn_field(results.base)) is not None:
        raise ValueError(
            f"field {name!r}: the starts of its slices are drawn anew in each pass, and results of one pass would keep "
            "its starts for ever: slice by hop= or at=, or leave the results uncached"
        )
    stored = None if root is None else _StoredResults(results, root, version, progress)
    if wanted is Tier.AUTO:
        return _chosen(results, stored, progress)
    if stored is None:
        return _in_memory(results, "", progress)
    kept = open_dataset(stored.filled())
    return stored.read(kept if wanted is Tier.MMAP else kept.with_tier(wanted, progress=progress, **options))


def _drawn_field(base: Any) -> str | None:
    """Return the name of a field whose rows are drawn anew in each pass; None if there is none."""
    parts = base.members.values() if isinstance(base, GroupedDataset) else [base]
    for part in parts:
        try:
            fields = resolve(part).fields
        except NotNative:
            continue
        for name, field in fields.items():
            if getattr(field.column, "draws", False):
                return str(name)
    return None


def _place(
    where: str | Path | Tier, tier: Tier | str | None, options: Mapping[str, Any]
) -> tuple[str | Path | None, Tier]:
    """Return the directory of the cache, None for none, and the tier."""
    check_option_names(options, "cache")
    if not str(where):
        raise ValueError('cache takes a directory such as "cache/", or "ram" or "auto", got an empty text')
    if str(where) not in {*Tier}:
        wanted = Tier.MMAP if tier is None else as_tier(tier)
        if wanted is Tier.AUTO and options:
            raise TypeError(f'{", ".join(options)}: only with a tier of your choice; tier="auto" chooses by itself')
        TierOptions(**{name: value for name, value in options.items() if name != "device"}).check_for(wanted)
        return where, wanted
    wanted = Tier(str(where))
    if wanted not in (Tier.RAM, Tier.AUTO):
        raise ValueError(
            f'the tier "{wanted}" reads files: give cache a directory for them as well, as in cache("cache/", '
            f'tier="{wanted}"); a directory of that name is "./{wanted}"'
        )
    if tier is not None or options:
        given = ", ".join([*(["tier"] if tier is not None else []), *options])
        raise TypeError(f'{given}: for results in a directory, as in cache("cache/", tier=...), not for "{wanted}"')
    return None, wanted


class _StoredResults:
    """The results in a cache's directory, complete or not.

    Raises:
        ValueError, TypeError: the results cannot be identified; see `key_of`.
        FileExistsError: the directory contains other data.
    """

    def __init__(self, results: Results, root: str | Path, version: str | None, progress: bool | None) -> None:
        self._results, self._progress = results, progress
        of_graphs = isinstance(results.base, Dataset) and results.base._of_graphs
        what = "map graphs" if of_graphs else "map"
        self._key = key_of(what, results.base, results.functions, version, progress)
        self._path = entry_path(root_of(root), name_of(results.functions[-1]), self._key)

    @property
    def complete(self) -> bool:
        """Whether the set is complete."""
        return Origin.of(self._path) is not None

    @property
    def room(self) -> int:
        """The bytes that the results may take: free space, and the files of an interrupted run."""
        return disk_free(self._path.parent) + _bytes_in(being_written(self._path))

    @property
    def nbytes(self) -> int:
        """The bytes of all rows: stored, or estimated."""
        return open_dataset(self._path).nbytes if self.complete else self._results.nbytes

    def filled(self) -> Path:
        """Return the path of the complete set. This process computes it, or waits for another one that does."""
        while not self.complete:
            try:
                self._write()
            except FileExistsError:
                if not self.complete:
                    raise
            except WriterBusyError:
                note(f"{self._path}: another process is computing it; waiting for that", self._progress)
                wait_for_writer(self._path)
        return self._path

    def read(self, dataset: Dataset) -> Dataset:
        """Return the rows of the set as samples in the form that the functions return."""
        origin = Origin.of(self._path)
        assert origin is not None
        return _as_samples(dataset, origin.layout, origin.ragged, self._results)

    def _write(self) -> None:
        """Write the set, or the part of it that is missing."""
        results = self._results
        functions = " then ".join(map(name_of, results.functions))
        origin = Origin(self._key, functions, results.layout, results.ragged)
        with shard_writer(self._path, origin, results.rows, results.sampled, self._progress) as writer:
            taking = OnDisk(self._path, writer, results.rows)
            for rows in results.batches(writer.rows_there, self._progress):
                taking.extend(rows)


def _bytes_in(staging: Path) -> int:
    """Return the bytes of the shards of an incomplete set; another process may rename and remove files meanwhile."""
    found = 0
    with contextlib.suppress(FileNotFoundError):
        for file in staging.rglob("*.safetensors"):
            with contextlib.suppress(FileNotFoundError):
                found += file.stat().st_size
    return found


def _chosen(results: Results, stored: _StoredResults | None, progress: bool | None) -> Dataset | MappedDataset:
    """Return the samples on the tier that the planner chooses."""
    nbytes = results.nbytes if stored is None else stored.nbytes
    room = 0 if stored is None else stored.room
    written = stored is not None and stored.complete
    lasting = written or (stored is not None and fits_on_disk(nbytes, room))
    processes = local_processes()
    free, own = free_memory(shared=lasting and processes > 1)
    options = TierOptions(progress=progress, share=processes > 1)
    if stored is not None and written and processes > 1:
        free += loaded_elsewhere(open_dataset(stored.filled()).fields, {}, compressed=False)
    needs = replace(_needs(results.base), transformed=nbytes, written=written, shared=lasting)
    choice = choose(needs, free, room, processes, own)
    if not choice.of_results:
        note(f"not cached: {choice.reason}", progress)
        return _uncached(results, choice, options)
    if stored is not None and lasting:
        kept = open_dataset(stored.filled())
        return stored.read(replace(kept, fields=placed_as_chosen(kept.fields, choice, options)))
    return _in_memory(results, choice.reason, progress)


def _needs(base: Any) -> Needs:
    return needs_of(base.fields, {}) if _on_host(base) else Needs(rows=0, stored=0)


def _on_host(base: Any) -> bool:
    return isinstance(base, Dataset) and base.tier not in ON_GPU


def _uncached(results: Results, choice: TierChoice, options: TierOptions) -> MappedDataset:
    base = results.base
    if _on_host(base):
        base = replace(base, fields=placed_as_chosen(base.fields, choice, options))
    return results.over(base)._because(choice.reason)


def _in_memory(results: Results, reason: str, progress: bool | None) -> Dataset:
    taking = InMemory(results.rows, results.sampled)
    for rows in results.batches(0, progress):
        taking.extend(rows)
    kept = taking.finish()
    made = from_arrays(kept)
    if reason:
        made = replace(
            made, fields={name: _explained(field, kept[name], reason) for name, field in made.fields.items()}
        )
    return _as_samples(made, results.layout, results.ragged, results)


def _explained(field: Field, rows: Any, reason: str) -> Field:
    """Return the field on storages that report why it is in RAM; texts have no such storages."""
    tensors = [rows.offsets, rows.values] if isinstance(rows, Ragged) else [rows]
    if not all(isinstance(tensor, torch.Tensor) and tensor.nbytes for tensor in tensors):
        return field
    images = [Storage.image(tensor, tensor.data_ptr(), tensor.nbytes, "", str(Tier.RAM), reason) for tensor in tensors]
    places = dict(zip(_storages(field.column), images, strict=True))
    return replace(field, column=on_storages(field.column, places.__getitem__), owners=())


def _storages(column: Any) -> list[Storage]:
    """Return the storages of a column with one segment: those of offsets and values, or that of rows."""
    ((first, _, second, *_),) = column.segments
    return [first, second] if isinstance(column, RaggedColumn) else [first]


def _as_samples(dataset: Dataset, layout: str, ragged: Forms, results: Results) -> Dataset:
    """Return the rows in the form that the functions return; recordings end where those of the base dataset do."""
    fields = {name: _in_form(field, ragged.get(name)) for name, field in dataset.fields.items()}
    dataset = replace(dataset, fields=fields, borders=results.borders)
    if layout == "graphs":
        return GraphDataset(dataset.fields, borders=dataset.borders)
    if layout == "tuple":
        return dataset.as_tuple()
    return dataset.only(next(iter(dataset.fields))) if layout == "only" else dataset


def _in_form(field: Field, form: tuple[Any, int, Any] | None) -> Field:
    """Return the field with batches in the form of the samples; (form, axis, pad value), or None."""
    if form is None or not isinstance(field, RaggedField) or field.text or field.axis:
        return field
    kind, _, pad = form
    return replace(field, form=kind, pad_value=pad)
