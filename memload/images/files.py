"""Finds the images of a folder, reads their headers, and pairs them with masks."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memload.errors import FormatError
from memload.formats.packages import package
from memload.formats.paths import IMAGES
from memload.memory.threads import ThreadPool
from memload.progress import bar

FORMATS = ("JPEG", "PNG")
_MOST_LISTED = 10
_AT_ONCE = 64  # headers that a thread reads in a row


@dataclass(frozen=True)
class ImageFile:
    """What the header of an image says.

    Args:
        path: of the file.
        name: its path below the folder, with "/" between parts.
        format: Pillow's name of it: "PNG", or "JPEG" and its variants.
        mode: Pillow's name of how its pixels are stored, such as "RGB", "P" or "I;16".
        alpha: whether some of its pixels may be transparent.
        size: height and width as it is to be seen.
        orientation: EXIF's number of how it has to be turned for that, 1 to 8.
        stamp: size and time of change of the file, which tell it from another.
    """

    path: Path
    name: str
    format: str
    mode: str
    alpha: bool
    size: tuple[int, int]
    orientation: int
    stamp: tuple[int, int]

    @property
    def stem(self) -> str:
        """The name without its suffix: what images, masks and labels of one sample have in common."""
        return stem_of(self.name)


@dataclass(frozen=True)
class Pair:
    """An image, and the mask that belongs to it."""

    image: ImageFile
    mask: ImageFile | None


@dataclass(frozen=True)
class Damaged:
    """An image that could not be read, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def pillow() -> Any:
    """Return PIL.Image. Raises ImportError that says how to install it."""
    return package("PIL.Image", "images", "images")


def stem_of(name: str) -> str:
    """Return a path below the folder without its suffix."""
    return str(Path(name).with_suffix(""))


def find(folder: str | os.PathLike[str]) -> tuple[dict[str, Path], list[str]]:
    """Return the JPEG and PNG files of a folder and all below by their stems, in order; and the names of other files.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such folder.
        ValueError: there is no such file in it, or several of one stem.
    """
    place = Path(folder)
    if not place.is_dir():
        kind = NotADirectoryError if place.exists() else FileNotFoundError
        raise kind(f"{place}: expected a folder of images")
    names = sorted(path.relative_to(place).as_posix() for path in _files(place))
    unspeakable = [name for name in names if not _is_utf8(name)]
    if unspeakable:
        raise ValueError(
            f"{place}: names that are not UTF-8 cannot be kept as text: {listed(list(map(ascii, unspeakable)))}"
        )
    images = [name for name in names if name.lower().endswith(IMAGES)]
    others = [name for name in names if not name.lower().endswith(IMAGES)]
    if not images:
        raise ValueError(f"{place}: no JPEG or PNG file in it ({len(others)} others)")
    counts = Counter(map(stem_of, images))
    twice = [name for name in images if counts[stem_of(name)] > 1]
    if twice:
        raise ValueError(f"{place}: files that differ in their suffix only; keep one of each: {listed(twice)}")
    return {stem_of(name): place / name for name in images}, others


def read_headers(
    folder: str | os.PathLike[str], files: Mapping[str, Path], threads: int, progress: bool | None
) -> tuple[dict[str, ImageFile], list[Damaged]]:
    """Return what the headers say, by stem, and what could not be read; no pixels are decoded."""
    place, paths, image = Path(folder), list(files.values()), pillow()
    read: list[ImageFile | Damaged] = []

    def headers(start: int) -> list[ImageFile | Damaged]:
        return [_header(image, path, path.relative_to(place).as_posix()) for path in paths[start : start + _AT_ONCE]]

    with ThreadPool(threads) as pool, bar(f"look at {place}", len(paths), progress, unit=" files") as shown:
        for some in pool.map(headers, range(0, len(paths), _AT_ONCE)):
            read += some
            shown.update(len(some))
    found = dict(zip(files, read, strict=True))
    damaged = [one for one in found.values() if isinstance(one, Damaged)]
    return {stem: one for stem, one in found.items() if isinstance(one, ImageFile)}, damaged


def pair_up(images: Mapping[str, Any], masks: Mapping[str, Any]) -> None:
    """Raise ValueError, with lists, unless each image has a mask of its stem and each mask an image."""
    alone = [stem for stem in images if stem not in masks]
    strange = [stem for stem in masks if stem not in images]
    if alone or strange:
        parts = [f"{len(alone)} images have no mask of their name: {listed(alone)}"] if alone else []
        parts += [f"{len(strange)} masks have no image of their name: {listed(strange)}"] if strange else []
        raise ValueError("images and masks belong together by their names without suffix; " + "; ".join(parts))


def one_size(pairs: Sequence[Pair]) -> tuple[int, int]:
    """Return the height and width of all images.

    Raises:
        ValueError: there are several; the message has them all, and the choice.
    """
    counts = Counter(pair.image.size for pair in pairs)
    if len(counts) == 1:
        return pairs[0].image.size
    firsts = {pair.image.size: pair.image.name for pair in reversed(pairs)}
    sizes = ", ".join(
        f"{height} x {width}: {count:,} (such as {firsts[height, width]})"
        for (height, width), count in counts.most_common(_MOST_LISTED)
    )
    more = f", and {len(counts) - _MOST_LISTED} sizes more" if len(counts) > _MOST_LISTED else ""
    height, width = counts.most_common(1)[0][0]
    raise ValueError(
        f"the images have {len(counts)} sizes, and the rows of a set have one. Height x width: {sizes}{more}. "
        f"Choose: size={min(height, width)} (--size {min(height, width)}) makes squares of all, "
        f'size=({height}, {width}) (--size {height}x{width}) makes all as most are; fit="stretch" changes '
        'their proportions, fit="crop" cuts off what does not fit, fit="pad" adds a border; or put each size into a '
        "folder, and write a set of each"
    )


def check_masks(pairs: Iterable[Pair]) -> None:
    """Raise ValueError, with a list, if a mask has another size than its image, or cannot have exact values."""
    known = [(pair.image, pair.mask) for pair in pairs if pair.mask is not None]
    lossy = [mask.name for _, mask in known if mask.format != "PNG"]
    if lossy:
        raise ValueError(
            "masks are numbers, and JPEG changes numbers: save them as PNG, from where they come if possible: "
            f"{listed(lossy)}"
        )
    other = [f"{mask.name} {_by(mask.size)} for {_by(image.size)}" for image, mask in known if mask.size != image.size]
    if other:
        raise ValueError(
            f"masks have the size of their images (height x width), but {len(other)} do not: {listed(other)}"
        )
    wide = [mask.name for _, mask in known if mask.mode.startswith("I")]
    if wide and len(wide) < len(known):
        raise ValueError(f"masks have 8 bits, or all of them 16; {len(wide)} of {len(known)} have 16: {listed(wide)}")


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def in_turn(
    work: Callable[[Pair], Any], pairs: Iterable[Pair], threads: int
) -> Iterator[tuple[Pair, Any | FormatError]]:
    """Yield what `work` makes of each pair, in their order, or the FormatError that it raised.

    Threads do the work, ahead of who takes it; results of two pairs for each thread are held at most.
    """
    waiting: deque[tuple[Pair, Future[Any]]] = deque()

    def first() -> tuple[Pair, Any | FormatError]:
        pair, future = waiting.popleft()
        try:
            return pair, future.result()
        except FormatError as error:
            return pair, error

    pool = ThreadPool(threads)
    try:
        for pair in pairs:
            if len(waiting) == 2 * threads:
                yield first()
            waiting.append((pair, pool.submit(work, pair)))
        while waiting:
            yield first()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _files(place: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """Files in a folder and below, but for hidden ones; links are followed, but not into a circle."""
    found = place.stat()
    here = (found.st_dev, found.st_ino)
    if here in above:
        return
    for entry in place.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry, (*above, here))
        else:
            yield entry


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _header(image: Any, path: Path, name: str) -> ImageFile | Damaged:
    try:
        found = path.stat()
        with image.open(path, formats=FORMATS) as opened:
            turn = _orientation(image, path, opened)
            width, height = opened.size
            size = (width, height) if turn >= 5 else (height, width)
            return ImageFile(
                path,
                name,
                opened.format,
                opened.mode,
                opened.has_transparency_data,
                size,
                turn,
                (found.st_size, found.st_mtime_ns),
            )
    except Exception as error:  # Pillow's, of many types
        return Damaged(name, reason_of(error))


def _orientation(image: Any, path: Path, opened: Any) -> int:
    """Return what EXIF says, 1 if it says nothing that can be understood. Decodes pixels only if it follows them."""
    try:
        late = opened.format == "PNG" and _metadata_follows(path)
        exif = opened.getexif() if late else image.Image.getexif(opened)  # PNG's own method decodes the pixels
        turn = exif.get(0x0112, 1)
    except Exception:  # of many types, for EXIF that is malformed
        return 1
    return turn if turn in range(1, 9) else 1


def _metadata_follows(path: Path) -> bool:
    """Whether a PNG file has EXIF or texts behind its pixels, where Pillow finds them once it has decoded these."""
    with path.open("rb", buffering=0) as file:
        file.seek(8)
        pixels = False
        while len(head := file.read(8)) == 8:
            if pixels and head[4:] in _METADATA:
                return True
            pixels |= head[4:] == b"IDAT"
            file.seek(int.from_bytes(head[:4], "big") + 4, os.SEEK_CUR)  # and the checksum
    return False


_METADATA = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")


def reason_of(error: Exception) -> str:
    """Return what Pillow says of a file, without the file's name."""
    if type(error).__name__ == "UnidentifiedImageError":
        return "no JPEG or PNG file"
    return " ".join(str(error).split()) or type(error).__name__


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
