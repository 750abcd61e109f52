"""Where something is to be written: what is no path, and what keeps a directory from being made, said in words."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memload.errors import MemloadError
from memload.sources.paths import check_utf8


def target_of(path: Any) -> Path:
    """Return the absolute path of a directory that is to be made.

    Raises:
        TypeError: it is no path; the data, if the arguments are the wrong way round.
        ValueError: it is empty, or not UTF-8.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f'the directory to make comes first, as in memload.write("shards/", data); got a {type(path).__name__}'
        )
    text = os.fspath(path)
    if not text:
        raise ValueError("an empty path; give the directory to make a name")
    check_utf8(text)
    return Path(text).absolute()


@contextlib.contextmanager
def makes(target: Path) -> Iterator[None]:
    """Within this context, errors of creating a directory say which directory, what is in its way, and what to do."""
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
        return f"this process (user {os.geteuid()}) may not write to {there}"
    return f"{there} takes no new folder ({error.strerror})"
