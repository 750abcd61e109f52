"""memload.Float32View: a dataset whose pixels are converted when they are read, or while they are gathered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, IterableDataset

from memload.batches.gathered import GatheredRows
from memload.casts.cast_stim import cast_pixels
from memload.casts.rule import Cast
from memload.dtypes import dtype_name
from memload.ragged_rows.samples import NO_FORMS, sample_of
from memload.stats import LoaderStats


class HasDType(Protocol):
    """A field of a dataset, as far as the choice of its cast goes."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its elements."""


class Float32View(Dataset[dict[str, Any]]):
    """A dataset whose samples have ``stim``, ``robs`` and ``behavior`` as floating tensors, converted when read.

    Inside a FastLoader over a memload dataset, the conversion is fused into the gather. Elsewhere samples are converted
    one at a time.

    Args:
        base: any map-style dataset whose samples are dicts. ``stim`` must be among the fields, uint8 or floating;
            ``robs`` and ``behavior`` are converted where they are there; other fields stay as they are.
        norm_removed: a uint8 ``stim`` goes through `cast_stim`, and this says whether it becomes (x - 127) / 255. A
            floating ``stim`` is only converted.
        float16: convert to bfloat16 (sic), half the bytes, instead of float32.

    Raises:
        TypeError: ``norm_removed`` or ``float16`` is no bool, or ``base`` is an iterable dataset.

    Example:
        >>> base = [{"stim": torch.tensor([127], dtype=torch.uint8), "robs": torch.tensor([3])}]
        >>> Float32View(base, norm_removed=True)[0]
        {'stim': tensor([0.]), 'robs': tensor([3.])}
    """

    def __init__(self, base: Any, norm_removed: bool, float16: bool = False) -> None:
        if isinstance(base, IterableDataset):
            raise TypeError(f"Float32View needs a dataset that is read by index; {type(base).__name__} is iterable")
        if not isinstance(float16, bool):
            raise TypeError(f"float16 is True or False; got {float16!r}")
        self.base = base
        self.norm_removed = norm_removed
        self.float16 = float16
        self._stim = Cast(torch.bfloat16 if float16 else torch.float32, norm_removed)
        self._other = Cast(self._stim.dtype)
        self._door: Any = None  # to batches that are converted while they are gathered, once somebody asked for one

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._converted(self.base[index], index)

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the samples of these rows; the conversion is part of the gather if the base is a memload dataset.

        See `memload.Dataset.__getitems__`.
        """
        batched = getattr(self.base, "__getitems__", None)
        if type(self).__getitem__ is not Float32View.__getitem__ or not callable(batched):
            return [self[index] for index in indices]
        samples = batched(indices)
        if isinstance(samples, GatheredRows) and (door := self._behind(samples.door)) is not None:
            return samples.through(door)
        return [self._converted(sample, index) for sample, index in zip(samples, indices, strict=True)]

    def stats(self) -> LoaderStats:
        """Return the counters of the batches that other loaders took of this view; see `memload.Dataset.stats`."""
        return LoaderStats() if self._door is None else self._door.stats()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_door": None}

    def _behind(self, door: Any) -> Any:
        """The door that converts what `door` gathers; None if samples have to be converted one by one."""
        if door is None or not door.gives_dicts or door.source.casts:
            return None
        self._door = door.with_casts(self.rules(door.source.fields))
        return self._door

    def _converted(self, sample: Any, index: int) -> dict[str, Any]:
        if not isinstance(sample, Mapping):
            raise TypeError(f"Float32View needs samples that are dicts; sample {index} is a {type(sample).__name__}")
        fields = {name: _as_it_lies(sample[name]) for name in ("stim", "robs", "behavior") if name in sample}
        converted = {
            name: cast_pixels(fields[name], rule) if name == "stim" else rule.apply(fields[name])
            for name, rule in self.rules(fields).items()
        }
        made: dict[str, Any] = sample_of({**sample, **converted}, getattr(sample, "forms", NO_FORMS))
        return made

    def __repr__(self) -> str:
        return f"Float32View({self.base!r}, norm_removed={self.norm_removed}, float16={self.float16})"

    def rules(self, fields: Mapping[str, HasDType]) -> dict[str, Cast]:
        """Return the cast of each field that this view converts, for samples with these fields.

        Args:
            fields: by name, whatever has a ``dtype``: tensors, or the fields of a memload dataset.

        Raises:
            KeyError: there is no ``stim``.
            TypeError: ``stim`` is neither uint8 nor floating.
        """
        if "stim" not in fields:
            raise KeyError(f"Float32View needs a field 'stim'; there are {', '.join(map(repr, fields)) or 'none'}")
        dtype = fields["stim"].dtype
        if dtype != torch.uint8 and not dtype.is_floating_point:
            raise TypeError(f"Float32View needs a uint8 or floating 'stim', got {dtype_name(dtype)}")
        stim = self._stim if dtype == torch.uint8 else self._other
        return {"stim": stim} | {name: self._other for name in ("robs", "behavior") if name in fields}


def _as_it_lies(values: Any) -> torch.Tensor:
    """A tensor where it is, and what is none as one on the CPU."""
    return values if isinstance(values, torch.Tensor) else torch.as_tensor(values, device="cpu")
