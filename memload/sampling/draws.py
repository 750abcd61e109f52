"""The rows that a known sampler draws in one pass, as arrays that can be made again from any row on.

A pass is a sequence of numbered draws, each of which gives the next rows. The rows of a draw depend on the state of its
generator. A pass must resume without repeating all earlier draws. So for each draw that the loop has not wholly seen, a
stream remembers the generator's state before it, or the rows themselves where these need fewer bytes.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Indices = NDArray[np.int64]

Position = Mapping[str, Any]
"""The position of a sampler's pass, as plain data."""

LOOKAHEAD = 1 << 16
"""Rows that are fed ahead where nobody can observe it, so that the loop rarely waits for draws."""

_FEW_ROWS = 512  # a draw of so few rows is remembered as rows, which are smaller than a generator's state
_MILESTONE_ROWS = 1 << 16  # from one remembered state of a private generator to the next, where draws are small


class RowStream(Protocol):
    """The rows of one pass, or the remaining rows of it, as arrays."""

    @property
    def values(self) -> range:
        """The range that contains all indices."""

    @property
    def total(self) -> int:
        """Rows of all arrays together."""

    @property
    def paced(self) -> bool:
        """Whether others can observe when draws happen, so that each draw must wait for its time."""

    @property
    def lookahead(self) -> int:
        """The least number of rows fed ahead if nobody can observe it, even if the loop does not need them yet."""

    def next(self, seen: int) -> Indices | None:
        """Make the next array, None after the last. The loop has seen `seen` rows, which need not be remembered."""

    def position(self, seen: int) -> dict[str, Any]:
        """Return the position of the pass after the loop has seen `seen` rows."""


@dataclass(frozen=True)
class Draws:
    """The pass of a sampler as numbered draws.

    Attributes:
        values: the range that contains all indices.
        total: rows of all draws together.
        step: rows of every draw but the last.
        count: the number of draws; the last may be empty, because torch's samplers also draw unused numbers.
        make: returns the rows of a draw, by its number and a generator.
        generator: returns the generator, and is called at the first draw; None where nothing is random.
        shared: whether other code can see or use the generator.
        foreseen: returns a copy of the generator that `generator` would return now, and draws nothing; None where the
            state of the loader contains the generator, or nothing is random.
    """

    values: range
    total: int
    step: int
    count: int
    make: Callable[[int, torch.Generator | None], Indices]
    generator: Callable[[], torch.Generator | None] = lambda: None
    shared: bool = False
    foreseen: Callable[[], torch.Generator] | None = None


@dataclass(frozen=True)
class _Memory:
    """The data that makes a draw again: the generator's state before it, or its rows."""

    draw: int
    before: torch.Tensor | None
    rows: Indices | None = None

    def plain(self) -> dict[str, Any]:
        if self.rows is not None:
            return {"draw": self.draw, "rows": self.rows.tolist()}
        return {"draw": self.draw, "generator": encode(self.before)}

    @classmethod
    def of(cls, plain: Position) -> _Memory:
        if "rows" in plain:
            return cls(plain["draw"], None, np.array(plain["rows"], dtype=np.int64))
        return cls(plain["draw"], decode(plain["generator"]))

    def again(self, draws: Draws) -> Indices:
        if self.rows is not None:
            return self.rows
        generator = draws.generator()
        return draws.make(self.draw, restored(self.before, "cpu" if generator is None else generator.device))


class Stream:
    """The draws of a pass in order, from the first one or from a position on.

    To resume, the pass's private generator gets back the state that it had before the row. A shared generator is not
    changed, because it has made those draws already; a copy of it makes them again.

    A request for the position before the first draw fixes that draw if it comes from torch's own generator, which is
    not part of a loader's state. A copy of the generator makes the draw; torch's own generator still advances.
    """

    lookahead = LOOKAHEAD

    def __init__(self, draws: Draws, position: Position | None = None) -> None:
        position = position or {"row": 0, "drawn": 0, "memories": []}
        self._draws = draws
        self._begin: int = position["row"]
        self._drawn: int = position["drawn"]
        self.values, self.total, self.paced = draws.values, draws.total - self._begin, draws.shared
        self._memories = deque(map(_Memory.of, position["memories"]))
        self._generator: torch.Generator | None = None
        self._settled: torch.Generator | None = None
        self._again: Iterator[Indices] = iter(())
        self._untouched = not self._memories and not self._drawn and draws.foreseen is not None
        if position.get("foreseen") and draws.foreseen is not None:
            self._untouched, self._settled = True, draws.foreseen()
            self._settled.set_state(decode(position["memories"][0]["generator"]))
            self._memories.clear()
        first = self._memories[0].draw if self._memories else self._drawn
        self._skip = self._begin - first * draws.step
        if draws.shared:
            self._again = (one.again(draws) for one in tuple(self._memories))
        elif self._memories:
            self._drawn = first
            self._generator = restored(self._memories[0].before)

    def next(self, seen: int) -> Indices | None:
        """Make the next draw, or the remainder of the first; None after the last."""
        while True:
            rows = self._next_draw(seen)
            if rows is None or self._skip <= 0:
                return rows
            skip, self._skip = self._skip, self._skip - len(rows)
            if skip < len(rows):
                return rows[skip:]

    def position(self, seen: int) -> dict[str, Any]:
        """Return the row, the number of draws, and the data to repeat the draws that the loop has not wholly seen."""
        if self._untouched and self._draws.foreseen is not None:
            self._settled = self._settled or self._draws.foreseen()
            memory = _Memory(0, self._settled.get_state()).plain()
            return {"row": 0, "drawn": 0, "memories": [memory], "foreseen": True}
        row = min(self._begin + seen, self._draws.total)
        needed = row // self._draws.step
        memories = [one for one in self._memories if one.draw >= needed] if self.paced else self._milestone(needed)
        drawn = self._drawn if self.paced or memories else min(needed, self._drawn)
        if row == self._draws.total:  # no drawn row remains; a private generator ends with its pass
            memories, drawn = [], self._drawn if self.paced else self._draws.count
        return {"row": row, "drawn": drawn, "memories": [one.plain() for one in memories]}

    def _next_draw(self, seen: int) -> Indices | None:
        if (rows := next(self._again, None)) is not None:
            return rows
        if self._drawn == self._draws.count:
            return None
        remembers = self._remembers_state()
        if self._generator is None:
            self._generator = self._draws.generator()
        generator = self._generator
        if generator is not None and self._settled is not None:
            generator = self._as_settled(self._settled, generator)
        self._untouched, self._settled = False, None
        before = generator.get_state() if generator is not None and remembers else None
        try:
            rows = self._draws.make(self._drawn, generator)
        except Exception:
            self._draws = replace(self._draws, count=self._drawn)  # as with a generator that raised, nothing follows
            raise
        self._remember(before, rows, (self._begin + seen) // self._draws.step)
        self._drawn += 1
        return rows

    def _as_settled(self, settled: torch.Generator, now: torch.Generator) -> torch.Generator:
        """Return the generator of the first draw; `now` is the one that would make it otherwise."""
        if not self.paced:
            self._generator = settled
        elif torch.equal(settled.get_state(), now.get_state()):
            return now  # nothing was drawn from it since
        else:
            self._draws.make(0, now)  # advances `now` as if it had made this draw
        return settled

    def _remembers_state(self) -> bool:
        if self.paced:
            return self._draws.step > _FEW_ROWS
        return not self._memories or (self._drawn - self._memories[-1].draw) * self._draws.step >= _MILESTONE_ROWS

    def _remember(self, before: torch.Tensor | None, rows: Indices, needed: int) -> None:
        if before is not None or self.paced:
            self._memories.append(_Memory(self._drawn, before, None if before is not None else rows))
        if self.paced:
            while self._memories and self._memories[0].draw < needed:
                self._memories.popleft()
        while not self.paced and len(self._memories) > 1 and self._memories[1].draw <= needed:
            self._memories.popleft()

    def _milestone(self, needed: int) -> list[_Memory]:
        return [one for one in self._memories if one.draw <= needed][-1:]


def encode(state: torch.Tensor | None) -> str:
    """Return a generator's state as text: the base64 of its bytes."""
    return "" if state is None else base64.b64encode(state.numpy().tobytes()).decode()


def decode(text: str) -> torch.Tensor:
    """Return the state from which `encode` made the text."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def restored(state: torch.Tensor | None, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator of that device in this state."""
    generator = torch.Generator(device)
    if state is not None:
        generator.set_state(state)
    return generator
