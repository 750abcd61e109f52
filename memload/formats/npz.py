"""Read a .npz file: its uncompressed members are .npy files inside a zip file, and are read in place."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from memload._core import Storage
from memload.columns.fields import Field
from memload.errors import FormatError
from memload.formats.members import Key, check_lengths, choose
from memload.formats.npy import NpyArray, read_npy
from memload.formats.paths import cut_short

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # APPNOTE.TXT 4.3.7; only the two lengths at its end count here
_LOCAL_MAGIC = b"PK\x03\x04"


def open_npz(path: Path, key: Key, field: str | None) -> dict[str, Field]:
    """Return the arrays of a .npz file as fields; their first axes count the rows.

    Raises:
        FormatError: the file is damaged; or an array is compressed, in Fortran order, without an axis, or of a dtype
            that torch does not have.
        KeyError, TypeError, ValueError: as `choose` and `check_lengths`.
    """
    with path.open("rb") as file:
        members = choose(path, npz_members(path), key, field)
        arrays = _read(path, file, members, key)
    check_lengths(path, {name: array.rows for name, array in arrays.items()}, key)
    storage = Storage.map_file(str(path.absolute()))
    return {name: array.field(storage) for name, array in arrays.items()}


def npz_members(path: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of a .npz file by name.

    Raises:
        FormatError: the central directory is damaged, or the file has no array.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise FormatError(f"{path}: not a valid .npz file: {error}{cut_short(path)}") from None
    members = {info.filename.removesuffix(".npy"): info for info in infos if info.filename.endswith(".npy")}
    if not members:
        raise FormatError(f"{path}: a zip file without a .npy member; expected what numpy.savez writes")
    return members


def _read(path: Path, file: BinaryIO, members: Mapping[str, zipfile.ZipInfo], key: Key) -> dict[str, NpyArray]:
    found, unfit = dict[str, NpyArray](), list[str]()
    for name, info in members.items():
        try:
            found[name] = _stored(path, file, info)
        except FormatError as error:
            unfit.append(str(error))
    if unfit:
        remedy = f"; or leave it out by key={list(found)}" if found and key is None else ""
        raise FormatError(f"{unfit[0]}{remedy}") from None
    return found


def _stored(path: Path, file: BinaryIO, info: zipfile.ZipInfo) -> NpyArray:
    name = info.filename
    if info.compress_type != zipfile.ZIP_STORED:
        raise FormatError(
            f"{path}: {name} is compressed as a whole, so that no row can be read without all before it; save it by "
            "numpy.savez instead of savez_compressed, or convert it: "
            f"memload.write(directory, dict(numpy.load({str(path)!r})))"
        )
    if info.flag_bits & 1:
        raise FormatError(f"{path}: {name} is encrypted")
    begin = data_offset(path, file, info)
    if info.file_size != info.compress_size or info.file_size > path.stat().st_size - begin:
        raise FormatError(f"{path}: {name} is cut short: {info.file_size} bytes from offset {begin} on are not there")
    file.seek(begin)
    return read_npy(f"{path}: {name}", file, begin + info.file_size)


def data_offset(path: Path, file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Return the place of a member's bytes; its local header may have other lengths than the directory says."""
    inside = 0 <= info.header_offset <= path.stat().st_size
    file.seek(info.header_offset if inside else 0)
    header = file.read(_LOCAL_HEADER.size if inside else 0)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_LOCAL_MAGIC):
        raise FormatError(f"{path}: {info.filename} has no header at offset {info.header_offset}")
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    return info.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
