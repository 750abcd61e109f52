"""An account of one kind of memory: lines that add up, beside the free bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memload.sizes import format_size


@dataclass(frozen=True)
class Line:
    """One figure of a plan.

    Attributes:
        name: the name of the item that takes the memory.
        predicted: its bytes.
        note: the calculation, in a few words.
        counted: whether the bytes are part of the sum; memory that the system can reclaim, such as the page cache, is
            not.
        known: whether the figure is known; if not, it is 0, and the note says why.
        of: the name of the data set, where several are planned and the item is of one of them.
        bound: whether the figure is a bound: at most so many bytes are taken.
    """

    name: str
    predicted: int
    note: str = ""
    counted: bool = True
    known: bool = True
    of: str = ""
    bound: bool = False


@dataclass(frozen=True)
class Account:
    """The predicted use of RAM, of a GPU or of a disk.

    Attributes:
        place: the name of the memory, for reading.
        lines: the items that take it.
        free: bytes that may be taken; None if unknown.
        limit: the limit that sets `free`, such as "its control group"; empty if it is the machine's own size.

    Example:
        >>> ram = Account("RAM", (Line("slots", 600), Line("page cache", 9_000, counted=False)), free=1_000)
        >>> ram.predicted, ram.fits, ram.left
        (600, True, 400)
    """

    place: str
    lines: tuple[Line, ...]
    free: int | None = None
    limit: str = ""

    @property
    def predicted(self) -> int:
        """Bytes in use at the peak."""
        return sum(line.predicted for line in self.lines if line.counted)

    @property
    def is_bound(self) -> bool:
        """Whether `predicted` is a bound, since a line of the sum is one."""
        return any(line.bound for line in self.lines if line.counted)

    @property
    def fits(self) -> bool | None:
        """Whether the predicted bytes fit; None if the free bytes are unknown."""
        return None if self.free is None else self.predicted <= self.free

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of lines without a figure; their bytes come on top of the sum."""
        return tuple(line.name for line in self.lines if not line.known)

    @property
    def left(self) -> int | None:
        """Bytes that stay free; a negative number says how many are missing."""
        return None if self.free is None else self.free - self.predicted

    def of(self, name: str, dataset: str | None = None) -> int:
        """Return the bytes of the lines of that name, of one data set if it is given; 0 if there is none."""
        return sum(
            line.predicted for line in self.lines if line.name == name and (dataset is None or line.of == dataset)
        )

    def without(self, *names: str) -> int:
        """Return the bytes of all counted lines but those of these names."""
        return sum(line.predicted for line in self.lines if line.counted and line.name not in names)


def rows_of(account: Account) -> Iterable[tuple[str, str, str, str]]:
    """Return the rows of a table: name, predicted bytes, free bytes, and whether it fits or the note."""
    free = "" if account.free is None else format_size(account.free)
    yield account.place, sum_in_words(account), free, _verdict(account)
    for line in account.lines:
        size = size_in_words(line.predicted, line.bound) if line.known else "unknown"
        name = f"{line.of}: {line.name}" if line.of else line.name
        yield f"  {name}", size if line.counted else f"({size})", "", line.note


def sum_in_words(account: Account) -> str:
    """Return the predicted bytes in words; those of a bound with "at most"."""
    return size_in_words(account.predicted, account.is_bound)


def size_in_words(nbytes: int, is_bound: bool) -> str:
    """Return bytes in words; those of a bound with "at most"."""
    return f"{'at most ' if is_bound else ''}{format_size(nbytes)}"


def _verdict(account: Account) -> str:
    if account.left is None:
        return ""
    unknown = f", without {' and '.join(account.unknown)}" if account.unknown else ""
    limit = f" for {account.limit}" if account.limit else ""
    if account.left >= 0:
        return f"fits{unknown}"
    missing = size_in_words(-account.left, account.is_bound)
    return f"{'may' if account.is_bound else 'does'} not fit: {missing} too much{limit}{unknown}"
