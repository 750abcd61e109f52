"""Labels of images, joined by the names of files: from folders, from text files beside the images, or from tables."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memload.images.files import listed
from memload.images.tables import Columns, Table


@dataclass(frozen=True)
class LabelledRows:
    """Rows of values, each with the image that it belongs to.

    Args:
        stems: of each row, the image.
        columns: of these rows.
    """

    stems: tuple[str, ...]
    columns: Columns

    def of_each(self, stems: Sequence[str]) -> LabelledRows:
        """Return the rows of these images, each of which has one, in the order of the images."""
        rows = {stem: row for row, stem in enumerate(self.stems)}
        return self._taken([rows[stem] for stem in stems])

    def among(self, stems: Sequence[str]) -> LabelledRows:
        """Return the rows whose image is among these, in their own order."""
        known = set(stems)
        return self._taken([row for row, stem in enumerate(self.stems) if stem in known])

    def _taken(self, rows: Sequence[int]) -> LabelledRows:
        return LabelledRows(
            tuple(self.stems[row] for row in rows),
            {name: [cells[row] for row in rows] for name, cells in self.columns.items()},  # type: ignore[misc]
        )


def labels_of_folders(names: Mapping[str, str]) -> LabelledRows:
    """Return `label`, the number of the folder each image lies in, in alphabetical order; and `label_name`.

    Args:
        names: of the images by stem, as paths below their common folder: "cats/17.jpg" lies in "cats".

    Raises:
        ValueError: some lie in none.
    """
    outside = [name for name in names.values() if "/" not in name]
    if outside:
        raise ValueError(f'labels="folders" takes the folder of each image; these lie in none: {listed(outside)}')
    folders = [name.partition("/")[0] for name in names.values()]
    numbers = {folder: number for number, folder in enumerate(sorted(set(folders)))}
    return LabelledRows(tuple(names), {"label": [numbers[folder] for folder in folders], "label_name": folders})


def texts_beside(images: Path, names: Mapping[str, str]) -> LabelledRows:
    """Return `text`, what the .txt file says that lies beside each image and has its name.

    Args:
        images: the folder of the images.
        names: of the images by stem.

    Raises:
        ValueError: an image has no such file, or it is not in UTF-8.
    """
    files = {stem: images / f"{stem}.txt" for stem in names}
    without = [names[stem] for stem, file in files.items() if not file.is_file()]
    if without:
        raise ValueError(f"{images}: {len(without)} images have no .txt file of their name: {listed(without)}")
    return LabelledRows(tuple(names), {"text": [_text(file) for file in files.values()]})


def joined(
    table: Table, images: Path, names: Mapping[str, str], *, several: bool, skip_unmatched: bool
) -> tuple[LabelledRows, list[str]]:
    """Return the rows of a table whose image is there, and what is to be told of those left out.

    Args:
        table: whose rows name images: by their path below their folder, with or without suffix, by their path from
            the folder of the table or from the working directory, or by their absolute path.
        images: the folder of the images.
        names: of the images by stem.
        several: whether several rows may name one image.
        skip_unmatched: leave out rows that name no image, instead of refusing them, and images that no row names.

    Raises:
        ValueError: a row or an image has no partner, or several; the message counts and lists them.
    """
    known = {name: stem for stem, name in names.items()} | {stem: stem for stem in names}
    folders = [folder for folder in (table.folder, Path.cwd()) if folder is not None]
    stems = [_stem(key, known, images.absolute(), folders) for key in table.keys]
    counts = Counter(stem for stem in stems if stem is not None)
    without = [name for stem, name in names.items() if stem not in counts]
    strange = [key for key, stem in zip(table.keys, stems, strict=True) if stem is None]
    twice = [] if several else [stem for stem, count in counts.items() if count > 1]
    unmatched = _counted((without, "images have no row"), (strange, "rows name no image"))
    wrong = [] if skip_unmatched else unmatched[:]
    wrong += _counted((twice, "images have several rows"))
    if wrong:
        skip = "; skip_unmatched=True (--skip-unmatched) leaves them out" if len(wrong) > bool(twice) else ""
        more = "; given as table= (--table), each row becomes a row of the set, and images are stored once"
        raise ValueError(f"{table.name}: {'; '.join(wrong)}{skip}{more if twice else ''}")
    if not counts:
        raise ValueError(f"{table.name}: no row of it names an image in {images}")
    there = [row for row, stem in enumerate(stems) if stem is not None]
    columns: Columns = {name: [cells[row] for row in there] for name, cells in table.columns.items()}  # type: ignore[misc]
    return LabelledRows(tuple(stem for stem in stems if stem is not None), columns), unmatched


def _counted(*found: tuple[Sequence[str], str]) -> list[str]:
    return [f"{len(those):,} {what}: {listed(those)}" for those, what in found if those]


def _stem(key: str, known: Mapping[str, str], images: Path, folders: Sequence[Path]) -> str | None:
    """Return which image a row names; None if it is none of those known."""
    found = known.get(key.removeprefix("./"))
    for folder in folders if found is None else ():
        path = os.path.relpath(os.path.normpath(folder / key), images)
        found = found or known.get(path)
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not a text in UTF-8 ({error})") from error
