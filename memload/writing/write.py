"""`memload.write` writes rows of any source as a directory of shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, overload

from memload.dataset.dataset import Dataset
from memload.dataset.groups import GroupedDataset
from memload.dataset.opening import open as open_dataset
from memload.dataset.recordings.opening import open_recording
from memload.dataset.recordings.recording import Recording
from memload.formats.codecs.by_field import Codecs
from memload.formats.codecs.by_field import words_of as words_of_codecs
from memload.formats.paths import is_remote
from memload.formats.shards.row_fields import RowFields
from memload.progress import Bar
from memload.writing.conversion import Conversions, words_of
from memload.writing.copying import copy_row_source, copy_rows, row_source_of, rows_of
from memload.writing.parts import write_alone
from memload.writing.ragged_row_source import RaggedRowSource
from memload.writing.recordings import write_recording
from memload.writing.row_sources import RowSource
from memload.writing.sampled_codecs import codecs_by_sample, is_sampled
from memload.writing.writer import ShardWriter


@overload
def write(
    path: str | Path,
    data: Recording,
    *,
    shard_bytes: int | str = ...,
    codec: Codecs = ...,
    resume: bool = ...,
    progress: bool | None = ...,
) -> Recording: ...


@overload
def write(
    path: str | Path,
    data: Dataset | Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    rows: Any = ...,
    mask: Any = ...,
    scale: Any = ...,
    cast: Any = ...,
    shard_bytes: int | str = ...,
    append: bool = ...,
    codec: Codecs = ...,
    resume: bool = ...,
    progress: bool | None = ...,
    ragged: Iterable[str] | Mapping[str, int] = ...,
) -> Dataset: ...


def write(
    path: str | Path,
    data: Recording | Dataset | Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    rows: Any = None,
    mask: Any = None,
    scale: Any = None,
    cast: Any = None,
    shard_bytes: int | str = "512MB",
    append: bool = False,
    codec: Codecs = None,
    resume: bool = True,
    progress: bool | None = None,
    ragged: Iterable[str] | Mapping[str, int] = (),
) -> Recording | Dataset:
    """Write a directory of shards and return it opened; an interrupted write leaves nothing that opens.

    Rows are selected, masked, scaled and cast in this order. Memory in use stays below 128 MiB, or below eight rows
    where one has more than 16 MiB. Sources whose chunks hold one element of many rows take 256 MiB more, and a
    temporary file beside the set. Writing to a store takes 96 MiB more.

    Args:
        path: the directory to create; or the address of a store, such as "s3://bucket/shards", where the set is written
            as its only part, see `memload.write_part`.
        data: a dataset; or arrays or tensors (rows, *shape) of equal length by name; or an iterable of rows, each a
            mapping from names to tensors, arrays, numbers or texts. Python's floats are float64, or what the rows
            before them are. Arrays of rows that differ in length are `memload.ragged`; texts are a list of str. Of a
            `memload.Recording`, a folder is made with a set for each field and the clocks, spikes and intervals beside
            them; see docs/recordings.md.
        rows: which rows to take, in which order: integers, or one bool per row, as `Dataset.select` takes them.
        mask: a bool array of the shape of a row, or of a row's first axes, or a .npy file of it. Elements where it is
            true are kept, in C order, as one axis. It applies to every field whose rows begin with its shape; a dict
            gives each field a mask of its own. Of a NIfTI file, the voxels of rows (z, y, x) are kept in the order of
            ``volume[mask]`` in nibabel.
        scale: a number by which to multiply a dataset's only field (keys and labels, which are single integers or
            texts, do not count), or a dict of numbers by field. The result is float32, or float64 where the field or
            its cast is.
        cast: a dtype, or its name, or a `memload.Cast`, for all fields that are floating or scaled; or a dict of these
            by field. Integers, including uint8 pixels, are cast only where a dict names them: a plain dtype keeps their
            values (0 to 255), and `Cast(dtype, norm_removed=True)` stores (x - 127) / 255.
        shard_bytes: about how large a shard file may grow, in bytes or as "512MB".
        append: add shards to the set if it exists; fields must match.
        codec: how to compress: a `Codec`, or its text such as "zstd" or "lz4:9", for all fields whose rows have at
            least 256 bytes or differ in length; or a dict of these by field, for those it names. "auto", for all or by
            field, chooses the one with which a sample of the rows arrives soonest from a disk, and says why. None: no
            compression, which loads fastest from memory. See docs/compression.md for what it gains and costs.
        resume: continue an interrupted call with the same rows and options, if all its rows were in files and these are
            unchanged. Complete shards are verified first. With resume=False, or after another call, it starts over.
        progress: whether to show a bar once it takes longer than a second; None shows it on a terminal. False also
            silences the line that says whether an interrupted call was resumed.
        ragged: of an iterable of rows, the fields whose rows may differ in length; as in `memload.ShardWriter`.

    Raises:
        FileExistsError: `path` exists and is no empty folder, and `append` is not set; or another writer completed a
            set at this address of a store meanwhile, which stays.
        ValueError, TypeError: `data` is of another type, there is no row, fields do not fit together, or a conversion
            does not fit the fields; or a column of a recording's intervals has None, or numbers beside texts.
        IndexError: a row number is out of range.
        DiskSpaceError: the file system of `path` has not 1.2 times the bytes free, or is full in the end.
        WriterBusyError: another writer is at work on `path`.
        ImportError: `path` is an address, and obstore is not installed.
        FileNotFoundError, PermissionError: there is no such bucket, or the store refuses this writer.
        ShardWriteError, ShardReadError: the store failed again and again.

    Example:
        >>> import memload, tempfile, torch
        >>> path = tempfile.mkdtemp() + "/shards"
        >>> ds = memload.write(path, {"stim": torch.zeros(10, 3, dtype=torch.uint8), "robs": torch.rand(10)})
        >>> len(ds), list(ds.fields)
        (10, ['stim', 'robs'])
        >>> betas = torch.tensor([[300, -7, 150], [600, 9, 0]], dtype=torch.int16)
        >>> roi = torch.tensor([True, False, True])
        >>> memload.write(path + "-roi", {"betas": betas}, mask=roi, scale=1 / 300, cast="bfloat16")[0]["betas"]
        tensor([1.0000, 0.5000], dtype=torch.bfloat16)
    """
    if isinstance(data, Recording):
        _refuse_for_recording(
            rows=rows, mask=mask, scale=scale, cast=cast, append=append or None, ragged=ragged or None
        )
        write_set = partial(write, shard_bytes=shard_bytes, resume=resume, progress=progress)
        return open_recording(write_recording(path, data, write_set, codec, resume, progress))
    options: dict[str, Any] = {"shard_bytes": shard_bytes, "resume": resume, "progress": progress, "ragged": ragged}
    conversions = Conversions.of_data(data, mask, scale, cast)
    row_source = row_source_of(data, rows)
    if row_source is None:
        if is_sampled(codec):
            raise TypeError('codec="auto" needs a dataset or arrays to sample; an iterable of rows has no sample')
        if is_remote(path):
            return _write_to_store(path, rows_of(data), conversions, append, codec, **options)
        iterator = rows_of(data)
        with (
            _naming_members(data, path),
            ShardWriter(path, shard_bytes=shard_bytes, append=append, codec=codec, ragged=ragged) as writer,
        ):
            copy_rows(writer, iterator, conversions, progress)
        return open_dataset(path)
    if row_source.rows == 0:
        raise ValueError(f"{path}: the data has 0 rows; a set needs at least one")
    if is_remote(path):
        if is_sampled(codec):
            codec = codecs_by_sample(codec, row_source, conversions.of(row_source.forms), progress)
        return _write_to_store(path, row_source, conversions, append, codec, **options)
    write_rows(path, row_source, conversions, shard_bytes, codec, resume, progress, append=append)
    return open_dataset(path)


@contextlib.contextmanager
def _naming_members(data: Any, path: Any) -> Iterator[None]:
    """Have errors of rows that are no one set say what to do, if they are of several datasets."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not isinstance(data, GroupedDataset) or type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(
            f"{error}. The rows are of the datasets {', '.join(map(repr, data.names))}, which differ: write each of "
            f"ds.members by itself, as in memload.write({f'{path}-{data.names[0]}'!r}, ds.members[{data.names[0]!r}]), "
            "and join what they return by memload.concat({name: dataset, ...})"
        ) from None


def write_rows(
    path: str | Path,
    row_source: RowSource | RaggedRowSource,
    conversions: Conversions,
    shard_bytes: int | str,
    codec: Codecs,
    resume: bool,
    progress: bool | None,
    *,
    append: bool = False,
    shared: Bar | None = None,
) -> None:
    """Write at least one row, of a known number, as a set of shards; the arguments are those of `write`.

    Args:
        shared: a bar for several sets at once, which counts the bytes of this one, too.
    """
    chosen = conversions.of(row_source.forms)
    identity = row_source.identity() if resume else None
    plan = None if identity is None else {"source": identity, **words_of(chosen)}
    if is_sampled(codec) and plan is not None:
        plan["codec"] = words_of_codecs(codec)
    with ShardWriter(
        path,
        shard_bytes=shard_bytes,
        append=append,
        rows=row_source.rows,
        codec=None if is_sampled(codec) else codec,
        resume=plan,
        progress=progress,
        nbytes=row_source.nbytes if isinstance(row_source, RaggedRowSource) else None,
    ) as writer:
        if is_sampled(codec) and not writer.has_fields:
            writer.compress(codecs_by_sample(codec, row_source, chosen, progress))
        copy_row_source(writer, row_source, chosen, progress, shared)


def _write_to_store(
    path: Any,
    source: RowSource | RaggedRowSource | Iterator[Mapping[str, Any]],
    conversions: Conversions,
    append: bool,
    codec: Codecs,
    *,
    shard_bytes: int | str,
    resume: bool,
    progress: bool | None,
    ragged: Iterable[str] | Mapping[str, int],
) -> Dataset:
    """Write a set to the address of a store, or of a folder of this machine, as its only part; otherwise as `write`."""
    if append:
        raise ValueError(
            f"{path}: append=True: what is at an address is complete once it is there; write another set, or give the "
            "path of a folder of this machine in place of its address"
        )
    write_alone(path, source, conversions, RowFields(ragged, codec), shard_bytes, resume, progress)
    return open_dataset(path)


def _refuse_for_recording(**options: Any) -> None:
    given = [f"{name}=" for name, value in options.items() if value is not None]
    if given:
        raise TypeError(
            f"{', '.join(given)}: not for a recording, whose fields differ in rows; write a field by itself"
        )
