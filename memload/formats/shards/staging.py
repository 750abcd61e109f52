"""The hidden directory in which one writer, who holds its lock, writes a set of shards before it exists.

    new set     parent/.NAME.memload/lock               one writer at a time
                parent/.NAME.memload/set/               what is being written; renamed to parent/NAME when complete
                parent/.NAME.memload/unfinished.json    what of it is complete, of a writing that can be resumed
                parent/.NAME.memload/scratch/           rows that arrive in pieces, until they are whole
    appending   NAME/.append.memload/                   the same; each shard renamed into NAME, then index.json replaced

A process that is killed leaves the hidden directory behind and its lock free. The next writer takes the lock, and
clears what it finds or, where it writes the same, takes it up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memload.errors import MemloadError, WriterBusyError
from memload.formats.paths import check_utf8, hidden_beside, is_remote, is_url
from memload.formats.shards.index import INDEX_NAME
from memload.memory.file_locks import is_at

_UNFINISHED = "unfinished.json"


class Staging:
    """The hidden directory of one writer, from its construction to `publish` or `discard`.

    Args:
        target: the directory of shards to make or extend.
        append: whether it exists and is extended.
        keep: keep the files of an interrupted writer; otherwise they are removed.

    Raises:
        WriterBusyError: another writer holds the lock.

    It belongs to the process that made it: a forked child can only close its copy of the lock's descriptor.
    """

    def __init__(self, target: Path, append: bool, keep: bool = False) -> None:
        self._process = os.getpid()
        self._target = target
        self._append = append
        beside = hidden_beside(target)
        self._home = target / ".append.memload" if append else beside
        if append:
            _clear_leftover(beside, target)
        self._lock = _take_lock(self._home, target)
        self.directory = self._home / "set"
        self.unfinished = self._home / _UNFINISHED
        self.scratch = self._home / "scratch"
        try:
            if not keep:
                self.clear()
            self.directory.mkdir(exist_ok=True)
        except BaseException:
            self.discard()
            raise

    def clear(self) -> None:
        """Remove everything but the lock; `directory` is empty afterwards."""
        _empty(self._home)
        self.directory.mkdir()

    @property
    def mine(self) -> bool:
        """Whether this process made the directory."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the one that made this."""
        if not self.mine:
            raise RuntimeError(
                f"{self._target}: this writer belongs to process {self._process}, and this is process {os.getpid()}, "
                "forked from it; write there, or open a writer of its own for another path here"
            )

    def publish(self, index: bytes) -> None:
        """Move the shards and this index into place, in an order that never shows an incomplete set.

        Raises:
            RuntimeError: called in a forked child.
        """
        self.check_process()
        write_durably(self.directory / INDEX_NAME, index)
        if self._append:
            for shard in sorted(self.directory.glob("*.safetensors")):
                shard.rename(self._target / shard.name)
            fsync_directory(self._target)
            (self.directory / INDEX_NAME).rename(self._target / INDEX_NAME)
            fsync_directory(self._target)
            self.discard()
        else:
            self.put_in_place()

    def put_in_place(self) -> None:
        """Move the new directory, which is complete, to its place.

        Raises:
            RuntimeError: called in a forked child.
        """
        self.check_process()
        fsync_directory(self.directory)
        try:
            self.directory.rename(self._target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise FileExistsError(
                f"{self._target}: something was made there while this set was written, and stays; write again, to "
                "another path"
            ) from error
        fsync_directory(self._target.parent)
        self.discard()

    def discard(self) -> None:
        """Remove the rest of the hidden directory and release the lock. May be called again.

        In a forked child nothing is removed, and the parent keeps the lock.
        """
        if self._lock >= 0 and self.mine:
            _remove(self._home)
        self.leave()

    def leave(self) -> None:
        """Release the lock, and leave everything else for the next writer. May be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def being_written(target: Path) -> Path:
    """Return the directory in which a new set is written before it becomes `target`."""
    return hidden_beside(target.absolute()) / "set"


def unfinished_of(target: Path) -> Path:
    """Return the file that lists the complete shards of a new set while it is written."""
    return hidden_beside(target.absolute()) / _UNFINISHED


def wait_for_writer(target: Path) -> None:
    """Wait until no process writes a new set to `target`: it is then complete, or its writer stopped."""
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(hidden_beside(target.absolute()) / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        finally:
            os.close(lock)


def _clear_leftover(home: Path, target: Path) -> None:
    """Remove the hidden directory of a writer that was killed after it had published its set."""
    if home.exists():
        lock = _take_lock(home, target)
        _remove(home)
        os.close(lock)


def _remove(home: Path) -> None:
    """Remove a hidden directory whose lock is held. The lock goes last, because another writer may then take over."""
    _empty(home)
    with contextlib.suppress(OSError):
        (home / "lock").unlink()
        home.rmdir()


def _empty(home: Path) -> None:
    """Remove everything but the lock; first the list of complete shards."""
    for path in home.glob("unfinished.json*"):
        path.unlink(missing_ok=True)
    for name in ("set", "scratch"):
        shutil.rmtree(home / name, ignore_errors=True)


def _take_lock(home: Path, target: Path) -> int:
    while True:
        with contextlib.suppress(FileExistsError):
            home.mkdir()
        try:
            lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # the last writer has just removed the directory
            if home.is_symlink():
                raise FileExistsError(errno.EEXIST, "a link to nothing is in the way; remove it", str(home)) from None
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise WriterBusyError(
                f"{target}: another writer is at work on it; wait until it has finished, or write to another path"
            ) from None
        except BaseException:
            os.close(lock)
            raise
        if is_at(lock, home / "lock"):
            return lock
        os.close(lock)  # a writer removed the file between our open and our flock


def write_durably(path: Path, content: bytes, mode: str = "wb") -> None:
    """Write a whole file and wait until it is on the disk; with the mode "r+b" an empty one that is there."""
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def scratch_file(path: Path, nbytes: int) -> Path:
    """Make a file of `nbytes` bytes in place of an earlier one, and return its path. A full disk raises OSError."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, nbytes))  # a full disk raises here, not SIGBUS later
    return path


def fsync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def target_of(path: Any) -> Path:
    """Return the absolute path of a directory to create.

    Raises:
        TypeError: the value is not a path; it is the data if the arguments are in the wrong order.
        ValueError: the path is empty, not UTF-8, or the address of a store or like one.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f'the directory to make comes first, as in memload.write("shards/", data); got a {type(path).__name__}'
        )
    text = os.fspath(path)
    if not text:
        raise ValueError("the path is empty; name the directory to make")
    if is_remote(text):
        raise ValueError(
            f"{text}: this writes to a file system only. memload.write, write_part and ShardSink write to a store; of "
            "what else there is, write a folder, and copy it to the store, index.json last (docs/remote.md)"
        )
    check_utf8(text)
    if is_url(text) and not Path(text).parent.exists():
        raise ValueError(
            f"{text}: this reads like the address of a store, but is none that memload writes to: give text that "
            "begins with s3://, gs://, az://, abfs:// or file:// (a Path keeps one slash of two), or a store object of "
            "obstore's"
        )
    return Path(text).absolute()


@contextlib.contextmanager
def makes(target: Path) -> Iterator[None]:
    """Add the directory, the obstacle and a remedy to errors of creating a directory in this context."""
    try:
        yield
    except MemloadError:
        raise
    except OSError as error:
        explained = type(error)(f"{target}: cannot be made: {_in_the_way(target, error)}; write to another path")
        explained.errno = error.errno
        raise explained from error


def _in_the_way(target: Path, error: OSError) -> str:
    there = next(folder for folder in target.parents if os.path.lexists(folder))
    if error.errno == errno.EEXIST and there == target.parent and there.is_dir():
        return f"{error.filename}: {error.strerror}"
    if not there.is_dir():
        return f"{there} is no folder"
    if error.errno in (errno.EACCES, errno.EPERM):
        named = Path(error.filename).parent if isinstance(error.filename, str) else Path()
        refusing = there if named == Path() else named  # a name alone tells no directory
        return f"this process (user {os.geteuid()}) may not write to {refusing}"
    return f"{there} accepts no new folder ({error.strerror})"
