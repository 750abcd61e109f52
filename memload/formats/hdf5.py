"""Read HDF5 files in place: h5py finds the places of the rows and is closed; then the file's bytes are mapped.

dataset -> layout -> rows that are runs of bytes     -> Column
                  -> rows in chunks to be decoded    -> Tiles
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from memload._core import Chain, Column, Storage, TileGrid, Tiles
from memload.columns.fields import Field, check_size, digest_of
from memload.dtypes import from_numpy_dtype
from memload.errors import FormatError
from memload.formats.hdf5_filters import Filter
from memload.formats.hdf5_layout import NEVER_WRITTEN, Chunks, StoredDataset, read_layout
from memload.formats.hdf5_links import follow, listed_links
from memload.formats.members import Key, check_lengths, choose
from memload.formats.packages import package
from memload.formats.tile_blocks import blocks_of

SIGNATURE = b"\x89HDF\r\n\x1a\n"


def is_hdf5(path: Path) -> bool:
    """Return whether the file has HDF5's signature, at its start or after a user block."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        at = 0
        while at + len(SIGNATURE) <= size:
            file.seek(at)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
            at = max(512, 2 * at)
    return False


def open_hdf5(path: Path, key: Key = None, field: str | None = None) -> dict[str, Field]:
    """Return datasets of an HDF5 file as fields; h5py is open only during the call, and reads no rows.

    Args:
        path: the file.
        key: as in `choose`; links that it names are followed, also to other files in the folder of this one.
        field: another name for a single dataset.

    Raises:
        FormatError: the file is malformed; a link leads nowhere, out of the folder or in a circle; or the storage of a
            dataset is not supported.
        KeyError, TypeError, ValueError: as `choose`; lengths differ.
        ImportError: h5py is not installed.
    """
    h5py = package("h5py", "hdf5", str(path))
    with ExitStack() as files:
        with _as_format_errors(path):
            file = files.enter_context(h5py.File(path, "r", locking="best-effort"))
            found = _datasets(path, file, key, files)
            if not found and (links := listed_links(path, file)):
                raise FormatError(
                    f"{path}: holds no datasets but by links, which are followed if key= names them: {links}"
                )
            forms = {name: (dataset.shape, _dtype(dataset)) for name, dataset in found.items()}
        chosen = choose(path, found, key, field)
        if key is None and len({shape[:1] if shape else None for shape, _ in forms.values()}) > 1:
            instead = ", or open it as a recording by memload.open_nwb" if "nwb_version" in file.attrs else ""
            said = f"its datasets differ in length; say which are meant by key={instead}"
            raise ValueError(f"{path}: {said}:\n{_listing(forms)}")
        with _as_format_errors(path):
            layouts = {name: read_layout(dataset) for name, dataset in chosen.items()}
    check_lengths(path, {name: stored.shape[0] for name, stored in layouts.items()}, key)
    storages = {place: Storage.map_file(str(place)) for place in {stored.path for stored in layouts.values()}}
    return {name: _field(stored, storages[stored.path]) for name, stored in layouts.items()}


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Any]:
    """Open a file with h5py; errors of HDF5 become FormatError.

    Raises:
        FormatError, ImportError: as `open_hdf5`.
    """
    h5py = package("h5py", "hdf5", str(path))
    with _as_format_errors(path), h5py.File(path, "r", locking="best-effort") as file:
        yield file


def fields_of_datasets(datasets: Mapping[str, Any]) -> dict[str, Field]:
    """Return open datasets of h5py, of one file or of several, as fields that read them in place.

    Raises:
        FormatError: the storage of a dataset is not supported.
    """
    layouts = {name: read_layout(dataset) for name, dataset in datasets.items()}
    storages = {place: Storage.map_file(str(place)) for place in {stored.path for stored in layouts.values()}}
    return {name: _field(stored, storages[stored.path]) for name, stored in layouts.items()}


def hdf5_names(path: Path) -> list[str]:
    """Return the paths of the datasets of a file.

    Raises:
        FormatError, ImportError: as `open_hdf5`.
    """
    h5py = package("h5py", "hdf5", str(path))
    with _as_format_errors(path), h5py.File(path, "r", locking="best-effort") as file:
        return [name for name, _ in _below(file, "", set())]


@contextmanager
def _as_format_errors(path: Path) -> Iterator[None]:
    """Within this context, errors of HDF5 and h5py, whose types vary, become memload's."""
    try:
        yield
    except (FormatError, FileNotFoundError, PermissionError):
        raise
    except BlockingIOError as error:
        raise FormatError(f"{path}: open for writing in another process; close it there first") from error
    except Exception as error:
        raise FormatError(f"{path}: HDF5 cannot read it ({error}){_remedy(path, str(error))}") from error


def _remedy(path: Path, said: str) -> str:
    """Return what to do after an error of HDF5, for messages; "" if that is unknown."""
    if "truncated file" in said:
        return (
            "; it was cut short, as by a copy or a download that did not end, or is still being written: get it again"
        )
    if "already open for write" in said:
        return f"; its writer still has it open, or ended before it closed it. If so: h5clear -s {path}"
    return ""


def _datasets(path: Path, file: Any, key: Key, files: ExitStack) -> dict[str, Any]:
    """Return the datasets for `choose`, by their paths: all, or those that the keys name."""
    keys = key.values() if isinstance(key, Mapping) else [key] if isinstance(key, str) else key
    found: dict[str, Any] = {}
    for one in keys if isinstance(keys, Iterable) else ():
        named = _named(path, file, one.strip("/"), files) if isinstance(one, str) and one.strip("/") else {}
        if not named:
            return {**dict(_below(file, "", set())), **found}
        found.update(named)
    return found or dict(_below(file, "", set()))


def _below(group: Any, above: str, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the datasets below a group by their paths; this follows no links and visits no group twice.

    HDF5's own walk (H5Ovisit) ends the process on some malformed files; the steps of this one raise an error.
    """
    import h5py

    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            continue
        member = group[name]
        at = f"{above}{name}"
        if isinstance(member, h5py.Dataset):
            yield at, member
        elif isinstance(member, h5py.Group) and member.id not in seen:
            seen.add(member.id)
            yield from _below(member, f"{at}/", seen)


def _named(path: Path, file: Any, name: str, files: ExitStack) -> dict[str, Any]:
    """Return the dataset at a path, or the datasets of the group there, also by links; none if the path is missing."""
    import h5py

    member = follow(path, file, name, files)
    if member is None:
        return {}
    return {name: member} if isinstance(member, h5py.Dataset) else dict(_below(member, f"{name}/", set()))


def _listing(forms: Mapping[str, tuple[Any, str]]) -> str:
    shown = [f"  {name!r}  {dtype} {shape}" for name, (shape, dtype) in list(forms.items())[:_MOST_LISTED]]
    more = len(forms) - len(shown)
    return "\n".join([*shown, *([f"  and {more} more"] if more > 0 else [])])


_MOST_LISTED = 40


def _dtype(dataset: Any) -> str:
    try:
        return str(dataset.dtype)
    except (TypeError, ValueError):
        return "of a type that h5py does not know"


def _field(stored: StoredDataset, storage: Storage) -> Field:
    try:
        dtype = from_numpy_dtype(stored.dtype.newbyteorder("="))
        check_size(dtype, stored.shape[1:], stored.shape[0])
        column = _column(stored, storage)
        digest = _digest(stored, storage)
        return Field(dtype, stored.shape[1:], column, digest=digest, blocks=blocks_of(column, stored.dtype.itemsize))
    except FormatError:
        raise
    except (TypeError, ValueError) as error:
        raise FormatError(f"{stored.where}: {error}") from error


def _column(stored: StoredDataset, storage: Storage) -> Column | Tiles:
    rows, row_bytes, data = stored.shape[0], stored.row_bytes, stored.data
    if row_bytes == 0 or data is None:
        return Column(row_bytes, [(_filled(stored), 0, rows, 0)])
    if isinstance(data, np.ndarray):
        return Column(row_bytes, [(_borrowed(stored, data), 0, rows, row_bytes)])
    if isinstance(data, Chunks):
        runs = stored.dtype.isnative and _rows_are_runs(stored, data)
        return Column(row_bytes, _segments(stored, data, storage)) if runs else Tiles([_grid(stored, data, storage)])
    if stored.dtype.isnative:
        return Column(row_bytes, [(storage, data, rows, row_bytes)])
    return Tiles([_swapped_rows(stored, data, storage)])


def _grid(stored: StoredDataset, chunks: Chunks, storage: Storage) -> TileGrid:
    """Return the chunks as tiles with the filters of the file."""
    filters, skipped = list(chunks.filters), chunks.skipped.astype(np.int64)
    if not stored.dtype.isnative:
        filters, skipped = [_byteswap(stored.dtype), *filters], skipped << 1  # it comes first, and is in every chunk
    written = np.where(chunks.offsets == NEVER_WRITTEN, -1, 0)
    table = np.stack([written, np.maximum(chunks.offsets, 0), chunks.sizes, skipped], axis=1)
    return _tiles(stored, chunks.shape, storage, table, filters)


def _swapped_rows(stored: StoredDataset, offset: int, storage: Storage) -> TileGrid:
    """Return contiguous rows of the other byte order as tiles of one row, or of several short rows."""
    step = max(1, _SWAPPED_BYTES // stored.row_bytes)
    starts = np.arange(0, stored.shape[0], step)
    sizes = np.minimum(step, stored.shape[0] - starts) * stored.row_bytes
    table = np.stack([np.zeros_like(starts), offset + starts * stored.row_bytes, sizes, np.zeros_like(starts)], axis=1)
    return _tiles(stored, (step, *stored.shape[1:]), storage, table, [_byteswap(stored.dtype)], cut=True)


_SWAPPED_BYTES = 4096


def _tiles(
    stored: StoredDataset,
    shape: tuple[int, ...],
    storage: Storage,
    table: NDArray[np.int64],
    filters: Sequence[Filter],
    *,
    cut: bool = False,
) -> TileGrid:
    return TileGrid(
        stored.shape[0],
        stored.dtype.itemsize,
        stored.shape[1:],
        shape,
        [storage],
        table,
        Chain(filters) if filters else None,
        stored.fill,
        cut,
    )


def _byteswap(dtype: np.dtype[Any]) -> Filter:
    return "byteswap", dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize, 0


def _rows_are_runs(stored: StoredDataset, chunks: Chunks) -> bool:
    """Return whether each row is one run of bytes in one chunk without filters."""
    return (
        not chunks.filters
        and chunks.shape[2:] == stored.shape[2:]
        and all(side >= whole for side, whole in zip(chunks.shape[1:2], stored.shape[1:2], strict=True))
    )


def _segments(stored: StoredDataset, chunks: Chunks, storage: Storage) -> list[tuple[Storage, int, int, int]]:
    """Return the runs of rows in chunks of whole rows; adjacent chunks make one run."""
    stride = math.prod(chunks.shape[1:]) * stored.dtype.itemsize
    step = chunks.shape[0]
    whole = step * stride
    if (chunks.sizes[chunks.offsets != NEVER_WRITTEN] != whole).any():
        raise FormatError(f"{stored.where}: its index lists chunks that do not have the {whole} bytes of a whole chunk")
    starts = np.flatnonzero(np.r_[True, np.diff(chunks.offsets) != np.where(chunks.offsets[:-1] < 0, 0, whole)])
    ends = np.r_[starts[1:], len(chunks.offsets)]
    filled = _filled(stored) if (chunks.offsets == NEVER_WRITTEN).any() else None
    segments: list[tuple[Storage, int, int, int]] = []
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = min(end * step, stored.shape[0]) - begin * step
        offset = int(chunks.offsets[begin])
        segments.append((storage, offset, rows, stride) if offset >= 0 or filled is None else (filled, 0, rows, 0))
    return segments


def _filled(stored: StoredDataset) -> Storage:
    """Return one row of the fill value, which stands for all rows that were never written."""
    if stored.row_bytes > _MOST_FILLED:
        raise FormatError(f"{stored.where}: rows of {stored.row_bytes:,} bytes of which none was ever written")
    row = np.frombuffer(stored.fill * (stored.row_bytes // len(stored.fill)), np.uint8).copy()
    return _borrowed(stored, row)


_MOST_FILLED = 2**30


def _borrowed(stored: StoredDataset, array: NDArray[Any]) -> Storage:
    return Storage.borrow(array, array.ctypes.data, array.nbytes, stored.where)


def _digest(stored: StoredDataset, storage: Storage) -> str:
    """Return a hash of the places of the dataset's bytes in its file, whatever the path of the file."""
    data = stored.data
    if isinstance(data, Chunks):
        lie = [xxhash.xxh3_64_hexdigest(array.data) for array in (data.offsets, data.sizes, data.skipped)]
        return digest_of([stored.key, str(storage.nbytes), repr(data.filters), *lie])
    return digest_of([stored.key, str(storage.nbytes), repr(data) if isinstance(data, int) else repr(type(data))])
