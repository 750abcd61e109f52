"""What deterministic functions make of each sample of a dataset: how large it is, and all of it, row after row."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, default_collate

from memload.dataset import Dataset, Layout
from memload.errors import MemloadError, first_line
from memload.loader import FastLoader
from memload.memory.budget import local_threads
from memload.progress import bar
from memload.results.computed import row_bytes_of, rows_in
from memload.results.derivation import name_of
from memload.results.fingerprints import UnhashableError, fingerprint
from memload.rows.borders import NONE, Borders
from memload.transforms.mapped import MappedDataset
from memload.transforms.reseeding import Watch
from memload.transforms.seeding import Drawing, Randomness

_BATCH_BYTES = 2**23
_MOST_ROWS = 512


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
    def layout(self) -> Layout:
        """Of the rows, as a dataset has it."""
        return self._look[0]

    @property
    def first(self) -> dict[str, Any]:
        """The first row by field, as a batch of one.

        Raises:
            DrawingError: it is not the same when it comes again.
            TypeError: it is not made of tensors, arrays, numbers and texts.
            RuntimeError: a function failed.
        """
        return self._look[2]

    @property
    def row_bytes(self) -> int:
        """Of the first row: what all are taken to be like."""
        return row_bytes_of(self.first)

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return self.rows * self.row_bytes

    @functools.cached_property
    def _look(self) -> tuple[Layout, list[str], dict[str, Any]]:
        """The layout, the names of fields and the first row."""
        first = self._row(0)
        layout, names = _form_of(first)
        batch = _named(layout, names, default_collate([first]))
        with contextlib.suppress(UnhashableError):
            if fingerprint(self._row(0)) != fingerprint(first):
                raise _draws(self.functions[-1], "gives something else for the first row when it is called again")
        return layout, names, batch

    def batches(self, start: int, progress: bool | None) -> Iterator[dict[str, Any]]:
        """Yield the rows from `start` on, by field, some at once."""
        layout, names, _ = self._look
        largest = max(1, self.row_bytes, getattr(self.base, "nbytes", 0) // self.rows)
        step = max(1, min(_MOST_ROWS, _BATCH_BYTES // largest))
        generators = _states()
        workers = local_threads() if self._processes else 0
        own = torch.Generator()  # so that a run whose cache is there draws the same numbers as one that fills it
        batches = iter(FastLoader(self._from(start), step, num_workers=workers, generator=own))
        with bar("cache", self.rows, progress, start, unit=" rows") as shown:
            while start < self.rows:
                with self._naming(start, min(start + step, self.rows)):
                    rows = _named(layout, names, next(batches))
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
        return self.over(rest, Undrawn)

    def over(self, rows: Any, altered: Callable[[Any], Callable[..., Any]] = lambda fn: fn) -> MappedDataset:
        """Return a dataset whose samples go through the same functions, or what `altered` makes of them."""
        for fn in self.functions:
            rows = MappedDataset(rows, altered(fn), in_processes=self._processes)
        assert isinstance(rows, MappedDataset)
        return rows

    def _row(self, number: int) -> Any:
        with self._naming(number, number + 1), Watch():
            sample = self.base[number]
            for fn in self.functions:
                with torch.no_grad():
                    sample = Undrawn(fn)(sample)
            return sample

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


def _named(layout: Layout, names: list[str], value: Any) -> dict[str, Any]:
    if layout == "dict":
        return dict(value)
    return dict(zip(names, value if layout == "tuple" else [value], strict=True))


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
