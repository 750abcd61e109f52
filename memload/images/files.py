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
from memload.formats.paths import IMAGES, is_remote, nothing_at
from memload.memory.threads import ThreadPool
from memload.progress import bar
from memload.sizes import counted

FORMATS = ("JPEG", "PNG")
_MOST_LISTED = 10
_CHUNK = 64  # headers that one task reads


@dataclass(frozen=True)
class ImageFile:
    """The header of an image.

    Args:
        path: the path of the file.
        name: its path below the folder, with "/" between parts.
        format: Pillow's name of the format: "PNG", or "JPEG" and its variants.
        mode: Pillow's name of the form of the pixels, such as "RGB", "P" or "I;16".
        alpha: whether some of its pixels may be transparent.
        size: height and width after rotation.
        orientation: EXIF's number of the rotation, 1 to 8.
        stamp: size and modification time of the file, which distinguish its versions.
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
        """The name without its suffix, which the image, mask and labels of a sample share."""
        return stem_of(self.name)


@dataclass(frozen=True)
class Pair:
    """An image and its mask."""

    image: ImageFile
    mask: ImageFile | None


@dataclass(frozen=True)
class Damaged:
    """An image that could not be read, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def pillow() -> Any:
    """Return PIL.Image. Raises ImportError, which says how to install it."""
    return package("PIL.Image", "images", "images")


def stem_of(name: str) -> str:
    """Return a path below the folder without its suffix."""
    return str(Path(name).with_suffix(""))


def local(folder: str | os.PathLike[str]) -> Path:
    """Return a folder of this machine as a path; raises ValueError for the address of a store."""
    if is_remote(folder):
        raise ValueError(f"{folder}: images are read from a folder of this machine: copy them to one")
    return Path(folder)


def find(folder: str | os.PathLike[str]) -> tuple[dict[str, Path], list[str]]:
    """Return the JPEG and PNG files in and below a folder by their stems, in order, and the names of other files.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such folder.
        ValueError: it has no such file, or several of one stem.
    """
    place = Path(folder)
    if not place.is_dir():
        if place.exists():
            raise NotADirectoryError(f"{place}: a file; give the folder that has the images, such as {place.parent}")
        raise FileNotFoundError(f"{place}: {nothing_at(place)}; give a folder of JPEG or PNG files")
    names = sorted(path.relative_to(place).as_posix() for path in _files(place))
    undecodable = [name for name in names if not _is_utf8(name)]
    if undecodable:
        raise ValueError(
            f"{place}: names that are not UTF-8 cannot be stored as text: {listed(list(map(ascii, undecodable)))}"
        )
    images = [name for name in names if name.lower().endswith(IMAGES)]
    others = [name for name in names if not name.lower().endswith(IMAGES)]
    if not images:
        raise ValueError(
            f"{place}: no JPEG or PNG file in it ({counted(len(others), 'other')}); give the folder that has them"
        )
    counts = Counter(map(stem_of, images))
    duplicates = [name for name in images if counts[stem_of(name)] > 1]
    if duplicates:
        raise ValueError(f"{place}: files that differ in their suffix only; keep one of each: {listed(duplicates)}")
    return {stem_of(name): place / name for name in images}, others


def read_headers(
    folder: str | os.PathLike[str], files: Mapping[str, Path], threads: int, progress: bool | None
) -> tuple[dict[str, ImageFile], list[Damaged]]:
    """Return the headers of images by stem, and the images that could not be read; no pixels are decoded."""
    place, paths, image = Path(folder), list(files.values()), pillow()
    read: list[ImageFile | Damaged] = []

    def headers(start: int) -> list[ImageFile | Damaged]:
        return [_header(image, path, path.relative_to(place).as_posix()) for path in paths[start : start + _CHUNK]]

    with ThreadPool(threads) as pool, bar(f"read headers of {place}", len(paths), progress, unit=" files") as shown:
        for chunk in pool.map(headers, range(0, len(paths), _CHUNK)):
            read += chunk
            shown.update(len(chunk))
    by_stem = dict(zip(files, read, strict=True))
    damaged = [header for header in read if isinstance(header, Damaged)]
    return {stem: header for stem, header in by_stem.items() if isinstance(header, ImageFile)}, damaged


def with_suffix(masks: Mapping[str, Path], suffix: str) -> dict[str, Path]:
    """Return masks by the names of their images, which lack a suffix. Raises ValueError if a mask does not have it."""
    if others := [stem for stem in masks if not stem.endswith(suffix)]:
        what = counted(len(others), "mask does", "masks do")
        raise ValueError(f"mask_suffix={suffix!r}: {what} not end so: {listed(others)}")
    return {stem.removesuffix(suffix): file for stem, file in masks.items()}


def pair_up(images: Mapping[str, Any], masks: Mapping[str, Any]) -> None:
    """Raise ValueError, with lists, unless each image has a mask of its stem and each mask an image."""
    no_mask = [stem for stem in images if stem not in masks]
    no_image = [stem for stem in masks if stem not in images]
    if no_mask or no_image:
        parts = counted_lists(
            (no_mask, "image has no mask of its name", "images have no mask of their name"),
            (no_image, "mask has no image of its name", "masks have no image of their name"),
        )
        suffix = _common_suffix(images, masks)
        hint = f". All match with mask_suffix={suffix!r}" if suffix else ""
        raise ValueError("images and masks are matched by their names without suffix; " + "; ".join(parts) + hint)


def _common_suffix(images: Mapping[str, Any], masks: Mapping[str, Any]) -> str:
    """Return what the name of each mask has more than that of its image, such as "_mask"; "" if there is no such."""
    first = next(iter(masks), "")
    image = max((stem for stem in images if first.startswith(stem)), key=len, default=first)
    suffix = first[len(image) :]
    return suffix if suffix and images.keys() == {stem.removesuffix(suffix) for stem in masks} else ""


def one_size(pairs: Sequence[Pair]) -> tuple[int, int]:
    """Return the height and width of all images.

    Raises:
        ValueError: there are several sizes; the message lists them, and the ways to make one of them.
    """
    counts = Counter(pair.image.size for pair in pairs)
    if len(counts) == 1:
        return pairs[0].image.size
    firsts = {pair.image.size: pair.image.name for pair in reversed(pairs)}
    sizes = ", ".join(
        f"{height} x {width}: {count:,} (such as {firsts[height, width]})"
        for (height, width), count in counts.most_common(_MOST_LISTED)
    )
    more = f", and {counted(len(counts) - _MOST_LISTED, 'more size')}" if len(counts) > _MOST_LISTED else ""
    height, width = counts.most_common(1)[0][0]
    raise ValueError(
        f"the images have {len(counts)} sizes, and the rows of a set have one. Height x width: {sizes}{more}. "
        f"Choose: size={min(height, width)} makes squares of all, size=({height}, {width}) is the most frequent "
        'size; fit="stretch" changes the proportions, fit="crop" cuts off the edges, fit="pad" adds a border. Or put '
        "each size into a folder of its own, and write a set of each"
    )


def check_masks(pairs: Iterable[Pair]) -> None:
    """Raise ValueError, with a list, if a mask has another size than its image, or cannot have exact values."""
    masked = [(pair.image, pair.mask) for pair in pairs if pair.mask is not None]
    lossy = [mask.name for _, mask in masked if mask.format != "PNG"]
    if lossy:
        raise ValueError(
            "masks are numbers, and JPEG changes numbers: save them as PNG, if possible from their source: "
            f"{listed(lossy)}"
        )
    other = [f"{mask.name} {_by(mask.size)} for {_by(image.size)}" for image, mask in masked if mask.size != image.size]
    if other:
        raise ValueError(
            f"masks have the size of their images (height x width), but {counted(len(other), 'does', 'do')} not: "
            f"{listed(other)}"
        )
    wide = [mask.name for _, mask in masked if mask.mode.startswith("I")]
    if wide and len(wide) < len(masked):
        raise ValueError(
            f"masks have 8 bits, or all of them 16; of {len(masked)}, {counted(len(wide), 'has', 'have')} 16: "
            f"{listed(wide)}"
        )


def counted_lists(*lists: tuple[Sequence[str], str, str]) -> list[str]:
    """Return what is wrong with names, for each list that has some; with it for one and for several names."""
    return [f"{counted(len(names), one, several)}: {listed(names)}" for names, one, several in lists if names]


def listed(names: Sequence[str]) -> str:
    """Return the first names as text, and the number of further ones."""
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def in_turn(
    work: Callable[[Pair], Any], pairs: Iterable[Pair], threads: int
) -> Iterator[tuple[Pair, Any | FormatError]]:
    """Yield each pair with the result of `work`, or with the FormatError that it raised, in order.

    Threads work ahead of the consumer; at most two results for each thread exist at a time.
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
    """Yield the files in and below a folder, without hidden ones; links are followed, but not in circles."""
    info = place.stat()
    here = (info.st_dev, info.st_ino)
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
        info = path.stat()
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
                (info.st_size, info.st_mtime_ns),
            )
    except Exception as error:  # Pillow raises many types
        return Damaged(name, reason_of(error))


def _orientation(image: Any, path: Path, opened: Any) -> int:
    """Return EXIF's orientation; 1 if there is none or it is invalid. Decodes pixels only if EXIF follows them."""
    try:
        late = opened.format == "PNG" and _metadata_follows(path)
        exif = opened.getexif() if late else image.Image.getexif(opened)  # PNG's own method decodes the pixels
        turn = exif.get(0x0112, 1)
    except Exception:  # malformed EXIF raises many types
        return 1
    return turn if turn in range(1, 9) else 1


def _metadata_follows(path: Path) -> bool:
    """Return whether a PNG file has EXIF or texts after its pixels, where Pillow finds them only after decoding."""
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
    """Return the text of Pillow's error, without the file's name."""
    if type(error).__name__ == "UnidentifiedImageError":
        return "no JPEG or PNG file"
    return " ".join(str(error).split()) or type(error).__name__


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
