"""The entries of a cache: sets of shards in one directory, each with the name of a function and its key.

root/crop-1f0c39d2a4b85e67/           a complete set, with its origin.json
root/.crop-1f0c39d2a4b85e67.memload/  a set that is being computed, or was interrupted
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memload.caching.computed import Origin
from memload.errors import FormatError
from memload.formats.paths import named_in_errors
from memload.formats.shards.index import INDEX_NAME, read_index
from memload.formats.shards.staging import Staging

_KEY_DIGITS = 16
_ENTRY = re.compile(r"(\.?)([A-Za-z0-9_]+-[0-9a-f]{16})(\.memload)?")


@dataclass(frozen=True)
class Entry:
    """One entry of a cache.

    Attributes:
        name: the name of its directory.
        path: the path of the set, complete or not.
        function: the name of the function; empty if the set is not complete.
        rows: the number of rows; 0 if the set is not complete.
        nbytes: the bytes of its files.
        made: the time of completion or of the last write, in seconds since 1970.
        complete: whether the set can be opened.
    """

    name: str
    path: Path
    function: str
    rows: int
    nbytes: int
    made: float
    complete: bool


def root_of(where: str | Path) -> Path:
    """Return the directory of a cache, and make it if necessary.

    Raises:
        FileExistsError: the path is a file or a set of shards.
    """
    root = Path(where).absolute()
    if (root / INDEX_NAME).exists():
        raise FileExistsError(f"{root}: a set of shards; give a directory of its own, such as {root.parent / 'cache'}")
    root.mkdir(parents=True, exist_ok=True)
    return root


def entry_path(root: Path, function: str, key: str) -> Path:
    """Return the path of the results of a function."""
    word = re.sub(r"\W+", "", function.rpartition(".")[2], flags=re.ASCII)[:40] or "function"
    return root / f"{word}-{key[:_KEY_DIGITS]}"


def entries(root: str | Path) -> list[Entry]:
    """Return the entries of a cache, the latest first.

    Raises:
        FileNotFoundError, NotADirectoryError: the directory does not exist.
    """
    with named_in_errors(Path(root), "the folder that cache() was given, or memload.open as cache="):
        found = [entry for path in Path(root).absolute().iterdir() if (entry := _entry_at(path)) is not None]
    return sorted(found, key=lambda entry: (-entry.made, entry.name))


def _entry_at(path: Path) -> Entry | None:
    match = _ENTRY.fullmatch(path.name)
    if match is None or bool(match[1]) != bool(match[3]) or not path.is_dir():
        return None
    files = list(_files(path))
    nbytes, made = sum(size for size, _ in files), max((time for _, time in files), default=path.stat().st_mtime)
    if match[1]:
        return Entry(match[2], path.parent / match[2], "", 0, nbytes, made, complete=False)
    origin = Origin.of(path)
    if origin is None:
        return None  # not an entry of a cache
    try:
        rows = read_index(path).rows
    except FormatError:
        rows = 0
    return Entry(match[2], path, origin.function, rows, nbytes, made, complete=True)


def _files(path: Path) -> Iterator[tuple[int, float]]:
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a writer may remove files meanwhile
            found = file.stat()
            if file.is_file():
                yield found.st_size, found.st_mtime


def remove(entry: Entry) -> None:
    """Remove an entry, complete or not. A process that has it open can still read it.

    Raises:
        WriterBusyError: a process is computing the entry.
    """
    staging = Staging(entry.path, append=False)  # locks the entry against writers
    try:
        if entry.complete:
            entry.path.rename(staging.directory / "removed")  # one step, because a half removed set must not open
    finally:
        staging.discard()
