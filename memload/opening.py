"""memload.open and memload.from_arrays: what there is, as a dataset whose rows stay where they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memload.dataset import Dataset
from memload.dtypes import as_torch_dtype
from memload.errors import FormatError
from memload.fields import Field, check_name
from memload.shards import open_shards
from memload.sources.npy import MAGIC, open_npy
from memload.sources.ragged_arrays import field_of
from memload.sources.raw import open_raw
from memload.sources.safetensors_file import open_safetensors

_KNOWN = (
    "a directory that memload.write made, a .npy file, a .safetensors file, "
    "or a file of bare rows with dtype= and shape= stated"
)


def open(  # noqa: A001 - users call it memload.open
    path: str | os.PathLike[str],
    *,
    field: str | None = None,
    dtype: Any = None,
    shape: Sequence[int] | int | None = None,
    offset: int | None = None,
) -> Dataset:
    """Return the dataset at `path`; headers are checked, and rows are mapped, not read.

    Args:
        path: a directory of shards, a .npy file, a .safetensors file whose tensors have one length, or, with `dtype`
            and `shape`, a file of bare rows.
        field: the name for the one field of a .npy file or of bare rows; "data" if not given.
        dtype: of bare rows: a torch or numpy dtype, or a name such as "bfloat16".
        shape: of one bare row, such as (425, 425, 3), or 100, or () for a single number.
        offset: bytes before the first bare row; 0 if not given.

    Raises:
        FileNotFoundError, PermissionError: the path is missing or cannot be read.
        FormatError: it is empty, cut short, malformed or of no known format.
        ShardFormatError: a directory of shards or a safetensors header is malformed; it is a FormatError.
        TypeError: an argument is given that this format states itself.

    Example:
        >>> import memload, numpy, tempfile
        >>> path = tempfile.mkdtemp() + "/movie.npy"
        >>> numpy.save(path, numpy.arange(12.0).reshape(4, 3))
        >>> memload.open(path, field="stim")[3]["stim"]
        tensor([ 9., 10., 11.], dtype=torch.float64)
    """
    place = Path(path)
    stated = {"field": field, "dtype": dtype, "shape": shape, "offset": offset}
    if dtype is not None or shape is not None:
        return Dataset(_open_stated(place, field, dtype, shape, offset or 0))
    kind = _kind(place)
    if kind == "npy":
        _refuse(place, stated, "dtype", "shape", "offset")
        return Dataset(open_npy(place, _name(field)))
    _refuse(place, stated, "field", "dtype", "shape", "offset")
    return Dataset(open_shards(place) if kind == "shards" else open_safetensors(place))


def from_arrays(arrays: Mapping[str, Any] | None = None, /, **fields: Any) -> Dataset:
    """Return a dataset on arrays in memory, without copying them.

    What is written to the arrays shows in rows that are read later. They are kept alive, and must stay where they are:
    once `tensor.share_memory_()` or `tensor.set_()` has moved a tensor, reading raises RuntimeError.
    A memmap is read as the file it maps: worker processes map it again, and a file that is cut short raises.

    Args:
        arrays: fields by name, for names that are no keywords or come from elsewhere; they precede `fields`.
        fields: numpy arrays, memmaps and CPU tensors (rows, *shape) of equal length. Each row must be one run of bytes;
            rows may lie apart, so every second row or one channel block of a larger array will do.

    Raises:
        TypeError: a field is no array, its dtype has no equal in torch, or it comes without a name.
        ValueError: lengths differ, there is no field, or a row is not contiguous.

    Example:
        >>> import memload, numpy, torch
        >>> ds = memload.from_arrays(stim=numpy.zeros((100, 8, 8), numpy.uint8), robs=torch.rand(100, 5))
        >>> ds[7]["robs"].shape
        torch.Size([5])
    """
    named = {} if arrays is None else arrays
    if not isinstance(named, Mapping):
        raise TypeError(f"each array needs a name: from_arrays(stim=..., robs=...), got one {type(arrays).__name__}")
    twice = named.keys() & fields.keys()
    if twice:
        raise TypeError(f"both the mapping and the keywords bring {sorted(twice)}")
    return Dataset({name: field_of(name, array) for name, array in {**named, **fields}.items()})


def _kind(path: Path) -> str:
    if _is_directory(path):
        return "shards"
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if not start:
        raise FormatError(f"{path}: an empty file; expected {_KNOWN}")
    if start == MAGIC or path.suffix == ".npy":
        return "npy"
    if path.suffix == ".safetensors":
        return "safetensors"
    hint = f"; to open a set of shards, give its directory, {path.parent}" if path.name == "index.json" else ""
    raise FormatError(f"{path}: no format that memload knows; expected {_KNOWN}{hint}")


def _is_directory(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is nothing at this path; expected {_KNOWN}") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise FormatError(f"{path}: neither a file nor a directory; expected {_KNOWN}")
    return stat.S_ISDIR(mode)


def _open_stated(
    path: Path, field: str | None, dtype: Any, shape: Sequence[int] | int | None, offset: int
) -> dict[str, Field]:
    if dtype is None or shape is None:
        raise TypeError(f"{path}: bare rows need both dtype= and shape=, the shape of one row")
    sides = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not all(isinstance(side, int) and side >= 0 for side in sides) or offset < 0:
        raise ValueError(f"{path}: shape and offset must be counts, got {sides} and {offset}")
    if _is_directory(path):
        raise FormatError(f"{path}: a directory; dtype= and shape= are for a file of bare rows")
    if path.stat().st_size == 0:
        raise FormatError(f"{path}: an empty file; expected rows of {sides}")
    return open_raw(path, _name(field), as_torch_dtype(dtype), sides, offset)


def _name(field: str | None) -> str:
    name = "data" if field is None else field
    check_name(name)
    return name


def _refuse(path: Path, stated: dict[str, Any], *names: str) -> None:
    given = [f"{name}=" for name in names if stated[name] is not None]
    if given:
        raise TypeError(f"{path}: its format states names, dtypes and shapes itself; leave out {', '.join(given)}")
