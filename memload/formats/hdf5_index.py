"""What HDF5 and h5py do not tell of a dataset's chunks, or tell wrongly: their places, and whether edges are filtered.

The HDF5 library that h5py brings is asked itself for what h5py leaves out, so that no sample has to show it.

A dataset that may grow along one axis only, written with libver="latest", keeps its chunks in an extensible array, in
the order of that axis first. HDF5 (2.0 at least) lists them as if they lay in the order of their axes; reading looks
them up rightly. Unless that axis is the first, most chunks are listed at a place of others, or at none.
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
    """Return where the listed chunks truly lie.

    Two orders are possible, and the file does not say which: HDF5 is asked to read chunks, until one tells them apart.

    Args:
        where: names the dataset, in messages.
        dataset: of h5py, open.
        listed: (chunks, axes), the corner of each chunk as HDF5 lists it, in elements.
        offsets: where each begins in the file, in bytes; perhaps without the user block.
        sizes: stored bytes of each.

    Raises:
        FormatError: HDF5 reads other bytes than are where it lists chunks, in either order.
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
                raise FormatError(f"{where}: HDF5 tells of chunks where there are none; a newer h5py may know better")
    return listed  # where they differ, chunks have equal bytes in both orders


def growing_axis(most: Sequence[int | None], chunk: Sequence[int]) -> int | None:
    """Return the one axis along which a dataset grows, if its chunks may be listed in another order than theirs.

    Args:
        most: the largest length of each axis; None: no limit.
        chunk: the length of a chunk along each.
    """
    growing = [axis for axis, length in enumerate(most) if length is None]
    if len(growing) != 1:
        return None
    several = any(length is not None and length > step for length, step in zip(most, chunk, strict=True))
    return growing[0] if growing[0] > 0 and several else None


def _by_the_growing_axis(listed: Places, most: Sequence[int | None], chunk: Sequence[int], axis: int) -> Places:
    """The corners, if the chunks are in the order of this axis first, then of the others."""
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
    """The stored bytes of the chunk that HDF5 finds at a corner; None if there is none of so many bytes."""
    into = np.zeros(nbytes, np.uint8)
    try:
        _mask, found = dataset.id.read_direct_chunk(tuple(map(int, corner)), out=into)
    except (OSError, RuntimeError, ValueError):
        return None
    return into.tobytes() if len(found) == nbytes else None


_DONT_FILTER_PARTIAL_CHUNKS = 2  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS of H5Dpublic.h


def edges_are_plain(creation: Any) -> bool | None:
    """Return whether partial chunks, those that reach over the edge of their dataset, go through no filter.

    A dataset is created so or not (H5Pset_chunk_opts). It shows in no chunk's filter mask, and h5py has no call that
    tells it.

    Args:
        creation: the creation property list of a dataset in chunks.

    Returns:
        None where this HDF5 cannot be asked.
    """
    from h5py import _objects, h5p

    try:
        ask = ctypes.PyDLL(h5p.__file__).H5Pget_chunk_opts  # found in the HDF5 library that h5py.h5p is linked with
    except (OSError, AttributeError):
        return None
    ask.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_uint)]
    options = ctypes.c_uint()
    with _objects.phil:  # HDF5 is no library for several threads: h5py's own calls hold this lock
        told = ask(creation.id, ctypes.byref(options))
    return None if told < 0 else bool(options.value & _DONT_FILTER_PARTIAL_CHUNKS)


def missing_in_offsets(file: Any) -> int:
    """Return how many bytes to add to the offsets of chunks that this HDF5 tells: those of a user block, or none."""
    return int(file.userblock_size) if file.userblock_size and _leaves_out_user_block() else 0


@functools.cache
def _leaves_out_user_block() -> bool:
    """Whether this HDF5 counts offsets from behind the user block, as releases before 1.14.4 do.

    A file in memory shows it, of which all is known.
    """
    import h5py

    content = bytes(range(1, 17))
    with h5py.File("user block", "w", driver="core", backing_store=False, userblock_size=512) as file:
        dataset = file.create_dataset("x", (16,), "u1", chunks=(16,))
        dataset.id.write_direct_chunk((0,), content)
        file.flush()
        behind = file.id.get_file_image().index(content)  # an image has no user block
        return bool(dataset.id.get_chunk_info_by_coord((0,)).byte_offset == behind)
