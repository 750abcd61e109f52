"""memload.write_images: folders of pictures, with masks and labels, as a set of shards.

files -> headers -> pairs -> decoded in threads -> rows in order -> shards
                      |
                    labels
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from memload.dataset import Dataset
from memload.errors import FormatError
from memload.opening import open as open_dataset
from memload.pictures.files import (
    Damaged,
    Pair,
    Picture,
    check_masks,
    find,
    in_turn,
    listed,
    one_size,
    pair_up,
    pillow,
    read_headers,
)
from memload.pictures.labels import Labels, labels_of_folders, labels_of_table
from memload.pictures.pixels import CHANNELS, FITS, MODES, Fit, Mode, Pixels
from memload.progress import byte_bar, note
from memload.shards.writer import ShardWriter

Size = int | tuple[int, int] | None


def write_images(
    path: str | Path,
    images: str | Path,
    masks: str | Path | None = None,
    *,
    labels: str | Path | None = None,
    size: Size = None,
    fit: Fit = "stretch",
    mode: Mode | None = None,
    skip_damaged: bool = False,
    threads: int | None = None,
    shard_bytes: int | str = "512MB",
    append: bool = False,
    resume: bool = True,
    progress: bool | None = None,
) -> Dataset:
    """Write folders of JPEG and PNG files as a directory of shards, decoded, and return it opened.

    Fields: `image`, uint8 (channels, height, width), or uint16 if 16-bit; `mask`, uint8 or uint16 (height, width);
    those of `labels`; and `file`, the path of the image below its folder, as text. Rows are in the order of these
    paths. Pictures are turned as their EXIF says. Memory in use is that of eight decoded pictures for each thread, and
    about 32 MiB.

    Args:
        path: the directory to make.
        images: a folder of JPEG and PNG files, in it or in folders below.
        masks: a folder of PNG files, each of the path of its image but for the suffix, and of its size. Their
            numbers are kept as they are: grey, or numbers of a palette.
        labels: "folders" for the folder each image lies in, as `label` (int64, in alphabetical order) and `label_name`
            (text); or a CSV file with a column `file` or `stem`, whose other columns become fields: int64, float64
            or text, whatever all cells are.
        size: of the rows: (height, width), or a number for squares. None: that of the pictures, which must all
            have the same. Images are resized by a bicubic filter that averages where it makes smaller, masks by taking
            the nearest pixel.
        fit: "stretch" gives all of a picture the shape of `size`; "crop" takes the largest part in its middle that
            has this shape.
        mode: "RGB", "L" (grey), "RGBA", or "I;16" (16-bit grey). None: grey where all images are, in 8 or in 16 bits,
            and RGB otherwise. Transparency is dropped but by "RGBA"; 16-bit colours lose their lower 8 bits, as
            in Pillow; 16-bit grey is never made 8-bit.
        skip_damaged: leave out what cannot be decoded, and list it on standard error.
        threads: that decode; None: one for each core.
        shard_bytes, append, resume, progress: as in `memload.write`.

    Raises:
        FileNotFoundError, NotADirectoryError: a folder is not there.
        ValueError: images, masks and labels do not belong together, or sizes or modes are mixed; the message has lists.
        FormatError: a picture is damaged; the message names it.
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
    threads = threads or len(os.sched_getaffinity(0))
    album = _album(Path(images), None if masks is None else Path(masks), labels, threads, skip_damaged, progress)
    pixels = _pixels(album, size, fit, mode, progress)
    plan = album.words() | {"pixels": str(pixels), "Pillow": _pillow_version()} if resume else None
    with ShardWriter(
        path, shard_bytes=shard_bytes, append=append, rows=len(album.pairs), resume=plan, progress=progress
    ) as writer:
        damaged = album.damaged + _write_album(writer, album, pixels, threads, skip_damaged, progress)
    if damaged:
        note(f"{path}: {len(damaged)} damaged pictures were left out:", progress)
        for one in damaged:
            note(f"  {one}", progress)
    return open_dataset(path)


@dataclass(frozen=True)
class _Album:
    """What is to be written: pairs in order, and the labels of each; and what was found damaged before."""

    pairs: tuple[Pair, ...]
    labels: Labels
    damaged: tuple[Damaged, ...]

    def words(self) -> dict[str, str]:
        """Return what tells it from another."""
        files = [_stamp(one) for pair in self.pairs for one in (pair.image, pair.mask) if one is not None]
        return {
            "pictures": xxhash.xxh3_64_hexdigest("\n".join(files).encode("utf-8", "surrogateescape")),
            "labels": xxhash.xxh3_64_hexdigest(repr(self.labels).encode("utf-8", "surrogateescape")),
        }


def _stamp(picture: Picture) -> str:
    return f"{picture.name} {picture.stamp}"


def _album(
    images: Path, masks: Path | None, labels: str | Path | None, threads: int, skip_damaged: bool, progress: bool | None
) -> _Album:
    """Find what there is; no pixels are read."""
    found = {images: find(images)} | ({} if masks is None else {masks: find(masks)})
    for folder, (_, others) in found.items():
        if others:
            note(f"{folder}: {len(others)} files are neither JPEG nor PNG and stay out: {listed(others)}", progress)
    if masks is not None:
        pair_up(found[images][0], found[masks][0])
    headers, damaged = read_headers(images, found[images][0], threads, progress)
    mask_headers, damaged_masks = ({}, []) if masks is None else read_headers(masks, found[masks][0], threads, progress)
    damaged += damaged_masks
    if damaged and not skip_damaged:
        raise FormatError(
            f"{images}: {len(damaged)} damaged pictures, which skip_damaged=True (--skip-damaged) would leave out: "
            f"{listed([str(one) for one in damaged])}"
        )
    stems = [stem for stem in headers if masks is None or stem in mask_headers]
    if not stems:
        raise FormatError(f"{images}: all pictures are damaged, such as {damaged[0]}")
    pairs = tuple(Pair(headers[stem], mask_headers.get(stem)) for stem in stems)
    check_masks(pairs)
    return _Album(pairs, _labels(labels, [pair.image.name for pair in pairs], damaged), tuple(damaged))


def _labels(labels: str | Path | None, names: Sequence[str], damaged: Sequence[Damaged]) -> Labels:
    if labels is None:
        return {}
    if labels == "folders":
        return labels_of_folders(names)
    every = [*names, *(one.name for one in damaged)]
    table = labels_of_table(Path(labels), every)
    return {name: column[: len(names)] for name, column in table.items()}


def _pixels(album: _Album, size: Size, fit: Fit, mode: Mode | None, progress: bool | None) -> Pixels:
    if fit not in FITS:
        raise ValueError(f"fit is one of {', '.join(FITS)}; got {fit!r}")
    sides = (size, size) if isinstance(size, int) else size
    if sides is not None and (len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides)):
        raise ValueError(f"size is a number of pixels or (height, width), got {size!r}")
    if sides is not None and sides[0] * sides[1] > _MOST_PIXELS:
        raise ValueError(f"size {size!r}: rows of more than {_MOST_PIXELS:,} pixels are not made")
    chosen = _mode([pair.image for pair in album.pairs], mode)
    clear = [pair.image.name for pair in album.pairs if pair.image.alpha]
    if clear and chosen != "RGBA":
        note(
            f'{len(clear)} images have transparency, which is dropped (mode="RGBA" or --mode RGBA keeps it): '
            f"{listed(clear)}",
            progress,
        )
    return Pixels(chosen, sides or one_size(album.pairs), fit)


_MOST_PIXELS = 178_956_970  # as many as Pillow reads of a picture


def _mode(images: Sequence[Picture], wanted: Mode | None) -> Mode:
    """Return the mode of all images. Raises ValueError if 16-bit grey cannot be kept, or there is nothing to keep."""
    if wanted is not None and wanted not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}; got {wanted!r}")
    wide = [image.name for image in images if image.mode.startswith("I")]
    narrow = [image.name for image in images if not image.mode.startswith("I")]
    if wide and narrow:
        raise ValueError(
            f"{len(wide)} images are 16-bit grey ({listed(wide)}) and {len(narrow)} are not ({listed(narrow)}); write "
            "them as two sets, or convert one kind first"
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
    """Write the rows that are not there yet, and return the damaged pictures that were left out."""
    damaged = {name: Damaged(name, "found in an earlier run") for name in writer.left_out}
    numbers = {pair.image.name: number for number, pair in enumerate(album.pairs)}
    sound = [pair for pair in album.pairs if pair.image.name not in damaged]
    row_bytes = CHANNELS[pixels.mode] * pixels.size[0] * pixels.size[1]
    done = writer.rows_there
    with byte_bar("write", row_bytes * len(sound), progress, done=row_bytes * done) as bar:
        for pair, found in in_turn(pixels.of, sound[done:], threads):
            name = pair.image.name
            if isinstance(found, FormatError):
                if not skip_damaged:
                    raise found
                writer.leave_out(name)
                damaged[name] = Damaged(name, str(found))
            else:
                writer.append(**found, **_row(album.labels, numbers[name]), file=name)
            bar.update(row_bytes)
    return tuple(damaged.values())


def _row(labels: Labels, number: int) -> Mapping[str, Any]:
    """Return the labels of one picture."""
    values = {name: column[number] for name, column in labels.items()}
    return {name: value if isinstance(value, str) else np.asarray(value) for name, value in values.items()}


def _pillow_version() -> str:
    return str(pillow().__version__)
