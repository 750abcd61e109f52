"""HDF5 files read in place: h5py says once where the rows lie; then it is closed, and the file's bytes are mapped.

dataset -> layout -> rows that are runs of bytes     -> Column
                  -> rows in chunks to be decoded    -> Tiles
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from memload._core import Column, Storage
from memload.dtypes import from_numpy_dtype
from memload.errors import FormatError
from memload.fields import Field, check_name, check_size, digest_of
from memload.sources.hdf5_layout import NEVER_WRITTEN, Chunks, Stored, read_layout

SIGNATURE = b"\x89HDF\r\n\x1a\n"

Keys = str | Sequence[str] | Mapping[str, str] | None


def is_hdf5(path: Path) -> bool:
    """Return whether the file has HDF5's signature, at its beginning or behind a user block."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        at = 0
        while at + len(SIGNATURE) <= size:
            file.seek(at)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
            at = max(512, 2 * at)
    return False


def open_hdf5(path: Path, key: Keys = None) -> dict[str, Field]:
    """Return datasets of an HDF5 file as fields; h5py is at work only meanwhile, and reads no rows.

    Args:
        path: the file.
        key: of one dataset, which also names the field; several; keys by names of fields; or None for all datasets.

    Raises:
        FormatError: the file is malformed; a dataset is stored in a way that memload does not read, or is not there; or
            all are meant, and their lengths differ. The message lists those that there are.
        ValueError, TypeError: `key` names none, one twice, or by something else than a text.
        ModuleNotFoundError: h5py is not installed.
    """
    named = None if key is None else _by_field(path, key)
    with _opened(path) as file:
        keys = _all_keys(path, file) if named is None else named
        layouts = {name: read_layout(_dataset(path, file, one)) for name, one in keys.items()}
    storages: dict[Path, Storage] = {}
    for stored in layouts.values():
        storages.setdefault(stored.path, Storage.map_file(str(stored.path)))
    return {name: _field(stored, storages[stored.path]) for name, stored in layouts.items()}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file in h5py, and tell its errors as ours."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('HDF5 files are opened by h5py: pip install "memload[hdf5]"') from error
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            yield file
    except (FormatError, FileNotFoundError, PermissionError):
        raise
    except BlockingIOError as error:
        raise FormatError(f"{path}: open for writing in another process; close it there first") from error
    except Exception as error:  # what HDF5 and h5py raise depends on what they stumble over
        raise FormatError(f"{path}: HDF5 cannot read it ({error})") from error


def _by_field(path: Path, key: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(key, Mapping):
        keys = dict(key)
    else:
        named = [key] if isinstance(key, str) else list(key)
        keys = {str(one).strip("/"): one for one in named}
        if len(keys) != len(named):
            raise ValueError(f"{path}: each key can be given once, got {named}")
    if not keys:
        raise ValueError(f"{path}: key= names no dataset")
    for name, one in keys.items():
        check_name(name)
        if not isinstance(one, str):
            raise TypeError(f"{path}: a key is the name of a dataset in the file, got {type(one).__name__}")
    return keys


def _all_keys(path: Path, file: Any) -> dict[str, str]:
    found = _datasets(file)
    if not found:
        raise FormatError(f"{path}: there is no dataset in this file")
    lengths = {shape[0] if shape else None for shape, _ in found.values()}
    if len(lengths) > 1 or None in lengths:
        raise FormatError(
            f"{path}: its datasets do not all have rows of one number; say which by key=:\n{_listing(found)}"
        )
    return {key: key for key in found}


def _datasets(file: Any) -> dict[str, tuple[Any, Any]]:
    """Shape and dtype of each dataset below the root, by key."""
    import h5py

    found: dict[str, tuple[Any, Any]] = {}

    def see(key: str, member: Any) -> None:
        if isinstance(member, h5py.Dataset):
            found[key] = (member.shape, _dtype_words(member))

    file.visititems(see)
    return found


def _dtype_words(dataset: Any) -> str:
    try:
        return str(dataset.dtype)
    except (TypeError, ValueError):
        return "of a type that h5py does not know"


def _listing(found: Mapping[str, tuple[Any, Any]]) -> str:
    shown = [f"  {key!r}  {dtype} {shape}" for key, (shape, dtype) in list(found.items())[:_MOST_LISTED]]
    more = len(found) - len(shown)
    return "\n".join([*shown, *([f"  and {more} more"] if more > 0 else [])])


_MOST_LISTED = 40


def _dataset(path: Path, file: Any, key: str) -> Any:
    import h5py

    try:
        member = file[key]
    except (KeyError, ValueError) as error:
        raise FormatError(_missing(path, file, key)) from error
    if not isinstance(member, h5py.Dataset):
        raise FormatError(f"{path}: {key!r} is no dataset; there are:\n{_listing(_datasets(file))}")
    return member


def _missing(path: Path, file: Any, key: str) -> str:
    import h5py

    parts = key.strip("/").split("/")
    for at in ("/".join(parts[: k + 1]) for k in range(len(parts))):
        link = file.get(at, getlink=True)
        if isinstance(link, h5py.ExternalLink) and not _leads_somewhere(file, at):
            return (
                f"{path}: {at!r} is a link to {link.path!r} in {link.filename!r}, which is not there; such paths count "
                f"from the folder of {path.name}: put that file there, or open it itself"
            )
        if isinstance(link, h5py.SoftLink) and not _leads_somewhere(file, at):
            return f"{path}: {at!r} is a link to {link.path!r}, which is not there"
        if link is None:
            break
    return f"{path}: no dataset {key!r}; there are:\n{_listing(_datasets(file))}"


def _leads_somewhere(file: Any, key: str) -> bool:
    try:
        file[key]
    except (KeyError, OSError):
        return False
    return True


def _field(stored: Stored, storage: Storage) -> Field:
    try:
        dtype = from_numpy_dtype(stored.dtype.newbyteorder("="))
        check_size(dtype, stored.shape[1:], stored.shape[0])
        column = _column(stored, storage)
    except FormatError:
        raise
    except (TypeError, ValueError) as error:
        raise FormatError(f"{stored.where}: {error}") from error
    return Field(dtype, stored.shape[1:], column, digest=_digest(stored, storage))


def _column(stored: Stored, storage: Storage) -> Column:
    rows, row_bytes = stored.shape[0], stored.row_bytes
    if row_bytes == 0 or stored.data is None:
        return Column(row_bytes, [(_filled(stored), 0, rows, 0)])
    if isinstance(stored.data, np.ndarray):
        return Column(row_bytes, [(_borrowed(stored, stored.data), 0, rows, row_bytes)])
    if isinstance(stored.data, int) and _native_order(stored):
        return Column(row_bytes, [(storage, stored.data, rows, row_bytes)])
    if isinstance(stored.data, Chunks) and _native_order(stored) and _rows_are_runs(stored, stored.data):
        return Column(row_bytes, _segments(stored, stored.data, storage))
    raise FormatError(f"{stored.where}: its rows are stored in parts, compressed or in another byte order")


def _native_order(stored: Stored) -> bool:
    return bool(stored.dtype.isnative)


def _rows_are_runs(stored: Stored, chunks: Chunks) -> bool:
    """Whether each row is one run of bytes of one chunk, which went through no filter."""
    return (
        not chunks.filters
        and chunks.shape[2:] == stored.shape[2:]
        and all(side >= whole for side, whole in zip(chunks.shape[1:2], stored.shape[1:2], strict=True))
    )


def _segments(stored: Stored, chunks: Chunks, storage: Storage) -> list[tuple[Storage, int, int, int]]:
    """Return the runs of rows of chunks that hold whole rows; chunks that follow each other make one."""
    stride = math.prod(chunks.shape[1:]) * stored.dtype.itemsize
    step = chunks.shape[0]
    whole = step * stride
    if (chunks.sizes[chunks.offsets != NEVER_WRITTEN] != whole).any():
        raise FormatError(f"{stored.where}: its index tells of chunks that have not the {whole} bytes of whole ones")
    starts = np.flatnonzero(np.r_[True, np.diff(chunks.offsets) != np.where(chunks.offsets[:-1] < 0, 0, whole)])
    ends = np.r_[starts[1:], len(chunks.offsets)]
    filled = _filled(stored) if (chunks.offsets == NEVER_WRITTEN).any() else None
    segments: list[tuple[Storage, int, int, int]] = []
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = min(end * step, stored.shape[0]) - begin * step
        offset = int(chunks.offsets[begin])
        segments.append((storage, offset, rows, stride) if offset >= 0 or filled is None else (filled, 0, rows, 0))
    return segments


def _filled(stored: Stored) -> Storage:
    """One row of the fill value, which stands for all rows that were never written."""
    if stored.row_bytes > _MOST_FILLED:
        raise FormatError(f"{stored.where}: rows of {stored.row_bytes:,} bytes of which none was ever written")
    row = np.frombuffer(stored.fill * (stored.row_bytes // len(stored.fill)), np.uint8).copy()
    return _borrowed(stored, row)


_MOST_FILLED = 2**30


def _borrowed(stored: Stored, array: NDArray[Any]) -> Storage:
    return Storage.borrow(array, array.ctypes.data, array.nbytes, stored.where)


def _digest(stored: Stored, storage: Storage) -> str:
    """What tells this dataset from another of its form, wherever its file lies: where in the file its bytes are."""
    data = stored.data
    if isinstance(data, Chunks):
        lie = [xxhash.xxh3_64_hexdigest(array.data) for array in (data.offsets, data.sizes, data.skipped)]
        return digest_of([stored.key, str(storage.nbytes), repr(data.filters), *lie])
    return digest_of([stored.key, str(storage.nbytes), repr(data) if isinstance(data, int) else repr(type(data))])
