"""What a known sampler draws in one pass, as arrays that can be made again from any row on.

A pass is a row of numbered draws, each of which gives the next rows. What a draw gives depends on the generator that
makes it. So that a pass can be taken up later without drawing what lies behind it, a stream remembers, for the draws
that the loop has not wholly seen, the generator's state before each, or the rows themselves where these take less.
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
from torch.utils.data import DistributedSampler

from memload.sampling.permutations import permutation

Indices = NDArray[np.int64]

Position = Mapping[str, Any]
"""Where the pass of a sampler stands, as plain data."""

LOOKAHEAD = 1 << 16
"""Rows that are fed ahead where nobody can see it: so rarely does the loop wait for draws."""

_FEW_ROWS = 512  # of a draw that is remembered as rows: these are fewer bytes than a generator's state
_MILESTONE_ROWS = 1 << 16  # from one remembered state of a private generator to the next, where draws are small


class RowStream(Protocol):
    """The rows of one pass, or of what is left of it, as arrays."""

    @property
    def values(self) -> range:
        """Which indices may come: all lie in this range."""

    @property
    def total(self) -> int:
        """Rows that the arrays add up to."""

    @property
    def paced(self) -> bool:
        """Whether somebody can see when draws happen, so that each must wait for its time."""

    @property
    def lookahead(self) -> int:
        """Rows that are fed ahead at least if nobody can see it, even if the loop does not need them yet."""

    def next(self, seen: int) -> Indices | None:
        """Make the next array, None after the last. The loop has seen `seen` rows: they need not be remembered."""

    def position(self, seen: int) -> dict[str, Any]:
        """Return where the pass stands when the loop has seen so many rows."""


@dataclass(frozen=True)
class Draws:
    """The pass of a sampler as numbered draws.

    Attributes:
        values: which indices may come: all lie in this range.
        total: rows that the draws add up to.
        step: rows of every draw but the last.
        count: draws; the last may be empty, since torch's samplers also draw what they do not use.
        make: returns the rows of a draw, by its number and a generator.
        generator: returns the generator, and is called at the first draw; None where nothing is random.
        shared: whether somebody else can see or use the generator.
    """

    values: range
    total: int
    step: int
    count: int
    make: Callable[[int, torch.Generator | None], Indices]
    generator: Callable[[], torch.Generator | None] = lambda: None
    shared: bool = False


@dataclass(frozen=True)
class _Memory:
    """What makes a draw again: the generator's state before it, or its rows."""

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
    """The draws of a pass one after the other, from the first one or from a position on.

    A generator of the pass's own is put back to where it stood before the row, and goes on from there. A shared one
    is left alone: it has made those draws already, so a copy of it makes them again.
    """

    lookahead = LOOKAHEAD

    def __init__(self, draws: Draws, position: Position | None = None) -> None:
        position = position or {"row": 0, "drawn": 0, "memories": []}
        self._draws = draws
        self._begin: int = position["row"]
        self._drawn: int = position["drawn"]
        self._memories = deque(map(_Memory.of, position["memories"]))
        self._generator: torch.Generator | None = None
        self._again: Iterator[Indices] = iter(())
        first = self._memories[0].draw if self._memories else self._drawn
        self._skip = self._begin - first * draws.step
        if draws.shared:
            self._again = (one.again(draws) for one in tuple(self._memories))
        elif self._memories:
            self._drawn = first
            self._generator = restored(self._memories[0].before)

    @property
    def values(self) -> range:
        """Which indices may come."""
        return self._draws.values

    @property
    def total(self) -> int:
        """Rows to come in all."""
        return self._draws.total - self._begin

    @property
    def paced(self) -> bool:
        """Whether the generator is shared."""
        return self._draws.shared

    def next(self, seen: int) -> Indices | None:
        """Make the next draw, or what is left of the first; None after the last."""
        while True:
            rows = self._next_draw(seen)
            if rows is None or self._skip <= 0:
                return rows
            skip, self._skip = self._skip, self._skip - len(rows)
            if skip < len(rows):
                return rows[skip:]

    def position(self, seen: int) -> dict[str, Any]:
        """Return the row, how many draws were made, and what makes those again that the loop has not wholly seen."""
        row = min(self._begin + seen, self._draws.total)
        needed = row // self._draws.step
        memories = [one for one in self._memories if one.draw >= needed] if self.paced else self._milestone(needed)
        drawn = self._drawn if self.paced or memories else min(needed, self._drawn)
        if row == self._draws.total:  # nothing is left of what was drawn; a private generator goes with its pass
            memories, drawn = [], self._drawn if self.paced else self._draws.count
        return {"row": row, "drawn": drawn, "memories": [one.plain() for one in memories]}

    def _next_draw(self, seen: int) -> Indices | None:
        if (rows := next(self._again, None)) is not None:
            return rows
        if self._drawn == self._draws.count:
            return None
        if self._generator is None:
            self._generator = self._draws.generator()
        before = self._generator.get_state() if self._generator is not None and self._remembers_state() else None
        try:
            rows = self._draws.make(self._drawn, self._generator)
        except Exception:
            self._draws = replace(self._draws, count=self._drawn)  # as a generator that raised: nothing follows
            raise
        self._remember(before, rows, (self._begin + seen) // self._draws.step)
        self._drawn += 1
        return rows

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


class DistributedRows:
    """The rows of one rank: of a pass of DistributedSampler, or of what any number of ranks left of one.

    Ranks take turns, so whatever their number, together they take the epoch's order from its front: after `d` batches
    of `b` rows on `w` ranks, its first ``d * b * w`` rows. What is left is dealt out in the same manner to the ranks
    that there are now, and made divisible as the sampler does it: by rows from the front of the epoch's order behind
    it, or, with drop_last, by leaving out the last rows.
    """

    paced = False  # the sampler draws from a generator of its own
    lookahead = LOOKAHEAD

    def __init__(self, sampler: DistributedSampler[Any], position: Position | None = None) -> None:
        self._sampler = sampler
        self._rows = len(sampler.dataset)  # type: ignore[arg-type]
        self._gone: int = position["gone"] if position else 0
        self._epoch: int | None = position["epoch"] if position else None
        self._made = False
        left, ranks = self._rows - self._gone, sampler.num_replicas
        self.values = range(self._rows)
        self.total = left // ranks if sampler.drop_last else -(-left // ranks)

    def next(self, seen: int) -> Indices | None:  # noqa: ARG002 - as of every stream
        """Return the rows of this rank, once."""
        if self._made:
            return None
        self._made = True
        if self._epoch is None:
            self._epoch = self._sampler.epoch
        return self._dealt(self._order(self._epoch))

    def position(self, seen: int) -> dict[str, Any]:
        """Return the epoch, and how many rows of its order all ranks together have left behind."""
        return {"epoch": self._epoch, "gone": min(self._gone + seen * self._sampler.num_replicas, self._rows)}

    def _order(self, epoch: int) -> Indices:
        if not self._sampler.shuffle:
            return np.arange(self._rows, dtype=np.int64)
        generator = torch.Generator()
        generator.manual_seed(self._sampler.seed + epoch)
        return permutation(self._rows, generator)

    def _dealt(self, order: Indices) -> Indices:
        first, ranks = self._gone + self._sampler.rank, self._sampler.num_replicas
        rows = order[first::ranks][: self.total]
        if len(rows) == self.total:
            return rows.copy()  # a view would keep the order of all ranks
        filling = first + (self.total - 1) * ranks - self._rows  # the last turn goes beyond the order: begin it again
        return np.append(rows, order[filling % self._rows])


@dataclass
class Progress:
    """How far the loop is in one pass: what was handed to it, not what was made ahead.

    Attributes:
        number: of the pass, from 0 for the first of the loader, or of the one whose state it took over.
        base_seed: the number that a stock iterator draws for its workers.
        delivered: batches that the loop was handed, before a stop and after it.
        finished: whether the loop was told that there are no more.
        resumed: where the sampler stood when this pass was stopped; None: the pass begins at its beginning.
        ended: where the sampler stood at the end of the pass before, where that is known from a state alone.
    """

    number: int = 0
    base_seed: int | None = None
    delivered: int = 0
    finished: bool = False
    resumed: Position | None = None
    ended: Position | None = None

    def __post_init__(self) -> None:
        self._before = self.delivered
        self._unit = 1
        self._source: Any = None

    def follow(self, source: Any, unit: int = 1) -> None:
        """Take positions from `source`, which counts `unit` for every batch."""
        self._source, self._unit = source, unit

    @property
    def seen(self) -> int:
        """What the loop has seen of the source."""
        return (self.delivered - self._before) * self._unit

    def position(self) -> dict[str, Any] | None:
        """Return where the sampler stands, as plain data; None before it was asked for anything."""
        return None if self._source is None else self._source.position(self.seen)

    def settle(self) -> None:
        """Fix the position at its current value, and drop the source that reports it."""
        self._source = _Settled(self.position())


class _Settled:
    """Where a pass stood when it was left."""

    def __init__(self, position: dict[str, Any] | None) -> None:
        self._position = position

    def position(self, seen: int) -> dict[str, Any] | None:  # noqa: ARG002 - as of every source
        return self._position


def encode(state: torch.Tensor | None) -> str:
    """A generator's state as text, base64 of its bytes."""
    return "" if state is None else base64.b64encode(state.numpy().tobytes()).decode()


def decode(text: str) -> torch.Tensor:
    """The state of which `encode` made the text."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def restored(state: torch.Tensor | None, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own in this state, which is one of that device's."""
    generator = torch.Generator(device)
    if state is not None:
        generator.set_state(state)
    return generator
