"""`memload.write_nifti`: runs of NIfTI files, decoded once, as recordings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from memload.casts.rule import Cast, as_cast, exact_text
from memload.columns.fields import row_nbytes
from memload.dataset.recordings.recording import Recording
from memload.dtypes import DTypeLike
from memload.errors import FormatError
from memload.formats.codecs.by_field import Codecs, check_known, words_of
from memload.formats.nifti import decoded_volumes, is_nifti
from memload.formats.paths import PathLike, nothing_at, paths_of
from memload.formats.recordings.bids import check_fetched, runs_in
from memload.formats.recordings.folder import described
from memload.formats.recordings.found import Found
from memload.formats.recordings.nifti import Run, run_of
from memload.formats.shards.rows import Rows
from memload.writing.conversion import Conversion, Conversions, Form
from memload.writing.decoding import Options, Task, stamp_of, write_decoded
from memload.writing.recordings import SetOf, codec_of, write_folder
from memload.writing.row_sources import in_parts
from memload.writing.transposing import Transposer
from memload.writing.voxel_masks import Mask, Masks, inside, masks_of
from memload.writing.write import write_rows

_BLOCK_BYTES = 2**24  # of volumes that are decoded at once


def write_nifti(
    path: str | Path,
    sources: PathLike | Sequence[PathLike],
    *,
    mask: Masks = None,
    cast: DTypeLike | None = None,
    tr: float | None = None,
    raw: PathLike | None = None,
    suffix: str = "bold",
    threads: int | None = None,
    shard_bytes: int | str = "512MB",
    codec: Codecs = None,
    resume: bool = True,
    progress: bool | None = None,
) -> dict[str, Recording]:
    """Decode runs of NIfTI files once, several at a time, write them as recordings, and return these by name.

    Of one file, `path` becomes the folder of its recording; of several, or of a folder of BIDS, it gets a folder for
    each, named by its file. Fields, clocks and events are those of `memload.open_nifti`. Files may be compressed, and
    in any byte order. An interrupted call is continued by the same call. It needs memory for two blocks of 16 MiB of
    each thread, or two volumes where these are larger.

    Args:
        path: the folder to make.
        sources: .nii and .nii.gz files, patterns of these, and folders of BIDS.
        mask: a NIfTI file with the grid of the runs, of zeros and ones. Rows are then the voxels where it is one,
            (voxels,), in the order of ``volume[mask]`` in nibabel and nilearn; without it, they are volumes (z, y, x).
            A pattern, such as "*_desc-brain_mask.nii.gz", gives each run a mask of its own: of the files that match in
            the run's folder and those above it (or wherever a pattern with a slash leads), the one whose entities of
            BIDS the run's name has, too, desc and label aside. A mapping names the file of each run.
        cast: a dtype: stores the values that the header means, in that dtype, such as "float32" or "bfloat16". None
            stores those of the file, and `Recording.casts` has their scale.
        tr: as in `memload.open_nifti`, for all runs.
        raw: as in `memload.open_bids`.
        suffix: of the runs in folders of BIDS.
        threads: how many files are decoded at a time; None: one for each core.
        shard_bytes, codec, resume, progress: as in `memload.write`.

    Raises:
        FileNotFoundError: there is no such file, or a run is a link to one that datalad has not fetched.
        FormatError: as `memload.open_nifti`, but for what is decoded here; or a compressed file is damaged.
        ValueError: a mask has another grid than its run, or other values than zeros and ones; a run has no mask, or
            several; or two runs have one name.
        FileExistsError, DiskSpaceError, WriterBusyError: as in `memload.write`.

    Example:
        >>> import memload
        >>> runs = memload.write_nifti("runs/", "ds000114/", mask="gray_matter.nii.gz")  # doctest: +SKIP
        >>> one = runs["sub-01_ses-test_task-fingerfootlips_bold"]  # doctest: +SKIP
        >>> one.fields["bold"].shape  # doctest: +SKIP
        (41205,)
    """
    places = paths_of(sources)
    if any(place.is_dir() and place.resolve() == Path(path).resolve() for place in places):
        raise ValueError(f"{path}: the data set that is read; write to another folder")
    files = [one for place in places for one in _runs_at(place, suffix)]
    masks = masks_of(mask, files)
    dtype = None if cast is None else as_cast(cast)
    if dtype is not None and dtype != Cast(dtype.dtype):
        raise ValueError(f"cast= is a dtype, since the header states scale and offset; got {cast}")
    beside = None if raw is None else Path(raw)
    runs = [NiftiFile(run_of(file, tr, beside), one, dtype) for file, one in zip(files, masks, strict=True)]
    together = len(runs) != 1 or places[0].is_dir()
    options = Options(shard_bytes, codec, resume, progress)
    return write_decoded(path, runs, options, together=together, threads=threads, unit="B")


def _runs_at(place: Path, suffix: str) -> list[Path]:
    if not place.exists():
        raise FileNotFoundError(f"{place}: {nothing_at(place)}")
    if not place.is_dir():
        if not is_nifti(place):
            raise FormatError(f"{place}: no .nii or .nii.gz file")
        return [place]
    if not (found := runs_in(place, suffix)):
        raise FormatError(f"{place}: no runs of BIDS: expected sub-*/[ses-*/]func/*_{suffix}.nii or .nii.gz")
    check_fetched(place, found)
    return found


@dataclass(frozen=True)
class NiftiFile:
    """A run that is decoded into the folder of a recording."""

    run: Run
    mask: Mask | None
    cast: Cast | None
    conversion: Conversion = field(init=False)

    def __post_init__(self) -> None:
        scale = self.run.header.scale
        cast = (
            self.cast if self.cast is None or scale is None else Cast(self.cast.dtype, scale=scale[0], offset=scale[1])
        )
        object.__setattr__(self, "conversion", Conversion(cast=cast))
        if self.mask is not None:
            self.mask.check(self.run.path, self.run.header)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.run.path

    @property
    def name(self) -> str:
        """The name of the recording."""
        return self.run.name

    @property
    def amount(self) -> float:
        """The bytes that are written."""
        return self.run.header.volumes * row_nbytes(*self.conversion.form(*self.form))

    @property
    def form(self) -> Form:
        """The dtype and shape of a row before the cast."""
        header = self.run.header
        return header.dtype, header.shape if self.mask is None else (self.mask.count,)

    def found(self) -> Found:
        """Return what the recording has beside its field."""
        found = self.run.found()
        return found if self.cast is None else Found(**{**vars(found), "scales": {}})

    def identity(self, options: Options) -> dict[str, str]:
        """Return what the recording is made of, times and events included."""
        document, arrays = described(self.found())
        times = [json.dumps(document).encode(), *(array.tobytes() for array in arrays.values())]
        words = str(words_of(codec_of(self.run.field, options.codec)))
        return {self.run.field: f"{self.rows_identity} {words}", "times": xxhash.xxh3_64_hexdigest(b"\n".join(times))}

    @property
    def rows_identity(self) -> str:
        """A text that differs if the file, the mask or the cast is another."""
        return stamp_of(self.path, "" if self.mask is None else self.mask.digest, exact_text(self.conversion.cast))

    def write(self, target: Path, task: Task) -> None:
        """Make the folder of the recording."""
        options, name = task.options, self.run.field
        check_known(options.codec, [name])
        codec = codec_of(name, options.codec)
        casts = Conversions(cast=None if self.conversion.cast is None else {name: self.conversion.cast})
        write = partial(
            write_rows,
            row_source=Volumes(self, task),
            conversions=casts,
            shard_bytes=options.shard_bytes,
            codec=codec,
            resume=options.resume,
            progress=options.progress,
            shared=task,
        )
        identity = self.identity(options)
        write_folder(
            target, {name: SetOf(identity[name], write)}, self.found, identity, options.resume, options.progress
        )


class Volumes:
    """The volumes of a run as a source of rows, which are decoded each time that they are read."""

    transposed_bytes = 0

    def __init__(self, file: NiftiFile, task: Task) -> None:
        self._file, self._task = file, task
        self.rows = file.run.header.volumes
        self.forms = {file.run.field: file.form}

    def identity(self) -> str:
        """Return a text that identifies these rows, also in another process."""
        return self._file.rows_identity

    def sample(self, conversions: Mapping[str, Conversion], numbers: NDArray[np.int64]) -> dict[str, Rows]:
        """Return some converted rows; what lies before them in the file is decoded as well."""
        name, wanted = self._file.run.field, set(numbers.tolist())
        conversion, found = conversions.get(name, Conversion()), {}
        for number, block in enumerate(self._decoded(0, 1)):
            if number in wanted:
                found[number] = block.data.copy()
            if len(found) == len(wanted):
                break
        rows = Rows(*self._file.form, np.concatenate([found[number] for number in numbers.tolist()]))
        return {name: conversion.apply(rows)}

    def blocks(
        self,
        conversions: Mapping[str, Conversion],
        start: int,
        step: int,
        transposer: Transposer,  # noqa: ARG002 - volumes are stored row by row
    ) -> Iterator[dict[str, Rows]]:
        """Yield the converted rows from `start` on, up to `step` at once, each block valid until the next."""
        count = max(1, min(step, _BLOCK_BYTES // self._file.run.header.row_bytes))
        for rows in self._decoded(start, count):
            yield from in_parts({self._file.run.field: rows}, conversions, count)

    def _decoded(self, start: int, count: int) -> Iterator[Rows]:
        (dtype, shape), mask = self._file.form, self._file.mask
        voxels = None if mask is None else mask.voxels()
        for block in decoded_volumes(self._file.path, self._file.run.header, count, start):
            self._task.check()
            yield Rows(dtype, shape, block if voxels is None else inside(block, voxels, dtype.itemsize))
