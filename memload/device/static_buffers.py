"""Batches at fixed addresses, for CUDA graphs, which always read and write the addresses of their capture.

batch -> copied, in the loop's current stream, into the next of k sets of tensors -> the loop
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler

from memload.columns.ragged_forms import is_ragged
from memload.dtypes import dtype_name
from memload.engine.iterators import AroundBatches
from memload.nested import refilled, tensors_of

_MOST = 1024
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class StaticBuffers:
    """Sets of tensors that hold batches in turn; their addresses stay the same as long as this object lives.

    The first batch determines shape, dtype, strides and device of each tensor. Numbers and texts are passed on.

    Args:
        count: the number of sets; a batch is overwritten when the ``count``-th batch after it is put.

    Example:
        >>> buffers = StaticBuffers(2)
        >>> addresses = [buffers.put(torch.full((2,), k)).data_ptr() for k in range(4)]
        >>> addresses[:2] == addresses[2:], addresses[0] == addresses[1]
        (True, False)
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._sets: list[Any] = []
        self._turn = 0

    def put(self, batch: Any) -> Any:
        """Return the batch in the next set of tensors, in new containers.

        Raises:
            ValueError: it differs from the first batch in its form.
            TypeError: it has parts that are neither tensors nor plain values in dicts, lists and tuples.
        """
        if not self._sets:
            self._sets = [_like(batch) for _ in range(self.count)]
        held = self._sets[self._turn]
        copied = self._copied(batch, held)
        self._turn = (self._turn + 1) % self.count
        return copied

    @property
    def nbytes(self) -> int:
        """Bytes of all sets; 0 before the first batch."""
        return sum(tensor.nbytes for tensor in tensors_of(self._sets))

    def _copied(self, value: Any, held: Any) -> Any:
        if type(value) is not type(held) and not isinstance(held, torch.Tensor):
            raise ValueError(self._unlike(value, held))
        if isinstance(held, torch.Tensor):
            if not isinstance(value, torch.Tensor) or _form(value) != _form(held):
                raise ValueError(self._unlike(value, held))
            return held.copy_(value, non_blocking=True)
        if isinstance(held, dict):
            if held.keys() != value.keys():
                raise ValueError(self._unlike(value, held))
            return {key: self._copied(value[key], held[key]) for key in held}
        if isinstance(held, list | tuple):
            if len(held) != len(value):
                raise ValueError(self._unlike(value, held))
            return refilled(held, [self._copied(*pair) for pair in zip(value, held, strict=True)])
        return value

    def _unlike(self, value: Any, held: Any) -> str:
        return (
            f"static_buffers={self.count}: this batch has {_described(value)} where the first had {_described(held)}; "
            "a captured graph takes batches of one form. For a last batch with fewer rows give drop_last=True"
        )


class StaticBatches(AroundBatches):
    """The batches of an iterator, each in the next of the buffers.

    Args:
        batches: an iterator with a length.
        buffers: the buffers of the loader, whose addresses are the same in every pass.
    """

    def __init__(self, batches: Any, buffers: StaticBuffers) -> None:
        super().__init__(batches)
        self._buffers = buffers

    def __next__(self) -> Any:
        return self._buffers.put(next(self._batches))


def checked_buffers(count: Any, batches: Any, *, pinned: bool) -> StaticBuffers:
    """Return the buffers of a loader's ``static_buffers=``.

    Args:
        count: the number of sets.
        batches: the loader's batch sampler.
        pinned: whether batches are to be in pinned memory.

    Raises:
        ValueError: `count` is out of range, the last batch would have fewer rows than the others, or batches are to be
            pinned.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= _MOST:
        raise ValueError(f"static_buffers= is a number of buffers from 1 to {_MOST}, or None; got {count!r}")
    if pinned:
        raise ValueError(
            f"static_buffers={count} with pin_memory=True: buffers that are filled again and again cannot wait for the "
            "copies that are made from them; leave one of the two out, or give device="
        )
    left = _left_over(batches)
    if left:
        raise ValueError(
            f"static_buffers={count} is for batches of one size, and the last one would have {left} rows instead of "
            f"{batches.batch_size}: give drop_last=True, or a batch_size that divides the number of rows"
        )
    return StaticBuffers(count)


def _left_over(batches: Any) -> int:
    """Return the rows of an incomplete last batch; 0 if there is none, or it is not known beforehand."""
    if type(batches) is not BatchSampler or batches.drop_last:
        return 0
    try:
        return len(batches.sampler) % batches.batch_size  # type: ignore[arg-type]  # samplers may have a length
    except TypeError:
        return 0


def _like(value: Any) -> Any:
    """Return tensors like those of a batch, in like containers; other values stay unchanged."""
    if isinstance(value, torch.Tensor) and type(value) is torch.Tensor and value.layout == torch.strided:
        return torch.empty_like(value)
    if type(value) is dict:
        return {key: _like(member) for key, member in value.items()}
    named = isinstance(value, tuple) and hasattr(value, "_fields") and not is_ragged(value)
    if type(value) in (list, tuple) or named:
        return refilled(value, [_like(member) for member in value])
    if isinstance(value, _PLAIN):
        return value
    raise TypeError(
        "static_buffers= is for tensors of one shape in dicts, lists and tuples; a batch has a "
        f"{type(value).__name__}. "
        'Rows that differ in length, and graphs, have other shapes in each batch: pad them by ragged="padded" and '
        "cut them to one length in batch_transform=, or leave static_buffers= out"
    )


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.device


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, dict | list | tuple) else "")
    return f"{dtype_name(value.dtype)} {tuple(value.shape)} on {value.device}"
