"""The folder of a cache of remote blocks, which the sets and the processes of a machine share.

cache/room                       counts the bytes of all blocks, and is the lock of their tables
cache/KEY/set.json               which set it is, and the files that it has
cache/KEY/blocks                 the table of its blocks: which are there, and their checksums
cache/KEY/etags                  the ETag of each of its objects of which a block was fetched
cache/.new-XXXXXXXX/             a set in the making, see `unfinished`
cache/KEY/shard-00000.safetensors   a sparse file of the shard's layout, which has the blocks that are there
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from memload._core import BlockTable, CacheRoom
from memload.errors import FormatError
from memload.formats.remote.cache_disk import check_punching
from memload.formats.remote.damages import emptied
from memload.formats.remote.descriptors import Descriptor, Descriptors
from memload.formats.remote.unfinished import PREFIX, being_made, locked, remove_unfinished

ROOM, SET, TABLE, ETAGS = "room", "set.json", "blocks", "etags"
LEAST_BLOCK = 1 << 16
"""Bytes of the smallest blocks."""
_FORMAT = "memload-cache"
STATE, ARRIVING, PRESENT, MOVING, PINNED, OF_OTHERS = 3, 1, 2, 3, 4, 16
"""Of `BlockTable.states`: the bits of the state, three states, the bit of a pin, and that of another's block."""
_AT_ONCE = 1 << 16  # blocks
_FILES_AT_ONCE = 64
_REMOVED_AT_ONCE = 1 << 10  # blocks, which takes a second where they are large
_REMOVALS = 3  # of a set while it is opened

Place = Callable[[int], tuple[Descriptor, int]]
"""Returns the descriptor of a mirror file by its number, and where the file begins there."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a set: its name under the set's address, and its bytes."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class CachedSet:
    """A set in a cache.

    Attributes:
        path: its folder.
        url: where the set lies.
        block_bytes: bytes of a block.
        files: its files.
    """

    path: Path
    url: str
    block_bytes: int
    files: tuple[RemoteFile, ...]

    @property
    def key(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def nbytes(self) -> int:
        """Bytes of the whole set."""
        return sum(file.nbytes for file in self.files)

    @property
    def has_mirrors(self) -> bool:
        """Whether all mirror files are there, with the lengths of its files."""
        try:
            return all((self.path / file.name).stat().st_size == file.nbytes for file in self.files)
        except FileNotFoundError:
            return False

    @property
    def stated(self) -> tuple[str, int, list[int]]:
        """What a table is opened by: its path, the bytes of a block, and those of each file."""
        return str(self.path / TABLE), self.block_bytes, [file.nbytes for file in self.files]

    def table(self, room: CacheRoom) -> BlockTable:
        """Open the table of its blocks, and remove what killed processes left of blocks.

        Raises:
            OSError: it cannot be opened, or bytes cannot be removed.
            FileNotFoundError: it was removed. Another one would say nothing of what the mirror files have.
            FormatError: it is damaged.
        """
        (self.path / TABLE).stat()
        try:
            table = BlockTable(room, *self.stated)
        except RuntimeError as error:
            raise FormatError(str(error)) from None
        remove_left(table, self._places(table))
        return table

    def remove_blocks(self, table: BlockTable, blocks: Sequence[int] | Any) -> int:
        """Remove blocks that nobody has pinned; return the bytes."""
        return evicted(table, blocks, self._places(table))

    def _places(self, table: BlockTable) -> Place:
        files = Descriptors(self.path)

        def place(number: int) -> tuple[Descriptor, int]:
            file = files.of(self.files[number].name)
            if not table.is_there:  # then the file may be one of another table, which was made since
                raise FileNotFoundError(self.path)
            return file, 0

        return place


def evicted(table: BlockTable, blocks: Any, place: Place) -> int:
    """Take blocks out of a table and their bytes out of the mirror files; return how many bytes.

    An interrupt finds each block in its place, or gone: each is removed within one call of the core, which removes so
    few that an interrupt does not wait for long.

    Args:
        table: the table.
        blocks: numbers of blocks; those that are pinned, or not there, stay as they are.
        place: returns for the number of a file its descriptor, and where it begins there.

    Raises:
        OSError: a mirror file cannot be opened, or the file system does not take bytes back, which count until it does.
    """
    wanted = np.asarray(blocks, dtype=np.int64)
    parts = (wanted[first : first + _REMOVED_AT_ONCE] for first in range(0, len(wanted), _REMOVED_AT_ONCE))
    return sum(table.evict(some, files) for part in parts for some, files in _by_files(table, part, place))


def remove_left(table: BlockTable, place: Place) -> None:
    """Remove what ended processes were writing or removing, and what could not be removed.

    Arguments and errors are those of `evicted`.
    """
    errors: list[OSError] = []
    for _, files in _by_files(table, table.left(), place):
        try:
            table.remove_left(files)
        except OSError as error:  # the bytes in other files may go
            errors = errors or [error]
    if errors:
        raise errors.pop()


def _by_files(table: BlockTable, blocks: Any, place: Place) -> Iterator[tuple[Any, dict[Any, tuple[int, int]]]]:
    """Yield the blocks of some files, and the places of these, which are open until the next ones are asked for."""
    if len(blocks) == 0:
        return
    numbers = np.searchsorted(table.first_blocks, blocks, side="right") - 1
    found = np.unique(numbers)
    for first in range(0, len(found), _FILES_AT_ONCE):
        some = found[first : first + _FILES_AT_ONCE]
        places = {number: _place_if_there(place, number) for number in some.tolist()}
        files = {number: (-1, 0) if one is None else (one[0].number, one[1]) for number, one in places.items()}
        yield blocks[np.isin(numbers, some)], files


def _place_if_there(place: Place, number: int) -> tuple[Descriptor, int] | None:
    try:
        return place(number)
    except FileNotFoundError:  # somebody removed the mirror file, and the bytes with it
        return None


class CacheFolder:
    """The folder of a cache; it is made if it does not exist. What killed processes left of sets is removed.

    Attributes:
        path: the folder.
        room: counts the bytes of all its blocks.
        damaged: the keys of sets that were found damaged; they are emptied unless a process reads them.
        removed_unfinished: how many sets were found that killed processes had begun to make.

    Raises:
        FileExistsError: the path is a file, or a folder with other content than a cache's.
        FileNotFoundError: its file `room` was removed while processes read through it.
        FormatError: its file `room` is damaged, or somebody else's.
        OSError: it cannot be made, or its file system cannot give parts of files back.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool = True) -> None:
        self.path = Path(path).absolute()
        if make:
            self._make()
        elif not is_folder(self.path):
            raise FileNotFoundError(f"{self.path}: no cache of remote blocks is here")
        if not (self.path / ROOM).exists():
            self._check_unread()
        self.removed_unfinished = remove_unfinished(self.path)
        self.damaged: set[str] = set()
        with locked(self.path):  # of several that open it at once, each would keep the others from counting
            try:
                self.room = CacheRoom(str(self.path / ROOM))
            except RuntimeError as error:
                raise FormatError(str(error)) from None
            if self.room.shut():  # what others claimed while it is counted would be missing in the count
                try:
                    self._mend_all()
                finally:
                    self.room.admit()
            elif self.room.is_there:
                self._count(self.sets())

    def _count(self, sets: Sequence[CachedSet]) -> None:
        """Correct the count, while others have the room, too: somebody may have removed sets, or damaged them.

        The sets are read before: with the lock all others would wait meanwhile, and so would the thread itself where
        Python collects a pass there, whose end has to have the lock.
        """
        with self.room.lock():
            self.room.set_used(sum(BlockTable.held_bytes(*one.stated) for one in _sets_in(self.path, sets)))

    def _mend_all(self) -> None:
        for one in self.sets():
            with contextlib.suppress(FileNotFoundError):  # somebody removes it
                self._mend(one)
        self.room.set_used(sum(self.held(one) for one in self.sets()))

    def _make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"{self.path}: a file; cache= takes a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        if not is_folder(self.path):
            has_content = any(not path.name.startswith(PREFIX) for path in self.path.iterdir())
            if has_content and not is_folder(self.path):  # else another process makes the cache at the same moment
                raise FileExistsError(f"{self.path}: this folder has other content; give cache= an empty or a new one")
            check_punching(self.path)

    def _check_unread(self) -> None:
        """Refuse to make the file of the room anew while processes have the one that was removed: it is their lock."""
        read = [one for one in self.sets() if BlockTable.is_in_use(str(one.path / TABLE))]
        if read and not (self.path / ROOM).exists():  # else another process made it, and reads through it
            raise FileNotFoundError(
                f"{self.path / ROOM}: the file was removed while processes read {read[0].url} through this cache; end "
                "them, and open it again"
            )

    def sets(self) -> list[CachedSet]:
        """Return the sets that have a folder here."""
        return _sets_in(self.path)

    def table(self, one: CachedSet) -> BlockTable:
        """Open the table of a set; if it is damaged or missing, the set is emptied first.

        Raises:
            OSError: it cannot be opened; FileNotFoundError: the set was removed.
            FormatError: it is damaged, and a process reads the set.
        """
        try:
            return one.table(self.room)
        except (FormatError, FileNotFoundError):
            if not (one.path / SET).exists():
                raise
            self._empty(one)
            return one.table(self.room)

    def _mend(self, one: CachedSet) -> None:
        """Empty a set of which mirror files are missing or have other lengths, unless a process reads it."""
        if not one.has_mirrors:
            with locked(one.path):  # several that open it at once would keep one another from emptying it
                if not one.has_mirrors:
                    self._empty(one)

    def _empty(self, one: CachedSet) -> None:
        with contextlib.suppress(FormatError, FileNotFoundError):  # a damaged table does not say which blocks it has
            table = one.table(self.room)
            if table.is_alone:
                for blocks in present(table):
                    one.remove_blocks(table, blocks)  # which count until then
            del table
        mirrors = [(one.path / file.name, file.nbytes) for file in one.files]
        if emptied(self.room, one.path / TABLE, one.path / ETAGS, mirrors):
            self.damaged.add(one.key)

    def held(self, one: CachedSet) -> int:
        """Return the bytes of a set's blocks; 0 if its table is damaged. Raises OSError."""
        try:
            return held_bytes(self.table(one))
        except FileNotFoundError:  # another process has removed it
            return 0
        except FormatError:
            self.damaged.add(one.key)
            return 0

    def opened(
        self, url: str, content: bytes, block_bytes: int, files: Sequence[RemoteFile]
    ) -> tuple[CachedSet, BlockTable]:
        """Return the folder of a set, as `entry`, and its table; where another process removes it meanwhile, anew."""
        for _ in range(_REMOVALS):
            with contextlib.suppress(FileNotFoundError):
                one = self.entry(url, content, block_bytes, files)
                table = self.table(one)
                if (one.path / SET).exists() and one.has_mirrors and table.is_there:
                    return one, table
                del table  # it was made anew amid the removal
        one = self.entry(url, content, block_bytes, files)
        return one, self.table(one)

    def entry(self, url: str, content: bytes, block_bytes: int, files: Sequence[RemoteFile]) -> CachedSet:
        """Return the folder of a set, with mirror files for its files; it is made if it does not exist.

        Args:
            url: where the set lies.
            content: what tells this set from an earlier one at the same place: the bytes of its index.
            block_bytes: bytes of a block; where other processes read the set in smaller blocks now, it is theirs.
            files: its files.
        """

        def of(size: int) -> CachedSet:
            key = xxhash.xxh3_128_hexdigest(f"{url}\n{size}\n".encode() + content)
            return CachedSet(self.path / key, url, size, tuple(files))

        one = of(block_bytes)
        smaller = [of(block_bytes >> k) for k in range(1, block_bytes.bit_length()) if block_bytes >> k >= LEAST_BLOCK]
        if shared := [other for other in smaller if self._is_read(other)]:
            return shared[0]
        if not (one.path / SET).exists():
            self._prepare(one)
        self._mend(one)
        return one

    def _is_read(self, one: CachedSet) -> bool:
        """Whether another process reads a set now."""
        return (one.path / SET).exists() and not self.table(one).was_alone

    def _prepare(self, one: CachedSet) -> None:
        """Make the folder of a set beside its place, and rename it, so that it is complete or not there."""
        with being_made(self.path) as made:
            said = {"format": _FORMAT, "version": 1, "url": one.url, "block_bytes": one.block_bytes}
            said["files"] = [[file.name, file.nbytes] for file in one.files]
            (made / SET).write_text(json.dumps(said))
            for file in one.files:
                with (made / file.name).open("xb") as mirror:
                    mirror.truncate(file.nbytes)
            (made / TABLE).touch()
            made.chmod(0o777 & ~_umask())
            try:
                made.rename(one.path)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                with contextlib.suppress(OSError):  # another process was first, or a removal left a part
                    os.link(made / SET, one.path / SET)

    def make_room(self, nbytes: int, but: CachedSet) -> int:
        """Remove blocks of other sets, as far as no process uses them, until so many bytes are free of them."""
        freed = 0
        if not self.room.is_there:  # what lies here by now belongs to others, who have another lock
            return freed
        sets = self.sets()
        for one in sorted((one for one in sets if one != but), key=_modified):
            if freed >= nbytes:
                break
            with contextlib.suppress(FormatError, FileNotFoundError):  # a process reads it, or has removed it
                for blocks in present(table := self.table(one)):
                    freed += one.remove_blocks(table, blocks)
        if freed < nbytes:
            self._count(sets)
        return freed

    def clear(self, one: CachedSet) -> tuple[int, bool]:
        """Remove a set, or if a process reads it the blocks that are not in use.

        Returns:
            The bytes of blocks that were removed, and whether the set is gone.
        """
        try:
            table = self.table(one)
        except FileNotFoundError:
            return 0, True  # another process has removed it
        except FormatError:
            return 0, False  # a process reads it
        freed = sum(one.remove_blocks(table, blocks) for blocks in present(table))
        with self.room.lock():  # whoever opens the table waits for it, and sees then that it was removed
            if not table.is_alone or held_bytes(table) != 0:
                return freed, False
            for name in [SET, TABLE, ETAGS, *(file.name for file in one.files)]:
                (one.path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody else has put a file there
                one.path.rmdir()
        return freed, True


def _modified(one: CachedSet) -> float:
    """Return when the folder of a set was last modified; 0 if it is there no more."""
    try:
        return one.path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the folder of a cache, by its room or, if somebody removed that, by its sets."""
    return (Path(path) / ROOM).is_file() or (Path(path).is_dir() and bool(_sets_in(Path(path))))


def present(table: BlockTable) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Yield numbers of blocks that are there and not pinned."""
    for first in range(0, table.blocks, _AT_ONCE):
        states = table.states(first, min(_AT_ONCE, table.blocks - first))
        yield first + np.flatnonzero((states & (STATE | PINNED)) == PRESENT)


def held_bytes(table: BlockTable) -> int:
    """Return the bytes of all blocks of a table that take room."""
    total = 0
    for first in range(0, table.blocks, _AT_ONCE):
        states = table.states(first, min(_AT_ONCE, table.blocks - first)) & STATE
        total += sum(table.bytes_of(first + int(k)) for k in np.flatnonzero(states))
    return total


def _sets_in(folder: Path, known: Sequence[CachedSet] = ()) -> list[CachedSet]:
    """Return the sets in a folder, of which those that are known are not read again."""
    of = {one.path: one for one in known}
    paths = [path for path in sorted(folder.iterdir()) if path.name != ROOM and not path.name.startswith(PREFIX)]
    return [one for path in paths if (one := of.get(path) or _set_at(path)) is not None]


def _set_at(path: Path) -> CachedSet | None:
    try:
        said = json.loads((path / SET).read_text())
        if said["format"] != _FORMAT or said["version"] != 1:
            return None
        files = tuple(RemoteFile(str(name), int(nbytes)) for name, nbytes in said["files"])
        if any("/" in file.name or file.name in ("", ".", "..") for file in files):
            return None
        return CachedSet(path, str(said["url"]), int(said["block_bytes"]), files)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask
