"""Resized images: which part of an image is taken, and how its pixels become those of another size.

Along an axis, new pixel i of ``to``, made of ``size`` stored pixels, has its centre at c = (i + 1/2) s with
s = size / to. Stored pixel p has the weight max(0, 1 - |p + 1/2 - c| / r), divided by the sum of all weights; r is 1,
or s where the image becomes smaller and antialiasing is on. This is the bilinear filter of Pillow, torch and
torchvision. "nearest" takes stored pixel floor(c).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_EXACT_IN_FLOAT32 = (torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.float32)


class Inner(NamedTuple):
    """Where the resized pixels lie in the result, in pixels; padding is around them."""

    top: int
    left: int
    height: int
    width: int


def inner_of(size: tuple[int, int], to: tuple[int, int], fit: str) -> Inner:
    """Return where an image of this (height, width) lies in a result of size ``to``.

    With "pad" its longer side, of the two relative to the result's, fills the result; the other one is rounded to the
    nearest whole number, halves up, as ``memload write --images --fit pad`` does.
    """
    if fit != "pad":
        return Inner(0, 0, *to)
    scale = max(Fraction(size[0], to[0]), Fraction(size[1], to[1]))
    height, width = (max(1, math.floor(side / scale + Fraction(1, 2))) for side in size)
    return Inner((to[0] - height) // 2, (to[1] - width) // 2, height, width)


def whole_box(size: tuple[int, int], to: tuple[int, int], fit: str) -> tuple[int, int, int, int]:
    """Return the part of an image that is resized where no part is drawn; with "crop" the largest in the middle."""
    height, width = size
    if fit == "crop":
        high = min(height, max(1, math.floor(Fraction(width * to[0], to[1]) + Fraction(1, 2))))
        wide = min(width, max(1, math.floor(Fraction(height * to[1], to[0]) + Fraction(1, 2))))
        return (height - high) // 2, (width - wide) // 2, high, wide
    return 0, 0, height, width


def part_of_nothing_drawn(size: tuple[int, int], ratio: tuple[float, float]) -> tuple[int, int]:
    """Return height and width of the largest part whose width / height is the nearest in ``ratio`` to the image's."""
    height, width = size
    proportions = width / height
    if proportions < ratio[0]:
        return min(height, max(1, math.floor(width / ratio[0] + 0.5))), width
    if proportions > ratio[1]:
        return height, min(width, max(1, math.floor(height * ratio[1] + 0.5)))
    return height, width


class Weights(NamedTuple):
    """Of which stored pixels each new pixel of an axis is made."""

    first: NDArray[np.int64]
    """The first of them, for each new pixel."""
    counts: NDArray[np.int64]
    """Their number."""
    weights: NDArray[np.float64]
    """(new pixels, taps): 0 from the count on."""

    @property
    def bits(self) -> int:
        """Bits behind the point of 16-bit weights: as many as the greatest leaves room for, at most 22, as in torch."""
        bits = 0
        while bits < 22 and 0.5 + self.weights.max() * 2.0 ** (bits + 1) < 2**15:
            bits += 1
        return bits


@functools.lru_cache(maxsize=256)
def weights_of(size: int, to: int, antialias: bool) -> Weights:
    """Return the bilinear weights of an axis; each operation is rounded to float64 in the order of this source."""
    scale = size / to
    radius = max(scale, 1.0) if antialias else 1.0
    centre = (np.arange(to) + 0.5) * scale

    def weight(pixels: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.maximum(0.0, 1.0 - np.abs(pixels + 0.5 - centre) / radius)

    first = np.maximum(centre - radius + 0.5, 0.0).astype(np.int64)
    last = np.minimum(centre + radius + 0.5, float(size)).astype(np.int64)
    first, last = first + (weight(first) == 0), last - (weight(last - 1) == 0)
    counts = last - first
    weights, total = np.zeros((to, int(counts.max()))), np.zeros(to)
    for k in range(weights.shape[1]):
        weights[:, k] = np.where(k < counts, weight(first + k), 0.0)
        total = total + weights[:, k]
    return Weights(first, counts, weights / total[:, None])


def as_signed(x: torch.Tensor) -> torch.Tensor:
    """Return a view with a dtype that torch can flip and take elements of."""
    return x.view(_AS_SIGNED[x.dtype]) if x.dtype in _AS_SIGNED else x


def check_dtype(dtype: torch.dtype, interpolation: str, pad_value: float) -> None:
    """Raise an error if images of this dtype cannot be resized so.

    Raises:
        TypeError: bilinear weights are for dtypes that float32 holds exactly.
        ValueError: the dtype does not hold ``pad_value``.
    """
    if interpolation == "bilinear" and dtype not in (torch.uint8, *_EXACT_IN_FLOAT32):
        known = ", ".join(str(one).removeprefix("torch.") for one in (torch.uint8, *_EXACT_IN_FLOAT32))
        raise TypeError(
            f"resize= by bilinear weights takes images of {known}; got {str(dtype).removeprefix('torch.')}: "
            'store one of these, or resize by interpolation="nearest"'
        )
    if dtype.is_floating_point:
        most = torch.finfo(dtype if interpolation == "nearest" else torch.float32).max
        if abs(pad_value) > most:
            raise ValueError(f"pad_value is a pixel of the images, which are {dtype}: up to {most}; got {pad_value}")
    elif pad_value:
        limits = torch.iinfo(dtype) if dtype != torch.bool else None
        low, high = (limits.min, limits.max) if limits else (0, 1)
        if pad_value != int(pad_value) or not low <= pad_value <= high:
            raise ValueError(f"pad_value is a pixel of the images, which are {dtype}: {low} to {high}; got {pad_value}")


def resized(image: torch.Tensor, axes: tuple[int, int], to: Sequence[int], method: tuple[str, bool]) -> torch.Tensor:
    """Return an image or a part of one in another size, by plain torch operations: the definition.

    uint8 stays uint8: along lines, then along columns, the sum of products with 16-bit weights is rounded to uint8,
    halves up. Other dtypes become float32: the same with weights and sums in float32, each operation rounded, products
    added in the order of the pixels. "nearest" keeps the dtype.

    Args:
        image: of any dtype that `check_dtype` allows, on any device.
        axes: the axes of height and width, counted from the end.
        to: height and width of the result.
        method: "bilinear" or "nearest", and whether pixels are averaged where the image becomes smaller.
    """
    interpolation, antialias = method
    if interpolation == "nearest":
        for axis, side in zip(axes, to, strict=True):
            size = image.shape[axis]
            places = [(2 * i + 1) * size // (2 * side) for i in range(side)]
            image = as_signed(image).index_select(axis, torch.tensor(places, device=image.device)).view(image.dtype)
        return image
    if image.dtype == torch.uint8:
        image = image.to(torch.int32)
        for axis, side in zip(reversed(axes), reversed(to), strict=True):
            image = _weighed_integers(image, axis, weights_of(image.shape[axis], side, antialias))
        return image.to(torch.uint8)
    image = image.to(torch.float32)
    for axis, side in zip(reversed(axes), reversed(to), strict=True):
        image = _weighed_floats(image, axis, weights_of(image.shape[axis], side, antialias))
    return image


def _weighed_integers(x: torch.Tensor, axis: int, weights: Weights) -> torch.Tensor:
    bits = weights.bits
    whole = np.floor(weights.weights * 2.0**bits + 0.5).astype(np.int32)
    total = torch.tensor((1 << bits) >> 1, dtype=torch.int32, device=x.device)
    for k in range(whole.shape[1]):
        total = total + _taken(x, axis, weights, k) * _along(torch.from_numpy(whole[:, k].copy()), axis, x)
    return (total >> bits).clamp(max=255)


def _weighed_floats(x: torch.Tensor, axis: int, weights: Weights) -> torch.Tensor:
    rounded = weights.weights.astype(np.float32)
    total = _taken(x, axis, weights, 0) * _along(torch.from_numpy(rounded[:, 0].copy()), axis, x)
    for k in range(1, rounded.shape[1]):
        product = _taken(x, axis, weights, k) * _along(torch.from_numpy(rounded[:, k].copy()), axis, x)
        total = torch.where(_along(torch.from_numpy(k < weights.counts), axis, x), total + product, total)
    return total


def _taken(x: torch.Tensor, axis: int, weights: Weights, tap: int) -> torch.Tensor:
    places = np.minimum(weights.first + tap, x.shape[axis] - 1)
    return x.index_select(axis, torch.from_numpy(places).to(x.device))


def _along(values: torch.Tensor, axis: int, x: torch.Tensor) -> torch.Tensor:
    return values.to(x.device).view(-1, *(1,) * (-axis - 1))
