"""Rows that are stored element by element, made into rows: block by block, through a file, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload._core import Column, Storage
from memload.blocks import Block
from memload.conversion import Conversion
from memload.fields import Field, row_nbytes
from memload.progress import Bar
from memload.rows import Rows


def segments_of(fields: Mapping[str, Field]) -> list[range]:
    """Return the runs of rows that are best made together, in order: bands, where fields have any."""
    rows = next(iter(fields.values())).rows
    ends = [{band.stop for band in field.blocks.bands()} for field in fields.values() if field.blocks is not None]
    stops = sorted(set.intersection(*ends)) if ends else [rows]
    return [range(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True) if stop > start]


class Transposer:
    """Makes rows of fields that have `blocks`, converted on the way.

    Args:
        scratch: returns a file of so many bytes on a disk with room for them.
        nbytes: of memory, about, for the blocks that are read at once.
        bar: counts the bytes that were read.
    """

    def __init__(self, scratch: Callable[[int], Path], nbytes: int, bar: Bar) -> None:
        self._scratch = scratch
        self._nbytes = nbytes
        self._bar = bar

    def rows(
        self, fields: Mapping[str, Field], conversions: Mapping[str, Conversion], segment: range
    ) -> dict[str, Field]:
        """Return the converted rows of a segment, as fields that are read row by row, until the next call."""
        forms = {name: conversions[name].form(field.dtype, field.shape) for name, field in fields.items()}
        begins = list(
            itertools.accumulate((_paged(row_nbytes(*form) * len(segment)) for form in forms.values()), initial=0)
        )
        path = self._scratch(begins[-1])
        for (name, field), begin in zip(fields.items(), begins, strict=False):
            dtype, shape = forms[name]
            words = np.memmap(path, f"V{dtype.itemsize}", "r+", begin, (len(segment), *shape))
            self._fill(_Rows(words, field.dtype, conversions[name]), field, segment)
        storage = Storage.map_file(str(path))
        made = {}
        for (name, (dtype, shape)), begin in zip(forms.items(), begins, strict=False):
            row_bytes = row_nbytes(dtype, shape)
            made[name] = Field(dtype, shape, Column(row_bytes, [(storage, begin, len(segment), row_bytes)]))
        return made

    def _fill(self, rows: _Rows, field: Field, segment: range) -> None:
        assert field.blocks is not None
        wanted = rows.wanted(field.shape)
        for band in field.blocks.bands():
            if segment.start <= band.start and band.stop <= segment.stop:
                for block in field.blocks.read(band, wanted, self._nbytes):
                    rows.put(block, band.start - segment.start)
                    self._bar.update(block.values.nbytes)


class _Rows:
    """Converted rows in a mapped file, to which blocks come in any order."""

    def __init__(self, words: NDArray[Any], dtype: torch.dtype, conversion: Conversion) -> None:
        self._words = words
        self._dtype = dtype
        self._mask = conversion.mask
        self._numbers = replace(conversion, mask=None)
        if self._mask is not None:
            self._places = np.cumsum(self._mask).reshape(self._mask.shape) - 1

    def wanted(self, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """Return the mask as one of whole rows."""
        if self._mask is None:
            return None
        return np.broadcast_to(self._mask.reshape(self._mask.shape + (1,) * (len(shape) - self._mask.ndim)), shape)

    def put(self, block: Block, first: int) -> None:
        """Write a block to its places, its rows counted from row `first`."""
        rows, box, values = block
        out = self._words[first:]
        if isinstance(rows, slice):
            out = out[: len(values)]
        if self._mask is None:
            out[(rows, *box)] = self._converted(values)
            return
        inner = box[: self._mask.ndim]
        kept = self._mask[inner]
        at = rows if isinstance(rows, slice) else rows[:, None]
        out[(at, self._places[inner][kept], *box[self._mask.ndim :])] = self._converted(values[:, kept])

    def _converted(self, values: NDArray[Any]) -> NDArray[Any]:
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        rows = self._numbers.apply(Rows(self._dtype, (values.size,), data[None]))
        return rows.data.reshape(-1).view(self._words.dtype).reshape(values.shape)


def _paged(nbytes: int) -> int:
    return -(-max(1, nbytes) // 4096) * 4096
