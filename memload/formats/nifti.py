"""NIfTI-1 and NIfTI-2 files: volumes of .nii are read in place; of .nii.gz a volume alone is decoded when it is read.

    header (348 or 540 bytes)   dtype, shape, where the volumes begin, scale, seconds between volumes
    vox_offset ...              x fastest, then y, z and time: each volume is one run of bytes, and one row

In C order, which rows have, a volume is therefore (z, y, x): the transpose of nibabel's (x, y, z). The headers:
https://nifti.nimh.nih.gov/pub/dist/src/niftilib/nifti1.h and nifti2.h.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from memload._core import Chain, Column, Storage, TileGrid, Tiles
from memload.columns.fields import UNNAMED, Field, check_size, describe, row_nbytes
from memload.errors import FormatError
from memload.formats.signatures import NIFTI
from memload.sizes import counted

_MOST_HEADER = 540
_PIECE = 2**20  # bytes that are read, or inflated, at once
_NATIVE = "<" if struct.pack("=h", 1) == b"\x01\x00" else ">"

_DTYPES: dict[int, tuple[torch.dtype, tuple[int, ...]]] = {  # by code: the dtype, and the axes of a voxel
    2: (torch.uint8, ()),
    4: (torch.int16, ()),
    8: (torch.int32, ()),
    16: (torch.float32, ()),
    64: (torch.float64, ()),
    128: (torch.uint8, (3,)),
    256: (torch.int8, ()),
    512: (torch.uint16, ()),
    768: (torch.uint32, ()),
    1024: (torch.int64, ()),
    1280: (torch.uint64, ()),
    2304: (torch.uint8, (4,)),
}
_REFUSED = {
    1: "single bits",
    32: "complex64",
    1536: "float128",
    1792: "complex128",
    2048: "complex256",
}
_SECONDS = {0: 1.0, 8: 1.0, 16: 1e-3, 24: 1e-6}  # by the unit of time of xyzt_units; 0 is none, and means seconds


@dataclass(frozen=True)
class NiftiHeader:
    """What the header of a NIfTI file says.

    Attributes:
        dtype: of the voxels.
        shape: of a volume, in C order: (z, y, x), after the axes of a vector and before those of a colour.
        volumes: how many there are.
        offset: the byte at which the first begins.
        swapped: whether the voxels have the bytes of another order than this machine's.
        scale: slope and intercept by which stored values become those that are meant; None if these are the same.
        seconds: from one volume to the next; None if the header does not say it, or the axis is none of time.
        start: the time of the first volume in seconds.
        has_unit: whether the header names the unit of time.
        place: the rows of sform, which place voxels in millimetres: 12 numbers; None if there is none.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    volumes: int
    offset: int
    swapped: bool
    scale: tuple[float, float] | None
    seconds: float | None
    start: float
    has_unit: bool
    place: tuple[float, ...] | None

    @property
    def row_bytes(self) -> int:
        """Bytes of a volume."""
        return row_nbytes(self.dtype, self.shape)

    def __str__(self) -> str:
        return f"{counted(self.volumes, 'volume')} of {describe(self.dtype, self.shape)}"


def is_nifti(path: Path) -> bool:
    """Return whether a path has the name of a NIfTI file."""
    return path.name.lower().endswith(NIFTI)


def is_compressed(path: Path) -> bool:
    """Return whether a path has the name of a compressed NIfTI file."""
    return path.name.lower().endswith(".gz")


def nifti_name(path: Path) -> str:
    """Return the name of a NIfTI file without its suffix."""
    return path.name[: -len(".nii.gz" if is_compressed(path) else ".nii")]


def open_nifti(path: Path, key: object, field: str | None) -> dict[str, Field]:  # noqa: ARG001 - as other formats
    """Return the volumes in `path` as one field of rows (z, y, x), with the values that are stored.

    A volume alone is decoded when it is read, if the file is compressed, and all are if their bytes have another order
    than this machine's; others are read in place.

    Raises:
        FormatError: the file has several volumes that are compressed; or it is damaged, or cut short.
    """
    header = in_place(path)
    name = UNNAMED if field is None else field
    column = _encoded(path, header) if is_compressed(path) or header.swapped else _column(path, header)
    return {name: Field(header.dtype, header.shape, column, meant=header.scale)}


def _column(path: Path, header: NiftiHeader) -> Column:
    storage = Storage.map_file(str(path.absolute()))
    return Column(header.row_bytes, [(storage, header.offset, header.volumes, header.row_bytes)])


def _encoded(path: Path, header: NiftiHeader) -> Tiles:
    """Return the column of volumes that are tiles of their own: of a compressed file the one, with the header."""
    filters = [("byteswap", header.dtype.itemsize, 0)] if header.swapped else []
    if is_compressed(path):
        filters += [("prefix", header.offset, 0), ("deflate", 0, 0)]
        table = [(0, 0, path.stat().st_size, 0)]
    else:
        begins = range(header.offset, header.offset + header.volumes * header.row_bytes, header.row_bytes)
        table = [(0, begin, header.row_bytes, 0) for begin in begins]
    try:
        grid = TileGrid(
            header.volumes,
            header.dtype.itemsize,
            list(header.shape),
            [1, *header.shape],
            [Storage.map_file(str(path.absolute()))],
            np.array(table, np.int64),
            Chain(filters),
        )
    except ValueError as error:
        raise FormatError(f"{path}: {header}: {error}") from error
    return Tiles([grid])


def in_place(path: Path) -> NiftiHeader:
    """Return the header of a file whose volumes can be read one by one; raises FormatError as `open_nifti`."""
    header = read_header(path)
    if is_compressed(path):
        if header.volumes > 1:
            raise FormatError(
                f"{path}: {header}, compressed by gzip, so that none can be read without all before it; decode them "
                f"once: memload write {path} DST, or memload.write_nifti"
            )
        return header
    expected, size = header.offset + header.volumes * header.row_bytes, path.stat().st_size
    if size < expected:
        raise _cut_short(path, header, size)
    return header


def _cut_short(path: Path, header: NiftiHeader, found: int) -> FormatError:
    expected = header.offset + header.volumes * header.row_bytes
    return FormatError(
        f"{path}: cut short: {header} after a header of {header.offset:,} bytes make {expected:,} bytes, and there are "
        f"{found:,}: get the file again"
    )


def read_header(path: Path) -> NiftiHeader:
    """Return the header of a NIfTI file, compressed or not.

    Raises:
        FormatError: it is none, is damaged, or holds what memload does not read.
    """
    with path.open("rb") as file:
        raw = _first_inflated(path, file) if is_compressed(path) else file.read(_MOST_HEADER)
    return parse_header(raw, str(path))


def _first_inflated(path: Path, file: BinaryIO) -> bytes:
    raw = b""
    for piece in _inflated(path, file, _MOST_HEADER):
        raw += piece
        if len(raw) >= _MOST_HEADER:
            break
    return raw[:_MOST_HEADER]


def parse_header(raw: bytes, what: str) -> NiftiHeader:
    """Return what the first 540 bytes of a NIfTI file say, or all if there are fewer.

    Raises:
        FormatError: they are no header, or one of what memload does not read; the message begins with `what`.
    """
    order, version = _order_and_version(raw, what)
    if version == 1:
        dim = struct.unpack_from(f"{order}8h", raw, 40)
        code, bits = struct.unpack_from(f"{order}2h", raw, 70)
        pixdim = struct.unpack_from(f"{order}8f", raw, 76)
        offset, slope, inter = struct.unpack_from(f"{order}3f", raw, 108)
        (units,), (start,), magic = raw[123:124], struct.unpack_from(f"{order}f", raw, 136), raw[344:348]
        single, sform = magic[:2] == b"n+", struct.unpack_from(f"{order}h", raw, 254)[0]
        place = struct.unpack_from(f"{order}12f", raw, 280)
        pixdim, start = tuple(map(_shortest, pixdim)), _shortest(start)
    else:
        code, bits = struct.unpack_from(f"{order}2h", raw, 12)
        dim, pixdim = struct.unpack_from(f"{order}8q", raw, 16), struct.unpack_from(f"{order}8d", raw, 104)
        (offset,), (slope, inter) = (
            struct.unpack_from(f"{order}q", raw, 168),
            struct.unpack_from(f"{order}2d", raw, 176),
        )
        (start,), (units,) = struct.unpack_from(f"{order}d", raw, 216), struct.unpack_from(f"{order}i", raw, 500)
        single, sform = raw[4:6] == b"n+", struct.unpack_from(f"{order}i", raw, 348)[0]
        place = struct.unpack_from(f"{order}12d", raw, 400)
    if not single:
        raise FormatError(
            f"{what}: the header of a pair of files (.hdr and .img); make one file of them: "
            "nibabel.save(nibabel.load('x.hdr'), 'x.nii')"
        )
    dtype, of_voxel = _dtype_of(code, bits, what)
    volumes, shape = _volumes_of(dim, what)
    shape += of_voxel
    try:
        check_size(dtype, shape, volumes)
    except ValueError as error:
        raise FormatError(f"{what}: {error}") from None
    first = 352 if version == 1 else 544
    if not math.isfinite(offset) or offset < first - 4 or offset != int(offset):
        raise FormatError(f"{what}: vox_offset is {offset:g}, the byte of the first voxel; expected {first} or more")
    unit, swapped = units & 0x38, order != _NATIVE and dtype.itemsize > 1
    timed = unit in _SECONDS and dim[0] >= 4 and math.isfinite(pixdim[4]) and pixdim[4] > 0
    return NiftiHeader(
        dtype,
        shape,
        volumes,
        int(offset),
        swapped,
        None if of_voxel else _scale_of(slope, inter, what),
        pixdim[4] * _SECONDS[unit] if timed else None,
        start * _SECONDS[unit] if unit in _SECONDS and math.isfinite(start) else 0.0,
        unit != 0,
        place if sform > 0 else None,
    )


def _order_and_version(raw: bytes, what: str) -> tuple[str, int]:
    for order in "<>":
        for version, length in ((1, 348), (2, 540)):
            if len(raw) >= 4 and struct.unpack_from(f"{order}i", raw)[0] == length:
                if len(raw) < length:
                    raise FormatError(f"{what}: cut short: {len(raw)} bytes, within the header of {length}")
                magic = raw[344:347] if version == 1 else raw[4:7]
                if magic in (b"n+%d" % version, b"ni%d" % version):
                    return order, version
                hint = "; ANALYZE 7.5, perhaps, which nibabel converts" if version == 1 and not any(magic) else ""
                raise FormatError(f"{what}: its magic is {magic!r}; expected {b'n+%d' % version!r} of NIfTI{hint}")
    hint = "; it is compressed by gzip: name it .nii.gz" if raw.startswith(b"\x1f\x8b") else ""
    raise FormatError(f"{what}: no NIfTI file: it begins with {raw[:4]!r}, the number neither 348 nor 540{hint}")


def _dtype_of(code: int, bits: int, what: str) -> tuple[torch.dtype, tuple[int, ...]]:
    if code not in _DTYPES:
        name = _REFUSED.get(code, "unknown")
        parts = "; save its real and imaginary parts, or magnitude and phase, as files of their own"
        raise FormatError(
            f"{what}: its voxels have the datatype {code} ({name}), which memload does not read"
            f"{parts if name.startswith('complex') else ''}"
        )
    dtype, of_voxel = _DTYPES[code]
    if bits not in (expected := 8 * row_nbytes(dtype, of_voxel), 0):
        raise FormatError(f"{what}: damaged: bitpix is {bits}, and voxels of datatype {code} have {expected} bits")
    return dtype, of_voxel


def _volumes_of(dim: tuple[int, ...], what: str) -> tuple[int, tuple[int, ...]]:
    """Return the number of volumes and the shape of one, in C order."""
    if not 1 <= dim[0] <= 7 or min(dim[1 : dim[0] + 1]) < 1:
        raise FormatError(f"{what}: damaged: dim is {[*dim]}; expected 1 to 7 axes, each with at least one place")
    sides = dim[1 : dim[0] + 1]
    volumes = sides[3] if len(sides) > 3 else 1
    components = tuple(side for side in sides[4:] if side > 1)
    if volumes > 1 and components:
        raise FormatError(
            f"{what}: axes {sides}: volumes over time of {math.prod(components)} components each, which lie apart; "
            "save each component as a file of its own"
        )
    return volumes, (*components[::-1], *sides[:3][::-1])


def _scale_of(slope: float, inter: float, what: str) -> tuple[float, float] | None:
    """Return slope and intercept as nibabel takes them: a slope of 0, NaN or infinity says that there are none."""
    if slope == 0 or not math.isfinite(slope):
        return None
    widest = np.finfo(np.float32)
    if not math.isfinite(inter) or not all(widest.tiny <= abs(one) <= widest.max for one in (slope, inter) if one):
        raise FormatError(f"{what}: damaged: scl_slope is {slope:g}, and scl_inter {inter}")
    return None if (slope, inter) == (1, 0) else (slope, inter)


def _shortest(value: float) -> float:
    """Return the float64 that has the shortest decimal of a float32: 0.8 rather than 0.800000011920929."""
    return float(str(np.float32(value)))


def decoded_volumes(path: Path, header: NiftiHeader, count: int, start: int = 0) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of volumes from `start` on, up to `count` at once, in this machine's order: (n, row_bytes).

    Volumes before `start` of a compressed file are decoded, too. Each array is valid until the next.

    Raises:
        FormatError: the file is damaged or cut short.
    """
    with path.open("rb") as file:
        pieces = _pieces(path, file, header, start)
        buffer = np.empty((min(count, header.volumes - start), header.row_bytes), np.uint8)
        for begin in range(start, header.volumes, count):
            block = buffer[: header.volumes - begin]
            pieces.fill(block.reshape(-1))
            if header.swapped:
                block.view(f"u{header.dtype.itemsize}").byteswap(inplace=True)
            yield block
        pieces.end()


class _Pieces:
    """The bytes of voxels, in their order."""

    def __init__(self, path: Path, header: NiftiHeader, pieces: Iterator[bytes]) -> None:
        self._path, self._header, self._source = path, header, pieces
        self._rest, self._read = memoryview(b""), 0

    def fill(self, target: NDArray[np.uint8]) -> None:
        """Copy the next bytes to `target`."""
        at = 0
        for piece in self._up_to(len(target)):
            target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)

    def skip(self, nbytes: int) -> None:
        """Pass over the next bytes."""
        for _ in self._up_to(nbytes):
            pass

    def end(self) -> None:
        """Read what is left, so that the checksum of a compressed file is compared."""
        for _ in self._source:
            pass

    def _up_to(self, nbytes: int) -> Iterator[memoryview]:
        while nbytes:
            self._rest = self._rest or memoryview(next(self._source, b""))
            if not self._rest:
                raise _cut_short(self._path, self._header, self._read)
            taken, self._rest = self._rest[:nbytes], self._rest[nbytes:]
            self._read += len(taken)
            nbytes -= len(taken)
            yield taken


def _pieces(path: Path, file: BinaryIO, header: NiftiHeader, start: int) -> _Pieces:
    before = header.offset + start * header.row_bytes
    if is_compressed(path):
        pieces = _Pieces(path, header, _inflated(path, file, _PIECE))
        pieces.skip(before)
        return pieces
    if path.stat().st_size < header.offset + header.volumes * header.row_bytes:
        raise _cut_short(path, header, path.stat().st_size)
    file.seek(before)
    return _Pieces(path, header, iter(lambda: file.read(_PIECE), b""))


def _inflated(path: Path, file: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield what a gzip file holds, up to `most` bytes at once; its members follow one another."""
    inflate, given, pending = zlib.decompressobj(wbits=31), b"", False
    try:
        while (given := given or file.read(min(most, _PIECE))) or pending:
            if inflate.eof:
                if not (given := given.lstrip(b"\0")):  # some tools fill up the last block
                    continue
                inflate = zlib.decompressobj(wbits=31)
            found = inflate.decompress(given, most)
            pending = len(found) == most and not inflate.eof
            given = inflate.unconsumed_tail or inflate.unused_data
            if found:
                yield found
    except zlib.error as error:
        raise FormatError(f"{path}: no valid gzip file ({error}): get it again") from error
    if not inflate.eof:
        raise FormatError(f"{path}: cut short, as by a copy or a download that did not end: get it again")
