"""memload.open, memload.from_arrays and memload.from_hf: datasets over files and arrays, whose rows are not copied."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memload.columns.fields import Field, check_same_fields
from memload.dataset.dataset import JOINED_UNLIKE, Dataset
from memload.dtypes import as_torch_dtype
from memload.engine.tiers.placing import as_tier, check_option_names
from memload.engine.tiers.tier import Tier
from memload.errors import FormatError
from memload.formats.formats import Stated, is_directory, open_fields, recognised
from memload.formats.hugging_face import fields_of, is_hugging_face
from memload.formats.key_fields import key_options, with_keys
from memload.formats.keyed_paths import places_of
from memload.formats.members import Key
from memload.formats.members import Key as Picked
from memload.formats.paths import PathLike, entries_of, is_remote
from memload.formats.shards.index import INDEX_NAME, RECORDING_NAME

_SUITED = {  # all other options suit "ram"
    "device_bytes": "split",
    "device": "device",
    "cache_bytes": "hybrid",
    "on_pressure": "hybrid",
}


def open(  # noqa: A001 - users call it memload.open
    path: PathLike | Sequence[PathLike],
    *,
    field: str | None = None,
    key: Key = None,
    trust: bool | None = None,
    dtype: Any = None,
    shape: Sequence[int] | int | None = None,
    offset: int | None = None,
    row_field: str | None = None,
    file_field: str | None = None,
    max_open_files: int | None = None,
    cache: PathLike | None = None,
    cache_bytes: int | str | None = None,
    tier: Tier | str = Tier.MMAP,
    **tier_options: Any,
) -> Dataset:
    """Return the dataset at `path`; it checks headers, and maps rows without reading them. See docs/sources.md.

    Args:
        path: a directory of shards, a .npy or .npz file, a .safetensors file, a file of torch.save, an HDF5 file, a
            Zarr array or group, a NIfTI file, an Arrow file, a directory of Hugging Face's `save_to_disk`, or, with
            `dtype` and `shape`, a file of bare rows. Several paths in a list, or all files that match a pattern such as
            "betas_session*.hdf5", form one dataset, the rows of one file after those of another; numbers in matching
            names are sorted as numbers. A pattern with names in braces, such as "betas_session{session:d}.hdf5", adds a
            field of that name, whose value is that part of the file's name: {session:d} is a whole number (int64),
            {subject} a text without a slash. The address of a set of shards, or of a Zarr array or group, in a store,
            such as "s3://bucket/shards", "gs://...", "az://...", "https://..." or "file://...", or a store object of
            obstore's, opens a dataset whose rows are fetched when they are read, and ahead of a loop; see
            docs/remote.md. Recordings are opened by `memload.open_recording`.
        field: the name for the one field of a .npy file or of bare rows; default "data", whatever the file is called.
            With a `key` of one array, the name of that field. `Dataset.rename` changes names later.
        key: the arrays of a file that become fields: a name such as "stim" or "train/stim", a list of names, or a
            mapping from names of fields to names of arrays. Default: all; they must have the same number of rows.
        trust: for a file of torch.save: unpickle any class, which runs any code that the file names. Set it only for
            files whose writer you trust.
        dtype: for a file of bare rows: a torch or numpy dtype, or a name such as "bfloat16".
        shape: for a file of bare rows: the shape of one row, such as (425, 425, 3), or 100, or () for a single number.
        offset: for a file of bare rows: the number of bytes before the first row; default 0.
        row_field: a name for one more field: the number of each row within its file, counted from 0 (int64). Together
            with the keys of a pattern it identifies a row after any reordering; `memload.join` can pair rows by it.
        file_field: a name for one more field: the path of the file that each row is in, a text.
        max_open_files: how many of the dataset's files may be open at once while rows are read past the page cache;
            the most recently read files stay open. Mapped files have no descriptor. Default: half of the descriptors
            that the process may have, at most 256, for all datasets together.
        cache: of a set in a store: a folder of this machine's disk that keeps what was fetched, for all processes and
            for later runs. Without it, blocks are kept in RAM.
        cache_bytes: how much that folder may hold, for all sets in it, such as "500GB"; default: half of what is free
            on its disk. Without a folder, how much RAM blocks may take; default 1 GiB. For files it is the option of
            tier="hybrid", as in `Dataset.with_tier`.
        tier: the tier that keeps the rows: "mmap", "direct", "ram", "hybrid", "auto", "device", "pinned" or "split";
            see docs/tiers.md.
        tier_options: further arguments of `Dataset.with_tier`, such as ram_dtype=.

    Raises:
        FileNotFoundError, PermissionError: the path is missing or cannot be read.
        FormatError: the file is empty, truncated, malformed or of no known format, or its rows cannot be read in place.
        ShardFormatError: a directory of shards or a safetensors header is malformed; a subclass of FormatError.
        KeyError: `key` names an array that does not exist.
        ValueError: arrays differ in their number of rows; files differ in fields, dtypes or shapes; a pattern matches a
            name in two ways; or two fields would have one name.
        ImportError: the package that reads the format is not installed; the message says how to install it.
        MemorySpaceError: the rows do not fit into the memory of the tier.
        TypeError: an argument does not apply to this format (a .npy file states its own dtype), or to this tier.

    Example:
        >>> import memload, numpy, tempfile
        >>> path = tempfile.mkdtemp() + "/movie.npy"
        >>> numpy.save(path, numpy.arange(12.0).reshape(4, 3))
        >>> memload.open(path, field="stim")[3]["stim"]
        tensor([ 9., 10., 11.], dtype=torch.float64)
        >>> list(memload.open(path).fields), list(memload.open(path).rename({"data": "stim"}).fields)
        (['data'], ['stim'])
        >>> keyed = memload.open(path.replace("movie", "{recording}"), field="stim", row_field="frame")
        >>> keyed[3]["recording"], keyed[3]["frame"]
        ('movie', tensor(3))
    """
    check_option_names(tier_options, "memload.open")
    if any(map(is_remote, [path] if not isinstance(path, list | tuple) else path)):
        stated = Stated(field, key, trust, dtype, shape, offset)
        _refuse_for_remote(stated, row_field, file_field, max_open_files, tier)
        return _open_remote(path, stated, cache, cache_bytes, as_tier(tier), tier_options)
    if cache is not None:
        raise TypeError("cache= is for a set in a store, such as s3://bucket/shards; files are mapped where they lie")
    if cache_bytes is not None:
        tier_options["cache_bytes"] = cache_bytes
    if as_tier(tier) is Tier.MMAP and tier_options:
        example = next((suited for name, suited in _SUITED.items() if name in tier_options), "ram")
        raise TypeError(f'{", ".join(tier_options)}: for another tier; give tier= as well, as in tier="{example}"')
    stated = Stated(field, key, trust, dtype, shape, offset)
    if isinstance(path, str | os.PathLike) and (Path(path) / RECORDING_NAME).is_file():
        raise FormatError(
            f"{path}: a recording, whose fields have clocks and differ in rows, and no dataset: open it by "
            f"memload.open_recording({str(path)!r})"
        )
    open_one = open_fields if dtype is None and shape is None else _open_stated
    given = entries_of(path)
    found = places_of(given)
    places = [place.path for place in found]
    parts = with_keys([open_one(place, stated) for place in places], found, row_field, file_field)
    dataset = one_after_the_other(places, [Dataset(part) for part in parts])
    if max_open_files is not None:
        from memload.formats.open_files import bounded

        dataset = replace(dataset, fields=bounded(dataset.fields, max_open_files))
    if not all((place / INDEX_NAME).exists() for place in places):  # the writer of shards chose their blocks
        from memload.formats.costs import warn_of_unfit

        warn_of_unfit(dataset.fields, places, key, key_options(given, row_field, file_field), stacklevel=2)
    return dataset if as_tier(tier) is Tier.MMAP else dataset.with_tier(tier, **tier_options)


def _refuse_for_remote(
    stated: Stated, row_field: str | None, file_field: str | None, max_open_files: int | None, tier: Tier | str
) -> None:
    given = {
        **vars(stated),
        "key": None,
        "field": None,
        "row_field": row_field,
        "file_field": file_field,
        "max_open_files": max_open_files,
    }
    named = [f"{name}=" for name, value in given.items() if value is not None]
    if named:
        raise TypeError(f"{', '.join(named)}: not for what lies in a store, which states its fields itself")
    if as_tier(tier) not in (Tier.MMAP, Tier.RAM):
        raise ValueError(f'tier="{tier}": rows of a store are kept by cache=, or loaded by tier="ram"')


def _open_remote(
    path: Any,
    stated: Stated,
    cache: PathLike | None,
    cache_bytes: int | str | None,
    tier: Tier,
    tier_options: dict[str, Any],
) -> Dataset:
    from memload.formats.remote.opening import opened_remote

    given = list(path) if isinstance(path, list | tuple) else [path]
    if local := [one for one in given if not is_remote(one)]:
        raise TypeError(f"{local[0]}: a path beside addresses of stores; open each by itself, and join them by concat")
    places = [Path(str(one)) for one in given]
    dataset = one_after_the_other(places, [Dataset(opened_remote(one, stated, cache, cache_bytes)) for one in given])
    return dataset if tier is Tier.MMAP else dataset.with_tier(tier, **tier_options)


def one_after_the_other(places: Sequence[PathLike], parts: Sequence[Dataset]) -> Dataset:
    """Return the rows of all parts as one dataset.

    Raises:
        ValueError: their fields differ; the message lists the places.
    """
    first, *others = parts
    remedy = _OPENED_ALONE
    try:
        for number, other in enumerate(others, start=1):
            check_same_fields(first.fields, other.fields, number)
        remedy = ""
        return first.concat(*others) if others else first
    except ValueError as error:
        listed = ", ".join(f"{number}: {place}" for number, place in enumerate(places[:_MOST_LISTED]))
        if any(one.meant for part in parts for one in part.fields.values()):
            remedy = _STATED_SCALES
        raise ValueError(f"these are no one dataset: {error} ({listed}){remedy}") from None


_MOST_LISTED = 100
_OPENED_ALONE = f"; open them one by one: {JOINED_UNLIKE}"
_STATED_SCALES = '; where the files state different scales, write one after the other with cast="float32", append=True'


def from_arrays(arrays: Mapping[str, Any] | None = None, /, **fields: Any) -> Dataset:
    """Return a dataset over arrays in memory, without copying them.

    Rows that are read later show changes of the arrays. The dataset keeps the arrays alive; they must not move in
    memory: once `tensor.share_memory_()` or `tensor.set_()` has moved a tensor, reading raises RuntimeError.
    A memmap is read as the file that it maps: worker processes map it again, and a truncated file raises an error.

    Args:
        arrays: a mapping from names to fields, for names that are not valid keywords; they precede `fields`.
        fields: numpy arrays, memmaps and CPU tensors (rows, *shape) of equal length. Each row must be contiguous; there
            may be gaps between rows, as in every second row or one channel block of a larger array.

    Raises:
        TypeError: a field is not an array, torch has no dtype like its dtype, or it comes without a name.
        ValueError: lengths differ, there is no field, or a row is not contiguous.

    Example:
        >>> import memload, numpy, torch
        >>> ds = memload.from_arrays(stim=numpy.zeros((100, 8, 8), numpy.uint8), robs=torch.rand(100, 5))
        >>> ds[7]["robs"].shape
        torch.Size([5])
    """
    named = {} if arrays is None else arrays
    if not isinstance(named, Mapping):
        frame = hasattr(named, "columns") and hasattr(named, "to_numpy")  # a pandas DataFrame
        columns = "from_arrays({name: table[name].to_numpy() for name in table}), and texts as table[name].tolist()"
        remedy = f"; of a table: {columns}" if frame else ""
        given = type(arrays).__name__
        raise TypeError(f"each array needs a name: from_arrays(stim=..., robs=...), got one {given}{remedy}")
    twice = named.keys() & fields.keys()
    if twice:
        raise TypeError(f"both the mapping and the keywords bring {sorted(twice)}")
    from memload.formats.ragged_arrays import field_of

    return Dataset({name: field_of(name, array) for name, array in {**named, **fields}.items()})


def _count(given: Any) -> int:
    count = operator.index(given)  # also accepts numpy's integers
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
        raise ValueError(f"{path}: shape= and offset= must be counts, got {counts}") from None
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
    from memload.formats.raw import open_raw

    return open_raw(path, stated.name, as_torch_dtype(stated.dtype), sides, offset)


def from_hf(dataset: Any, key: Picked = None) -> Dataset:
    """Return the columns of a Hugging Face dataset as a memload dataset that reads their Arrow buffers in place.

    Values keep their stored dtypes: pixels stay uint8, while `with_format("torch")` makes them int64.

    Args:
        dataset: a `datasets.Dataset`, from memory or files. The rows that `select`, `shuffle` and `train_test_split`
            chose stay chosen; its format is ignored.
        key: the name of one column, or several names; all columns if not given.

    Raises:
        FormatError: rows of a column are not runs of bytes, as with texts, images, bools and lists of different
            lengths; the message names all such columns.
        KeyError: there is no such column.
        TypeError: `dataset` is not a `datasets.Dataset`.

    Example:
        >>> import datasets, memload
        >>> hf = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "text": ["a", "b"]})
        >>> memload.from_hf(hf.select([1, 0]), key="x")[0]["x"]
        tensor([3., 4.], dtype=torch.float64)
    """
    if not is_hugging_face(dataset):
        raise TypeError(
            f"expected a datasets.Dataset, such as one split of a DatasetDict; got {type(dataset).__name__}"
        )
    return Dataset(fields_of(dataset, key))
