"""Constants by which one fused multiplication and addition gives the bits of a cast by channel.

A byte has 256 values, and a result of 16 bits leaves room for the difference between one rounding and several. So
constants are tried with all values, and taken only where each result is that of the definition. `csrc/cast/affine.cpp`
does the same for CPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_BYTES = frozenset({torch.uint8, torch.int8})
_HALVES = frozenset({torch.bfloat16, torch.float16})
_CHANNELS = 64  # with more of them, to try constants costs more than it saves
_PLACES = [*itertools.product((0, 1, -1, 2, -2), (0, 1, -1, 2, -2, 4, -4, 8, -8))]  # of factors, of shifts


def fused_constants(
    dtype: torch.dtype,
    target: torch.dtype,
    scale: float,
    offset: float,
    means: Sequence[float],
    deviations: Sequence[float],
) -> tuple[Floats, Floats] | None:
    """Return the factor and the shift of each channel; None if the types or some channel do not allow it.

    The nearest constants are tried first, then those some places away: the definition rounds several times, and a
    result that is near a tie may need a line that passes on the other side of it.

    Args:
        dtype, target: the stored dtype and that of the results.
        scale, offset, means, deviations: the constants of ``(x * scale + offset - mean) / deviation``.

    Example:
        >>> factors, shifts = fused_constants(torch.uint8, torch.bfloat16, 1.0, 0.0, [2.0], [4.0])
        >>> factors.tolist(), shifts.tolist()
        ([0.25], [-0.5])
        >>> fused_constants(torch.uint8, torch.float32, 1.0, 0.0, [2.0], [4.0]) is None
        True
    """
    if dtype not in _BYTES or target not in _HALVES or len(means) > _CHANNELS:
        return None
    info = torch.iinfo(dtype)
    x = np.arange(info.min, info.max + 1, dtype=np.float32)
    mean, deviation = (np.asarray(given, dtype=np.float32)[:, None] for given in (means, deviations))
    with np.errstate(all="ignore"):
        expected = _bits((x * np.float32(scale) + np.float32(offset) - mean) / deviation, target)
        factors = (np.float64(scale) / deviation).astype(np.float32)
        shifts = ((np.float64(offset) - mean) / deviation).astype(np.float32)
        return _proven(x, factors, shifts, expected, target)


def _proven(
    x: Floats, factors: Floats, shifts: Floats, expected: NDArray[np.int16], target: torch.dtype
) -> tuple[Floats, Floats] | None:
    found = np.full((len(factors), 2), np.nan, dtype=np.float32)
    for of_factor, of_shift in _PLACES:
        left = np.isnan(found[:, 0])
        if not left.any():
            return found[:, 0], found[:, 1]
        factor, shift = _moved(factors[left], of_factor), _moved(shifts[left], of_shift)
        agree = (_bits(multiply_add(x, factor, shift), target) == expected[left]).all(axis=1)
        agree &= np.isfinite(factor[:, 0]) & np.isfinite(shift[:, 0])  # then no result is a NaN
        found[np.flatnonzero(left)[agree]] = np.concatenate([factor, shift], axis=1)[agree]
    return None


def multiply_add(x: Floats, factor: Floats, shift: Floats) -> Floats:
    """Return ``x * factor + shift``, rounded once to float32, of numbers x with at most 24 digits.

    The product is exact in float64. The sum is rounded to odd there, after which the rounding to float32 is that of the
    exact sum: S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Trans. Computers 57 (2008).

    Example:
        >>> one, tiny = np.float32(1), np.float32(2.0**-24)
        >>> float(multiply_add(one + np.float32(2.0**-23), one, tiny)) > 1 + 2.0**-23  # a tie, to even
        True
        >>> float(multiply_add(one, one, tiny))
        1.0
    """
    product, term = np.float64(x) * np.float64(factor), np.float64(shift)
    total = product + term
    back = total - product
    lost = (product - (total - back)) + (term - back)  # exact: D. Knuth's sum of two numbers
    even = total.view(np.int64) % 2 == 0
    odd = np.where((lost != 0) & even, np.nextafter(total, np.copysign(np.inf, lost)), total)
    return odd.astype(np.float32)


def _moved(values: Floats, places: int) -> Floats:
    for _ in range(abs(places)):
        values = np.nextafter(values, np.float32(np.copysign(np.inf, places)))
    return values


def _bits(values: Floats, target: torch.dtype) -> NDArray[np.int16]:
    """Return the bits of values that are rounded to a dtype of two bytes."""
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(target)
    bits: NDArray[np.int16] = rounded.view(torch.int16).numpy()
    return bits
