"""Labels of images, joined by the names of files: from folders, from text files beside the images, or from tables."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memload.images.files import counted_lists, listed
from memload.images.tables import Columns, Table


@dataclass(frozen=True)
class LabelledRows:
    """Rows of labels, each with its image.

    Args:
        stems: the stem of each row's image.
        columns: the values of these rows.
    """

    stems: tuple[str, ...]
    columns: Columns

    def of_each(self, stems: Sequence[str]) -> LabelledRows:
        """Return the rows of these images, one for each, in the order of the images."""
        rows = {stem: row for row, stem in enumerate(self.stems)}
        return self._rows([rows[stem] for stem in stems])

    def among(self, stems: Sequence[str]) -> LabelledRows:
        """Return the rows whose image is among these, in their own order."""
        known = set(stems)
        return self._rows([row for row, stem in enumerate(self.stems) if stem in known])

    def _rows(self, rows: Sequence[int]) -> LabelledRows:
        return LabelledRows(
            tuple(self.stems[row] for row in rows),
            {name: [cells[row] for row in rows] for name, cells in self.columns.items()},  # type: ignore[misc]
        )


def labels_of_folders(names: Mapping[str, str]) -> LabelledRows:
    """Return `label_name`, the folder of each image, and `label`, its number in alphabetical order.

    Args:
        names: the names of the images by stem, as paths below their common folder: "cats/17.jpg" is in "cats".

    Raises:
        ValueError: some images are in no such folder.
    """
    outside = [name for name in names.values() if "/" not in name]
    if outside:
        raise ValueError(f'labels="folders" takes the folder of each image; these are in none: {listed(outside)}')
    folders = [name.partition("/")[0] for name in names.values()]
    numbers = {folder: number for number, folder in enumerate(sorted(set(folders)))}
    return LabelledRows(tuple(names), {"label": [numbers[folder] for folder in folders], "label_name": folders})


def texts_beside(images: Path, names: Mapping[str, str]) -> LabelledRows:
    """Return `text`, the text of the .txt file beside each image.

    Args:
        images: the folder of the images.
        names: the names of the images by stem.

    Raises:
        ValueError: an image has no such file, or it is not in UTF-8.
    """
    files = {stem: images / f"{stem}.txt" for stem in names}
    without = [names[stem] for stem, file in files.items() if not file.is_file()]
    if without:
        missing = (without, "image has no .txt file of its name", "images have no .txt file of their name")
        raise ValueError(f"{images}: {counted_lists(missing)[0]}")
    return LabelledRows(tuple(names), {"text": [_text(file) for file in files.values()]})


def joined(
    table: Table, images: Path, names: Mapping[str, str], *, several: bool, skip_unmatched: bool
) -> tuple[LabelledRows, list[str]]:
    """Return the rows of a table whose image exists, and sentences on rows and images that are left out.

    Args:
        table: a table whose rows name images: by their path below their folder, with or without suffix, by their path
            from the folder of the table or from the working directory, or by their absolute path.
        images: the folder of the images.
        names: the names of the images by stem.
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
    unknown = [key for key, stem in zip(table.keys, stems, strict=True) if stem is None]
    duplicates = [] if several else [stem for stem, count in counts.items() if count > 1]
    unmatched = counted_lists(
        (without, "image has no row", "images have no row"), (unknown, "row names no image", "rows name no image")
    )
    errors = [] if skip_unmatched else unmatched[:]
    errors += counted_lists((duplicates, "image has several rows", "images have several rows"))
    if errors:
        skip = "; skip_unmatched=True leaves them out" if len(errors) > bool(duplicates) else ""
        more = "; given as table=, each row becomes a row of the set, and images are stored once"
        raise ValueError(f"{table.name}: {'; '.join(errors)}{skip}{more if duplicates else ''}")
    if not counts:
        raise ValueError(f"{table.name}: no row of it names an image in {images}")
    known_rows = [row for row, stem in enumerate(stems) if stem is not None]
    columns: Columns = {name: [cells[row] for row in known_rows] for name, cells in table.columns.items()}  # type: ignore[misc]
    return LabelledRows(tuple(stem for stem in stems if stem is not None), columns), unmatched


def _stem(key: str, known: Mapping[str, str], images: Path, folders: Sequence[Path]) -> str | None:
    """Return the stem of the image that a row names; None if it is unknown."""
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
