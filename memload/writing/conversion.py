"""What becomes of rows on their way into shards: of each, the elements under a mask, then scaled, then cast.

stored row -> mask -> scale -> cast -> row of the shard
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from memload.casts.rule import Cast, as_cast
from memload.columns.fields import describe, row_nbytes
from memload.columns.numbers import kind
from memload.dtypes import dtype_name
from memload.formats.shards.rows import Rows

Form = tuple[torch.dtype, tuple[int, ...]]
"""The dtype and shape of one row."""


@dataclass(frozen=True)
class Conversion:
    """What becomes of one field: nothing, or any of the three in this order.

    Args:
        mask: bool, of the shape with which the row's begins; keeps the true elements, in C order, as one axis.
        factor: each element is multiplied by it, in float32; in float64 where the field or the cast is float64.
        cast: as in a loader.
    """

    mask: NDArray[np.bool_] | None = None
    factor: float | None = None
    cast: Cast | None = None

    def form(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Form:
        """Return what a row of this dtype and shape becomes."""
        if self.mask is not None:
            shape = (int(self.mask.sum()), *shape[self.mask.ndim :])
        if self.cast is not None:
            return self.cast.dtype, shape
        return (self._computes_in(dtype) if self.factor is not None else dtype), shape

    def apply(self, rows: Rows) -> Rows:
        """Return the converted rows; where there is nothing to convert, those that came."""
        if self.mask is not None:
            rows = _masked(rows, self.mask)
        if self.factor is None and self.cast is None:
            return rows
        data = rows.data if rows.data.flags.writeable else rows.data.copy()  # torch warns of those that are not
        values = torch.from_numpy(data.reshape(-1)).view(rows.dtype)
        if self.factor is not None:
            values = values.to(self._computes_in(rows.dtype), copy=True).mul_(self.factor)
        if self.cast is not None:
            values = self.cast.apply(values.view(len(rows), *rows.shape)).reshape(-1)
        converted = values.view(torch.uint8).numpy().reshape(len(rows), row_nbytes(values.dtype, rows.shape))
        return Rows(values.dtype, rows.shape, converted)

    def working_bytes(self, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
        """Return the bytes of one row where it is largest: as it comes, as it is computed with, or as it goes."""
        widest = max(dtype.itemsize, *(one.itemsize for one in self._dtypes(dtype)))
        return max(row_nbytes(dtype, shape), math.prod(self.form(dtype, shape)[1]) * widest)

    def words(self) -> dict[str, str]:
        """Return what tells it from other conversions."""
        mask = None if self.mask is None else f"{self.mask.shape} {xxhash.xxh3_64_hexdigest(self.mask.tobytes())}"
        return {"mask": str(mask), "scale": repr(self.factor), "cast": repr(self.cast)}

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
    """What the user wants of all fields: each option for the fields that it names, or one for those that it fits.

    Args:
        mask: a bool array, or a path of one as .npy; for every field whose rows begin with its shape. Or these by name.
        scale: a number, for the one field that there is beside keys and labels; or numbers by name.
        cast: a Cast, or a dtype or its name, for all floating fields and those that are scaled; or these by name.

    Raises:
        TypeError, ValueError: an option is nothing of that kind.
    """

    mask: Any = None
    scale: Any = None
    cast: Any = None

    def __post_init__(self) -> None:
        for option, read in (("mask", as_mask), ("scale", _as_factor), ("cast", _as_cast)):
            given = getattr(self, option)
            if isinstance(given, Mapping):
                object.__setattr__(self, option, {name: read(value) for name, value in given.items()})
            elif given is not None:
                object.__setattr__(self, option, read(given))

    def of(self, forms: Mapping[str, Form]) -> dict[str, Conversion]:
        """Return what becomes of each of these fields; those that stay as they are are not among them.

        Raises:
            ValueError: an option names a field that is not there, does not fit the field it names, or fits none.
            TypeError: numbers of that dtype cannot be scaled or cast.
        """
        masks = _named("mask", self.mask, forms, lambda name: _begins_with(forms[name][1], self.mask.shape))
        scales = _named("scale", self.scale, forms, lambda name: _scaled(forms) == [name])
        casts = _named("cast", self.cast, forms, lambda name: forms[name][0].is_floating_point or name in scales)
        for name, mask in masks.items():
            _check_mask(name, mask, *forms[name])
        for name in {**scales, **casts}:
            _check_numbers(name, forms[name][0])
        return {
            name: Conversion(masks.get(name), scales.get(name), casts.get(name))
            for name in forms
            if name in masks or name in scales or name in casts
        }


def words_of(conversions: Mapping[str, Conversion]) -> dict[str, str]:
    """Return what tells these conversions, by fields, from others."""
    parts = {name: conversion.words() for name, conversion in conversions.items()}
    return {
        option: repr({name: words[option] for name, words in parts.items()}) for option in ("mask", "scale", "cast")
    }


def as_mask(given: Any) -> NDArray[np.bool_]:
    """Return a bool array, of an array or of a path of one; zeros and ones of other dtypes count as bool.

    Raises:
        TypeError, ValueError: it is no such array, has no axis, or keeps nothing.
    """
    where = f"the mask {given}" if isinstance(given, (str, Path)) else "the mask"
    array = load_array(given) if isinstance(given, (str, Path)) else np.asarray(given)
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "buif":
        raise TypeError(f"{where} is {kind(array)}; expected a bool array, as one .npy file or in memory")
    mask = array.astype(np.bool_)
    if array.dtype != np.bool_ and not np.array_equal(mask, array):
        other = array[(array != 0) & (array != 1)].flat[0]
        raise ValueError(f"{where} has values other than 0 and 1, such as {other}; make it bool, as by (mask > 0)")
    if not mask.any():
        raise ValueError(f"{where} keeps none of its {mask.size:,} elements")
    return mask


def load_array(path: str | Path) -> Any:
    """Return the array of a .npy file. Raises ValueError if it holds none, OSError if it cannot be read."""
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not a .npy file of numbers ({error})") from error


def _as_factor(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(f"a scale is a number, such as 1 / 300, got {kind(given)}")
    if not math.isfinite(given) or given == 0:
        raise ValueError(f"a scale is finite and not 0, got {given}")
    return float(given)


def _as_cast(given: Any) -> Cast:
    cast = as_cast(given)
    if cast.layout is not None or cast.augment is not None:
        raise ValueError(f"layout= and augment= are for a loader, not for what is stored: leave them out of {given}")
    return cast


def _named(option: str, given: Any, forms: Mapping[str, Form], fits: Callable[[str], bool]) -> dict[str, Any]:
    """Return what an option says of each field, which it names or which it fits."""
    if given is None:
        return {}
    listed = ", ".join(f"{name} {describe(*form)}" for name, form in forms.items())
    if isinstance(given, Mapping):
        for name in given:
            if name not in forms:
                raise ValueError(f"{option}: no field {name!r}; there are {listed}")
        return dict(given)
    fitting = [name for name in forms if fits(name)]
    if not fitting:
        what = {
            "mask": "no row begins with the mask's shape",
            "scale": "name the one to be scaled",
            "cast": "only floating fields are cast without being named",
        }[option]
        of_mask = f" {given.shape}" if option == "mask" else ""
        turned = [name for name, (_, shape) in forms.items() if option == "mask" and shape == given.shape[::-1]]
        hint = f"; the mask has the axes of {turned[0]!r} in reverse: transpose it" if turned else ""
        raise ValueError(f"{option}{of_mask}: {what}; the fields are {listed}{hint}")
    return dict.fromkeys(fitting, given)


def _scaled(forms: Mapping[str, Form]) -> list[str]:
    """The fields that a scale without a name could be for: all but single integers and texts, such as keys, if any."""
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


def _masked(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    shape = (int(mask.sum()), *rows.shape[mask.ndim :])
    elements = rows.data.reshape(len(rows), mask.size, rows.data.shape[1] // mask.size)
    kept = np.compress(mask.reshape(-1), _wide(elements), axis=1)
    return Rows(rows.dtype, shape, kept.view(np.uint8).reshape(len(rows), row_nbytes(rows.dtype, shape)))


def _wide(elements: NDArray[np.uint8]) -> NDArray[Any]:
    """Return (rows, n, nbytes) with the bytes of an element as one number where there is one so wide."""
    nbytes = elements.shape[2]
    return elements.view(f"u{nbytes}") if nbytes in (2, 4, 8) else elements
