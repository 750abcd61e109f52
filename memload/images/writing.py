"""memload.write_images: folders of images, with masks and labels, as a set of shards.

files -> headers -> pairs -> decoded in threads -> rows in order -> shards
                      |                                  ^
                    labels                             table: which rows share an image
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from memload.columns.numbers import kind
from memload.dataset.dataset import Dataset
from memload.dataset.opening import open as open_dataset
from memload.errors import FormatError
from memload.formats.shards.lookups import LOOKUP, rows_being_written
from memload.images.files import (
    Damaged,
    ImageFile,
    Pair,
    check_masks,
    find,
    in_turn,
    listed,
    local,
    one_size,
    pair_up,
    pillow,
    read_headers,
    with_suffix,
)
from memload.images.forms import CHANNELS, FITS, MODES, Fit, Mode
from memload.images.labels import LabelledRows, joined, labels_of_folders, texts_beside
from memload.images.pixels import Pixels
from memload.images.tables import Columns, read_table
from memload.progress import byte_bar, note
from memload.sizes import counted, sides_of
from memload.writing.writer import ShardWriter

Size = int | tuple[int, int] | None


def write_images(
    path: str | Path,
    images: str | Path,
    masks: str | Path | None = None,
    *,
    labels: Any = None,
    table: Any = None,
    image_column: str | None = None,
    mask_suffix: str = "",
    size: Size = None,
    fit: Fit = "stretch",
    crop: Size = None,
    pad_value: int | Sequence[int] | None = None,
    mask_pad_value: int | None = None,
    mode: Mode | None = None,
    skip_damaged: bool = False,
    skip_unmatched: bool = False,
    threads: int | None = None,
    shard_bytes: int | str = "512MB",
    append: bool = False,
    resume: bool = True,
    progress: bool | None = None,
) -> Dataset:
    """Decode folders of JPEG and PNG files, write them as a directory of shards, and return that as a dataset.

    Fields: `image`, uint8 (channels, height, width), or uint16 if 16-bit; `mask`, uint8 or uint16 (height, width);
    those of `labels`; `file`, the path of the image below its folder, as text; and those of `table`. Rows are in the
    order of these paths; with a `table` they are its rows, in its order, and each image is stored once, even if many
    rows name it. Images are rotated as their EXIF data say. The function needs memory for eight decoded images for each
    thread, about 32 MiB, and the table.

    Args:
        path: the directory to make.
        images: a folder of JPEG and PNG files, in it or in folders below.
        masks: a folder of PNG files, each with the path of its image except for the suffix, and with its size. Their
            values are stored unchanged: grey values, or indices of a palette.
        labels: "folders" for the folder of each image, as `label` (int64, in alphabetical order) and `label_name`
            (text); "texts" for the .txt file beside each image, as `text`; or a table with one row for each image.
        table: a table whose rows become the rows of the set, such as several prompts for one image. A table is the path
            of a .csv, .tsv, .json, .jsonl or .parquet file, or a dict of lists, or a table of pandas, pyarrow or
            datasets. One of its columns names the image; the others become fields: int64, float64, bool or text.
        image_column: the column of `table` and of a table of `labels` that names the image, by its path below `images`,
            with or without suffix, from the table's folder, or absolute. None: the first existing column of `file`,
            `file_name`, `stem`, `filename`, `filepath`, `image`, `image_path`, `image_name` and `key`.
        mask_suffix: what the name of a mask has more than that of its image, such as "_mask" of ``cat_mask.png``.
        size: the size of the rows: (height, width), or a number for squares. None: the size of the images, which must
            all have the same. Images are resized by a bicubic filter with antialiasing, masks by the nearest pixel.
            Numbers of pixels in a table, such as corners of boxes, stay as they are.
        fit: "stretch" resizes the whole image to `size`; "crop" resizes the largest central part with the proportions
            of `size`; "pad" resizes the whole image in its own proportions until it fits, and centres it.
        crop: the central part that is kept of each image and mask after that: (height, width), or a number for squares.
            ``size=256, fit="crop", crop=224`` is what torchvision's ``Resize(256)`` and ``CenterCrop(224)`` leave.
        pad_value: with "pad", the number in the border of images, or one for each channel; 0 if not given.
        mask_pad_value: with "pad", the number in the border of masks; 0 if not given. Give 255 for a loss that ignores
            255, as many losses for segmentation do.
        mode: "RGB", "L" (grey), "RGBA", or "I;16" (16-bit grey). None: grey, in 8 or in 16 bits, if all images are
            grey, and RGB otherwise. Only "RGBA" keeps transparency; 16-bit colours lose their lower 8 bits, as in
            Pillow; 16-bit grey is never converted to 8-bit.
        skip_damaged: leave out images that cannot be decoded, and list them on standard error.
        skip_unmatched: leave out images that no row of a table names, and rows that name no image, instead of refusing
            them; standard error has their number.
        threads: the number of threads that decode; None: one for each core.
        shard_bytes, append, resume, progress: as in `memload.write`.

    Raises:
        FileNotFoundError, NotADirectoryError: a folder does not exist.
        TypeError: a path is a list, or something else that is no path.
        ValueError: images, masks and tables do not match, or sizes or modes are mixed; the message lists the files.
        FormatError: an image is damaged; the message names it.
        ImportError: Pillow is not installed (`pip install "memload[images]"`).
        FileExistsError, DiskSpaceError, WriterBusyError: as in `memload.write`.

    Example:
        >>> import memload, PIL.Image, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     PIL.Image.new("RGB", (64, 48)).save(folder / f"{name}.png")
        >>> memload.write_images(folder / "shards", folder, size=32).fields["image"].shape
        (3, 32, 32)
    """
    if threads is not None and threads < 0:
        raise ValueError(f"threads is a number of threads, or None for one for each core; got {threads}")
    _check_is_path("path", path, "the directory to make")
    _check_is_path("images", images, "a folder of JPEG and PNG files", _SOME)
    threads = threads or len(os.sched_getaffinity(0))
    if table is not None and append:
        raise ValueError("append= adds images to a set; rows of a table= go to a set of their own")
    options = _LabelOptions(labels, table, image_column, skip_unmatched)
    if mask_suffix and masks is None:
        raise ValueError("mask_suffix= is for the names of masks: give their folder, masks=")
    album = _album(
        local(images), None if masks is None else local(masks), mask_suffix, options, threads, skip_damaged, progress
    )
    pixels = _pixels(album, size, fit, crop, mode, pad_value, mask_pad_value, progress)
    plan = album.fingerprint() | {"pixels": str(pixels), "Pillow": _pillow_version()} if resume else None
    with ShardWriter(
        path, shard_bytes=shard_bytes, append=append, rows=len(album.pairs), resume=plan, progress=progress
    ) as writer:
        damaged = album.damaged + _write_album(writer, album, pixels, threads, skip_damaged, progress)
        if album.rows is not None:
            _write_rows(rows_being_written(Path(path)), album.rows, album.stems_but(damaged), shard_bytes)
    if damaged:
        note(f"{path}: {counted(len(damaged), 'damaged image was', 'damaged images were')} left out:", progress)
        for image in damaged:
            note(f"  {image}", progress)
    return open_dataset(path)


_SOME = '; table={"file": ["a.png", ...]}, skip_unmatched=True takes these files of a folder, in this order'


def _check_is_path(name: str, given: Any, what: str, remedy: str = "") -> None:
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"{name} is the path of {what}, got {kind(given)}{remedy if isinstance(given, list) else ''}")


@dataclass(frozen=True)
class _LabelOptions:
    """The arguments of `write_images` on labels and tables."""

    labels: Any
    table: Any
    image_column: str | None
    skip_unmatched: bool

    @property
    def word(self) -> str | None:
        """The labels, if they are given as a word or a path; None for a table in memory."""
        return self.labels if isinstance(self.labels, str) else None


@dataclass(frozen=True)
class _Album:
    """The images to write: pairs in order, their labels, the rows of a table, and damaged images."""

    pairs: tuple[Pair, ...]
    labels: LabelledRows
    rows: LabelledRows | None
    damaged: tuple[Damaged, ...]

    def stems_but(self, damaged: Sequence[Damaged]) -> list[str]:
        """Return the stems of the images that are written, in their order."""
        names = {image.name for image in damaged}
        return [pair.image.stem for pair in self.pairs if pair.image.name not in names]

    def fingerprint(self) -> dict[str, str]:
        """Return hashes of the files and of the labels, by which a resumed conversion recognises them."""
        files = [_stamp(file) for pair in self.pairs for file in (pair.image, pair.mask) if file is not None]
        return {
            "images": xxhash.xxh3_64_hexdigest("\n".join(files).encode("utf-8", "surrogateescape")),
            "labels": xxhash.xxh3_64_hexdigest(repr((self.labels, self.rows)).encode("utf-8", "surrogateescape")),
        }


def _stamp(image: ImageFile) -> str:
    return f"{image.name} {image.stamp}"


def _album(
    images: Path,
    masks: Path | None,
    mask_suffix: str,
    options: _LabelOptions,
    threads: int,
    skip_damaged: bool,
    progress: bool | None,
) -> _Album:
    """Find and match images, masks and labels; no pixels are read."""
    files = _files(images, progress, options)
    mask_files = {} if masks is None else with_suffix(_files(masks, progress), mask_suffix)
    names = {stem: file.relative_to(images).as_posix() for stem, file in files.items()}
    labels, rows = _of_images(options, images, names, progress)
    if options.skip_unmatched:
        labelled = [set(part.stems) for part in (labels, rows) if part is not None]
        files = {stem: file for stem, file in files.items() if all(stem in stems for stems in labelled)}
        mask_files = {stem: file for stem, file in mask_files.items() if stem in files or stem not in names}
    if masks is not None:
        pair_up(files, mask_files)
    headers, damaged = read_headers(images, files, threads, progress)
    mask_headers, damaged_masks = ({}, []) if masks is None else read_headers(masks, mask_files, threads, progress)
    damaged += damaged_masks
    if damaged and not skip_damaged:
        raise FormatError(
            f"{images}: {counted(len(damaged), 'damaged image')}, which skip_damaged=True would "
            "leave out: "
            f"{listed([str(image) for image in damaged])}"
        )
    stems = [stem for stem in headers if masks is None or stem in mask_headers]
    if not stems:
        raise FormatError(f"{images}: all images are damaged, such as {damaged[0]}")
    pairs = tuple(Pair(headers[stem], mask_headers.get(stem)) for stem in stems)
    check_masks(pairs)
    of_pairs = labels.of_each(stems) if labels is not None else LabelledRows(tuple(stems), {})
    return _Album(pairs, of_pairs, None if rows is None else rows.among(stems), tuple(damaged))


def _files(folder: Path, progress: bool | None, options: _LabelOptions | None = None) -> dict[str, Path]:
    """Return the images of a folder; report other files, and the option for a table among them."""
    files, others = find(folder)
    if options is not None:
        given = (options.labels, options.table)
        tables = [Path(table).absolute() for table in given if isinstance(table, str | os.PathLike)]
        others = [name for name in others if (folder / name).absolute() not in tables]
        others = [name for name in others if options.word != "texts" or not name.endswith(".txt")]
    if others:
        what = f"{counted(len(others), 'file is', 'files are')} neither JPEG nor PNG and left out"
        note(f"{folder}: {what}: {listed(others)}", progress)
    for name in others:
        if options is not None and Path(name).stem == "metadata":
            note(f"{folder}: {name} may be a table of the images: --table {folder / name} takes it", progress)
    return files


def _of_images(
    options: _LabelOptions, images: Path, names: Mapping[str, str], progress: bool | None
) -> tuple[LabelledRows | None, LabelledRows | None]:
    """Return the labels of images, and the rows of a table; report rows and images that are left out."""
    labels, rows = None, None
    if options.word == "folders":
        labels = labels_of_folders(names)
    elif options.word == "texts":
        labels = texts_beside(images, names)
    elif options.labels is not None:
        labels = _of_table(options.labels, options, images, names, progress, several=False)
    if options.table is not None:
        rows = _of_table(options.table, options, images, names, progress, several=True)
    both = labels.columns.keys() & rows.columns.keys() if labels and rows else ()
    if both:
        raise ValueError(f"both labels= and table= have the fields {sorted(both)}; rename them in one of the two")
    return labels, rows


def _of_table(
    given: Any, options: _LabelOptions, images: Path, names: Mapping[str, str], progress: bool | None, several: bool
) -> LabelledRows:
    table = read_table(given, options.image_column)
    labels, unmatched = joined(table, images, names, several=several, skip_unmatched=options.skip_unmatched)
    for text in unmatched:
        note(f"{table.name}: left out: {text}", progress)
    return labels


def _pixels(
    album: _Album,
    size: Size,
    fit: Fit,
    crop: Size,
    mode: Mode | None,
    pad_value: int | Sequence[int] | None,
    mask_pad_value: int | None,
    progress: bool | None,
) -> Pixels:
    if fit not in FITS:
        raise ValueError(f"fit is one of {', '.join(FITS)}; got {fit!r}")
    if fit != "pad" and not (pad_value is None and mask_pad_value is None):
        raise ValueError(f'pad_value= and mask_pad_value= are for fit="pad", not for {fit!r}')
    sides, kept = sides_of("size", size), sides_of("crop", crop)
    if sides is not None and sides[0] * sides[1] > _MOST_PIXELS:
        raise ValueError(f"size {size!r}: rows of more than {_MOST_PIXELS:,} pixels are not supported")
    chosen = _mode([pair.image for pair in album.pairs], mode)
    transparent = [pair.image.name for pair in album.pairs if pair.image.alpha]
    if transparent and chosen != "RGBA":
        note(
            f'{counted(len(transparent), "image has", "images have")} transparency, which is dropped (mode="RGBA" or '
            "--mode RGBA keeps it): "
            f"{listed(transparent)}",
            progress,
        )
    most = 65535 if chosen == "I;16" else 255
    wide_masks = any(pair.mask is not None and pair.mask.mode.startswith("I") for pair in album.pairs)
    whole = sides or one_size(album.pairs)
    if kept is not None and (kept[0] > whole[0] or kept[1] > whole[1]):
        raise ValueError(f"crop keeps a part of images of {whole[0]} x {whole[1]}; got {kept[0]} x {kept[1]}")
    return Pixels(
        chosen,
        whole,
        fit,
        _border("pad_value", pad_value, CHANNELS[chosen], most),
        _border("mask_pad_value", mask_pad_value, 1, 65535 if wide_masks else 255)[0],
        kept,
    )


def _border(option: str, given: int | Sequence[int] | None, channels: int, most: int) -> tuple[int, ...]:
    """Return the value of a border for each channel."""
    values = list(given) if isinstance(given, Sequence) else [0 if given is None else given] * channels
    if len(values) != channels or not all(isinstance(value, Integral) and 0 <= int(value) <= most for value in values):
        each = f", or {channels} of them, one for each channel" if channels > 1 else ""
        raise ValueError(f"{option} is a whole number from 0 to {most}{each}; got {given!r}")
    return tuple(map(int, values))


_MOST_PIXELS = 178_956_970  # Pillow's own limit for an image


def _mode(images: Sequence[ImageFile], wanted: Mode | None) -> Mode:
    """Return the mode of all images. Raises ValueError if 16-bit grey cannot be kept, or no image has it."""
    if wanted is not None and wanted not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}; got {wanted!r}")
    wide = [image.name for image in images if image.mode.startswith("I")]
    narrow = [image.name for image in images if not image.mode.startswith("I")]
    if wide and narrow:
        raise ValueError(
            f"{counted(len(wide), 'image is', 'images are')} 16-bit grey ({listed(wide)}) and "
            f"{counted(len(narrow), 'is', 'are')} not ({listed(narrow)}); write them as two sets, or convert one kind "
            "first"
        )
    if wide and wanted not in (None, "I;16"):
        raise ValueError(
            f'images of 16-bit grey do not fit into mode {wanted!r}: {listed(wide)}; mode "I;16" keeps them'
        )
    if narrow and wanted == "I;16":
        raise ValueError(f'mode "I;16" is for images of 16-bit grey, which these are not: {listed(narrow)}')
    if wide:
        return "I;16"
    return wanted or ("L" if all(image.mode in ("1", "L", "LA") for image in images) else "RGB")


def _write_album(
    writer: ShardWriter, album: _Album, pixels: Pixels, threads: int, skip_damaged: bool, progress: bool | None
) -> tuple[Damaged, ...]:
    """Write the rows that are not written yet, and return the damaged images that were left out."""
    damaged = {name: Damaged(name, "found in an earlier run") for name in writer.left_out}
    numbers = {pair.image.name: number for number, pair in enumerate(album.pairs)}
    sound = [pair for pair in album.pairs if pair.image.name not in damaged]
    row_bytes = CHANNELS[pixels.mode] * pixels.shape[0] * pixels.shape[1]
    done = writer.rows_there
    with byte_bar("write", row_bytes * len(sound), progress, done=row_bytes * done) as bar:
        for pair, result in in_turn(pixels.of, sound[done:], threads):
            name = pair.image.name
            if isinstance(result, FormatError):
                if not skip_damaged:
                    try:
                        raise result
                    finally:
                        del result  # its traceback refers to this frame, which would keep the error
                writer.leave_out(name)
                damaged[name] = Damaged(name, str(result))
            else:
                writer.append(**result, **_row(album.labels.columns, numbers[name]), file=name)
            bar.update(row_bytes)
    return tuple(damaged.values())


def _row(labels: Columns, number: int) -> Mapping[str, Any]:
    """Return the labels of one image."""
    values = {name: column[number] for name, column in labels.items()}
    return {name: value if isinstance(value, str) else np.asarray(value) for name, value in values.items()}


def _write_rows(path: Path, rows: LabelledRows, stems: Sequence[str], shard_bytes: int | str) -> None:
    """Write the rows whose image was written, each with the number of its image."""
    numbers = {stem: number for number, stem in enumerate(stems)}
    written = rows.among(stems)
    lookup = np.array([numbers[stem] for stem in written.stems], dtype=np.int64)
    with ShardWriter(path, shard_bytes=shard_bytes, rows=len(lookup)) as writer:
        for start in range(0, len(lookup), _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            texts = {name: cells[part] for name, cells in written.columns.items()}
            columns = {name: cells if isinstance(cells[0], str) else np.array(cells) for name, cells in texts.items()}
            writer.extend(**{LOOKUP: lookup[part]}, **columns)


_CHUNK_ROWS = 4096


def _pillow_version() -> str:
    return str(pillow().__version__)
