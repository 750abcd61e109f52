"""memload.open and memload.from_arrays: what there is, as a dataset whose rows stay where they are."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memload.dataset import Dataset
from memload.dtypes import as_torch_dtype
from memload.errors import FormatError
from memload.fields import Field
from memload.rows.costs import warn_of_unfit
from memload.shards.index import INDEX_NAME
from memload.sources.formats import Stated, is_directory, open_fields, recognised
from memload.sources.members import Key
from memload.sources.open_files import bounded
from memload.sources.paths import PathLike, paths_of
from memload.sources.ragged_arrays import field_of
from memload.sources.raw import open_raw
from memload.tiers.placing import as_tier, check_option_names
from memload.tiers.tier import Tier

_SUITED = {"device": "device", "cache_bytes": "hybrid", "on_pressure": "hybrid"}  # tiers of options; of others: ram


def open(  # noqa: A001 - users call it memload.open
    path: PathLike | Sequence[PathLike],
    *,
    field: str | None = None,
    key: Key = None,
    trust: bool | None = None,
    dtype: Any = None,
    shape: Sequence[int] | int | None = None,
    offset: int | None = None,
    max_open_files: int | None = None,
    tier: Tier | str = Tier.MMAP,
    **tier_options: Any,
) -> Dataset:
    """Return the dataset at `path`; headers are checked, and rows are mapped, not read. See docs/sources.md.

    Args:
        path: a directory of shards, a .npy or .npz file, a .safetensors file, a file of torch.save, an HDF5 file, or,
            with `dtype` and `shape`, a file of bare rows. Several paths in a list, or all that match a pattern such as
            "betas_session*.hdf5", are one dataset, the rows of one after those of another; numbers in names that match
            are sorted as numbers.
        field: the name for the one field of a .npy file or of bare rows, "data" if not given; or another name for the
            one array that `key` picks.
        key: which arrays of a file become fields: a name such as "stim" or "train/stim", a list of names, or a mapping
            from names of fields to names of arrays. Default: all; they must have the same number of rows.
        trust: for a file of torch.save: unpickle any class, which runs whatever code the file names. Only for files
            whose writer you trust.
        dtype: for a file of bare rows: a torch or numpy dtype, or a name such as "bfloat16".
        shape: for a file of bare rows: the shape of one row, such as (425, 425, 3), or 100, or () for a single number.
        offset: for a file of bare rows: the number of bytes before the first row; default 0.
        max_open_files: how many of the dataset's files may be open at once while rows are read past the page cache;
            those read last are kept. Mapped files have no descriptor. Default: half of the descriptors that the
            process may have, at most 256, for all datasets together.
        tier: where rows are kept while they are read: "mmap", "direct", "ram", "hybrid", "auto", "device" or
            "pinned"; see docs/tiers.md.
        tier_options: further arguments of `Dataset.with_tier`, such as ram_dtype= or cache_bytes=.

    Raises:
        FileNotFoundError, PermissionError: the path is missing or cannot be read.
        FormatError: it is empty, truncated, malformed or of no known format, or its rows cannot be read in place.
        ShardFormatError: a directory of shards or a safetensors header is malformed; it is a FormatError.
        KeyError: `key` names nothing that is there.
        ValueError: the arrays differ in their number of rows, or several paths in fields, dtypes or shapes.
        ImportError: the package that reads the format is not installed; the message says how to install it.
        MemorySpaceError: the tier does not fit into memory.
        TypeError: an argument does not apply to this format (a .npy file states its own dtype), or an option of another
            tier is given.

    Example:
        >>> import memload, numpy, tempfile
        >>> path = tempfile.mkdtemp() + "/movie.npy"
        >>> numpy.save(path, numpy.arange(12.0).reshape(4, 3))
        >>> memload.open(path, field="stim")[3]["stim"]
        tensor([ 9., 10., 11.], dtype=torch.float64)
    """
    check_option_names(tier_options, "memload.open")
    if as_tier(tier) is Tier.MMAP and tier_options:
        example = next((suited for name, suited in _SUITED.items() if name in tier_options), "ram")
        raise TypeError(f'{", ".join(tier_options)}: for another tier; give tier= as well, as in tier="{example}"')
    stated = Stated(field, key, trust, dtype, shape, offset)
    open_one = open_fields if dtype is None and shape is None else _open_stated
    places = paths_of(path)
    dataset = _one_after_the_other(places, [Dataset(open_one(place, stated)) for place in places])
    if max_open_files is not None:
        dataset = replace(dataset, fields=bounded(dataset.fields, max_open_files))
    if not all((place / INDEX_NAME).exists() for place in places):  # blocks of shards are their writer's choice
        warn_of_unfit(dataset.fields, places, key, stacklevel=2)
    return dataset if as_tier(tier) is Tier.MMAP else dataset.with_tier(tier, **tier_options)


def _one_after_the_other(places: Sequence[Path], parts: Sequence[Dataset]) -> Dataset:
    first, *others = parts
    try:
        return first.concat(*others) if others else first
    except ValueError as error:
        listed = ", ".join(f"{number}: {place}" for number, place in enumerate(places[:_MOST_LISTED]))
        raise ValueError(f"these are no one dataset: {error} ({listed})") from None


_MOST_LISTED = 100


def from_arrays(arrays: Mapping[str, Any] | None = None, /, **fields: Any) -> Dataset:
    """Return a dataset on arrays in memory, without copying them.

    Changes of the arrays show in rows that are read later. The arrays are kept alive, and must not be moved in memory:
    once `tensor.share_memory_()` or `tensor.set_()` has moved a tensor, reading raises RuntimeError.
    A memmap is read as the file that it maps: worker processes map it again, and a truncated file raises an error.

    Args:
        arrays: a mapping from names to fields, for names that are not valid keywords; they precede `fields`.
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


def _count(given: Any) -> int:
    count = operator.index(given)  # numpy's integers too
    if count < 0 or isinstance(given, bool):
        raise ValueError
    return count


def _open_stated(path: Path, stated: Stated) -> dict[str, Field]:
    if stated.dtype is None or stated.shape is None:
        raise TypeError(f"{path}: bare rows need both dtype= and shape=, the shape of one row")
    try:
        sides = tuple(map(_count, stated.shape if isinstance(stated.shape, Sequence) else [stated.shape]))
        offset = _count(stated.offset or 0)
    except (TypeError, ValueError):
        counts = f"{stated.shape!r} and {stated.offset or 0!r}"
        raise ValueError(f"{path}: shape and offset must be counts, got {counts}") from None
    if stated.key is not None or stated.trust is not None:
        raise TypeError(f"{path}: bare rows have no names and no classes; leave out key= and trust=")
    if is_directory(path):
        raise FormatError(f"{path}: a directory; dtype= and shape= are for a file of bare rows")
    if path.stat().st_size == 0:
        raise FormatError(f"{path}: an empty file; expected rows of {sides}")
    other = recognised(path) if stated.offset is None else None
    if other is not None:
        raise TypeError(
            f"{path}: {other.name}, not bare rows: leave out dtype= and shape=, or give offset=, the byte at "
            "which such rows begin"
        )
    return open_raw(path, stated.name, as_torch_dtype(stated.dtype), sides, offset)
