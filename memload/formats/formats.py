"""Find the format of a path and its reader: a table with one line for each format.

The module of a format is imported when a file of it is met.
"""

from __future__ import annotations

import importlib
import stat
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from memload.columns.fields import UNNAMED, Field, check_name
from memload.errors import FormatError
from memload.formats.members import Key
from memload.formats.paths import IMAGES, VIDEOS, named_in_errors, nothing_at
from memload.formats.shards.index import INDEX_NAME
from memload.formats.shards.lookups import open_set
from memload.formats.signatures import (
    ARROW_MAGIC,
    NIFTI,
    NPY_MAGIC,
    PARQUET_MAGIC,
    SAVED_SPLITS,
    SAVED_STATE,
    TORCH_LEGACY_MAGIC,
    ZARR_NAMES,
)

_PARQUET, _MATLAB = "a Parquet file", "a MATLAB file"  # refused, with what to do
_START = 16  # bytes that tell formats apart


@dataclass(frozen=True)
class Stated:
    """The arguments of `memload.open` beside the path, where they are described; None: not given."""

    field: str | None = None
    key: Key = None
    trust: bool | None = None
    dtype: Any = None
    shape: Sequence[int] | int | None = None
    offset: int | None = None

    @property
    def name(self) -> str:
        """The name of a single field."""
        name = UNNAMED if self.field is None else self.field
        check_name(name)
        return name

    def refuse_all_but(self, path: Path | str, takes: Sequence[str]) -> None:
        """Raise TypeError for an argument that the format determines itself."""
        given = [
            f"{one.name}=" for one in fields(self) if getattr(self, one.name) is not None and one.name not in takes
        ]
        if given:
            hint = "; ds.only(...) and ds.as_tuple(...) pick fields" if "key=" in given and len(takes) == 0 else ""
            listed = ", ".join(given)
            raise TypeError(f"{path}: its format states names, dtypes and shapes itself; leave out {listed}{hint}")


_TABLES = {
    ".csv": "read_csv({!r})",
    ".tsv": "read_csv({!r}, sep='\\t')",
    ".json": "read_json({!r})",
    ".jsonl": "read_json({!r}, lines=True)",
}
"""By the ending of a table's file: how pandas reads it."""

_STREAMS = frozenset([".tar", ".tgz", ".tfrecord", ".tfrecords"])
_Opens = Callable[[Path, Stated], dict[str, Field]]
_Names = Callable[[Path, Stated], Sequence[str]]


class Format(NamedTuple):
    """A format: its name in messages, the arguments it accepts, a test whether a path has it, the function that opens
    it, and for files of several arrays the function that lists their names for `key`.
    """

    name: str
    takes: Sequence[str]
    is_one: Callable[[Path, bytes], bool]
    open: _Opens
    names: _Names | None = None


def open_fields(path: Path, stated: Stated) -> dict[str, Field]:
    """Return the fields at `path`.

    Raises:
        FileNotFoundError, PermissionError: the path is missing or cannot be read.
        FormatError: it is empty, damaged or of no known format.
        TypeError: an argument is given that the format determines itself.
    """
    one = _format(path)
    if one is not SHARDS or (path / INDEX_NAME).exists():  # any other directory is refused for what it has
        stated.refuse_all_but(path, one.takes)
    with named_in_errors(path):
        return one.open(path, stated)


def names_at(path: Path, stated: Stated) -> Sequence[str]:
    """Return the names of the arrays at `path`, whether or not they can be fields; none if they have no names.

    Raises:
        FileNotFoundError, PermissionError, FormatError: as `open_fields`.
    """
    one = _format(path)
    return one.names(path, stated) if one.names else ()


def recognised(path: Path) -> Format | None:
    """Return the format of the file or directory at `path`; None if it is unknown.

    Raises:
        FileNotFoundError, PermissionError: the path is missing or cannot be read.
        FormatError: it is empty, or neither a file nor a directory.
    """
    with named_in_errors(path):  # a file may open and yet not be read, or not from its end
        table, start = (DIRECTORIES, b"") if is_directory(path) else (FILES, _start(path))
        return next((one for one in table if one.is_one(path, start)), None)


def _format(path: Path) -> Format:
    one = recognised(path)
    if one is not None:
        return one
    raise FormatError(f"{path}: no format that memload knows; expected {known()}; {_instead(path)}")


def _instead(path: Path) -> str:
    """Return what to do with a file of an unknown format, for messages."""
    if path.name == "index.json":
        return f"to open a set of shards, give its directory, {path.parent}"
    if path.name in ZARR_NAMES:
        return f"to open a Zarr array or group, give its directory, {path.parent}"
    if path.suffix.lower() in IMAGES:
        return "images are decoded once, into a set of shards: memload write --images DIR DST"
    if path.suffix.lower() in VIDEOS:
        return f"videos are decoded once, into recordings: memload write {path} DST"
    if path.is_file() and _start(path).startswith(b"\x1f\x8b"):
        return "it is compressed by gzip: decompress it first"
    if path.suffix.lower() in _TABLES:
        reads = f"pandas.{_TABLES[path.suffix.lower()].format(str(path))}"
        return f"a table is written once: t = {reads}; memload.write(DST, {{name: t[name].to_numpy() for name in t}})"
    if path.suffix.lower() in _STREAMS:
        return (
            "a stream of records has no row numbers: append what its own reader gives to memload.ShardWriter(DST), "
            "once, as docs/migration.md shows"
        )
    return "arrays that another library reads from it go to memload.from_arrays or memload.write"


def known() -> str:
    """Return the names of all formats, for messages."""
    names = (one.name for one in (*DIRECTORIES, *FILES) if one.name not in (_PARQUET, _MATLAB))
    return f"{', '.join(names)}, or a file of bare rows with dtype= and shape= stated"


def is_directory(path: Path) -> bool:
    """Return whether the path is a directory.

    Raises:
        FileNotFoundError: the path does not exist.
        FormatError: it is neither a file nor a directory.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path}: {nothing_at(path)}; give a path that exists") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise FormatError(f"{path}: neither a file nor a directory; expected {known()}")
    return stat.S_ISDIR(mode)


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        start = file.read(_START)
    if not start:
        raise FormatError(f"{path}: an empty file: get it again, or write it anew")
    return start


def _is_npy(path: Path, start: bytes) -> bool:
    return start.startswith(NPY_MAGIC) or path.suffix == ".npy"


def _is_npz(path: Path, start: bytes) -> bool:
    return path.suffix == ".npz" or any(name.endswith(".npy") for name in _members(path, start))


def _is_torch(path: Path, start: bytes) -> bool:
    return path.suffix in (".pt", ".pth") or _begins_as_torch(path, start)


def _begins_as_torch(path: Path, start: bytes) -> bool:
    return start.startswith(TORCH_LEGACY_MAGIC) or any(name.endswith("/data.pkl") for name in _members(path, start))


def _is_hdf5(path: Path, start: bytes) -> bool:
    """Return whether a file is HDF5. The signature may follow a user block, or be among the numbers of a torch file."""
    from memload.formats.hdf5 import is_hdf5

    return is_hdf5(path) and not _begins_as_torch(path, start)


def _members(path: Path, start: bytes) -> list[str]:
    """Return the names in a zip file; none if it is not a valid one."""
    if not start.startswith(b"PK"):
        return []
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError):
        return []


def _open_torch(path: Path, stated: Stated) -> dict[str, Field]:
    from memload.formats.pyg_file import collated_fields, holds_collated
    from memload.formats.torch_file import fields_of, load_mapped

    file = load_mapped(path, trust=bool(stated.trust))
    if stated.key is None and stated.field is None and holds_collated(file):
        return collated_fields(file)
    return fields_of(file, stated.key, stated.field)


def _torch_names(path: Path, stated: Stated) -> list[str]:
    from memload.formats.torch_file import load_mapped, named_tensors

    return list(named_tensors(path, load_mapped(path, trust=bool(stated.trust)).value))


def _is_arrow(path: Path, start: bytes) -> bool:
    return start.startswith(ARROW_MAGIC) or path.suffix == ".arrow"


def _is_saved(path: Path, _: bytes) -> bool:
    return (path / SAVED_STATE).exists() or (path / SAVED_SPLITS).exists()


def _refuse_parquet(path: Path, _: Stated) -> dict[str, Field]:
    raise FormatError(
        f"{path}: a Parquet file, whose columns are encoded, so no row can be read in place; let datasets decode "
        f"it once into its cache, which can: memload.from_hf(datasets.Dataset.from_parquet({str(path)!r}))"
    )


def _is_matlab(path: Path, _: bytes) -> bool:
    if path.suffix.lower() != ".mat":
        return False
    from memload.formats.matlab import is_matlab

    return is_matlab(path)


def _refuse_matlab(path: Path, _: Stated) -> dict[str, Field]:
    from memload.formats.matlab import refused

    raise refused(path)


def _is_zarr_directory(path: Path, _: bytes) -> bool:
    return any((path / name).exists() for name in ZARR_NAMES)


def _is_zarr_zip(path: Path, start: bytes) -> bool:
    return not {*ZARR_NAMES}.isdisjoint(_members(path, start))


def _open_npy(path: Path, stated: Stated) -> dict[str, Field]:
    from memload.formats.npy import open_npy

    return open_npy(path, stated.name)


def _late(module: str, opens: str, names: str | None = None) -> tuple[_Opens, _Names | None]:
    """Return functions that open a file and name its arrays, and that import their module when they are called."""

    def function(name: str) -> Any:
        return getattr(importlib.import_module(f"memload.formats.{module}"), name)

    return (
        lambda path, stated: function(opens)(path, stated.key, stated.field),
        (lambda path, _: list(function(names)(path))) if names else None,
    )


_FIELDS = ("field", "key")
SHARDS = Format("a directory that memload.write made", (), lambda _path, _: True, lambda path, _: open_set(path))
DIRECTORIES = (
    Format(
        "a directory that datasets.Dataset.save_to_disk made",
        _FIELDS,
        _is_saved,
        *_late("arrow_file", "open_saved", "arrow_names"),
    ),
    Format("a Zarr directory", _FIELDS, _is_zarr_directory, *_late("zarr_store", "open_zarr", "zarr_names")),
    SHARDS,
)
FILES = (
    Format("a zip file of Zarr", _FIELDS, _is_zarr_zip, *_late("zarr_store", "open_zarr", "zarr_names")),
    Format("a .npy file", ("field",), _is_npy, _open_npy),
    Format(
        "a NIfTI file", ("field",), lambda path, _: path.name.lower().endswith(NIFTI), *_late("nifti", "open_nifti")
    ),
    Format("a .npz file", _FIELDS, _is_npz, *_late("npz", "open_npz", "npz_members")),
    Format(
        "a .safetensors file",
        _FIELDS,
        lambda path, _: path.suffix == ".safetensors",
        *_late("safetensors_file", "open_safetensors", "safetensors_names"),
    ),
    Format("an Arrow file", _FIELDS, _is_arrow, *_late("arrow_file", "open_arrow", "arrow_names")),
    Format(_PARQUET, (), lambda _path, start: start.startswith(PARQUET_MAGIC), _refuse_parquet),
    Format(_MATLAB, _FIELDS, _is_matlab, _refuse_matlab),
    Format("an HDF5 file", _FIELDS, _is_hdf5, *_late("hdf5", "open_hdf5", "hdf5_names")),
    Format("a file of torch.save", (*_FIELDS, "trust"), _is_torch, _open_torch, _torch_names),
)
