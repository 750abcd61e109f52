"""default_collate for samples that are made a few at a time: fields go into the batch while they are hot.

default_collate is given all samples of a batch at once. Where a function makes them, each lies in fresh memory by then,
and the batch takes fresh memory again. Here arrays are copied as soon as some hundred KB of them are made, into memory
that was a batch before, so that the function's next samples find the memory of its last. What a function hands on as it
was given it is not copied at all: the gathered field is the batch's.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.dlpack import from_dlpack

from memload import _core
from memload.columns.collate_rules import default_collate_fn_map
from memload.columns.ragged_forms import is_ragged, rows_of
from memload.columns.ragged_samples import NO_FORMS, Forms, forms_below, forms_of, sample_of

_HOT = 512 << 10  # bytes of samples that are made before they are copied: half of a usual second-level cache
_ARRAYS_AS_SHIPPED = default_collate_fn_map.get(np.ndarray)
_CONTAINERS = (dict, tuple, list)


class FieldSlots:
    """Lends memory for the fields of batches, to each field of its own, so that each is a storage of its own.

    Several threads may ask.

    Args:
        batches: of so many, the memory is kept for later ones.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._process = os.getpid()
        self._of: dict[Hashable, _core.Slots] = {}

    @classmethod
    def kept(cls, before: FieldSlots | None, batches: int) -> FieldSlots:
        """Return those of an earlier pass, if they are for as many batches; a child leaves a parent's alone."""
        fits = before is not None and before._batches == batches and before._process == os.getpid()
        return before if before is not None and fits else cls(batches)

    def take(self, field: Hashable, nbytes: int) -> torch.Tensor:
        """Return so many uninitialised bytes for the field of this number or name."""
        slots = self._of.get(field) or self._of.setdefault(field, _core.Slots(self._batches))
        return from_dlpack(slots.take(nbytes))

    def give_back(self) -> None:
        """Free what is not lent, and what is lent when it comes back; what is taken from now on is kept again."""
        self._of = {}


class CutBatch:
    """A gathered batch, cut into the samples that the dataset would have given.

    Args:
        batch: as it was gathered.
        forms: of its fields whose rows differ in length, by key or path, where they are known.
    """

    def __init__(self, batch: Any, forms: Forms = NO_FORMS) -> None:
        self.fields = {name: value for name, value in _parts(batch) if type(value) is torch.Tensor}
        """Its tensors by their name or position in a sample; of a batch that is a tensor, the field 0."""
        self._holders = {name: _holders(field) for name, field in self.fields.items()}
        self.rows = {name: field.unbind(0) for name, field in self.fields.items()}
        """Of each of these the rows, which the samples hold."""
        self.samples = iter(_samples(batch, self.rows, forms))

    def let_go(self) -> None:
        """Keep the fields alone: the samples are no longer needed."""
        self.samples, self.rows = iter(()), {}

    def is_unseen(self, name: Any) -> bool:
        """Whether nobody holds what was cut of a field, after ``let_go()``."""
        return 0 < _holders(self.fields[name]) <= self._holders[name]


def _holders(tensor: torch.Tensor) -> int:
    """How many tensors and the like lie on the memory of this one; 0: not known. Torch has no public way to it."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return 0 if count is None else int(count(tensor.untyped_storage()._cdata))


def _samples(batch: Any, rows: Mapping[Any, Sequence[Any]], known: Forms) -> Iterable[Any]:
    if is_ragged(batch):
        return rows_of(batch)
    if isinstance(batch, dict):
        columns = [rows[name] if name in rows else _cut(value, known, name) for name, value in batch.items()]
        forms = forms_of(batch, known)
        # All of it in C: to make their samples is a good part of what cheap functions cost.
        samples: Iterable[Any] = map(dict, map(zip, itertools.repeat(tuple(batch)), zip(*columns, strict=True)))
    elif isinstance(batch, list):
        columns = [rows[k] if k in rows else _cut(value, known, k) for k, value in enumerate(batch)]
        forms = forms_of(dict(enumerate(batch)), known)
        samples = zip(*columns, strict=True)
    else:
        return rows[0] if 0 in rows else batch.unbind(0)  # of a TensorDict
    return (sample_of(sample, forms) for sample in samples) if forms else samples


def _cut(batch: Any, known: Forms, name: Any) -> Iterable[Any]:
    return CutBatch(batch, forms_below(known, name)).samples


def collate_as_made(
    make: Callable[[int], list[Any]], count: int, slots: FieldSlots, cut: CutBatch | None = None
) -> Any:
    """Return ``default_collate(make(count))``.

    Args:
        make: returns the next so many samples, none if asked for none.
        count: how many there are, at least one.
        slots: lend the memory of the fields of the batch.
        cut: what the samples were made of, if they were.
    """
    samples = make(1)
    batch = _Batch(samples[0], count, slots, cut or CutBatch([]))
    if not batch.columns:
        return default_collate([*samples, *make(count - 1)])
    row = 0
    while samples:
        if not batch.put(row, samples):
            return default_collate([*batch.samples(row), *samples, *make(count - row - len(samples))])
        row += len(samples)
        samples = make(min(batch.at_once, count - row))
    return batch.finish()


class _Batch:
    """A batch in the making.

    Of a dict, tuple or list the parts are its values; anything else is the one part of itself.

    Args:
        first: a sample like which the others should be.
        count: how many there are.
        slots: lend the memory of fields.
        cut: what the samples were made of.
    """

    def __init__(self, first: Any, count: int, slots: FieldSlots, cut: CutBatch) -> None:
        self._kind, self._cut, parts = type(first), cut, dict(_parts(first))
        self._names = dict.fromkeys(parts).keys()
        self.columns = {
            name: _Column(value, count, slots, number)
            for number, (name, value) in enumerate(parts.items())
            if _is_plain(value)
        }
        gathered = {id(rows[0]): name for name, rows in cut.rows.items()}
        for name, column in self.columns.items():
            found = gathered.pop(id(parts[name]), None)  # each is handed on once: fields share no memory
            if found is not None:
                column.expect(cut, found)
        self._left = [name for name in parts if name not in self.columns]
        self._rest: list[dict[Any, Any]] = []  # the parts that are in no column

    @property
    def at_once(self) -> int:
        """How many samples are best made before they are put here."""
        return max(1, _HOT // max(1, sum(column.row_bytes for column in self.columns.values() if column.copies)))

    def put(self, row: int, samples: list[Any]) -> bool:
        """Take samples from this row on; False if one of them is not like the first."""
        if not self._are_alike(samples):
            return False
        whole = self._kind not in _CONTAINERS
        for name, column in self.columns.items():
            if not column.put(row, samples if whole else [sample[name] for sample in samples]):
                return False
        if self._left:
            self._rest += [{name: sample[name] for name in self._left} for sample in samples]
        return True

    def _are_alike(self, samples: list[Any]) -> bool:
        if set(map(type, samples)) != {self._kind}:
            return False
        if self._kind is dict:
            return all(sample.keys() == self._names for sample in samples)
        return self._kind not in _CONTAINERS or set(map(len, samples)) == {len(self._names)}

    def samples(self, count: int) -> list[Any]:
        """Return the first so many samples as they were."""
        rest = self._rest[:count] if self._left else [{}] * count
        columns = self.columns.items()
        return [self._sample({**left, **{name: one.row(k) for name, one in columns}}) for k, left in enumerate(rest)]

    def _sample(self, parts: Mapping[Any, Any]) -> Any:
        ordered = {name: parts[name] for name in self._names}
        if self._kind is dict:
            return ordered
        return self._kind(ordered.values()) if self._kind in _CONTAINERS else ordered[0]

    def finish(self) -> Any:
        """Return the batch; nothing can be put into it any more."""
        self._cut.let_go()
        parts = {name: column.finish() for name, column in self.columns.items()}
        whole = self._sample({**parts, **self._collated()} if self._left else parts)
        return [*whole] if self._kind is tuple else whole

    def _collated(self) -> dict[Any, Any]:
        """What default_collate makes of the parts in no column, in containers of their kind, which matters to it."""
        if self._kind is dict:
            found: dict[Any, Any] = default_collate(self._rest)
            return found
        made = default_collate([self._kind(left.values()) for left in self._rest])
        return dict(zip(self._left, made, strict=True))


class _Column:
    """One field of a batch that is being made, and what each of its values must be like.

    Args:
        like: the first value.
        count: how many there will be.
        slots: lend memory.
        number: of the field, for these.
    """

    def __init__(self, like: Any, count: int, slots: FieldSlots, number: int) -> None:
        self._kind, self._dtype, self._shape = type(like), like.dtype, like.shape
        self.row_bytes: int = like.nbytes
        self._count, self._slots, self._number = count, slots, number
        self._batch: torch.Tensor | None = None
        self._rows: Any = None  # the same as what the values are: a tensor or an array
        self._cut: CutBatch | None = None
        self._gathered: Any = None

    def expect(self, cut: CutBatch, gathered: Any) -> None:
        """Expect that each value is the row of this gathered field."""
        if cut.fields[gathered].shape[1:] == self._shape and cut.fields[gathered].dtype == self._dtype:
            self._cut, self._gathered = cut, gathered

    @property
    def copies(self) -> bool:
        """Whether values are copied; not while each is the row of a gathered field."""
        return self._cut is None

    def put(self, row: int, values: list[Any]) -> bool:
        """Take values from this row on; False if one is not like the first, and nothing was done."""
        if self._cut is not None:
            if self._hands_on(self._cut, row, values):
                return True
            self._begin_copying(self._cut, row)
        if set(map(type, values)) != {self._kind} or not self._are_alike(values):
            return False
        if self._rows is None:
            self._begin()
        rows = self._rows[row : row + len(values)]
        return _stack(values, rows) if self._kind is torch.Tensor else _join(values, rows)

    def _are_alike(self, values: list[Any]) -> bool:
        dtype, shape = self._dtype, self._shape
        return all(value.dtype == dtype and value.shape == shape for value in values)

    def _hands_on(self, cut: CutBatch, row: int, values: list[Any]) -> bool:
        if not all(map(operator.is_, values, cut.rows[self._gathered][row : row + len(values)])):
            return False
        # What was turned, squeezed or set in place is another value in the same object.
        first, step = cut.fields[self._gathered].data_ptr() + row * self.row_bytes, self.row_bytes
        in_place = [*map(torch.Tensor.data_ptr, values)] == [*range(first, first + len(values) * step, step)]
        return in_place and all(map(torch.Tensor.is_contiguous, values)) and self._are_alike(values)

    def _begin_copying(self, cut: CutBatch, rows: int) -> None:
        self._begin()
        self._rows[:rows] = cut.fields[self._gathered][:rows]
        self._cut = None

    def _begin(self) -> None:
        memory = self._slots.take(self._number, self.row_bytes * self._count)
        dtype = torch.from_numpy(np.empty(0, self._dtype)).dtype if self._kind is np.ndarray else self._dtype
        self._batch = memory.view(dtype).view(self._count, *self._shape).data  # to autograd no view
        self._rows = self._batch.numpy() if self._kind is np.ndarray else self._batch

    def row(self, row: int) -> Any:
        """Return a value that was put, as what it was."""
        return self._rows[row] if self._cut is None else self._cut.rows[self._gathered][row]

    def finish(self) -> torch.Tensor:
        """Return the field of the batch."""
        if self._cut is not None:
            if self._cut.is_unseen(self._gathered):
                return self._cut.fields[self._gathered]
            self._begin_copying(self._cut, self._count)  # a function that kept a sample may still write to it
        assert self._batch is not None
        return self._batch


def _stack(values: list[torch.Tensor], rows: torch.Tensor) -> bool:
    try:
        torch.stack(values, out=rows)
    except RuntimeError:  # of these no batch can be made: it is for default_collate to say so
        return False
    return True


def _join(values: list[np.ndarray[Any, Any]], rows: np.ndarray[Any, Any]) -> bool:
    if not all(value.flags.c_contiguous for value in values):
        return False
    np.concatenate(values, out=rows.reshape(-1, *rows.shape[2:]))
    return True


def _is_plain(value: Any) -> bool:
    """Whether default_collate would do nothing but copy its bytes, in their order."""
    if type(value) is np.ndarray:
        numeric = value.dtype.kind in "biuf" and value.dtype.isnative and value.dtype.char != "g"
        rules_as_shipped = default_collate_fn_map.get(np.ndarray) is _ARRAYS_AS_SHIPPED
        return bool(numeric and rules_as_shipped and value.ndim and value.nbytes and value.flags.c_contiguous)
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and value.is_contiguous()
        and not (value.requires_grad or value.is_quantized or value.is_complex())
        and value.nbytes > 0
    )


def _parts(sample: Any) -> Iterable[tuple[Any, Any]]:
    if type(sample) is dict:
        return sample.items()
    return enumerate(sample) if type(sample) in (tuple, list) else [(0, sample)]
