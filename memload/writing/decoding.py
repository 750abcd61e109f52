"""Recordings of files that are decoded once, several at a time: a folder for each, as `memload.write` makes one.

    files -> threads, a file each -> `write_folder` -> recordings

A file that was complete when a call was interrupted is kept by the next one, if it and the options are the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import xxhash

from memload.dataset.recordings.opening import open_recording
from memload.dataset.recordings.recording import Recording
from memload.formats.codecs.by_field import Codecs
from memload.formats.recordings.folder import holds_recording, source_of
from memload.formats.shards.staging import target_of
from memload.memory.threads import ThreadPool
from memload.progress import Bar, bar, note
from memload.writing.recordings import check_absent


@dataclass(frozen=True)
class Options:
    """The arguments that all functions which decode files have in common; see `memload.write`."""

    shard_bytes: int | str
    codec: Codecs
    resume: bool
    progress: bool | None


class Stopped(Exception):  # noqa: N818 - it ends a thread, and nobody sees it
    """Another file could not be decoded, or the call was interrupted."""


class Task:
    """What the threads of one call share: its options, a bar, and whether to stop.

    Args:
        options: of the call.
        shown: the bar.
        threads: how many threads each file has for itself.
    """

    def __init__(self, options: Options, shown: Bar, threads: int) -> None:
        self.options, self.threads = options, threads
        self._shown, self._lock = shown, threading.Lock()
        self._stopped = threading.Event()

    def update(self, n: float) -> None:
        """Count `n` more."""
        with self._lock:
            self._shown.update(n)

    def stop(self) -> None:
        """Let all files end soon."""
        self._stopped.set()

    def check(self) -> None:
        """Raise Stopped if the files are to end."""
        if self._stopped.is_set():
            raise Stopped


class Encoded(Protocol):
    """A file that is decoded into the folder of a recording."""

    @property
    def path(self) -> Path:
        """The path of the file."""

    @property
    def name(self) -> str:
        """The name of the recording."""

    @property
    def amount(self) -> float:
        """How much there is to decode, in the unit of the bar."""

    def identity(self, options: Options) -> dict[str, str]:
        """Return what the recording is made of, without decoding it; equal texts promise equal recordings."""

    def write(self, target: Path, task: Task) -> Any:
        """Make the folder of the recording."""


def write_decoded(
    path: str | Path, files: Sequence[Encoded], options: Options, *, together: bool, threads: int | None, unit: str
) -> dict[str, Recording]:
    """Write a recording of each file, and return them by name.

    Args:
        path: the folder of the recording, or of all of them.
        files: at least one.
        options: as in `memload.write`.
        together: `path` holds a folder for each of the files, rather than one recording.
        threads: how many files are decoded at a time; None: one for each core.
        unit: what the bar counts.

    Raises:
        FileExistsError: a folder exists, and is not what this call would write.
        ValueError: two files have one name.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is a number of threads, or None for one for each core; got {threads}")
    target, cores = target_of(path), len(os.sched_getaffinity(0))
    places = _places(target, files, together)
    left = [file for file in files if not (together and _is_complete(places[file.name], file, options))]
    for file in left:
        check_absent(places[file.name])
    width = min(threads or cores, len(left))
    total = round(sum(file.amount for file in left)) or None
    with bar("write", total, options.progress, unit=unit) as shown:
        task = Task(options, shown, max(1, cores // max(1, width)))
        if width:
            _side_by_side(left, places, task, width)
    return {file.name: open_recording(places[file.name]) for file in files}


def _places(target: Path, files: Sequence[Encoded], together: bool) -> dict[str, Path]:
    if together and any(target.resolve() == file.path.resolve().parent for file in files):
        raise ValueError(f"{target}: has the files that are read; write to another folder")
    places: dict[str, Path] = {}
    for file in files:
        if file.name in places:
            raise ValueError(
                f"two of the files would be written to {target / file.name}, such as {file.path}: rename one"
            )
        places[file.name] = target / file.name if together else target
    return places


def _is_complete(place: Path, file: Encoded, options: Options) -> bool:
    if not (options.resume and holds_recording(place) and source_of(place) == file.identity(options)):
        return False
    note(f"{place}: complete already", options.progress)
    return True


def _side_by_side(files: Sequence[Encoded], places: dict[str, Path], task: Task, threads: int) -> None:
    """Write all files; the first error stops the others, which keep what they have for the next call."""
    pool, futures = ThreadPool(threads), list[Future[Any]]()
    try:
        futures = [pool.submit(file.write, places[file.name], task) for file in files]
        wait_for(futures, return_when=FIRST_EXCEPTION)
    finally:
        task.stop()
        pool.shutdown(wait=True, cancel_futures=True)
    for future in futures:
        if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, Stopped):
            try:
                raise error
            finally:
                del error, future, futures  # its traceback refers to this frame, which would keep them


def stamp_of(path: Path, *more: str) -> str:
    """Return a short text that differs if the file, or one of these texts, is another."""
    found = path.stat()
    parts = (str(path.absolute()), str(found.st_size), str(found.st_mtime_ns), *more)
    return xxhash.xxh3_64_hexdigest("\0".join(parts).encode("utf-8", "surrogateescape"))
