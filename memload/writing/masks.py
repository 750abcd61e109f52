"""Masks as arrays: which elements of a row are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.columns.numbers import kind
from memload.formats.paths import named_in_errors


def as_mask(given: Any) -> NDArray[np.bool_]:
    """Return a bool array from an array or from the path of one; zeros and ones of other dtypes count as bool.

    Raises:
        TypeError, ValueError: the value is no such array, has no axis, or keeps no element.
    """
    where = f"the mask {given}" if isinstance(given, (str, Path)) else "the mask"
    array = (
        load_array(given, "a .npy file with the bool array of a mask")
        if isinstance(given, (str, Path))
        else np.asarray(given)
    )
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "buif":
        what = f"{array.dtype} with the shape {array.shape}" if isinstance(array, np.ndarray) else kind(array)
        raise TypeError(f"{where} is {what}; expected a bool array, as one .npy file or in memory")
    mask = array.astype(np.bool_)
    if array.dtype != np.bool_ and not np.array_equal(mask, array):
        other = array[(array != 0) & (array != 1)].flat[0]
        raise ValueError(f"{where} has values other than 0 and 1, such as {other}; make it bool, as by (mask > 0)")
    if not mask.any():
        raise ValueError(f"{where} keeps none of its {mask.size:,} elements")
    return mask


def places_by_first_axis(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where the elements that a mask keeps lie in C order, those that differ along its first axis in turn first.

    Example:
        >>> places_by_first_axis(np.array([[True, True], [True, False]])).tolist()
        [0, 2, 1]
    """
    places: NDArray[np.int64] = np.arange(mask.size).reshape(mask.shape).T[mask.T]
    return places


def load_array(path: str | Path, expected: str) -> Any:
    """Return the array in a .npy file; `expected` says for errors what it is.

    Raises:
        ValueError: it is no such file.
        OSError: it cannot be read.
    """
    try:
        with named_in_errors(Path(path), expected):
            return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        why = "" if "pickle" in str(error) else f" ({error})"  # numpy tells to unpickle whatever it does not know
        raise ValueError(f"{path}: not a .npy file of numbers{why}; expected {expected}") from error
