"""Element types by their three names: the safetensors code, torch's dtype and numpy's dtype."""

from __future__ import annotations

import functools
import numbers
from typing import Any

import numpy as np
import torch

# The codes of the safetensors format whose elements are whole bytes, and torch's name of each.
_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
# float8_e8m0fnu came with torch 2.7.
TORCH_DTYPES: dict[str, torch.dtype] = {
    code: getattr(torch, name) for code, name in _TORCH_NAMES.items() if hasattr(torch, name)
}
_CODES = {dtype: code for code, dtype in TORCH_DTYPES.items()}
_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in TORCH_DTYPES.values()}
_SHORT_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
_AMBIGUOUS = {"float": "float32 in torch, and float64 in numpy", "int": "int32 in torch, and int64 in numpy"}

DTypeLike = torch.dtype | np.dtype[Any] | type[Any] | str
"""Any name of a dtype: a torch dtype, a numpy dtype, a numpy scalar type such as ``np.float32``, or a str."""


@functools.cache
def code_of(dtype: torch.dtype) -> str:
    """Return the safetensors code of `dtype`, such as "BF16".

    Raises:
        TypeError: shards cannot hold it.
    """
    if dtype not in _CODES:
        raise TypeError(f"{dtype} cannot be stored; the dtypes that can are {', '.join(sorted(_BY_NAME))}")
    return _CODES[dtype]


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of `dtype` without the module: "float32"."""
    return str(dtype).removeprefix("torch.")


def as_torch_dtype(dtype: Any) -> torch.dtype:
    """Return the torch dtype of a torch dtype, a numpy dtype or scalar type, or a name.

    Names are torch's and numpy's, such as "bfloat16", "torch.bfloat16" or "f4", and the short "bf16", "fp16", "fp32"
    and "fp64". What follows "torch." is torch's name: "torch.float" is float32.

    Raises:
        TypeError: there is none; the name is "float" or "int", which torch and numpy mean differently; or the bytes are
            not in this machine's order.
    """
    if isinstance(dtype, torch.dtype):
        code_of(dtype)
        return dtype
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.")
        if name in _AMBIGUOUS and name == dtype:
            raise TypeError(f'"{name}" is {_AMBIGUOUS[name]}: give one of these names')
        if name != dtype and isinstance(theirs := getattr(torch, name, None), torch.dtype):
            return as_torch_dtype(theirs)
        name = _SHORT_NAMES.get(name, name)
        if name in _BY_NAME:
            return _BY_NAME[name]
    try:
        numpy_dtype = np.dtype(dtype if dtype is not None else "no dtype")  # of None numpy makes float64
    except (TypeError, ValueError, SyntaxError):  # numpy parses texts such as "f4,f4"
        raise TypeError(f"not a dtype: {dtype!r}; known are {', '.join(sorted(_BY_NAME))}") from None
    return from_numpy_dtype(numpy_dtype)


def from_numpy_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype whose elements have the same bytes; dtypes of ml_dtypes are matched by name.

    Raises:
        TypeError: there is none; the message says what to convert to.
    """
    if dtype.hasobject:
        raise TypeError(
            "dtype object holds pointers to Python objects, not numbers; convert to a numeric dtype, or, of rows that "
            "differ in length, give memload.ragged(list(array)), and of texts a list of str"
        )
    if not dtype.isnative:
        raise TypeError(f'dtype {dtype.str} has its bytes swapped; convert by .astype(dtype.newbyteorder("="))')
    if dtype.names:
        raise TypeError(
            f"dtype {dtype} has several numbers in each element; give them one by one, as array[{dtype.names[0]!r}]"
        )
    if dtype.kind in "mM":
        raise TypeError(f"dtype {dtype} is a time; take its integers by .view(numpy.int64)")
    if dtype.kind in "US":
        raise TypeError(f"dtype {dtype} is text; give a list of str, as array.tolist() makes it of str")
    if dtype.kind == "c" and dtype.name not in _BY_NAME:
        raise TypeError(f"dtype {dtype} is not among those that memload stores; convert by .astype(numpy.complex64)")
    if dtype.name not in _BY_NAME:
        raise TypeError(f"dtype {dtype} has no equal in torch; known are {', '.join(sorted(_BY_NAME))}")
    return _BY_NAME[dtype.name]


def refuse_masked(array: np.ndarray[Any, Any]) -> None:
    """Raise TypeError if an array has masked values: memload stores no masks."""
    if np.ma.is_masked(array):
        raise TypeError(
            "a masked array, whose mask would be lost; give array.filled(value), and, where it is wanted, "
            "numpy.ma.getmaskarray(array) as a field of its own"
        )


def as_numbers(given: Any, like: torch.dtype | None = None, widens: bool = False) -> Any:
    """Return an array or a tensor as it is, and what Python's numbers are made of as a tensor.

    Args:
        given: a tensor, an array, a number, or numbers in lists and tuples, of which the first tells whose they are.
        like: the dtype of the rows before; None: there are none. Python's numbers take it if it has them all, where
            floats are rounded. Else floats are float64, as in numpy and in torch's default_collate.
        widens: whether other floats take it, too, if it has them all.

    Raises:
        ValueError: a whole number beside floats would be rounded.
        TypeError, RuntimeError: they make no array of numbers.
    """
    if isinstance(given, torch.Tensor | np.ndarray | np.generic):
        return _widened(given, like) if widens and like is not None else given
    made = torch.as_tensor(given, device="cpu")
    if not is_pythons(given):
        return made
    if not made.numel():
        return made if like is None else made.to(like)
    if made.is_floating_point():
        exact = torch.as_tensor(given, dtype=torch.float64, device="cpu")
        check_whole_numbers(given, exact.numpy())
        rounded = exact.to(like) if like is not None and like.is_floating_point else exact
        return exact if (rounded.isfinite() != exact.isfinite()).any() else rounded
    return made.to(like) if like is not None and made.dtype == torch.int64 and _has_all(like, made) else made


def _widened(given: Any, like: torch.dtype) -> Any:
    floats = torch.as_tensor(given) if getattr(given, "dtype", None) in _FLOATS else given
    if isinstance(floats, torch.Tensor) and floats.dtype.is_floating_point:
        return floats.to(like) if torch.promote_types(floats.dtype, like) == like else given
    return given


_FLOATS = (np.float16, np.float32, np.float64)


def check_whole_numbers(given: Any, made: np.ndarray[Any, Any]) -> None:
    """Raise ValueError if a whole number in nested lists was rounded when float64 was made of it.

    Args:
        given: the lists.
        made: what was made of them.
    """
    if not made.size or not (np.abs(made) >= _WHOLE).any():
        return
    flat = [given]
    for _ in range(made.ndim):
        flat = [one for part in flat for one in part]
    for one, kept in zip(flat, made.reshape(-1).tolist(), strict=True):
        if isinstance(one, numbers.Integral) and int(one) != kept:
            raise ValueError(
                f"the whole number {one} would be stored as {kept}, since no dtype has all of these numbers; give "
                "texts, or numbers that one dtype has"
            )


_WHOLE = 2.0**53  # up to there float64 has all whole numbers


def _has_all(like: torch.dtype, made: torch.Tensor) -> bool:
    """Return whether a dtype has all of these whole numbers; of floats only where it has all up to the largest."""
    if like.is_complex or like == torch.bool:
        return False
    least, most = int(made.min()), int(made.max())
    if like.is_floating_point:
        return max(-least, most) <= round(2 / torch.finfo(like).eps)
    return torch.iinfo(like).min <= least and most <= torch.iinfo(like).max


def is_pythons(given: Any) -> bool:
    """Return whether the first of these numbers is one of Python's, or there is none."""
    while isinstance(given, list | tuple) and given:
        given = given[0]
    return isinstance(given, int | float | complex | list | tuple)
