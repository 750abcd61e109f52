"""memload.Float32View: a dataset that converts pixels when it reads them, or while batches are gathered."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, IterableDataset

from memload.casts.rule import Cast
from memload.columns.ragged_samples import NO_FORMS, sample_of
from memload.dataset.mapped import MappedDataset
from memload.device.cast_stim import cast_pixels
from memload.dtypes import dtype_name
from memload.engine.gather_spec import GatherSpec, NotNative
from memload.engine.gathered import GatheredRows
from memload.engine.layout import DictOf, Only
from memload.engine.mutation_guards import PartsGuard
from memload.engine.readers import answers_by, resolve
from memload.stats import LoaderStats


class HasDType(Protocol):
    """Any object with a dtype, by which a cast is chosen."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its elements."""


@answers_by("rules", attributes=["base", "norm_removed", "float16"])
class Float32View(Dataset[dict[str, Any]]):
    """A dataset whose samples have ``stim``, ``robs`` and ``behavior`` as floating tensors, converted when read.

    Inside a FastLoader over a memload dataset, the conversion is fused into the gather. Elsewhere samples are converted
    one at a time.

    Args:
        base: any map-style dataset whose samples are dicts. ``stim`` must be among the fields, uint8 or floating;
            ``robs`` and ``behavior`` are converted if they are present; other fields stay as they are.
        norm_removed: whether `cast_stim` maps a uint8 ``stim`` to (x - 127) / 255. A floating ``stim`` only changes its
            dtype.
        float16: convert to bfloat16 (sic), half the bytes, instead of float32.

    Raises:
        TypeError: ``norm_removed`` or ``float16`` is not a bool, or ``base`` is an iterable dataset.

    Example:
        >>> base = [{"stim": torch.tensor([127], dtype=torch.uint8), "robs": torch.tensor([3])}]
        >>> Float32View(base, norm_removed=True)[0]
        {'stim': tensor([0.]), 'robs': tensor([3.])}
    """

    def __init__(self, base: Any, norm_removed: bool, float16: bool = False) -> None:
        if isinstance(base, str | os.PathLike):
            raise TypeError(f"{str(base)!r} is a path, not a dataset: give memload.open({str(base)!r})")
        if isinstance(base, IterableDataset):
            raise TypeError(f"Float32View needs a dataset that is read by index; {type(base).__name__} is iterable")
        if not isinstance(float16, bool):
            raise TypeError(f"float16 is True or False; got {float16!r}")
        self.base = base
        self.norm_removed = norm_removed
        self.float16 = float16
        self._stim = Cast(torch.bfloat16 if float16 else torch.float32, norm_removed)
        self._other = Cast(self._stim.dtype)
        self._fetcher: Any = None  # gathers converted batches; made at the first request

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
        if isinstance(samples, GatheredRows) and (fetcher := self._behind(samples.fetcher)) is not None:
            return samples.through(fetcher)
        return [self._converted(sample, index) for sample, index in zip(samples, indices, strict=True)]

    def select(self, rows: Any) -> Float32View:
        """Return the view of these rows of a memload dataset; see `memload.Dataset.select`."""
        return self._of(self.base.select(rows))

    def split(
        self, fraction: float | Sequence[float], seed: int | None = None, *, by: Any = None
    ) -> tuple[Float32View, ...]:
        """Return views of parts of a memload dataset without a common row; see `memload.Dataset.split`."""
        return tuple(map(self._of, self.base.split(fraction, seed, by=by)))

    def with_tier(self, tier: Any, **options: Any) -> Float32View:
        """Return the view of the same rows on another tier; see `memload.Dataset.with_tier`.

        Raises:
            TypeError: the base has no tiers.
        """
        if not hasattr(self.base, "with_tier"):
            raise TypeError(f"the rows of {type(self.base).__name__} have no tiers; those of memload.open do")
        return self._of(self.base.with_tier(tier, **options))

    def map(self, fn: Callable[[Any], Any], *, in_processes: bool = False) -> MappedDataset:
        """Return a dataset whose samples are ``fn(sample)`` of the converted ones; see `memload.Dataset.map`."""
        return MappedDataset(self, fn, in_processes=in_processes)

    def stats(self) -> LoaderStats:
        """Return the counters of the batches that other loaders took from this view; see `memload.Dataset.stats`."""
        return LoaderStats() if self._fetcher is None else self._fetcher.stats()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fetcher": None}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the datasets that `memload.concat` joined into the base; empty if it did not."""
        return tuple(getattr(self.base, "names", ()))

    def rows_by_name(self) -> dict[str, Any]:
        """Return the row numbers of each joined dataset; see `memload.Dataset.rows_by_name`."""
        found: dict[str, Any] = self.base.rows_by_name()
        return found

    def __memload_source__(self) -> GatherSpec:
        """Return the gather specification of the base with the casts of this view."""
        base = resolve(self.base)
        if base.casts:
            raise NotNative("A Float32View of a Float32View converts twice: one view, or cast=, is enough.")
        if base.maps:
            raise NotNative("A Float32View of mapped samples converts what a function returns: map the view instead.")
        if not isinstance(base.layout, DictOf) or any(member != Only() for _, member in base.layout.members):
            raise NotNative("A Float32View needs samples that are dicts of tensors; its base yields something else.")
        source = base.with_casts(self.rules({str(name): field for name, field in base.fields.items()}))
        return replace(source, takes_lists=False, guards=(PartsGuard.of(lambda: (self.base,)), *base.guards))

    def _of(self, base: Any) -> Float32View:
        made = copy.copy(self)
        made.base = base
        return made

    def _behind(self, fetcher: Any) -> Any:
        """Return a fetcher that converts the batches of `fetcher`; None if samples must be converted one by one."""
        if fetcher is None or not fetcher.gives_dicts or fetcher.source.casts:
            return None
        self._fetcher = fetcher.with_casts(self.rules(fetcher.source.fields))
        return self._fetcher

    def _converted(self, sample: Any, index: int) -> dict[str, Any]:
        if not isinstance(sample, Mapping):
            raise TypeError(f"Float32View needs samples that are dicts; sample {index} is a {type(sample).__name__}")
        if "stim" not in sample:
            raise KeyError(_no_stim(sample))
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
            fields: objects with a ``dtype``, by name: tensors, or the fields of a memload dataset.

        Raises:
            KeyError: there is no ``stim``.
            TypeError: ``stim`` is neither uint8 nor floating.
        """
        if "stim" not in fields:
            raise KeyError(_no_stim(fields))
        dtype = fields["stim"].dtype
        if dtype != torch.uint8 and not dtype.is_floating_point:
            raise TypeError(f"Float32View needs a uint8 or floating 'stim', got {dtype_name(dtype)}")
        stim = self._stim if dtype == torch.uint8 else self._other
        return {"stim": stim} | {name: self._other for name in ("robs", "behavior") if name in fields}


def _no_stim(fields: Iterable[Any]) -> str:
    """Return the message for a dataset without a ``stim``: most often the field has another name."""
    names = list(map(repr, fields))
    if not names:
        return "Float32View needs a field 'stim'; there are no fields"
    return (
        f"Float32View needs a field 'stim'; the fields there are: {', '.join(names)}; if it is {names[0]}, open it as "
        f'that, memload.open(path, field="stim"), or rename it: ds.rename({{{names[0]}: "stim"}})'
    )


def _as_it_lies(values: Any) -> torch.Tensor:
    """Return a tensor on its own device, and any other value as a tensor on the CPU."""
    return values if isinstance(values, torch.Tensor) else torch.as_tensor(values, device="cpu")
