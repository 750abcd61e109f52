"""The results of deterministic functions of samples: their size, and their rows, computed one after another."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Subset

from memload.caching.computed import row_bytes_of, rows_in
from memload.caching.derivation import name_of
from memload.caching.fingerprints import UnhashableError, fingerprint
from memload.caching.forms import Batch, check_types
from memload.caching.forms import Forms as RowForms
from memload.caching.samples import KeptSample, Unlike, collated, kept_sample
from memload.columns.borders import NONE, Borders
from memload.columns.ragged_samples import Forms
from memload.dataset.dataset import Dataset, Layout
from memload.dataset.mapped import MappedDataset
from memload.engine.transforms.seeding import Drawing, Randomness
from memload.errors import MemloadError, first_line
from memload.kept_errors import place_of
from memload.loader.fast_loader import FastLoader
from memload.memory.budget import local_threads
from memload.progress import bar

_BATCH_BYTES = 2**23
_MOST_ROWS = 512
_LOOKED_AT = 4  # rows at which other datasets begin


@dataclass(frozen=True)
class _Look:
    """What a few rows show: their layout, the forms of batches, and themselves by field."""

    layout: Layout | Literal["graphs"]
    ragged: Forms
    rows: Batch


class Results:
    """What is computed of a mapped dataset: a row for each of its own.

    Attributes:
        base: the dataset under all functions.
        functions: in the order in which samples go through them.
        rows: how many.

    Raises:
        ValueError: there are no rows; or a function asks for random numbers, which is a `DrawingError`.
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

    @property
    def borders(self) -> Borders:
        """The rows at which those of another dataset begin."""
        return self.base.borders if isinstance(self.base, Dataset) else NONE

    @property
    def layout(self) -> Layout | Literal["graphs"]:
        """Of the rows, as a dataset has it; or "graphs"."""
        return self._look.layout

    @property
    def ragged(self) -> Forms:
        """The forms of batches of fields whose rows differ in length, where the samples tell them."""
        return self._look.ragged

    @property
    def sampled(self) -> Batch:
        """Some rows by field: the first, the middle and the last one, and some at which another dataset begins.

        Raises:
            DrawingError: the first is not the same when it comes again.
            TypeError: a row is not made of tensors, arrays, numbers and texts.
            ValueError: rows have no form in common.
            RuntimeError: a function failed for the first row.
        """
        return self._look.rows

    @property
    def nbytes(self) -> int:
        """Of all rows, if they are like those that were sampled."""
        return self.rows * row_bytes_of(self.sampled)

    @functools.cached_property
    def _look(self) -> _Look:
        first = self._row(0)
        kept = _kept(0, first)
        with contextlib.suppress(UnhashableError):
            if fingerprint(self._row(0)) != fingerprint(first):
                raise _draws(self.functions[-1], "gives something else for the first row when it is called again")
        numbers, samples = [0], [kept]
        for number in self._spread():
            with contextlib.suppress(RuntimeError):  # of the function: it is raised when the row's turn comes
                samples.append(_kept(number, self._row(number)))
                numbers.append(number)
        forms = RowForms()
        together = collated(samples)
        if isinstance(together, Unlike):
            raise together.error(numbers[together.number], [*kept], kept.layout)
        for number, sample in zip(numbers, samples, strict=True):
            batch = collated([sample])
            assert not isinstance(batch, Unlike)  # there is no other
            forms.take(batch, number)
        check_types(together, numbers)
        return _Look(kept.layout, kept.ragged, together)

    def _spread(self) -> list[int]:
        """The rows beside the first that are looked at: where joined datasets differ in shape, it shows at once."""
        begins = [int(row) for row in self.borders]
        step = -(-len(begins) // _LOOKED_AT) or 1
        return sorted({*begins[::step], self.rows // 2, self.rows - 1} - {0})

    def batches(self, start: int, progress: bool | None) -> Iterator[Batch]:
        """Yield the rows from `start` on, by field, some at once."""
        largest = max(1, row_bytes_of(self.sampled), getattr(self.base, "nbytes", 0) // self.rows)
        step = max(1, min(_MOST_ROWS, _BATCH_BYTES // largest))
        generators, first = _states(), start
        workers = local_threads() if self._processes else 0
        own = torch.Generator()  # so that a run whose cache is there draws the same numbers as one that fills it
        batches = iter(FastLoader(self._from(start), step, num_workers=workers, generator=own))
        with bar("cache", self.rows, progress, start, unit=" rows") as shown:
            while start < self.rows:
                with self._naming(start, min(start + step, self.rows), first):
                    rows = next(batches)
                if _states() != generators:
                    raise _draws(self.functions[-1], "draws from the generators of numpy.random or random")
                if isinstance(rows, Unlike):
                    raise rows.error(start + rows.number, [*self.sampled], self.layout)
                yield rows
                start += rows_in(rows)
                shown.update(rows_in(rows))

    def _from(self, start: int) -> MappedDataset:
        rows = range(start, self.rows)
        rest = self.base
        if start:
            rest = rest.select(rows) if isinstance(rest, Dataset) else Subset(rest, rows)
        made = self.over(rest, WithoutRandomness)
        return MappedDataset(made, kept_sample, in_processes=self._processes)

    def over(self, rows: Any, altered: Callable[[Any], Callable[..., Any]] = lambda fn: fn) -> MappedDataset:
        """Return a dataset whose samples go through the same functions, or what `altered` makes of them."""
        for fn in self.functions:
            rows = MappedDataset(rows, altered(fn), in_processes=self._processes)
        assert isinstance(rows, MappedDataset)
        return rows

    def _row(self, number: int) -> Any:
        with self._naming(number, number + 1):
            sample = self.base[number]
            for fn in self.functions:
                with torch.no_grad():
                    sample = WithoutRandomness(fn)(sample)
            return sample

    @contextlib.contextmanager
    def _naming(self, start: int, stop: int, first: int = 0) -> Iterator[None]:
        try:
            yield
        except (MemloadError, DrawingError):
            raise
        except Exception as error:
            if (place := place_of(error)) is not None:
                row = f"{first + int(place.row):,}"
                raise RuntimeError(f"row {row}: {place.name} raised {place.said}") from error
            where = f"row {start:,}" if stop == start + 1 else f"rows {start:,} to {stop - 1:,}"
            named = " then ".join(map(name_of, self.functions))
            raise RuntimeError(f"{where}: {named} raised {type(error).__name__}: {first_line(error)}") from error


def _kept(number: int, sample: Any) -> KeptSample:
    """Return what is kept of a row; TypeError, with its number, if it cannot be."""
    try:
        return kept_sample(sample)
    except TypeError as error:
        raise TypeError(f"row {number:,}: {error}") from None


class DrawingError(ValueError):
    """A function that was to be cached draws random numbers."""


class WithoutRandomness:
    """A function of a sample that may not draw random numbers: the first that it asks for raises `DrawingError`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self.__qualname__ = name_of(fn)  # for errors of worker processes

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
