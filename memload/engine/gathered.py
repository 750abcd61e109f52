"""A batch of rows that is gathered as a whole and still is the list of samples that any collate function expects.

stock fetcher -> dataset.__getitems__(indices) -> GatheredRows -> default_collate -> the gathered batch itself
                                                               -> anything else   -> ordinary samples, one a row

`default_collate` looks up the type of the first element in `default_collate_fn_map`, which torch documents as the place
to teach it new types. So the first row of a list is of a type of our own, and it is collated by `_collate_rows`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, SupportsIndex, TypeVar

import torch

from memload.columns.collate_rules import collate, default_collate_fn_map
from memload.columns.ragged_forms import first_row, is_ragged, rows_of
from memload.columns.ragged_samples import NO_FORMS, Forms, forms_of, sample_of
from memload.engine.collate_function import as_shipped
from memload.engine.gather_spec import as_it_is
from memload.sampling.draws import Indices

# Fresh memory for a row of this size costs more than what is done with it: it is not copied out of the batch.
_LARGE_ROW = 64 << 10  # bytes of one field


class Gathers(Protocol):
    """What gathers rows natively."""

    @property
    def forms(self) -> Forms:
        """Of the fields of a batch, by key, whose rows differ in length."""

    def gather(self, rows: Indices) -> Any:
        """Return the batch of these rows as default_collate shapes it: a dict or list of tensors, or a tensor."""


GathersT_co = TypeVar("GathersT_co", bound=Gathers, covariant=True)


class DictRow(dict[str, Any]):
    """The first row of a list of dict samples; a dict in all else."""

    forms: Forms = NO_FORMS  # of fields whose rows differ in length

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        owned = {name: _owned(value) for name, value in self.items()}
        return (sample_of, (owned, dict(self.forms))) if self.forms else (dict, (owned,))


class TupleRow(tuple[Any, ...]):
    """The first row of a list of tuple samples; a tuple in all else."""

    forms: Forms = NO_FORMS  # of fields whose rows differ in length

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        owned = [_owned(value) for value in self]
        return (sample_of, (tuple(owned), dict(self.forms))) if self.forms else (tuple, (owned,))


class TensorRow(torch.Tensor):
    """The first row of a list of tensor samples; what is computed from it are plain tensors."""

    # What torch documents for subclasses that are tensors in all but their type.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __reduce_ex__(self, proto: SupportsIndex) -> Any:
        return as_it_is, (_owned(_plain(self)),)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no types
        return repr(_plain(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied: torch.Tensor = _plain(self).clone()
        memo[id(self)] = copied
        return copied


class GatheredRows(list[Any], Generic[GathersT_co]):
    """The samples of some rows. Nothing is read before somebody looks.

    To `default_collate` it gives the gathered batch as it is, without making samples. Whoever looks at more than the
    first sample finds an ordinary list of ordinary samples, and `default_collate` then stacks them as it stacks any.
    Small samples have memory of their own, so that who keeps one does not keep the batch; the first, and large ones,
    lie where they were gathered.

    Args:
        fetcher: what gathers the rows.
        rows: int64, each a row that is there.
        tensors: whether samples are tensors. They are gathered at once, since torch's own functions, such as
            `torch.stack`, read a list of tensors where no look is noticed.
        tag: the field of dict samples that is an int there, if any.
    """

    _batch: Any = None  # once it is gathered, and until the samples are made of it
    _first: Any = None

    def __init__(self, fetcher: GathersT_co, rows: Indices, *, tensors: bool = False, tag: str | None = None) -> None:
        super().__init__()
        self._fetcher: GathersT_co | None = fetcher
        self._rows = rows
        self._tag = tag
        if tensors and len(rows):
            super().extend([self[0], *_others_in(self._batch)])

    @property
    def forms(self) -> Forms:
        """Of the fields of the gathered batch whose rows differ in length; none once somebody has looked at samples."""
        return NO_FORMS if self._fetcher is None else self._fetcher.forms

    def through(self, other: Gathers) -> GatheredRows[Any]:
        """Return the same rows, gathered by another fetcher."""
        return GatheredRows(other, self._rows, tag=self._tag)

    @property
    def fetcher(self) -> GathersT_co | None:
        """What will gather the rows; None once somebody has looked at them."""
        return None if self._first is not None else self._fetcher

    def whole(self) -> Any:
        """Return the gathered batch if nobody has looked at more than the first sample, and that is as it was.

        What the caller does with the batch, the first sample sees, and the other way round. None otherwise.
        """
        if self._fetcher is None or not _untouched(self[0], self._batch):
            return None
        return self._batch

    def __len__(self) -> int:
        return super().__len__() if self._fetcher is None else len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if self._fetcher is None or type(index) is not int or index != 0 or not len(self._rows):
            self._become_samples()
            return super().__getitem__(index)
        if self._first is None:
            self._batch = self._fetcher.gather(self._rows)
            self._first = _first_of(self._batch, self._tag, self.forms)
        return self._first

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return list, (list(self),)

    def _become_samples(self) -> None:
        """Turn into an ordinary list, once."""
        if self._fetcher is None:
            return
        samples = [self[0], *_others_of(self._batch, self._tag, self.forms)] if len(self._rows) else []
        self._fetcher = self._batch = None
        super().__setitem__(slice(None), samples)


def _samples_first(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def looking(self: GatheredRows[Any], *args: Any, **kwargs: Any) -> Any:
        self._become_samples()
        return method(self, *args, **kwargs)

    return looking


# All that a list does, done to the samples. `list` keeps them where C code looks, so they have to be there by then.
for _name in (
    *("__add__", "__contains__", "__delitem__", "__eq__", "__ge__", "__gt__", "__iadd__", "__imul__", "__iter__"),
    *("__le__", "__lt__", "__mul__", "__ne__", "__repr__", "__reversed__", "__rmul__", "__setitem__"),
    *("append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
):
    setattr(GatheredRows, _name, _samples_first(getattr(list, _name)))


def _first_of(batch: Any, tag: str | None, forms: Forms) -> Any:
    """The first sample, in the memory of the batch. Detached, it is no view to autograd."""
    if is_ragged(batch):
        row = first_row(batch)
        return row.detach().as_subclass(TensorRow) if isinstance(row, torch.Tensor) else row
    if isinstance(batch, Mapping):
        first: Any = DictRow({name: int(v[0]) if name == tag else _first_value(v) for name, v in batch.items()})
        first.forms = forms_of(batch, forms)
        return first
    if isinstance(batch, Sequence):
        first = TupleRow(map(_first_value, batch))
        first.forms = forms_of(dict(enumerate(batch)), forms)
        return first
    return batch[0].detach().as_subclass(TensorRow)


def _first_value(values: Any) -> Any:
    row = first_row(values) if is_ragged(values) else values[0]
    return row.detach() if isinstance(row, torch.Tensor) else row


def _others_in(batch: Any) -> Sequence[Any]:
    """The other samples of a batch of tensor samples, in its memory."""
    return rows_of(batch)[1:] if is_ragged(batch) else batch[1:].unbind(0)


def _others_of(batch: Any, tag: str | None = None, known: Forms = NO_FORMS) -> Iterator[Any]:
    """The other samples, small ones each in memory of its own."""
    if is_ragged(batch):
        return map(_kept, _others_in(batch))
    if isinstance(batch, Mapping):
        columns = [iter(v[1:].tolist()) if name == tag else _others_of(v) for name, v in batch.items()]
        forms = forms_of(batch, known)
        return (sample_of(dict(zip(batch, row, strict=True)), forms) for row in zip(*columns, strict=True))
    if isinstance(batch, Sequence):
        forms = forms_of(dict(enumerate(batch)), known)
        return (sample_of(row, forms) for row in zip(*map(_others_of, batch), strict=True))
    return map(_kept, _others_in(batch))


def _kept(row: Any) -> Any:
    """A sample that lies in a batch, as it is if it is large, else in memory of its own."""
    if not isinstance(row, torch.Tensor):
        return row
    return row.clone() if row.nbytes < _LARGE_ROW else row.detach()


def _untouched(first: Any, batch: Any) -> bool:
    """Whether the first sample is still the first row of the batch, and nothing else."""
    if is_ragged(batch):
        return _same_row(first, first_row(batch))
    if isinstance(batch, Mapping):
        return list(first) == list(batch) and all(map(_untouched, first.values(), batch.values()))
    if isinstance(batch, Sequence):
        return all(map(_untouched, first, batch))
    if type(first) is int:  # as default_collate makes a tensor of ints
        return batch.dtype == torch.int64 and batch.ndim == 1 and first == int(batch[0])
    return _same_row(first, batch[0])


def _same_row(first: Any, row: Any) -> bool:
    if not isinstance(row, torch.Tensor):
        return bool(first == row)
    return isinstance(first, torch.Tensor) and not first.requires_grad and _place(first) == _place(row)


def _place(x: torch.Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.dtype, x.shape, x.stride(), x.is_conj(), x.is_neg()


def _owned(value: Any) -> Any:
    """A copy, since what lies in a batch would take the whole of it along."""
    return value.clone() if type(value) is torch.Tensor else value


def _plain(row: Any) -> Any:
    """The sample as the dataset gives it, in a plain container."""
    if isinstance(row, DictRow):
        return sample_of(dict(row), row.forms)
    if isinstance(row, TupleRow):
        return sample_of(tuple(row), row.forms)
    return row.as_subclass(torch.Tensor) if isinstance(row, TensorRow) else row


def _collate_rows(samples: Sequence[Any], *, collate_fn_map: dict[Any, Any] | None = None) -> Any:
    """Collate samples of which the first is one of ours: a list that is whole and untouched is a batch already."""
    if isinstance(samples, GatheredRows) and as_shipped(collate_fn_map or {}):
        batch = samples.whole()
        if batch is not None:
            return batch
    return collate(list(map(_plain, samples)), collate_fn_map=collate_fn_map)


default_collate_fn_map.update(dict.fromkeys((DictRow, TupleRow, TensorRow), _collate_rows))
