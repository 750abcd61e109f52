"""Make rows from sources that are stored element by element: block by block, through a file, in bounded memory."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload._core import Column, Storage
from memload.columns.blocks import Block, Box
from memload.columns.fields import Field, row_nbytes
from memload.formats.shards.rows import Rows
from memload.progress import Bar
from memload.writing.conversion import Conversion

_PIECE_BYTES = 2**22  # bytes of a block that are converted at once


def segments_of(fields: Mapping[str, Field]) -> list[range]:
    """Return the ranges of rows to make together, in order: the bands of the fields that have bands."""
    rows = next(iter(fields.values())).rows
    ends = [{band.stop for band in field.blocks.bands()} for field in fields.values() if field.blocks is not None]
    stops = sorted(set.intersection(*ends)) if ends else [rows]
    return [range(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True) if stop > start]


class Transposer:
    """Makes converted rows of the fields of one dataset that have `blocks`.

    Args:
        scratch: returns a file of the given size on a disk with space for it.
        nbytes: the approximate memory for blocks that are read at once.
        bar: counts the bytes read.
    """

    def __init__(self, scratch: Callable[[int], Path], nbytes: int, bar: Bar) -> None:
        self._scratch = scratch
        self._nbytes = nbytes
        self._bar = bar
        self._bands: dict[str, list[range]] = {}  # by field

    def rows(
        self, fields: Mapping[str, Field], conversions: Mapping[str, Conversion], segment: range
    ) -> dict[str, Field]:
        """Return the converted rows of a segment as fields of rows, valid until the next call."""
        forms = {name: conversions[name].form(field.dtype, field.shape) for name, field in fields.items()}
        begins = list(
            itertools.accumulate((_paged(row_nbytes(*form) * len(segment)) for form in forms.values()), initial=0)
        )
        path = self._scratch(begins[-1])
        for (name, field), begin in zip(fields.items(), begins, strict=False):
            dtype, shape = forms[name]
            words = np.memmap(path, f"V{dtype.itemsize}", "r+", begin, (len(segment), *shape))
            self._fill(name, _MappedRows(words, field.dtype, conversions[name]), field, segment)
        storage = Storage.map_file(str(path))
        made = {}
        for (name, (dtype, shape)), begin in zip(forms.items(), begins, strict=False):
            row_bytes = row_nbytes(dtype, shape)
            made[name] = Field(dtype, shape, Column(row_bytes, [(storage, begin, len(segment), row_bytes)]))
        return made

    def _fill(self, name: str, rows: _MappedRows, field: Field, segment: range) -> None:
        assert field.blocks is not None
        wanted = rows.wanted(field.shape)
        if name not in self._bands:
            self._bands[name] = field.blocks.bands()
        bands = self._bands[name]
        at = bisect.bisect_left(bands, segment.start, key=lambda band: band.start)
        for band in itertools.takewhile(lambda band: band.stop <= segment.stop, bands[at:]):
            for block in field.blocks.read(band, wanted, self._nbytes):
                rows.put(block, band.start - segment.start)
                self._bar.update(block.values.nbytes)


class _MappedRows:
    """Converted rows in a mapped file; blocks are written in any order."""

    def __init__(self, words: NDArray[Any], dtype: torch.dtype, conversion: Conversion) -> None:
        self._words = words
        self._dtype = dtype
        self._mask = conversion.mask
        self._numbers = replace(conversion, mask=None)
        if self._mask is not None:
            self._places = conversion.ranks

    def wanted(self, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """Return the mask in the shape of a whole row."""
        if self._mask is None:
            return None
        return np.broadcast_to(self._mask.reshape(self._mask.shape + (1,) * (len(shape) - self._mask.ndim)), shape)

    def put(self, block: Block, first: int) -> None:
        """Write a block to its place, its rows counted from row `first`; a few rows are converted at a time."""
        step = max(1, _PIECE_BYTES * len(block.values) // max(1, block.values.nbytes))
        for at in range(0, len(block.values), step):
            values = block.values[at : at + step]
            if isinstance(block.rows, slice):
                begin = first + (block.rows.start or 0) + at
                self._put(slice(begin, begin + len(values)), block.box, values)
            else:
                self._put(first + block.rows[at : at + step], block.box, values)

    def _put(self, rows: slice | NDArray[np.int64], box: Box, values: NDArray[Any]) -> None:
        if self._mask is None:
            self._words[(rows, *box)] = self._converted(values)
            return
        inner = box[: self._mask.ndim]
        kept = self._mask[inner]
        across = rows if isinstance(rows, slice) else rows[:, None]
        self._words[(across, self._places[inner][kept], *box[self._mask.ndim :])] = self._converted(values[:, kept])

    def _converted(self, values: NDArray[Any]) -> NDArray[Any]:
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        rows = self._numbers.apply(Rows(self._dtype, (values.size,), data[None]))
        return rows.data.reshape(-1).view(self._words.dtype).reshape(values.shape)


def _paged(nbytes: int) -> int:
    return -(-max(1, nbytes) // 4096) * 4096
