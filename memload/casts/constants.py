"""The numbers of a cast: those for all elements, and those of each channel, checked and told in few words."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np
import torch
import xxhash

Constants = float | tuple[float, ...]

_MOST_SHOWN = 16  # numbers that a repr lists


def number(name: str, given: Any, dtype: torch.dtype, among: int = 0) -> float:
    """Return a number as a float.

    Args:
        name: what it is, for messages: an argument, or a place in it such as "std[12]".
        given: the number.
        dtype: that of the cast.
        among: how many numbers the argument has; 0: it is one.

    Raises:
        TypeError: it is none.
        ValueError: it is not finite, or too small or too large for float32, or for float64 if `dtype` is that.
    """
    if isinstance(given, np.generic) or (isinstance(given, np.ndarray | torch.Tensor) and given.ndim == 0):
        given = given.item()
    what, of = name.partition("[")[0], f" (of {among:,})" if among else ""
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"{what} is a number; got {_got(name, given)}{of}")
    if not math.isfinite(given):
        do = f": give another number there, or leave {_its_channel(name)} out, such as by a mask" if among else ""
        raise ValueError(f"{what} is a finite number; got {_got(name, given)}{of}{do}")
    limit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
    if given != 0 and not limit.tiny <= abs(given) <= limit.max:
        raise ValueError(
            f"{what} is 0 or a number that {limit.dtype} holds, from {limit.tiny:.3g} to {limit.max:.3g}; got "
            f"{_got(name, given)}{of}"
        )
    return float(given)


def constants(name: str, given: Any, dtype: torch.dtype) -> Constants:
    """Return the value of `mean` or `std`: a number, or one for each channel.

    Raises:
        TypeError, ValueError: as `number`, for the first that is wrong; or there are no numbers, or an array has
            several axes.
    """
    listed = given
    if isinstance(given, np.ndarray | torch.Tensor) and given.ndim:
        if max(given.shape) != math.prod(given.shape):
            raise TypeError(
                f"{name} is a number, or one for each channel along one axis; got an array of the shape "
                f"{tuple(given.shape)}: where each element of a row has its own, store rows of one axis, such as those "
                f"of the voxels of a mask, and give {name}[mask] with channels=-1"
            )
        listed = given.reshape(-1).tolist()  # also (3, 1, 1), for images stored as (C, H, W)
    if not isinstance(listed, list | tuple):
        return number(name, listed, dtype)
    if not listed:
        raise ValueError(f"{name} has no numbers; leave it out instead")
    return tuple(number(f"{name}[{place}]", one, dtype, len(listed)) for place, one in enumerate(listed))


def check_deviations(std: Constants | None) -> None:
    """Raise ValueError, with the first place, if one of the numbers to divide by is 0."""
    zeros = [place for place, one in enumerate(_several(std)) if one == 0]
    if not zeros:
        return
    if not isinstance(std, tuple):
        raise ValueError("std is what is divided by, and may not be 0; got 0: leave it out, or give 1")
    others = f"; {len(zeros) - 1:,} more are 0" if len(zeros) > 1 else ""
    raise ValueError(
        f"std is what is divided by, and may not be 0; got std[{zeros[0]}] = 0 (of {len(std):,}){others}: give 1 there "
        "(std[std == 0] = 1), or leave such channels out of the rows, such as constant voxels by a mask"
    )


def check_counts(mean: Constants | None, std: Constants | None) -> None:
    """Raise ValueError if both have several numbers, and one has more than the other."""
    if isinstance(mean, tuple) and isinstance(std, tuple) and len(mean) != len(std):
        raise ValueError(
            f"mean and std have a number for each channel; got {len(mean):,} of mean and {len(std):,} of std: give "
            "those of the same channels, or one number for all"
        )


def shown(value: Any) -> str:
    """Return the text of an argument of a cast, in which many numbers are their count and a digest of 128 bits.

    Example:
        >>> shown((1.0, 2.0)), shown((0.0,) * 200_000)[:23]
        ('(1.0, 2.0)', '<200,000 numbers, xxh3 ')
    """
    if not isinstance(value, tuple) or len(value) <= _MOST_SHOWN:
        return repr(value)
    digest = xxhash.xxh3_128_hexdigest(np.asarray(value, dtype=np.float64).tobytes())
    return f"<{len(value):,} numbers, xxh3 {digest}>"


def _several(given: Constants | None) -> tuple[float, ...]:
    return given if isinstance(given, tuple) else () if given is None else (given,)


def _got(name: str, given: Any) -> str:
    """Return what was given, with its place if it is one of several."""
    said = reprlib.repr(given)
    return f"{name} = {said}" if "[" in name else said


def _its_channel(name: str) -> str:
    return f"channel {name.partition('[')[2].rstrip(']')}"
