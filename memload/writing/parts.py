"""`memload.write_part` and `memload.seal`: a set that many writers make together, on any machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from memload.dataset.dataset import Dataset
from memload.dataset.opening import open as open_dataset
from memload.errors import ShardFormatError
from memload.formats.codecs.by_field import Codecs
from memload.formats.paths import is_remote
from memload.formats.shards.part_terms import CompletePart, PartNumber, Parts, part_in
from memload.formats.shards.parts import PartsFolder
from memload.formats.shards.row_fields import RowFields
from memload.formats.shards.sealing import seal_parts
from memload.formats.shards.staging import target_of
from memload.progress import note
from memload.sizes import counted, format_size, parse_size
from memload.writing.conversion import Conversion, Conversions, words_of
from memload.writing.copying import copy_row_source, copy_rows, row_source_of, rows_of
from memload.writing.part_set import PartSet
from memload.writing.ragged_row_source import RaggedRowSource
from memload.writing.row_sources import RowSource
from memload.writing.same_source import identity_of
from memload.writing.sampled_codecs import is_sampled
from memload.writing.writer import RowWriter


@dataclass(frozen=True)
class WrittenPart:
    """A complete part of a set.

    Attributes:
        part: which part, from 0.
        parts: how many there are; None if only sealing tells.
        rows: the number of its rows.
        shards: the number of its shards.
        nbytes: the bytes of its shards.
    """

    part: int
    parts: int | None
    rows: int
    shards: int
    nbytes: int

    def __str__(self) -> str:
        rows, shards = counted(self.rows, "row"), counted(self.shards, "shard")
        return f"{PartNumber(self.part, self.parts)}: {rows} in {shards} ({format_size(self.nbytes)})"


def write_part(
    path: str | Path,
    data: Dataset | Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    part: int,
    parts: int | None = None,
    rows: Any = None,
    mask: Any = None,
    scale: Any = None,
    cast: Any = None,
    shard_bytes: int | str = "512MB",
    codec: Codecs = None,
    resume: bool = True,
    progress: bool | None = None,
    ragged: Iterable[str] | Mapping[str, int] = (),
) -> WrittenPart:
    """Write one part of a set of shards, which `memload.seal` makes one dataset of once all parts are complete.

    Parts may be written in any order and at once, by any processes on machines that share a file system or a store. The
    rows of the set are those of part 0, then those of part 1, and so on. A part takes effect as a whole: one whose
    writer was killed is written again. What the killed writer left goes then, or in a store when the set is sealed.
    Writing a complete part again replaces it, and of two writers at once the last one that completes counts.

    Args:
        path: the directory of the set, or its address in a store such as "s3://bucket/shards" or a store object of
            obstore, the same for all parts. It does not open before it is sealed. Shards are uploaded while the next
            ones are written: plain ones of up to 32 MiB from memory, of which that takes at most 96 MiB, and others
            from TMPDIR, where at most two lie, or 64 MiB of them, and the files of one that is compressed.
        data: the rows of this part, in the forms of `memload.write`; there may be none.
        part: which part this is, from 0.
        parts: how many parts there are, the same number for all; None if only sealing will tell.
        rows: which rows of `data` to take, as in `memload.write`; of a whole dataset of n rows those of this part are
            `range(n * part // parts, n * (part + 1) // parts)`.
        mask: as in `memload.write`.
        scale: as in `memload.write`.
        cast: as in `memload.write`.
        shard_bytes: about how large a shard file may grow, in bytes or as "512MB".
        codec: as in `memload.write`, but not "auto", which may choose differently for each part.
        resume: leave a complete part as it is if it has the same rows and options, as far as its rows were in files
            and these are unchanged. With resume=False it is written again.
        progress: whether to show a bar, as in `memload.write`.
        ragged: of an iterable of rows, the fields whose rows may differ in length; as in `memload.ShardWriter`.

    Returns:
        The part that counts for the set, which is another writer's if the set was sealed with that one meanwhile;
        `print` it for one line about it.

    Raises:
        FileExistsError: the set is sealed, or something else is at `path`, such as the parts of a job of `ShardSink`.
        WriterBusyError: the set is being sealed.
        ValueError, TypeError: `data` is of another type, `part` is not one of `parts`, a conversion does not fit the
            fields, or the fields or the number of parts are not those of the parts that are complete.
        DiskSpaceError: the file system of `path` has not 1.2 times the bytes free, or is full in the end.
        ImportError: `path` is an address, and obstore is not installed.
        FileNotFoundError, PermissionError: there is no such bucket, or the store refuses this writer.
        ShardWriteError, ShardReadError: the store failed again and again. Whether the part is complete then is told by
            `seal`, or by writing it again.

    Example:
        >>> import memload, tempfile, torch
        >>> path, x = tempfile.mkdtemp() + "/shards", torch.arange(10)
        >>> for part in (1, 0):  # two processes, on any machines
        ...     print(memload.write_part(path, {"x": x[part * 5 : part * 5 + 5]}, part=part, parts=2))
        part 1 of 2: 5 rows in 1 shard (4.14 kB)
        part 0 of 2: 5 rows in 1 shard (4.14 kB)
        >>> memload.seal(path)[6]["x"]
        tensor(6)
    """
    conversions, fields = Conversions.of_data(data, mask, scale, cast), fields_of_parts(ragged, codec)
    job = _job(data, rows, PartNumber(part, parts), conversions, fields, shard_bytes)
    return job.run(parts_at(path), resume, progress)


def write_alone(
    path: Any,
    source: RowSource | RaggedRowSource | Iterator[Mapping[str, Any]],
    conversions: Conversions,
    fields: RowFields,
    shard_bytes: int | str,
    resume: bool,
    progress: bool | None,
) -> None:
    """Write a set as its only part, and seal it; raises as `write_part` and `seal`.

    Raises:
        FileExistsError: another writer completed a set of its rows there meanwhile.
    """
    folder, number = parts_at(path), PartNumber(0, 1)
    own = PartJob(number, source, conversions, fields, parse_size(shard_bytes)).complete(folder, resume, progress).own
    seal_parts(folder, None)
    if part_in(folder.index(), number).files != own.files:
        raise FileExistsError(
            f"{folder.target}: another writer completed a set there meanwhile, which stays; the rows of this call are "
            "removed: write them to another address"
        )


def parts_at(path: Any, job: str = "") -> Parts:
    """Return the parts of the set at a path, or at the address of a store; those of a job, or of no job.

    Raises:
        TypeError, ValueError: it is neither, or is where sets cannot be written.
        ImportError: obstore is not installed.
    """
    if not is_remote(path):
        return PartsFolder(target_of(path), job)
    from memload.formats.remote.addresses import Address
    from memload.formats.remote.store_parts import StoreParts

    address = Address(path)
    return StoreParts(address, job) if address.local is None else PartsFolder(target_of(address.local), job)


class Outcome(NamedTuple):
    """What became of a part: the one that counts for the set, and the one with the rows that were given."""

    counts: CompletePart
    own: CompletePart


@dataclass(frozen=True)
class PartJob:
    """What is to be written as one part.

    Args:
        number: which part.
        given: its rows.
        conversions: what is made of them.
        fields: the fields, before the first row.
        shard_bytes: the approximate limit of a shard.
        of: a text that identifies the rows of all parts together, if they are of one source: parts of different texts
            make no set.
    """

    number: PartNumber
    given: RowSource | RaggedRowSource | Iterator[Mapping[str, Any]]
    conversions: Conversions
    fields: RowFields
    shard_bytes: int
    of: str | None = None

    def run(self, folder: Parts, resume: bool, progress: bool | None) -> WrittenPart:
        """Write the part, unless it is complete with the same rows and options; otherwise as `write_part`."""
        return _written(self.complete(folder, resume, progress).counts)

    def complete(self, folder: Parts, resume: bool, progress: bool | None) -> Outcome:
        """Write the part as `run` does, and return also the part with its rows."""
        source = self._source
        options = self._words | ({} if self.of is None else {"source or rows": self.of})
        complete = self._complete(folder, source, options, progress) if resume and source is not None else None
        if complete is not None:
            note(f"{folder.target}: {self.number} is complete, of the same rows and options; left as it is", progress)
            return Outcome(complete, complete)
        into = PartSet(folder, self.number, self.fields, options, source, progress)
        with self._writer(into) as writer:
            if isinstance(self.given, Iterator):
                copy_rows(writer, self.given, self.conversions, progress, lambda chosen: into.state(words_of(chosen)))
            elif self.given.rows:
                copy_row_source(writer, self.given, self._chosen, progress)
        assert into.published is not None
        return Outcome(into.published, into.own)

    def _complete(
        self, folder: Parts, source: str, options: Mapping[str, str], progress: bool | None
    ) -> CompletePart | None:
        """Return the part if it is complete, of the same rows and options; a line says why one is written again."""

        def is_same(part: CompletePart) -> bool:
            if (part.source, part.options) == (source, options):
                return True
            differs = _differing({**part.options, "source": str(part.source)}, {**options, "source": source})
            note(f"{folder.target}: {self.number} is complete, but with another {differs}; writing it again", progress)
            return False

        try:
            return folder.complete(self.number, is_same)
        except ShardFormatError as error:
            note(f"{error}; writing {self.number} again", progress)
            return None

    def _writer(self, into: PartSet) -> RowWriter:
        rows = None if isinstance(self.given, Iterator) else self.given.rows
        nbytes = self.given.nbytes if isinstance(self.given, RaggedRowSource) else None
        return RowWriter(
            into.disk, self.fields, into, self.shard_bytes, rows, nbytes, into.most_on_disk(self.shard_bytes)
        )

    @property
    def _chosen(self) -> dict[str, Conversion]:
        """The conversions by field; none of an iterable, whose fields are not known yet."""
        return {} if isinstance(self.given, Iterator) else self.conversions.of(self.given.forms)

    @property
    def _words(self) -> dict[str, str]:
        """The conversions in words; none of an iterable, whose first row decides."""
        return {} if isinstance(self.given, Iterator) else words_of(self._chosen)

    @property
    def _source(self) -> str | None:
        identity = None if isinstance(self.given, Iterator) else self.given.identity()
        return None if identity is None else f"{identity}, {self.fields.codec_words}, {self.shard_bytes} bytes"


def seal(path: str | Path, *, parts: int | None = None) -> Dataset:
    """Make one set of the parts in a directory, and return it opened. Only indices are merged; no shard moves.

    May be called again: a sealed set is left as it is, and a sealing that was interrupted is ended. What killed or
    replaced writers left in the directory is removed.

    Args:
        path: the directory or the address that `write_part` wrote to.
        parts: how many parts there are; only needed if `write_part` was not told. It is compared with a set that is
            sealed already, too, unless that was sealed by an older memload, or extended since.

    Raises:
        FileNotFoundError: there are no parts at `path`.
        FileExistsError: the parts are those of a job of `ShardSink`, which seals them itself.
        ValueError: parts are missing, were written as other numbers of parts, or disagree in fields, dtypes, shapes or
            codecs; or no part has a row. Nothing is changed, and parts can be written on. Or a set of another number of
            parts is sealed there already.
        ShardFormatError: a shard, or the index of a part, is missing or damaged.
        PermissionError, ShardWriteError, ShardReadError: the store refuses it, or failed again and again.

    Example:
        >>> import memload, tempfile, torch
        >>> path = tempfile.mkdtemp() + "/shards"
        >>> _ = memload.write_part(path, {"x": torch.arange(3)}, part=0, parts=1)
        >>> len(memload.seal(path))
        3
    """
    folder = parts_at(path)
    if parts is not None:
        PartNumber(0, parts)
    seal_parts(folder, parts)
    return open_dataset(folder.target if isinstance(folder, PartsFolder) else path)


def write_share(
    path: str | Path,
    dataset: Dataset,
    number: PartNumber,
    *,
    mask: Any,
    scale: Any,
    cast: Any,
    shard_bytes: int | str,
    codec: Codecs,
    resume: bool,
    progress: bool | None,
) -> WrittenPart:
    """Write one part of a dataset, of consecutive rows: as many as any other part of it has, or one less.

    Parts of another dataset or selection of rows make no set with this one, as far as rows are in files.

    Args:
        path: as in `write_part`, like all further arguments.
        dataset: the rows of all parts.
        number: which part, of a known number of parts.
    """
    assert number.parts is not None
    rows = range(len(dataset) * number.part // number.parts, len(dataset) * (number.part + 1) // number.parts)
    conversions, fields = Conversions.of_data(dataset, mask, scale, cast), fields_of_parts((), codec)
    job = _job(dataset, rows, number, conversions, fields, shard_bytes)
    return replace(job, of=identity_of(dataset)).run(parts_at(path), resume, progress)


def fields_of_parts(ragged: Iterable[str] | Mapping[str, int], codec: Codecs) -> RowFields:
    """Return the fields of parts before their first row. Raises ValueError if a sample would decide a codec."""
    if is_sampled(codec):
        raise ValueError('codec="auto" may choose differently for each part; choose one for all, such as "zstd"')
    return RowFields(ragged, codec)


def _job(
    data: Any, rows: Any, number: PartNumber, conversions: Conversions, fields: RowFields, shard_bytes: int | str
) -> PartJob:
    source = row_source_of(data, rows)
    return PartJob(number, rows_of(data) if source is None else source, conversions, fields, parse_size(shard_bytes))


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    return ", ".join(sorted(name for name in {*one, *other} if one.get(name) != other.get(name)))


def _written(part: CompletePart) -> WrittenPart:
    index = part.index
    return WrittenPart(part.number.part, part.number.parts, index.rows, len(index.shards), part.nbytes)
