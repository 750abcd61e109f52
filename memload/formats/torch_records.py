"""Find the records of a file of torch.save one by one: it is an archive whose members are stored uncompressed.

NAME/data.pkl    the object, in which tensors refer to records        NAME/data/0, 1, ...    the bytes of their storages

Python's zipfile keeps half a kilobyte for each member, of which files of many small tensors have several hundred
thousand. Two numbers for each are kept here.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from memload.errors import FormatError

_TAIL = 1 << 16  # bytes of a comment, at most
_END, _FAR_END, _FAR_PLACE = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_MEMBER, _LOCAL = b"PK\1\2", b"PK\3\4"
_FAR = 0xFFFFFFFF  # stands for a number that needs 64 bits


class _Member(NamedTuple):
    name: str
    header: int
    nbytes: int


class TorchRecords:
    """The records of an open file.

    Args:
        path: the path of the file.

    Raises:
        FormatError: the file is not one of torch.save, or was cut short, is compressed, or has another byte order.

    Attributes:
        pickle_begin: the place of the pickle.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        try:
            self._headers, self._sizes = array("q"), array("q")
            self.pickle_begin = self._begin_of(self._read_directory())
        except (struct.error, UnicodeDecodeError, ValueError, IndexError) as error:
            self.close()
            raise error if isinstance(error, FormatError) else self._damaged(str(error)) from None
        except BaseException:
            self.close()
            raise

    def read(self, key: str, offset: int, nbytes: int) -> bytearray:
        """Return bytes from the record of a storage.

        Raises:
            FormatError: there is no such record, or it has too few bytes.
        """
        number = int(key) if key.isdecimal() else -1
        if not 0 <= number < len(self._headers) or self._headers[number] < 0:
            raise self._damaged(f"its pickle refers to the record data/{key}, which is not there")
        if offset < 0 or nbytes < 0 or offset + nbytes > self._sizes[number]:
            there = self._sizes[number]
            raise self._damaged(f"the record data/{key} has {there} bytes, {offset + nbytes} are expected")
        found = bytearray(nbytes)
        self._fill(memoryview(found), self._begin_of(self._headers[number]) + offset)
        return found

    def opened(self) -> BinaryIO:
        """Return the file, open at the start of the pickle."""
        file = self._path.open("rb")
        file.seek(self.pickle_begin)
        return file

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()

    def _read_directory(self) -> int:
        """Record the places of storages; return the place of the pickle's header."""
        at = -1
        for member in self._members():
            _, _, name = member.name.partition("/")
            if name == "data.pkl":
                at = member.header
            elif name == "byteorder":
                self._check_order(member)
            elif name.startswith("data/") and name[5:].isdecimal():
                self._note(int(name[5:]), member)
        if at < 0:
            raise self._damaged("it has no record data.pkl")
        return at

    def _note(self, number: int, member: _Member) -> None:
        if number > len(self._headers) + (1 << 20):
            raise self._damaged(f"a record is called {member.name!r}")
        while len(self._headers) <= number:
            self._headers.append(-1)
            self._sizes.append(0)
        self._headers[number], self._sizes[number] = member.header, member.nbytes

    def _check_order(self, member: _Member) -> None:
        stated = self._bytes(self._begin_of(member.header), min(member.nbytes, 16)).decode()
        if stated != sys.byteorder:
            raise FormatError(
                f"{self._path}: its numbers are {stated}-endian, but this machine is {sys.byteorder}-endian; save it "
                "again: torch.save(torch.load(path), path)"
            )

    def _members(self) -> Iterator[_Member]:
        begin, count = self._directory()
        with self._path.open("rb") as file:
            file.seek(begin)
            for _ in range(count):
                head = file.read(46)
                if head[:4] != _MEMBER:
                    raise self._damaged("its directory is cut short")
                method, packed, nbytes = (*struct.unpack_from("<H", head, 10), *struct.unpack_from("<II", head, 20))
                named, more, told, header = (*struct.unpack_from("<HHH", head, 28), *struct.unpack_from("<I", head, 42))
                name, extra = file.read(named).decode(), file.read(more)
                file.seek(told, os.SEEK_CUR)
                if method:
                    raise self._damaged(f"its record {name!r} is compressed, which torch.save does not do")
                nbytes, packed, header = _wide(extra, [nbytes, packed, header])
                yield _Member(name, header, nbytes)

    def _directory(self) -> tuple[int, int]:
        """Return the place of the directory of members, and their number."""
        size = os.fstat(self._file.fileno()).st_size
        begin = max(0, size - _TAIL - 22)
        tail = self._bytes(begin, size - begin)
        at = tail.rfind(_END)
        if at < 0:
            raise self._damaged("it has no directory of records: it was cut short, or is no archive")
        (count,), (place,) = struct.unpack_from("<H", tail, at + 10), struct.unpack_from("<I", tail, at + 16)
        if tail[at - 20 : at - 16] == _FAR_PLACE:
            (far,) = struct.unpack_from("<Q", tail, at - 12)
            end = self._bytes(far, 56)
            if end[:4] != _FAR_END:
                raise self._damaged("its directory of records is not where it should be")
            (count,), (place,) = struct.unpack_from("<Q", end, 32), struct.unpack_from("<Q", end, 48)
        return place, count

    def _begin_of(self, header: int) -> int:
        local = self._bytes(header, 30)
        if local[:4] != _LOCAL:
            raise self._damaged("a record is not where its directory says")
        named, more = struct.unpack_from("<HH", local, 26)
        return header + 30 + int(named) + int(more)

    def _bytes(self, at: int, nbytes: int) -> bytes:
        found = bytearray(nbytes)
        self._fill(memoryview(found), at)
        return bytes(found)

    def _fill(self, into: memoryview, at: int) -> None:
        while len(into):
            count = os.preadv(self._file.fileno(), [into], at)
            if not count:
                raise self._damaged("it ends before its records do")
            into, at = into[count:], at + count

    def _damaged(self, what: str) -> FormatError:
        return FormatError(f"{self._path}: not a valid file of torch.save: {what}")


def _wide(extra: bytes, numbers: list[int]) -> list[int]:
    """Return numbers of a member; those that need 64 bits are in an extra field."""
    while extra:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{size // 8}Q", extra, 4))
            return [next(wide, number) if number == _FAR else number for number in numbers]
        extra = extra[4 + size :]
    return numbers
