"""Resolve paths as users give them: lists, patterns such as "betas_session*.hdf5", and hints for missing paths."""

from __future__ import annotations

import contextlib
import difflib
import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

PathLike = str | os.PathLike[str]

IMAGES = (".jpg", ".jpeg", ".png")
"""The suffixes of images that can be made into a set of shards."""

VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".ogv", ".h264")
"""The suffixes of videos, which are decoded into recordings."""

_MOST_LOOKED_AT = 1000  # names of a folder
_ARRAYS = (".npy", ".npz", ".safetensors", ".pt", ".h5", ".hdf5", ".arrow", ".nii", ".nii.gz")
_MOST_NAMED = 5
_MOST_FOLDERS = 8  # whose names are looked at
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash is what Path leaves of two


_SCHEMES = re.compile("(s3a?|gs|az|abfss?|adl|azure|https?|file)://", re.IGNORECASE)


def is_remote(path: object) -> bool:
    """Return whether this is the address of a store, or a store object of obstore's."""
    if isinstance(path, str):
        return _SCHEMES.match(path) is not None
    return any(cls.__module__.startswith("obstore.") for cls in type(path).__mro__)


def is_url(text: str) -> bool:
    """Return whether a path reads like the address of a store, of a kind that memload knows or not."""
    return _URL.match(text.strip()) is not None


def is_taken(target: Path) -> bool:
    """Return whether there is something at a path but an empty directory, which a new one may replace.

    Example:
        >>> import tempfile
        >>> is_taken(Path(tempfile.mkdtemp())), is_taken(Path("/"))
        (False, True)
    """
    if not os.path.lexists(target):
        return False
    if target.is_symlink() or not target.is_dir() or target.is_mount():
        return True
    try:
        return any(target.iterdir())
    except PermissionError:
        return True


def paths_of(path: PathLike | Iterable[PathLike]) -> list[Path]:
    """Return each path unchanged, and for a pattern with *, ? or [ all matching paths, sorted by name.

    Numbers in names are sorted as numbers, so session2 comes before session10. An existing path is never a pattern.

    Raises:
        FileNotFoundError: nothing matches a pattern, or the path is a URL.
        ValueError: a list, or a path, is empty; or a name is not UTF-8.
        TypeError: the value is not a path.
    """
    return [found for entry in entries_of(path) for found in _matching(entry)]


def entries_of(path: PathLike | Iterable[PathLike]) -> list[Any]:
    """Return the paths of a list, or a list of the single path, unchanged.

    Raises:
        ValueError: a list is empty.
        TypeError: the value is neither a path nor a list.
    """
    if isinstance(path, str | os.PathLike):
        return [path]
    if not isinstance(path, Iterable) or isinstance(path, bytes | Mapping) or hasattr(path, "dtype") or _open(path):
        raise TypeError(f"expected a path, a pattern, or a list of these, got {_described(path)}")
    if not (listed := list(path)):
        raise ValueError("an empty list of paths; expected at least one")
    return listed


def _matching(path: PathLike) -> list[Path]:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"expected a path, got {_described(path)}")
    text = os.fspath(path)
    if not text:
        raise ValueError("the path is empty; the current folder is '.'")
    check_utf8(text)
    if Path(text).exists():
        return [Path(text)]
    if is_url(text):
        raise FileNotFoundError(
            f"{text}: a URL, but memload opens files in the file system: download it, or mount its storage"
        )
    if not glob.has_magic(text):
        return [Path(text)]
    found = [Path(match) for match in matching(text)]
    if not found:
        raise FileNotFoundError(f"{text}: no path matches this pattern{instead_of(Path(text))}")
    return sorted(found, key=natural)


def matching(pattern: str) -> list[str]:
    """Return the paths that match a pattern with *, ? or [, in no particular order."""
    return glob.glob(pattern, recursive=True)  # noqa: PTH207 - which takes absolute patterns


def check_utf8(path: str) -> None:
    """Raise ValueError for a path with bytes that are not UTF-8; native code maps files by UTF-8 names only."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path!a}: not UTF-8; rename it, or make a link to it whose path is") from None


def _described(given: Any) -> str:
    """Describe a value that was given in place of a path, and the call that accepts it."""
    if _open(given):
        name = getattr(given, "filename", getattr(given, "name", None))
        return f"an open file ({type(given).__name__}); give its path" + (
            f", {name!r}" if isinstance(name, str) else ""
        )
    if _library(given) in ("h5py", "zarr"):
        return f"a {type(given).__name__} of {_library(given)}; give the path of its file, and its name by key="
    if isinstance(given, Mapping):
        return f"a {type(given).__name__}; open each, and put them side by side: memload.zip(stim=..., robs=...)"
    if hasattr(given, "dtype"):
        return f"a {type(given).__name__}; memload.from_arrays(name=array) takes arrays that are in memory"
    return repr(given)


def _open(given: Any) -> bool:
    """Return whether this is an open file; iteration would give its lines."""
    return hasattr(given, "fileno") or (_library(given) == "h5py" and hasattr(given, "filename"))


def _library(given: Any) -> str:
    return type(given).__module__.partition(".")[0]


def _is_unfetched(path: Path) -> bool:
    """Return whether this is a link of git-annex, as datalad makes them, to a file that is not here."""
    return path.is_symlink() and not path.exists() and "annex" in path.readlink().parts


def no_file(path: Path) -> OSError:
    """Return the error for a path at which a file is expected, and there is a folder or nothing."""
    if path.is_dir():
        return IsADirectoryError(f"{path}: a folder; expected a file{_first_of(path)}")
    return FileNotFoundError(f"{path}: {nothing_at(path)}; give a path that exists")


def _first_of(folder: Path) -> str:
    """Return some names in a folder, for messages."""
    names = sorted(_names_in(folder), key=lambda one: natural(Path(one)))
    return f", such as one of {', '.join(map(repr, names[:_MOST_NAMED]))} in it" if names else "; it is empty"


def hidden_beside(target: Path) -> Path:
    """Return the hidden directory in which a set is written before it is at its path; `target` is absolute."""
    return target.parent / f".{target.name}.memload"


def nothing_at(path: Path) -> str:
    """Describe a missing path: the place of the search, and what exists instead."""
    if _is_unfetched(path):
        return f"a link to a file that git-annex or datalad has not fetched: datalad get {path}"
    if path.is_symlink():
        return f"a link to {path.readlink()}, and there is nothing"
    said = "there is nothing at this path"
    if path.parts[:1] and path.parts[0].startswith("~"):
        return f"{said}: ~ is for the shell; give Path(...).expanduser()"
    if not path.is_absolute():
        said += f", in the folder {Path.cwd()}"
    there = next((folder for folder in path.parents if folder.exists()), Path())
    if there.is_file():
        return f"{said}: {there} is a file; what is inside of it is picked by key={str(path.relative_to(there))!r}"
    if hidden_beside(path).is_dir():
        return f"{said}, but an unfinished write; if its writer was killed, the same call goes on, or begins anew"
    if there != path.parent:
        return f"{said}; {there} has no {path.relative_to(there).parts[0]!r}"
    return said + _there(path.name, there)


def instead_of(pattern: Path) -> str:
    """Describe the folder before the first *, ? or [ of a pattern without matches."""
    parts = [*itertools.takewhile(lambda part: not glob.has_magic(part), pattern.parts)]
    folder = Path(*parts)
    if not folder.exists():
        return f": {nothing_at(folder)}"
    if not folder.is_dir():
        return f"; {folder} is a file"
    return _there(pattern.parts[len(parts)], folder)


def _there(name: str, folder: Path) -> str:
    """Return similar names in a folder, or some of its names, for messages."""
    names = sorted(_names_in(folder), key=lambda one: (one.startswith("."), natural(Path(one))))  # hidden ones last
    alike = difflib.get_close_matches(name, names)
    if alike:
        return f"; similar names there: {', '.join(map(repr, alike))}"
    if not names:
        return "; that folder is empty"
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f"; that folder holds {', '.join(map(repr, names[:_MOST_NAMED]))}{more}"


@contextlib.contextmanager
def named_in_errors(path: Path, expected: str = "") -> Iterator[None]:
    """Give an error of the system its path: one of reading or seeking in an open file has none.

    With what is `expected` there, such as "the log of a monitor", the error of a path that is missing, or a folder
    instead of a file, says that, and what exists instead.
    """
    try:
        yield
    except OSError as error:
        if expected and isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
            found = nothing_at(path) if not path.exists() else "a folder" if path.is_dir() else "a file"
            raise type(error)(f"{path}: {found}; expected {expected}") from error
        if error.filename is not None or not error.strerror:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def what_a_folder_has(folder: Path, index: str, recording: str) -> str:
    """Return what to do with a folder that is no set of shards, by its content.

    A set has a file named `index`, a recording one named `recording`.
    """
    names = sorted(_names_in(folder), key=lambda name: natural(Path(name)))
    sets = [name for name in names if (folder / name / index).is_file()]
    if sets:
        return f"sets lie in it, each of which opens: {', '.join(map(repr, sets[:_MOST_NAMED]))}"
    recordings = [name for name in names if (folder / name / recording).is_file()]
    if recordings:
        return (
            f"recordings lie in it, {', '.join(map(repr, recordings[:_MOST_NAMED]))}, each of which opens by "
            f"memload.open_recording({str(folder / recordings[0])!r})"
        )
    suffixes = {Path(name).suffix.lower() for name in names}
    subjects = (folder / name for name in names if name.startswith("sub-"))
    if any((one / "func").is_dir() or any(one.glob("ses-*/func")) for one in subjects):
        return "it has subjects, as BIDS has them: memload.open_bids opens their runs, and memload write decodes these"
    if suffixes.intersection(IMAGES):
        return "it has images, of which `memload write --images DIR DST` makes a set"
    if suffixes.intersection(VIDEOS):
        return "it has videos, which `memload write` decodes into recordings: memload write DIR/*.mp4 DST"
    one = next((suffix for suffix in _ARRAYS if any(name.lower().endswith(suffix) for name in names)), None)
    if one:
        return f"its files open one by one, or as one dataset by a pattern, such as {str(folder / f'*{one}')!r}"
    if any(Path(name).suffix.lower() in IMAGES for name in _names_below(folder, names)):
        return "images lie in folders of it, of which `memload write --images DIR --labels folders DST` makes a set"
    what = "nothing in it is what memload opens" if names else "it is empty"
    return f"{what}; memload.write makes a set, and a writer that was interrupted leaves none"


def _names_below(folder: Path, names: list[str], levels: int = 2) -> Iterator[str]:
    """Yield names in the first few folders of these in a folder, and in folders of those."""
    folders = (folder / name for name in names if not name.startswith("."))
    for one in islice((one for one in folders if one.is_dir()), _MOST_FOLDERS):
        below = sorted(_names_in(one))
        yield from below
        if levels > 1:
            yield from _names_below(one, below, levels - 1)


def cut_short(path: Path) -> str:
    """Describe a file that starts like a zip file but has no directory at its end."""
    with path.open("rb") as file:
        begins = file.read(4) == b"PK\x03\x04"
    return (
        "; it begins as one: it was cut short, as by a copy or a download that did not end: get it again"
        if begins
        else ""
    )


def _names_in(folder: Path) -> list[str]:
    """Return names in a folder, at most _MOST_LOOKED_AT of them; none if it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _MOST_LOOKED_AT)]
    return []


def natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key for paths with digits as numbers and all else by its letters."""
    parts = re.split(r"([0-9]+)", str(path))
    return [(int(part), part) if k % 2 else (0, part) for k, part in enumerate(parts)]
