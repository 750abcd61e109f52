"""Errors that are raised later than they occurred.

An error refers to its traceback, the traceback to the frames of all callers, and the frames to their local variables.
An object that stores an error which passed through one of its callers therefore creates a reference cycle, which keeps
the whole pass alive.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

_PACKAGE = f"{Path(__file__).parent}{os.sep}"


class EarlierTraceback(Exception):  # noqa: N818 - it is shown as a cause, and never raised
    """The text of the traceback of a stored error; Python shows it as the first cause of that error."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def without_frames(error: E) -> E:
    """Return the error without its frames, so that it can be stored; its first cause shows them as text.

    Example:
        >>> try:
        ...     {}["a"]
        ... except KeyError as error:
        ...     kept = without_frames(error)
        >>> kept.__traceback__ is None, "KeyError: 'a'" in str(kept.__cause__)
        (True, True)
    """
    text = "".join(traceback.format_exception(error))
    chain = list(_shown(error))
    for one in chain:
        one.__traceback__ = one.__context__ = None
    chain[-1].__cause__ = EarlierTraceback(text)
    return error


def let_go_by_torch(error: BaseException) -> None:
    """Clear the frame in which torch re-raised the error of a worker process; that frame refers to the error."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals.get("__name__") == "torch._utils":
            step.tb_frame.clear()
        step = step.tb_next


class AtRow(Exception):  # noqa: N818 - it is shown as a cause, and never raised
    """The row at which a function failed in a worker process, as text; Python shows it as the first cause."""


@dataclass(frozen=True)
class ErrorLocation:
    """The place at which a function failed in a worker process.

    Attributes:
        row: the row of the dataset, as text, since a sampler may yield any object.
        name: the name of the function.
        said: the type of its error and the first line of its message.
    """

    row: str
    name: str
    said: str


_CAUGHT = re.compile(r"Caught (\w+) in DataLoader worker process (\d+)\.\n")
_AT_ROW = re.compile(r"^(?:Original )?memload\.kept_errors\.AtRow: row (.*): (.*)$", re.MULTILINE)


_NOTE = "memload: "
_NOTED_ROW = re.compile(rf"{_NOTE}at row (\d+) of ")


def note_place(error: BaseException, place: str) -> None:
    """Add the place at which a function of the user failed to its error, in place of the one noted before.

    It is a note of PEP 678: Python shows it below the message, and versions before 3.11 only keep it. An error whose
    attributes cannot be set, such as a frozen dataclass, stays as it is.

    Example:
        >>> error = KeyError("a")
        >>> note_place(error, "at row 13 of the loader's dataset, in map(crop)")
        >>> error.__notes__
        ["memload: at row 13 of the loader's dataset, in map(crop)"]
    """
    with contextlib.suppress(Exception):
        notes = [note for note in getattr(error, "__notes__", []) if not str(note).startswith(_NOTE)]
        error.__notes__ = [*notes, _NOTE + place]


def noted_row(error: BaseException) -> int | None:
    """Return the row that `note_place` noted in an error; None if it noted none, or the rows of a batch.

    Example:
        >>> error = KeyError("a")
        >>> note_place(error, "at row 13 of the loader's dataset, in map(crop)")
        >>> noted_row(error)
        13
    """
    found = [_NOTED_ROW.match(str(note)) for note in getattr(error, "__notes__", [])]
    return next((int(one[1]) for one in found if one is not None), None)


class NotingPlace:
    """A context that notes in an error the place, which is asked for only then; "" is none.

    It is a class, since `contextlib.contextmanager` sets an attribute of each error that passes.
    """

    def __init__(self, place: Callable[[], str]) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Exception) and (place := self._place()):
            note_place(error, place)


def name_of(fn: object) -> str:
    """Return the name by which messages call a function, a module or another callable of the user."""
    return str(getattr(fn, "__qualname__", type(fn).__name__))


def note_row(error: BaseException, row: object, name: str) -> None:
    """Note the row at which the function `name` failed: torch sends the main process only the text of an error."""
    with contextlib.suppress(Exception):  # as in `note_place`
        [*_shown(error)][-1].__cause__ = AtRow(f"row {row}: {name}")


def say_row(error: BaseException) -> None:
    """Prepend the function, the row and the reason to the message of a worker's error that torch re-raised."""
    text = error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else ""
    caught, at = _CAUGHT.match(text), _AT_ROW.search(text)
    if caught is None or at is None:
        return
    own = re.compile(rf"(\w+\.)*{caught[1]}(:|$)")
    said = next((line for line in reversed(text.splitlines()) if own.match(line)), caught[1])
    head = (
        f"row {at[1]}: {at[2]} raised {said}\nIn worker process {caught[2]}, where the frames below are. To look into "
        "it in this process, map without in_processes=True, or give num_workers=0.\n"
    )
    error.args = (type(text)(head + text),)
    error.__dict__["_memload_place"] = ErrorLocation(at[1], at[2], said)


def place_of(error: BaseException) -> ErrorLocation | None:
    """Return the place that `say_row` found in an error of a worker process; None if it found none."""
    found: ErrorLocation | None = error.__dict__.get("_memload_place")
    return found


def level_outside() -> int:
    """Return the ``stacklevel`` of `warnings.warn`, for the caller of this, of the first frame outside memload."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def _shown(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that Python shows before it: its cause, or else its context, and so on."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        if one.__cause__ is None and not one.__suppress_context__:
            one.__cause__ = one.__context__
        one = one.__cause__
