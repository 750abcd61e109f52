"""The `Cast` that makes one tensor of another, found from elements of both.

A cast computes ``a * x + b``, with constants for all elements or for each channel. Least squares in float64 give
``a`` and ``b``; the constants of a cast that a person would write (1 / 255, 0.485) are the shortest numbers near them.
Each such cast is applied, and its result is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload.casts.rule import Cast

Floats = NDArray[np.float64]

MOST_CHANNELS = 64  # an axis of more elements is none of channels
_ROUNDINGS = {2: 2, 4: 4, 8: 4}  # by the bytes of an element: units in the last place of the largest result
_DIGITS = range(1, 10)  # of the constants; nine tell all numbers of float32 apart
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TARGETS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Match:
    """A cast, and how far its results are from those that were observed.

    Attributes:
        cast: the cast.
        apart: the largest difference of two results; 0.0: all bits are the same.
    """

    cast: Cast
    apart: float


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether two tensors are alike in dtype, shape and bits."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    bits = _BITS.get(x.dtype.itemsize)
    return torch.equal(x, y) if bits is None or x.dtype == torch.bool else torch.equal(x.view(bits), y.view(bits))


def compared(cast: Cast, x: torch.Tensor, y: torch.Tensor) -> Match | None:
    """Return the cast with the distance of its results from `y`; None if more than rounding is between them."""
    try:
        made = cast.apply(x)
    except ValueError:  # a cast for other shapes
        return None
    if same_bits(made, y):
        return Match(cast, 0.0)
    if made.dtype != y.dtype or made.shape != y.shape:
        return None
    apart = float((made.double() - y.double()).abs().max())
    return Match(cast, apart) if apart <= _rounding(y) else None


def matched(x: torch.Tensor, y: torch.Tensor, known: Iterable[Cast] = ()) -> Match | None:
    """Return the cast that makes `y` of `x`; None if there is none.

    Args:
        x: dense elements, contiguous; the first axis counts rows.
        y: what became of each, in the same order.
        known: casts that are tried first.

    Returns:
        The first cast that gives the same bits; otherwise, where only rounding is between them, the first cast whose
        results are at most four times as far apart as those of the best.
    """
    if y.dtype not in _TARGETS or x.is_complex() or not x.numel():
        return None
    near = []
    for cast in (*known, *_plain(x, y), *_fitted(x, y)):
        match = compared(cast, x, y)
        if match is not None and match.apart == 0.0:
            return match
        if match is not None:
            near.append(match)
    least = min((match.apart for match in near), default=0.0)
    return next((match for match in near if match.apart <= 4 * least), None)


def _rounding(y: torch.Tensor) -> float:
    """Return the largest difference that operations in another order may make."""
    return _ROUNDINGS[y.dtype.itemsize] * torch.finfo(y.dtype).eps * float(y.abs().max())


def _plain(x: torch.Tensor, y: torch.Tensor) -> Iterator[Cast]:
    if x.dtype != y.dtype:
        yield Cast(y.dtype)


def _fitted(x: torch.Tensor, y: torch.Tensor) -> Iterator[Cast]:
    """Yield the casts whose constants are near those of the fit, for all elements or else for the channels."""
    if not bool(torch.isfinite(y).all()):
        return
    fit: _Fit | None = None
    for axis in (None, *_channel_axes(x)):
        fit = _Fit.of(x, y, axis)
        if fit is not None:
            break
    if fit is not None:
        for constants in fit.forms():
            try:
                yield Cast(y.dtype, **constants)
            except ValueError:  # a constant that float32 does not hold, or a std of 0
                continue
    if x.dtype == torch.uint8:
        yield Cast(y.dtype, norm_removed=True)


def _channel_axes(x: torch.Tensor) -> list[int]:
    """Return the axes that may be of channels, counted from the end: the likely ones first."""
    axes = [axis for axis in (-1, -3, -2, *range(-4, -x.ndim, -1)) if -axis < x.ndim]
    return [axis for axis in axes if 1 < x.shape[axis] <= MOST_CHANNELS]


@dataclass(frozen=True)
class _Fit:
    """``y = slope * x + bias`` by least squares, for all elements or for each channel.

    Attributes:
        slope, bias: (1,) or (channels,).
        channels: the axis of the channels; None: there are none.
        largest: the largest absolute value of x.
        slack: what the rounding of y may have moved it.
        whole: the largest value of x's dtype, if that is one of unsigned integers; 0: it is not.
    """

    slope: Floats
    bias: Floats
    channels: int | None
    largest: float
    slack: float
    whole: int

    @classmethod
    def of(cls, x: torch.Tensor, y: torch.Tensor, axis: int | None) -> _Fit | None:
        """Return the fit; None if y is no such function of x, or x does not tell."""
        xs, ys = _by_channel(x, axis), _by_channel(y, axis)
        x_mean, y_mean = xs.mean(1, keepdims=True), ys.mean(1, keepdims=True)
        spread = ((xs - x_mean) ** 2).sum(1)
        if not np.isfinite(spread).all() or not (spread > 0).all():
            return None
        slope = ((xs - x_mean) * (ys - y_mean)).sum(1) / spread
        bias = (y_mean - slope[:, None] * x_mean)[:, 0]
        slack = _rounding(y)
        if (slope == 0).any() or np.abs(slope[:, None] * xs + bias[:, None] - ys).max() > slack:
            return None
        whole = torch.iinfo(x.dtype).max if x.dtype in (torch.uint8, torch.uint16) else 0
        return cls(slope, bias, axis, float(np.abs(xs).max()), slack, whole)

    def forms(self) -> Iterator[dict[str, Any]]:
        """Yield constants of casts, those of fewer digits first."""
        seen: list[dict[str, Any]] = []
        for digits in _DIGITS:
            for form in self._forms_of(digits):
                constants = self._named(form)
                if constants not in seen and self._is_near(form):
                    seen.append(constants)
                    yield constants

    def _forms_of(self, digits: int) -> Iterator[dict[str, Floats]]:
        one = np.ones(1)
        shift, inverse = -self.bias / self.slope, 1 / self.slope
        whole = _rounded(inverse, digits, inverse)
        mean = _rounded(shift, digits, inverse)
        yield {"std": whole}
        yield {"scale": 1 / whole}
        yield {"scale": _rounded(self.slope, digits, self.slope)}
        yield {"mean": _rounded(-self.bias, digits, one)}
        yield {"mean": mean, "std": whole}
        if self.whole:
            scale = np.full(1, 1 / self.whole)
            means, stds = shift / self.whole, inverse / self.whole
            yield {"scale": scale, "mean": _rounded(means, digits, stds), "std": _rounded(stds, digits, stds)}
            yield {"scale": scale, "mean": _rounded(means, digits, one)}
        offset = _rounded(self.bias, digits, one)
        yield {"scale": 1 / whole, "offset": offset}
        yield {"scale": _rounded(self.slope, digits, self.slope), "offset": offset}

    def _is_near(self, form: dict[str, Floats]) -> bool:
        """Whether a form's slope and bias are within the rounding of those of the fit."""
        if any(len(form[name]) > 1 for name in ("scale", "offset") if name in form):
            return False
        scale, offset = form.get("scale", np.ones(1)), form.get("offset", np.zeros(1))
        mean, std = form.get("mean", np.zeros(1)), form.get("std", np.ones(1))
        if not (std != 0).all():
            return False
        off = np.abs(scale / std - self.slope) * self.largest + np.abs((offset - mean) / std - self.bias)
        return bool((off <= 2 * self.slack).all())

    def _named(self, form: dict[str, Floats]) -> dict[str, Any]:
        """Return a form as arguments of `Cast`."""
        named: dict[str, Any] = {}
        for name, values in form.items():
            numbers = [float(value) for value in values]
            named[name] = numbers[0] if len(set(numbers)) == 1 else tuple(numbers)
        named = {name: value for name, value in named.items() if value != (1.0 if name in ("scale", "std") else 0.0)}
        if any(isinstance(value, tuple) for value in named.values()):
            named["channels"] = self.channels
        return named


def _by_channel(x: torch.Tensor, axis: int | None) -> Floats:
    """Return the elements as float64, (channels, elements of each)."""
    doubles = x.double()
    rows = doubles.reshape(1, -1) if axis is None else doubles.movedim(axis, 0).reshape(x.shape[axis], -1)
    found: Floats = rows.numpy()
    return found


def _rounded(values: Floats, digits: int, unit: Floats) -> Floats:
    """Return numbers of so many significant digits; what is next to nothing beside its unit is 0."""
    unit = np.broadcast_to(np.abs(unit), values.shape)
    pairs = zip(values.tolist(), unit.tolist(), strict=True)
    return np.array([0.0 if abs(value) < 1e-6 * least else float(f"{value:.{digits - 1}e}") for value, least in pairs])
