"""Facts about a dataset's chunks that h5py leaves out or gets wrong: their places, and whether edges are filtered.

Some facts come from the HDF5 library of h5py itself, so that no sample file is needed to find them out.

A dataset that can grow along one axis only and was written with libver="latest" keeps its chunks in an extensible
array, with that axis first. HDF5 (from 2.0 on) lists them as if their axes were in their own order, but reads them
correctly. Unless that axis is the first one, most chunks are therefore listed at the place of another chunk or at none.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.errors import FormatError

Places = NDArray[np.int64]  # (chunks, axes): the corner of each, in elements


def true_corners(where: str, dataset: Any, listed: Places, offsets: Sequence[int], sizes: Sequence[int]) -> Places:
    """Return the true places of the listed chunks.

    Two orders are possible, and the file does not say which: HDF5 reads chunks until one shows the order.

    Args:
        where: the name of the dataset, for messages.
        dataset: an open dataset of h5py.
        listed: (chunks, axes), the corner of each chunk as HDF5 lists it, in elements.
        offsets: the place of each chunk in the file, in bytes, possibly without the user block.
        sizes: the stored bytes of each chunk.

    Raises:
        FormatError: HDF5 reads other bytes than those at the listed chunks, in either order.
    """
    axis = growing_axis(dataset.maxshape, dataset.chunks)
    if axis is None or not len(listed):
        return listed
    swapped = _by_the_growing_axis(listed, dataset.maxshape, dataset.chunks, axis)
    missing = missing_in_offsets(dataset.file)
    differ = map(int, np.flatnonzero((swapped != listed).any(axis=1)))
    with Path(dataset.file.filename).open("rb") as file:
        for number in differ:
            stored = _bytes_at(file, offsets[number] + missing, sizes[number])
            as_listed = _read(dataset, listed[number], sizes[number]) == stored
            as_swapped = _read(dataset, swapped[number], sizes[number]) == stored
            if as_listed != as_swapped:
                return listed if as_listed else swapped
            if not as_listed:
                raise FormatError(f"{where}: HDF5 lists chunks where there are none; a newer h5py may know better")
    return listed  # chunks at different places in the two orders have equal bytes


def growing_axis(most: Sequence[int | None], chunk: Sequence[int]) -> int | None:
    """Return the only axis along which a dataset can grow, if its chunks may be listed in a wrong order; else None.

    Args:
        most: the largest length of each axis; None: no limit.
        chunk: the length of a chunk along each axis.
    """
    growing = [axis for axis, length in enumerate(most) if length is None]
    if len(growing) != 1:
        return None
    several = any(length is not None and length > step for length, step in zip(most, chunk, strict=True))
    return growing[0] if growing[0] > 0 and several else None


def _by_the_growing_axis(listed: Places, most: Sequence[int | None], chunk: Sequence[int], axis: int) -> Places:
    """Return the corners of chunks that are ordered by this axis first, then by the others."""
    numbers = listed // np.array(chunk)
    counts = [1 if length is None else -(-length // step) for length, step in zip(most, chunk, strict=True)]
    at = numbers[:, axis]
    for following in range(axis + 1, len(counts)):  # those before the axis are listed as 0: it has no end
        at = at * counts[following] + numbers[:, following]
    found: Places = np.empty(numbers.shape, np.int64)
    for other in reversed([k for k in range(len(counts)) if k != axis]):
        at, found[:, other] = np.divmod(at, counts[other])
    found[:, axis] = at
    found *= np.array(chunk, np.int64)
    return found


def _bytes_at(file: Any, offset: int, nbytes: int) -> bytes:
    file.seek(offset)
    return bytes(file.read(nbytes))


def _read(dataset: Any, corner: NDArray[np.int64], nbytes: int) -> bytes | None:
    """Return the stored bytes of the chunk that HDF5 finds at a corner; None if their number is not `nbytes`."""
    into = np.zeros(nbytes, np.uint8)
    try:
        _mask, found = dataset.id.read_direct_chunk(tuple(map(int, corner)), out=into)
    except (OSError, RuntimeError, ValueError):
        return None
    return into.tobytes() if len(found) == nbytes else None


_DONT_FILTER_PARTIAL_CHUNKS = 2  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS of H5Dpublic.h


def edges_are_plain(creation: Any) -> bool | None:
    """Return whether partial chunks, which reach over the edge of their dataset, are stored without filters.

    This is a creation property (H5Pset_chunk_opts). No chunk's filter mask shows it, and h5py has no call for it.

    Args:
        creation: the creation property list of a chunked dataset.

    Returns:
        None if this HDF5 library has no such call.
    """
    from h5py import _objects, h5p

    try:
        ask = ctypes.PyDLL(h5p.__file__).H5Pget_chunk_opts  # found in the HDF5 library that h5py.h5p is linked with
    except (OSError, AttributeError):
        return None
    ask.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_uint)]
    options = ctypes.c_uint()
    with _objects.phil:  # HDF5 is no library for several threads: h5py's own calls hold this lock
        status = ask(creation.id, ctypes.byref(options))
    return None if status < 0 else bool(options.value & _DONT_FILTER_PARTIAL_CHUNKS)


def missing_in_offsets(file: Any) -> int:
    """Return the bytes to add to the offsets of chunks that this HDF5 lists: the size of the user block, or 0."""
    return int(file.userblock_size) if file.userblock_size and _leaves_out_user_block() else 0


@functools.cache
def _leaves_out_user_block() -> bool:
    """Return whether this HDF5 counts offsets from the end of the user block, as releases before 1.14.4 do.

    A small file in memory with known offsets shows it.
    """
    import h5py

    content = bytes(range(1, 17))
    with h5py.File("user block", "w", driver="core", backing_store=False, userblock_size=512) as file:
        dataset = file.create_dataset("x", (16,), "u1", chunks=(16,))
        dataset.id.write_direct_chunk((0,), content)
        file.flush()
        behind = file.id.get_file_image().index(content)  # an image has no user block
        return bool(dataset.id.get_chunk_info_by_coord((0,)).byte_offset == behind)
