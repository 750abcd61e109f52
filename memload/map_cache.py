"""ds.map(fn).cache(...): what deterministic functions make of each sample, computed once and stored as a dataset."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, default_collate

from memload.cache_files import entry_path, root_of
from memload.computed import InMemory, Origin, row_bytes_of, rows_in, shard_writer
from memload.dataset import Dataset, Layout
from memload.derivation import key_of, name_of
from memload.errors import MemloadError, WriterBusyError, first_line
from memload.fingerprints import UnhashableError, fingerprint
from memload.loader import FastLoader
from memload.mapped import MappedDataset
from memload.memory.budget import local_threads
from memload.memory.tiers import Tier
from memload.opening import from_arrays
from memload.opening import open as open_dataset
from memload.progress import bar, note
from memload.reseeding import Watch
from memload.seeding import Drawing, Randomness
from memload.staging import wait_for_writer

_BATCH_BYTES = 2**23
_MOST_ROWS = 512


def cached(mapped: MappedDataset, where: str | Path | Tier, version: str | None, progress: bool | None) -> Dataset:
    """Return the samples of a mapped dataset as a dataset; see `MappedDataset.cache`."""
    work = _Work(mapped)
    if str(where) in {*Tier}:
        return _in_tier(work, Tier(str(where)), progress)
    key = key_of("map", work.base, work.functions, version, progress)
    target = entry_path(root_of(where), name_of(work.functions[-1]), key)
    while (there := Origin.of(target)) is None:
        try:
            work.write(target, key, progress)
        except FileExistsError:
            if Origin.of(target) is None:
                raise
        except WriterBusyError:
            note(f"{target}: another process is computing it; waiting for that", progress)
            wait_for_writer(target)
    return _as_layout(open_dataset(target), there.layout)


def _in_tier(work: _Work, tier: Tier, progress: bool | None) -> Dataset:
    if tier is not Tier.RAM:
        raise ValueError(f'cache takes a path or "ram", got the tier "{tier}"; a path of that name is "./{tier}"')
    work.look()
    kept = InMemory(work.rows)
    for rows in work.results(0, progress):
        kept.extend(rows)
    return _as_layout(from_arrays(kept.values), work.layout)


def _as_layout(dataset: Dataset, layout: str) -> Dataset:
    if layout == "tuple":
        return dataset.as_tuple()
    return dataset.only(next(iter(dataset.fields))) if layout == "only" else dataset


class _Work:
    """What is to be computed.

    Attributes:
        base: the dataset under all functions.
        functions: in the order in which samples go through them.
        rows: how many.
        layout: of what they make, as a dataset has it; known once rows are asked for.
    """

    def __init__(self, mapped: MappedDataset) -> None:
        self._processes = False
        self.functions: list[Callable[..., Any]] = []
        base: Any = mapped
        while isinstance(base, MappedDataset):
            self.functions.insert(0, base.fn)
            self._processes |= base.in_processes
            base = base.base
        self.base, self.rows = base, len(base)
        if not self.rows:
            raise ValueError("the dataset has no rows to cache")
        for fn in self.functions:
            if Drawing(fn).wants:
                raise _draws(fn, "asks for a random generator")
        self.layout: Layout = "dict"
        self._names: list[str] = []
        self._row_bytes = 0

    def write(self, path: Path, key: str, progress: bool | None) -> None:
        """Write the set of shards, or what is lacking of it."""
        self.look()
        origin = Origin(key, " then ".join(map(name_of, self.functions)), self.layout)
        with shard_writer(path, origin, self.rows, self._row_bytes, progress) as writer:
            for rows in self.results(writer.rows_there, progress):
                writer.extend(**rows)

    def look(self) -> None:
        """Find out what rows are, by the first one, and whether it is the same when it comes again."""
        first = self._row(0)
        self.layout, self._names = _form_of(first)
        self._row_bytes = row_bytes_of(self._named(default_collate([first])))
        with contextlib.suppress(UnhashableError):
            if fingerprint(self._row(0)) != fingerprint(first):
                raise _draws(self.functions[-1], "gives something else for the first row when it is called again")

    def results(self, start: int, progress: bool | None) -> Iterator[dict[str, Any]]:
        """Yield the rows from `start` on, by field, some at once."""
        largest = max(1, self._row_bytes, getattr(self.base, "nbytes", 0) // self.rows)
        step = max(1, min(_MOST_ROWS, _BATCH_BYTES // largest))
        generators = _states()
        workers = local_threads() if self._processes else 0
        own = torch.Generator()  # so that a run whose cache is there draws the same numbers as one that fills it
        batches = iter(FastLoader(self._from(start), step, num_workers=workers, generator=own))
        with bar("cache", self.rows, progress, start, unit=" rows") as shown:
            while start < self.rows:
                with self._naming(start, min(start + step, self.rows)):
                    rows = self._named(next(batches))
                if _states() != generators:
                    raise _draws(self.functions[-1], "draws from the generators of numpy.random or random")
                yield rows
                start += rows_in(rows)
                shown.update(rows_in(rows))

    def _from(self, start: int) -> MappedDataset:
        rows = range(start, self.rows)
        rest = self.base
        if start:
            rest = rest.select(rows) if isinstance(rest, Dataset) else Subset(rest, rows)
        for fn in self.functions:
            rest = MappedDataset(rest, Undrawn(fn), in_processes=self._processes)
        assert isinstance(rest, MappedDataset)
        return rest

    def _row(self, number: int) -> Any:
        with self._naming(number, number + 1), Watch():
            sample = self.base[number]
            for fn in self.functions:
                with torch.no_grad():
                    sample = Undrawn(fn)(sample)
            return sample

    def _named(self, value: Any) -> dict[str, Any]:
        if self.layout == "dict":
            return dict(value)
        return dict(zip(self._names, value if self.layout == "tuple" else [value], strict=True))

    @contextlib.contextmanager
    def _naming(self, start: int, stop: int) -> Iterator[None]:
        try:
            yield
        except (MemloadError, DrawingError):
            raise
        except Exception as error:
            where = f"row {start:,}" if stop == start + 1 else f"rows {start:,} to {stop - 1:,}"
            named = " then ".join(map(name_of, self.functions))
            raise RuntimeError(f"{where}: {named} raised {type(error).__name__}: {first_line(error)}") from error


class DrawingError(ValueError):
    """A function that was to be cached draws random numbers."""


class Undrawn:
    """A function of a sample that may not draw random numbers: the first that it asks for raises `DrawingError`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    def __call__(self, sample: Any) -> Any:
        """Call the function."""
        mine = Randomness.entered()
        if mine is not None:
            mine.begin(self._refuse)
            return self._fn(sample)
        with Randomness() as mine:
            mine.begin(self._refuse)
            return self._fn(sample)

    def _refuse(self) -> int:
        raise _draws(self._fn, "draws random numbers")


def _draws(fn: Any, what: str) -> DrawingError:
    return DrawingError(
        f"{name_of(fn)} {what}, so that every epoch would get what one of them drew: cache what comes before it, and "
        "map it behind: ds.map(before).cache(path).map(after)"
    )


def _states() -> Any:
    _, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - to see whether a function draws from it
    return random.getstate(), np.asarray(keys).tobytes(), rest


def _form_of(sample: Any) -> tuple[Layout, list[str]]:
    if isinstance(sample, Mapping):
        _check_values(sample)
        return "dict", list(sample)
    if isinstance(sample, list | tuple) and not hasattr(sample, "_fields"):
        names = [str(number) for number in range(len(sample))]
        _check_values(dict(zip(names, sample, strict=True)))
        return "tuple", names
    _check_values({"data": sample})
    return "only", ["data"]


def _check_values(sample: Mapping[Any, Any]) -> None:
    for name, value in sample.items():
        if not isinstance(name, str) or not isinstance(value, _STORED):
            raise TypeError(
                f"a mapped sample has {name!r}: {type(value).__name__}; what can be cached is a tensor, an array, a "
                "number or a text, or a dict or tuple of these"
            )


_STORED = (torch.Tensor, np.ndarray, np.generic, bool, int, float, str)
