"""The results of deterministic functions of samples: an estimate of their size, and their rows, computed in order."""

from __future__ import annotations

import contextlib
import functools
import random
import traceback
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
from memload.caching.samples import FieldMismatch, KeptSample, collated, kept_sample
from memload.columns.borders import NONE, Borders
from memload.columns.ragged_samples import Forms
from memload.dataset.dataset import Dataset, Layout
from memload.dataset.mapped import MappedDataset
from memload.engine.iterators import one_pass
from memload.engine.transforms.seeding import Drawing, Randomness
from memload.errors import MemloadError, first_line
from memload.kept_errors import noted_row, place_of
from memload.loader.fast_loader import FastLoader
from memload.memory.budget import local_threads
from memload.progress import bar

_BATCH_BYTES = 2**23
_MOST_ROWS = 512
_MOST_BORDERS = 4  # the most starts of joined datasets that are sampled


@dataclass(frozen=True)
class _Probe:
    """The results for a few rows: their layout, the forms of batches, and the rows by field."""

    layout: Layout | Literal["graphs"]
    ragged: Forms
    rows: Batch


class Results:
    """The results of a mapped dataset: one row for each of its rows.

    Attributes:
        base: the dataset under all functions.
        functions: the functions in the order in which they are applied.
        rows: the number of rows.

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
                raise _drawing_error(fn, "asks for a random generator")

    @property
    def borders(self) -> Borders:
        """The rows at which the parts of a joined dataset begin."""
        return self.base.borders if isinstance(self.base, Dataset) else NONE

    @property
    def layout(self) -> Layout | Literal["graphs"]:
        """The layout of the rows, as in a dataset; or "graphs"."""
        return self._probe.layout

    @property
    def ragged(self) -> Forms:
        """The forms of batches of ragged fields, where the samples say them."""
        return self._probe.ragged

    @property
    def sampled(self) -> Batch:
        """Some rows by field: the first, the middle, the last, and some at which a joined dataset begins.

        Raises:
            DrawingError: a second call for the first row gives another result.
            TypeError: a row is not made of tensors, arrays, numbers and texts.
            ValueError: the rows do not fit into one field.
            RuntimeError: a function failed for the first row.
        """
        return self._probe.rows

    @property
    def nbytes(self) -> int:
        """The estimated bytes of all rows, if they are like the sampled rows."""
        return self.rows * row_bytes_of(self.sampled)

    @functools.cached_property
    def _probe(self) -> _Probe:
        first = self._row(0)
        kept = _kept(0, first)
        with contextlib.suppress(UnhashableError):
            if fingerprint(self._row(0)) != fingerprint(first):
                raise _drawing_error(self.functions[-1], "returns another result for the first row when called again")
        numbers, samples = [0], [kept]
        for number in self._spread():
            with contextlib.suppress(RuntimeError):  # the error is raised when the row is computed in its turn
                samples.append(_kept(number, self._row(number)))
                numbers.append(number)
        forms = RowForms()
        together = collated(samples)
        if isinstance(together, FieldMismatch):
            raise together.error(numbers[together.number], [*kept], kept.layout)
        for number, sample in zip(numbers, samples, strict=True):
            batch = collated([sample])
            assert not isinstance(batch, FieldMismatch)  # one row cannot differ from the first
            forms.take(batch, number)
        check_types(together, numbers)
        return _Probe(kept.layout, kept.ragged, together)

    def _spread(self) -> list[int]:
        """Return further rows to sample, so that joined datasets of different shapes are noticed before the rest."""
        begins = [int(row) for row in self.borders]
        step = -(-len(begins) // _MOST_BORDERS) or 1
        return sorted({*begins[::step], self.rows // 2, self.rows - 1} - {0})

    def batches(self, start: int, progress: bool | None) -> Iterator[Batch]:
        """Yield the rows from `start` on, in batches by field."""
        largest = max(1, row_bytes_of(self.sampled), getattr(self.base, "nbytes", 0) // self.rows)
        step = max(1, min(_MOST_ROWS, _BATCH_BYTES // largest))
        generators, first = _states(), start
        workers = local_threads() if self._processes else 0
        own = torch.Generator()  # so that filling a cache draws no numbers from torch's own generator
        loader = FastLoader(self._from(start), step, num_workers=workers, generator=own)
        with one_pass(loader) as batches, bar("cache", self.rows, progress, start, unit=" rows") as shown:
            while start < self.rows:
                with self._errors_with_rows(start, min(start + step, self.rows), first):
                    rows = next(batches)
                if _states() != generators:
                    raise _drawing_error(self.functions[-1], "draws from the generators of numpy.random or random")
                if isinstance(rows, FieldMismatch):
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
        """Return a dataset whose samples go through the same functions, each replaced by `altered(fn)`."""
        for fn in self.functions:
            rows = MappedDataset(rows, altered(fn), in_processes=self._processes)
        assert isinstance(rows, MappedDataset)
        return rows

    def _row(self, number: int) -> Any:
        with self._errors_with_rows(number, number + 1):
            sample = self.base[number]
            for fn in self.functions:
                with torch.no_grad():
                    sample = WithoutRandomness(fn)(sample)
            return sample

    @contextlib.contextmanager
    def _errors_with_rows(self, start: int, stop: int, first: int = 0) -> Iterator[None]:
        try:
            yield
        except (MemloadError, DrawingError):
            raise
        except Exception as error:
            if (place := place_of(error)) is not None:
                row = f"{first + int(place.row):,}"
                raise RuntimeError(f"row {row}: {place.name} raised {place.said}") from error
            noted = noted_row(error) if stop > start + 1 and WithoutRandomness.passed(error) else None
            if noted is not None:
                start, stop = first + noted, first + noted + 1
            where = f"row {start:,}" if stop == start + 1 else f"rows {start:,} to {stop - 1:,}"
            named = " then ".join(map(name_of, self.functions))
            raise RuntimeError(f"{where}: {named} raised {type(error).__name__}: {first_line(error)}") from error


def _kept(number: int, sample: Any) -> KeptSample:
    """Return the fields to keep of a row. Raises TypeError, with the row's number, if they cannot be stored."""
    try:
        return kept_sample(sample)
    except TypeError as error:
        raise TypeError(f"row {number:,}: {error}") from None


class DrawingError(ValueError):
    """A function whose results were to be cached draws random numbers."""


class WithoutRandomness:
    """A function of a sample that must not draw random numbers: the first request for one raises `DrawingError`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self.__qualname__ = name_of(fn)  # errors show it, as if it were the function itself
        self.__module__ = str(getattr(fn, "__module__", ""))

    def __call__(self, sample: Any) -> Any:
        """Call the function."""
        mine = Randomness.entered()
        if mine is not None:
            mine.begin(self._refuse)
            return self._fn(sample)
        with Randomness() as mine:
            mine.begin(self._refuse)
            return self._fn(sample)

    @classmethod
    def passed(cls, error: BaseException) -> bool:
        """Whether such a function raised the error, so that the row which is noted in it is one of those it went over.

        A dataset of the user may note rows of another one, which it is made of.
        """
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        return any(frame.f_code is cls.__call__.__code__ for frame in frames)

    def _refuse(self) -> int:
        raise _drawing_error(self._fn, "draws random numbers")


def _drawing_error(fn: Any, what: str) -> DrawingError:
    return DrawingError(
        f"{name_of(fn)} {what}, so every epoch would get the numbers of the first: cache the functions before it, "
        "and map it afterwards: ds.map(before).cache(path).map(after)"
    )


def _states() -> Any:
    _, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - to detect draws from numpy's global generator
    return random.getstate(), np.asarray(keys).tobytes(), rest
