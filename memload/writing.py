"""memload.write: whatever holds rows, as a directory of shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memload.dataset import Dataset
from memload.fields import Field, check_equal_lengths
from memload.opening import open as open_dataset
from memload.progress import Bar, byte_bar
from memload.ragged_fields import RaggedField
from memload.ragged_writing import AnyRows, blocks_of, is_ragged_data
from memload.rows import Rows, as_rows
from memload.shard_writer import ShardWriter
from memload.sources.ragged_arrays import field_of

_BLOCK_BYTES = 2**24  # gathered at once


def write(
    path: str | Path,
    data: Dataset | Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    shard_bytes: int | str = "512MB",
    append: bool = False,
    progress: bool | None = None,
    ragged: Iterable[str] | Mapping[str, int] = (),
) -> Dataset:
    """Write a directory of shards and return it opened; what is interrupted leaves nothing that opens.

    Args:
        path: the directory to make.
        data: a dataset; or arrays or tensors (rows, *shape) of equal length by name; or an iterable of rows, each a
            mapping from names to tensors, arrays, numbers or texts. Arrays of rows that differ in length are
            `memload.ragged`; texts are a list of str.
        shard_bytes: about how large a shard file may grow, in bytes or as "512MB".
        append: add shards to the set if it exists; fields must match.
        progress: whether to show a bar once it takes longer than a second; None shows it on a terminal.
        ragged: of an iterable of rows, the fields whose rows may differ in length; as in `memload.ShardWriter`.

    Raises:
        FileExistsError: `path` exists, and `append` is not set.
        ValueError, TypeError: `data` is none of these, there is no row, or fields do not fit together.
        DiskSpaceError: the file system of `path` has not 1.2 times the bytes free, or is full in the end.
        WriterBusyError: another writer is at work on `path`.

    Example:
        >>> import memload, tempfile, torch
        >>> path = tempfile.mkdtemp() + "/shards"
        >>> ds = memload.write(path, {"stim": torch.zeros(10, 3, dtype=torch.uint8), "robs": torch.rand(10)})
        >>> len(ds), list(ds.fields)
        (10, ['stim', 'robs'])
    """
    if isinstance(data, Mapping) and any(map(is_ragged_data, data.values())):
        data = Dataset({name: field_of(name, values) for name, values in data.items()})
    if isinstance(data, Dataset):
        total, blocks = len(data), _dataset_blocks(data)
        nbytes: int | None = data.nbytes
    elif isinstance(data, Mapping):
        total, nbytes, blocks = _mapping_blocks(data)
    else:
        rows = _iterator(data)
        with (
            ShardWriter(path, shard_bytes=shard_bytes, append=append, ragged=ragged) as writer,
            byte_bar("write", None, progress) as bar,
        ):
            _write_rows(writer, rows, bar)
        return open_dataset(path)
    if total == 0:
        raise ValueError(f"{path}: the data has 0 rows, so there is nothing to make a set of")
    with (
        ShardWriter(path, shard_bytes=shard_bytes, append=append, rows=total, nbytes=_items_bytes(data)) as writer,
        byte_bar("write", nbytes, progress) as bar,
    ):
        for block in blocks:
            writer.extend_rows(block)
            bar.update(sum(rows.nbytes for rows in block.values()))
    return open_dataset(path)


def _items_bytes(data: Any) -> int | None:
    """Bytes of the fields whose rows differ in length, if there are any."""
    fields = data.fields.values() if isinstance(data, Dataset) else ()
    return sum(field.nbytes for field in fields if isinstance(field, RaggedField)) or None


def _dataset_blocks(dataset: Dataset) -> Iterator[Mapping[str, AnyRows]]:
    if any(isinstance(field, RaggedField) for field in dataset.fields.values()):
        yield from blocks_of(dataset.fields, _BLOCK_BYTES)
        return
    step = _block_rows(dataset.nbytes, len(dataset))
    buffers = {name: np.empty((step, field.row_bytes), dtype=np.uint8) for name, field in dataset.fields.items()}
    for start in range(0, len(dataset), step):
        numbers = np.arange(start, min(start + step, len(dataset)))
        yield {name: _gather(field, numbers, buffers[name]) for name, field in dataset.fields.items()}


def _gather(field: Field, numbers: np.ndarray[Any, np.dtype[np.int64]], buffer: np.ndarray[Any, Any]) -> Rows:
    field.check_in_place()
    block = buffer[: len(numbers)]
    if block.nbytes:
        field.column.gather(numbers, block.ctypes.data, block.nbytes)
    return Rows(field.dtype, field.shape, block)


def _mapping_blocks(arrays: Mapping[str, Any]) -> tuple[int, int, Iterator[Mapping[str, AnyRows]]]:
    if not arrays:
        raise ValueError("no fields: expected arrays or tensors by name")
    arrays = {name: value if hasattr(value, "shape") else np.asarray(value) for name, value in arrays.items()}
    for name, array in arrays.items():
        if not array.shape:
            raise ValueError(f"field {name!r}: a single number; expected an array whose first axis counts the rows")
    check_equal_lengths({name: array.shape[0] for name, array in arrays.items()}, "the fields")
    total = next(iter(arrays.values())).shape[0]
    nbytes = sum(as_rows(name, array[:1]).data.nbytes * total for name, array in arrays.items())

    def blocks() -> Iterator[Mapping[str, AnyRows]]:
        step = _block_rows(nbytes, total)
        for start in range(0, total, step):
            yield {name: as_rows(name, array[start : start + step]) for name, array in arrays.items()}

    return total, nbytes, blocks()


def _iterator(data: Any) -> Iterator[Any]:
    try:
        return iter(data)
    except TypeError:
        raise TypeError(
            f"data is of type {type(data).__name__}; expected a dataset, arrays by name, or an iterable of rows"
        ) from None


def _write_rows(writer: ShardWriter, rows: Iterable[Mapping[str, Any]], bar: Bar) -> None:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"row {number} is a {type(row).__name__}; expected a mapping from field names to values")
        encoded = writer.encoded(row)
        writer.append_rows(encoded)
        bar.update(sum(value.nbytes for value in encoded.values()))


def _block_rows(nbytes: int, rows: int) -> int:
    """Return how many rows make a block of about 16 MiB; at least one."""
    return max(1, min(rows, _BLOCK_BYTES * rows // max(1, nbytes)))
