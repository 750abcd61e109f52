"""Convert rows on their way into shards: the elements under a mask are kept, then scaled, then cast.

stored row -> mask -> scale -> cast -> row of the shard
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from memload.casts.rule import Cast, as_cast, exact_text
from memload.columns.fields import HasFields, describe, row_nbytes
from memload.columns.numbers import kind
from memload.dtypes import dtype_name
from memload.formats.nifti import is_nifti
from memload.formats.shards.rows import Rows
from memload.kept_errors import level_outside
from memload.writing.masks import as_mask, places_by_first_axis
from memload.writing.voxel_masks import Mask

Form = tuple[torch.dtype, tuple[int, ...]]
"""The dtype and shape of one row."""


@dataclass(frozen=True)
class Kept:
    """A mask, and the order in which it keeps elements: "C", or "F" with the first axis fastest, as nibabel has it."""

    mask: NDArray[np.bool_]
    order: str = "C"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the mask."""
        return self.mask.shape


@dataclass(frozen=True)
class Conversion:
    """The conversion of one field: any of three steps, in this order.

    Args:
        mask: bool, with the shape of a row or of its first axes; keeps the true elements, in `order`, as one axis.
        factor: multiplies each element, in float32; in float64 if the field or the cast is float64.
        cast: the cast, as in a loader.
        order: "C", or "F" for elements whose first axis is fastest.
    """

    mask: NDArray[np.bool_] | None = None
    factor: float | None = None
    cast: Cast | None = None
    order: str = "C"

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Where each element that the mask keeps comes among these, in the mask's shape."""
        assert self.mask is not None
        order: Any = self.order
        counted: NDArray[np.int64] = np.cumsum(self.mask.ravel(order)).reshape(self.mask.shape, order=order) - 1
        return counted

    def form(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Form:
        """Return the dtype and shape of a converted row of this dtype and shape."""
        if self.mask is not None:
            shape = (int(self.mask.sum()), *shape[self.mask.ndim :])
        if self.cast is not None:
            return self.cast.dtype, shape
        return (self._computes_in(dtype) if self.factor is not None else dtype), shape

    def apply(self, rows: Rows) -> Rows:
        """Return the converted rows, or the same object if there is nothing to convert."""
        if self.mask is not None:
            rows = _masked(rows, self.mask, self.order)
        if self.factor is None and self.cast is None:
            return rows
        data = rows.data if rows.data.flags.writeable else rows.data.copy()  # torch warns about read-only arrays
        values = torch.from_numpy(data.reshape(-1)).view(rows.dtype)
        if self.factor is not None:
            values = values.to(self._computes_in(rows.dtype), copy=True).mul_(self.factor)
        if self.cast is not None:
            values = self.cast.apply(values.view(len(rows), *rows.shape)).reshape(-1)
        converted = values.view(torch.uint8).numpy().reshape(len(rows), row_nbytes(values.dtype, rows.shape))
        return Rows(values.dtype, rows.shape, converted)

    def working_bytes(self, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
        """Return the most bytes of one row: before, during or after its conversion."""
        widest = max(dtype.itemsize, *(step.itemsize for step in self._dtypes(dtype)))
        return max(row_nbytes(dtype, shape), math.prod(self.form(dtype, shape)[1]) * widest)

    def words(self) -> dict[str, str]:
        """Return texts by option that are equal for equal conversions only."""
        mask = None if self.mask is None else f"{self.mask.shape} {xxhash.xxh3_64_hexdigest(self.mask.tobytes())}"
        mask = mask if self.order == "C" else f"{mask} {self.order}"
        return {"mask": str(mask), "scale": repr(self.factor), "cast": exact_text(self.cast)}

    def _dtypes(self, dtype: torch.dtype) -> list[torch.dtype]:
        computes = [self._computes_in(dtype)] if self.factor is not None else []
        if self.cast is None:
            return [dtype, *computes]
        return [dtype, *computes, self.cast.dtype, *([self.cast.computes_in(dtype)] if self.cast.computes else [])]

    def _computes_in(self, dtype: torch.dtype) -> torch.dtype:
        wide = torch.float64 in (dtype, self.cast.dtype if self.cast is not None else None)
        return torch.float64 if wide else torch.float32


@dataclass(frozen=True)
class Conversions:
    """The options for all fields: each is one value for all fields that it fits, or a dict of values by field.

    Args:
        mask: a bool array, or the path of a .npy or NIfTI file of one; for every field whose rows begin with its shape.
        scale: a number, for the only field beside keys and labels.
        cast: a Cast, or a dtype or its name, for all floating fields and those that are scaled.
        meant: scale and offset that a file states for the values of fields, by name; a cast to a dtype applies them.

    Raises:
        TypeError, ValueError: the value of an option is invalid.
    """

    mask: Any = None
    scale: Any = None
    cast: Any = None
    meant: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of_data(cls, data: Any, mask: Any, scale: Any, cast: Any) -> Conversions:
        """Return the options for these data; what its files state for the values of fields counts."""
        fields = data.fields if isinstance(data, HasFields) else {}
        forms = {name: (one.dtype, one.shape) for name, one in fields.items()}
        for option, given in {"mask": mask, "scale": scale, "cast": cast}.items() if forms else ():
            _check_names(option, given, forms)  # before the values are read
        meant = {name: one.meant for name, one in fields.items() if one.meant is not None}
        return cls(mask, scale, cast, meant)

    def __post_init__(self) -> None:
        for option, read in (("mask", _as_kept), ("scale", _as_factor), ("cast", _as_cast)):
            given = getattr(self, option)
            if isinstance(given, Mapping):
                object.__setattr__(self, option, {name: read(value) for name, value in given.items()})
            elif given is not None:
                object.__setattr__(self, option, read(given))

    def may_change(self, name: str) -> bool:
        """Return whether the dtype of a field may be changed."""
        given = (self.scale, self.cast)
        return any(name in one if isinstance(one, Mapping) else one is not None for one in given)

    def of(self, forms: Mapping[str, Form]) -> dict[str, Conversion]:
        """Return the conversion of each field that is converted.

        Raises:
            ValueError: an option names a field that does not exist, does not fit the field it names, or fits none.
            TypeError: numbers of that dtype cannot be scaled or cast.
        """
        masks = _named("mask", self.mask, forms, lambda name: _begins_with(forms[name][1], self.mask.shape))
        scales = _named("scale", self.scale, forms, lambda name: _scaled(forms) == [name])
        casts = _named("cast", self.cast, forms, lambda name: self._is_cast(name, forms, scales))
        for name, mask in masks.items():
            _check_mask(name, mask.mask, *forms[name])
        for name in {**scales, **casts}:
            _check_numbers(name, forms[name][0])
        for name in self.meant.keys() & forms.keys():
            casts |= _meaning(name, casts.get(name), self.meant[name], scales.get(name))
        return {
            name: _conversion(masks.get(name), scales.get(name), casts.get(name))
            for name in forms
            if name in masks or name in scales or name in casts
        }

    def _is_cast(self, name: str, forms: Mapping[str, Form], scales: Mapping[str, float]) -> bool:
        """Return whether a cast without the name of a field is for this one."""
        return forms[name][0].is_floating_point or name in scales or name in self.meant


def _meaning(name: str, cast: Cast | None, meant: tuple[float, float], factor: float | None) -> dict[str, Cast]:
    """Return the cast that makes of stored values those that the file means; none without a cast, which is told."""
    scale, offset = meant
    if cast is None or factor is not None:
        told = "which a set does not keep" if factor is None else f"whose place scale={factor:g} takes"
        warnings.warn(
            f"field {name!r}: its file means {scale:g} times the stored values plus {offset:g}, {told}; "
            f'cast="float32" {"" if factor is None else "alone "}stores what is meant',
            stacklevel=level_outside(),
        )
        return {}
    return {name: Cast(cast.dtype, scale=scale, offset=offset) if cast == Cast(cast.dtype) else cast}


def _conversion(kept: Kept | None, factor: float | None, cast: Cast | None) -> Conversion:
    return Conversion(None, factor, cast) if kept is None else Conversion(kept.mask, factor, cast, kept.order)


def words_of(conversions: Mapping[str, Conversion]) -> dict[str, str]:
    """Return texts by option that are equal for equal conversions of equal fields only, in any order of these."""
    parts = {name: conversions[name].words() for name in sorted(conversions)}
    return {option: repr(_of_option(option, parts)) for option in ("mask", "scale", "cast")}


def _of_option(option: str, parts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: words[option] for name, words in parts.items() if words[option] != "None"}


def _as_kept(given: Any) -> Kept:
    if isinstance(given, (str, Path)) and is_nifti(Path(given)):
        return Kept(Mask.read(Path(given)).volume(), "F")
    return Kept(as_mask(given))


def _as_factor(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(f"a scale must be a number, such as 1 / 300, got {kind(given)}")
    if not math.isfinite(given) or given == 0:
        raise ValueError(f"a scale must be finite and not 0, got {given}")
    return float(given)


def _as_cast(given: Any) -> Cast:
    cast = as_cast(given)
    if cast.layout is not None or cast.augment is not None:
        raise ValueError(f"layout= and augment= work in a loader only, not for stored rows: leave them out of {given}")
    return cast


def _named(option: str, given: Any, forms: Mapping[str, Form], fits: Callable[[str], bool]) -> dict[str, Any]:
    """Return the values of an option by field: those of a dict, or one value for all fields that it fits."""
    if given is None:
        return {}
    _check_names(option, given, forms)
    if isinstance(given, Mapping):
        return dict(given)
    fitting = [name for name in forms if fits(name)]
    if not fitting:
        raise ValueError(_fits_none(option, given, forms, _listed(forms)))
    return dict.fromkeys(fitting, given)


def _check_names(option: str, given: Any, forms: Mapping[str, Form]) -> None:
    """Raise ValueError if a dict of values by field names one that is none."""
    for name in given if isinstance(given, Mapping) else ():
        if name not in forms:
            raise ValueError(f"{option}= names {name!r}, which is no field; there are {_listed(forms)}")


def _listed(forms: Mapping[str, Form]) -> str:
    return ", ".join(f"{name} {describe(*form)}" for name, form in forms.items())


def _fits_none(option: str, given: Any, forms: Mapping[str, Form], listed: str) -> str:
    """Describe a value without a name that fits no field, and what to give instead."""
    if option == "mask":
        turned = [name for name, (_, shape) in forms.items() if shape == given.shape[::-1]]
        hint = f"; the mask has the axes of {turned[0]!r} in reverse: transpose it" if turned else ""
        return f"mask {given.shape}: no row begins with the mask's shape; the fields are {listed}{hint}"
    if option == "scale":
        why, named = "is for the one field that can be scaled, and there are several", {_scaled(forms)[0]: given}
    else:
        why, named = "is for floating fields, and no field is", {next(iter(forms)): dtype_name(given.dtype)}
    return f"{option}= without a name {why}: name it, as in {option}={named}; the fields are {listed}"


def _scaled(forms: Mapping[str, Form]) -> list[str]:
    """Return the fields that a scale without a name may be for: all but single integers and texts; else all fields."""
    values = [
        name
        for name, (dtype, shape) in forms.items()
        if dtype.is_floating_point or len(shape) > 1 or (shape and not (dtype == torch.uint8 and None in shape))
    ]
    return values or list(forms)


def _begins_with(shape: tuple[int, ...], beginning: tuple[int, ...]) -> bool:
    return shape[: len(beginning)] == beginning


def _check_mask(name: str, mask: NDArray[np.bool_], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not _begins_with(shape, mask.shape):
        reversed_ = "; its axes are those of the rows in reverse: transpose it" if mask.shape[::-1] == shape else ""
        raise ValueError(f"field {name!r}: rows are {describe(dtype, shape)}, the mask is {mask.shape}{reversed_}")


def _check_numbers(name: str, dtype: torch.dtype) -> None:
    if dtype.is_complex or dtype == torch.bool:
        raise TypeError(f"field {name!r} is {dtype_name(dtype)}, which can be neither scaled nor cast")


def _masked(rows: Rows, mask: NDArray[np.bool_], order: str) -> Rows:
    shape = (int(mask.sum()), *rows.shape[mask.ndim :])
    elements = rows.data.reshape(len(rows), mask.size, rows.data.shape[1] // mask.size)
    if order == "C":
        kept = np.compress(mask.reshape(-1), _wide(elements), axis=1)
    else:
        kept = np.take(_wide(elements), places_by_first_axis(mask), axis=1)
    return Rows(rows.dtype, shape, kept.view(np.uint8).reshape(len(rows), row_nbytes(rows.dtype, shape)))


def _wide(elements: NDArray[np.uint8]) -> NDArray[Any]:
    """Return (rows, n, nbytes) with the bytes of an element as one number where there is one so wide."""
    nbytes = elements.shape[2]
    return elements.view(f"u{nbytes}") if nbytes in (2, 4, 8) else elements
