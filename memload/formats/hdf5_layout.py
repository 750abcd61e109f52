"""The layout of an HDF5 dataset as plain values, read through h5py once and checked; they outlive the open file.

h5py is asked where bytes lie, and reads none of the rows. Nothing of it is kept: no handle, no lock.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.errors import FormatError
from memload.formats.hdf5_filters import Filter, native_filters
from memload.formats.hdf5_index import edges_are_plain, growing_axis, missing_in_offsets, true_corners

NEVER_WRITTEN = -1


@dataclass(frozen=True)
class Chunks:
    """The chunks of a dataset: one entry for each place of the grid, in C order.

    `offsets` are bytes in the file, or NEVER_WRITTEN; bit k of `skipped` is set if filter k was not applied.
    """

    shape: tuple[int, ...]
    filters: tuple[Filter, ...]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    skipped: NDArray[np.uint32]


@dataclass(frozen=True)
class StoredDataset:
    """The layout of a dataset in its file.

    Attributes:
        path: the absolute path of its file, after all links.
        key: its name in that file.
        shape: its shape, rows first.
        dtype: its numpy dtype, in the file's byte order.
        fill: the fill value of elements that were never written, in this machine's byte order.
        data: the offset of contiguous bytes; or chunks; or the bytes themselves, if the dataset is so small that the
            file's metadata has them; or None: no row was ever written.
    """

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: bytes
    data: int | Chunks | NDArray[Any] | None

    @property
    def where(self) -> str:
        """The file and name, for messages."""
        return f"{self.path}, {self.key!r}"

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def read_layout(dataset: Any) -> StoredDataset:
    """Return the layout of an open h5py dataset.

    Rows that this process has written, and HDF5 still holds, are in the file afterwards.

    Raises:
        FormatError: its type, its layout or a filter is not supported; the message says which.
    """
    if dataset.file.mode == "r+":  # HDF5 shares a file within a process: this one has it open for writing
        dataset.flush()
    path = Path(os.fsdecode(dataset.file.filename)).absolute()
    where = f"{path}, {dataset.name!r}"
    shape = _checked_shape(where, dataset)
    dtype = _checked_dtype(where, dataset)
    return StoredDataset(path, dataset.name, shape, dtype, _fill(dataset, dtype), _data(where, dataset, shape, dtype))


def _checked_shape(where: str, dataset: Any) -> tuple[int, ...]:
    if dataset.shape is None:
        raise FormatError(f"{where}: an empty dataset without a shape; expected rows. Leave it out by key=")
    if dataset.shape == ():
        raise FormatError(
            f"{where}: a single number; expected an array whose first axis counts the rows. Leave it out by key="
        )
    return tuple(int(side) for side in dataset.shape)


def _checked_dtype(where: str, dataset: Any) -> np.dtype[Any]:
    import h5py

    stored = dataset.id.get_type()
    try:
        dtype = dataset.dtype
    except (TypeError, ValueError) as error:
        raise FormatError(f"{where}: elements of a type that h5py does not know ({error})") from error
    kind = _KINDS.get(type(stored).__name__, "numbers")
    if kind != "numbers" and not (kind == "compound elements" and dtype.kind == "c"):
        instead = _INSTEAD.get(kind, _AS_NUMBERS).format(name=dataset.name)
        raise FormatError(f"{where}: {kind}; memload reads numbers. {instead}")
    if dtype.kind not in "biufc":
        raise FormatError(f"{where}: elements of numpy's dtype {dtype}; memload reads numbers")
    if not stored.equal(h5py.h5t.py_create(dtype, logical=True)):
        raise FormatError(
            f"{where}: numbers that are not stored as {dtype} has them (unusual precision, padding or exponent); write "
            f'the dataset again as one of a common type, file["new"] = file[{dataset.name!r}][:], or {by_h5py(dataset)}'
        )
    return np.dtype(dtype.str) if dtype.kind != "b" else np.dtype(bool)  # drops the names of an enum's values


_KINDS = {
    "TypeStringID": "texts",
    "TypeVlenID": "elements of different lengths",
    "TypeCompoundID": "compound elements",
    "TypeOpaqueID": "opaque elements",
    "TypeArrayID": "elements that are arrays",
    "TypeReferenceID": "references",
    "TypeBitfieldID": "bit fields",
    "TypeTimeID": "times",
}
_AS_NUMBERS = "Write those that you need as a dataset of their own, or leave it out by key="
_INSTEAD = {
    "texts": "memload.from_arrays(text=list(file[{name!r}].asstr())) makes a field of them, to go beside others by "
    "memload.zip",
    "elements of different lengths": "memload.from_arrays(x=memload.ragged(list(file[{name!r}]))) makes a field of "
    "them, to go beside others by memload.zip",
    "compound elements": 'Write those that you need as a dataset of their own, such as file["numbers"] = '
    'file["table"]["column"]',
    "elements that are arrays": 'h5py writes them as numbers: file["new"] = file[{name!r}][:]',
    "references": "Name what they point to by key=",
}


def _fill(dataset: Any, dtype: np.dtype[Any]) -> bytes:
    import h5py

    made = dataset.id.get_create_plist()
    given = made.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    never = made.get_fill_time() == h5py.h5d.FILL_TIME_NEVER
    value = np.asarray(dataset.fillvalue, dtype) if given and not never else np.zeros((), dtype)
    return value.astype(dtype.newbyteorder("=")).tobytes()


def _data(where: str, dataset: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int | Chunks | NDArray[Any] | None:
    from h5py import h5d

    made = dataset.id.get_create_plist()
    layout = made.get_layout()
    if layout == h5d.VIRTUAL:
        raise FormatError(f"{where}: {_virtual(made)}; or {by_h5py(dataset)}")
    if made.get_external_count():
        raise FormatError(f"{where}: {_external(made, dtype, shape)}{by_h5py(dataset)}")
    if math.prod(shape) == 0:
        return None
    if layout == h5d.COMPACT:
        return np.asarray(dataset[...], dtype.newbyteorder("="))
    if layout == h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()  # "nowhere" is the last of all addresses, to which HDF5 adds the user block
        return None if offset is None or offset + 1 == dataset.file.userblock_size else int(offset)
    return _chunks(where, dataset, shape, dtype)


def by_h5py(dataset: Any) -> str:
    """Return how to convert a dataset through h5py if memload does not read it, for messages."""
    name = dataset.name.strip("/")
    read = f"h5py.File({os.fsdecode(dataset.file.filename)!r})[{name!r}]"
    return f"let h5py read it once: memload.write(DIRECTORY, {{{name.rpartition('/')[2]!r}: {read}}})"


def _virtual(made: Any) -> str:
    """Return the sources of a virtual dataset and how to open them, for messages."""
    sources = sorted(
        {(made.get_virtual_filename(k), made.get_virtual_dsetname(k)) for k in range(made.get_virtual_count())}
    )
    files = [file for file in dict.fromkeys(file for file, _ in sources) if file != "."]
    names = list(dict.fromkeys(name for _, name in sources))
    if not files:
        return f"a virtual dataset over others of this file; open these: key={_few(names)}"
    return (
        f"a virtual dataset over {_few(files)}; open these files themselves, several as one dataset: "
        f"memload.open([...], key={_few(names)})"
    )


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_MOST_NAMED]))
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"


_MOST_NAMED = 4


def _external(made: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return the files with the bytes of an external dataset, and how to open a single one, for messages."""
    name, begin, _ = made.get_external(0)
    said = f"its bytes are in another file, {os.fsdecode(name)!r}; "
    if made.get_external_count() > 1:
        return f"its bytes are in {made.get_external_count()} other files, the first {os.fsdecode(name)!r}; "
    if not dtype.isnative:
        return said
    return (
        f'{said}open that one as bare rows: memload.open(path, dtype="{dtype}", shape={shape[1:]}, offset={begin}); or '
    )


def _chunks(where: str, dataset: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Chunks:
    made = dataset.id.get_create_plist()
    chunk = tuple(int(side) for side in made.get_chunk())
    described = [made.get_filter(k) for k in range(made.get_nfilters())]
    filters = [(number, tuple(values), os.fsdecode(name)) for number, _flags, values, name in described]
    native = tuple(native_filters(where, filters, dtype.itemsize, by_h5py(dataset)))
    grid = tuple(-(-side // step) for side, step in zip(shape, chunk, strict=True))
    listed = _listed(dataset, grid, chunk)
    corners = np.array(listed.corners, np.int64).reshape(-1, len(grid))
    listed.corners = array("q", true_corners(where, dataset, corners, listed.offsets, listed.sizes).tobytes())
    if math.prod(grid) > max(_FEW_CHUNKS, _MOST_EMPTY * len(listed.offsets)):
        raise FormatError(
            f"{where}: only {len(listed.offsets):,} of {math.prod(grid):,} chunks were ever written; memload keeps "
            "an entry for each: write the rows that there are as a dataset of their own"
        )
    offsets, sizes, skipped = _in_order(where, listed, grid, chunk)
    offsets[offsets != NEVER_WRITTEN] += missing_in_offsets(dataset.file)
    chunks = Chunks(chunk, native, offsets, sizes, skipped)
    _mark_plain_edges(where, dataset, chunks, grid, math.prod(chunk) * dtype.itemsize)
    return chunks


# Without a limit, a malformed or nearly empty file could fill the memory with entries for missing chunks.
_FEW_CHUNKS = 2**22
_MOST_EMPTY = 256  # places of the grid for each chunk that was written


class _Listed:
    """Return the written chunks in the order of HDF5's list, as arrays; Python objects would take more memory."""

    def __init__(self) -> None:
        self.corners, self.offsets, self.sizes, self.skipped = array("q"), array("q"), array("q"), array("q")

    def add(self, info: Any) -> None:
        self.corners.extend(info.chunk_offset)
        self.offsets.append(info.byte_offset)
        self.sizes.append(info.size)
        self.skipped.append(info.filter_mask)


def _listed(dataset: Any, grid: tuple[int, ...], chunk: tuple[int, ...]) -> _Listed:
    listed = _Listed()
    if hasattr(dataset.id, "chunk_iter"):  # h5py over HDF5 1.14 or newer: one walk over the index
        dataset.id.chunk_iter(listed.add)
        return listed
    if growing_axis(dataset.maxshape, chunk) is not None:  # a chunk may be listed where none is looked for
        for number in range(dataset.id.get_num_chunks()):
            listed.add(dataset.id.get_chunk_info(number))
        return listed
    for info in by_place(dataset, grid, chunk):
        listed.add(info)
    return listed


def _in_order(
    where: str, listed: _Listed, grid: tuple[int, ...], chunk: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
    """Return offsets, sizes and masks by place of the grid."""
    corners = np.array(listed.corners, np.int64).reshape(-1, len(grid))
    numbers = corners // np.array(chunk)
    if (corners % np.array(chunk)).any() or (numbers < 0).any() or (numbers >= np.array(grid)).any():
        raise FormatError(f"{where}: its index lists chunks that are not on the grid; the file is damaged")
    count = math.prod(grid)
    at = np.ravel_multi_index(tuple(numbers.T), grid)
    offsets, sizes = np.full(count, NEVER_WRITTEN, np.int64), np.zeros(count, np.int64)
    skipped = np.zeros(count, np.uint32)
    offsets[at], sizes[at], skipped[at] = listed.offsets, listed.sizes, listed.skipped
    return offsets, sizes, skipped


def by_place(dataset: Any, grid: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[Any]:
    """Yield HDF5's information on each written chunk, looked up one by one."""
    for place in np.ndindex(grid):
        info = dataset.id.get_chunk_info_by_coord(tuple(k * side for k, side in zip(place, chunk, strict=True)))
        if info.byte_offset is not None:
            yield info


def _mark_plain_edges(where: str, dataset: Any, chunks: Chunks, grid: tuple[int, ...], whole: int) -> None:
    """Mark the partial chunks as stored without filters if their dataset was created so.

    Args:
        where: the name of the dataset, for messages.
        dataset: an open dataset of h5py.
        chunks: the chunks, whose masks are changed in place.
        grid: the number of chunks along each axis.
        whole: the bytes of a chunk without filters.
    """
    partial = _partial(dataset.shape, chunks.shape, grid) & (chunks.offsets != NEVER_WRITTEN)
    if not chunks.filters or not partial.any():
        return
    plain = edges_are_plain(dataset.id.get_create_plist())
    if plain is None and (chunks.sizes[partial] == whole).all():
        raise FormatError(
            f"{where}: this HDF5 does not say whether its partial chunks went through the filters; {by_h5py(dataset)}"
        )
    if plain:
        chunks.skipped[partial] = 2 ** len(chunks.filters) - 1


def _partial(shape: Sequence[int], chunk: Sequence[int], grid: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which chunks reach over the edge of their dataset, by place of the grid in C order."""
    found = np.zeros(grid, bool)
    for axis, (side, step) in enumerate(zip(shape, chunk, strict=True)):
        if side % step:
            found[(slice(None),) * axis + (-1,)] = True
    return found.reshape(-1)
