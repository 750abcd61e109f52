"""The draws of samplers with weights in one pass; a pass resumes at any row without repeating the draws before it.

A pass draws one number from the user's generator, at its first row. The number, the weights and the position determine
all other draws. In a mixture, each chunk of rows and each order of a dataset has a generator of its own, with a seed
made of that number and the number of the chunk or order.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from memload.sampling.draws import Indices, Position, decode, encode, restored

Weights = NDArray[np.float64]

MIXED_CHUNK = 1 << 16
"""Rows of a mixture that are drawn at once."""
WEIGHTED_CHUNK = 256
"""Weighted rows that are drawn at once; changed weights apply after at most this many rows."""


class Numbers(Protocol):
    """Gives each pass the number that seeds all of its draws."""

    def number(self) -> int:
        """Return the number of the pass that begins; this may draw from a generator."""

    def foreseen_number(self) -> int | None:
        """Return what `number` would return now, without a draw; None unless torch's own generator would draw it."""


class MixedRows:
    """Rows of several datasets in proportion to a weight for each; a `memload.sampling.draws.RowStream`.

    Args:
        rows: of each dataset.
        weights: one for each.
        total: rows of the whole pass.
        replacement: whether rows are drawn from their dataset independently of each other.
        source: gives the number of the pass.
        position: where to go on; None: at the beginning.
    """

    paced = False
    lookahead = MIXED_CHUNK

    def __init__(
        self,
        rows: Sequence[range | Indices],
        weights: Weights,
        total: int,
        replacement: bool,
        source: Numbers,
        position: Position | None,
    ) -> None:
        position = position or {"row": 0, "seed": None, "taken": [0] * len(rows)}
        self._begin: int = position["row"]
        self._seed: int | None = position["seed"]
        self._drawn = self._seed is not None and not position.get("foreseen")
        self._taken = np.array(position["taken"], dtype=np.int64)
        self._chunk = self._begin // MIXED_CHUNK
        self._rows, self._replacement, self._source = rows, replacement, source
        self._cumulative = np.cumsum(weights)
        self._all = total
        self._orders = [_Order(own, k) for k, own in enumerate(rows)]
        self._before: deque[tuple[int, Indices]] = deque()  # the rows taken of each dataset before each chunk
        self.values = range(max((own[-1] + 1 for own in rows if len(own)), default=0))
        self.total = total - self._begin

    def next(self, seen: int) -> Indices | None:
        """Draw the next rows, or the remainder of the first chunk; None after the last."""
        first = self._chunk * MIXED_CHUNK
        if first >= self._all:
            return None
        seed = self._number()
        while self._before and self._before[0][0] < (self._begin + seen) // MIXED_CHUNK:
            self._before.popleft()
        self._before.append((self._chunk, self._taken.copy()))
        generator = seeded(seed, 0, self._chunk)
        which = drawn(self._cumulative, min(MIXED_CHUNK, self._all - first), generator)
        self._chunk += 1
        return self._rows_of(which, generator)[max(0, self._begin - first) :]

    def position(self, seen: int) -> dict[str, Any]:
        """Return the row, the number of the pass, and the rows taken of each dataset before the row's chunk."""
        if not self._drawn and self._seed is None:
            self._seed = self._source.foreseen_number()
        row = min(self._begin + seen, self._all)
        taken = next((taken for chunk, taken in self._before if chunk == row // MIXED_CHUNK), self._taken)
        place = {"row": row, "seed": self._seed, "taken": taken.tolist()}
        return place if self._drawn or self._seed is None else {**place, "foreseen": True}

    def fill(self, count: int) -> Indices:
        """Draw `count` rows after the last: the next rows of their datasets."""
        generator = seeded(self._number(), 0, self._chunk)
        return self._rows_of(drawn(self._cumulative, count, generator), generator)

    def _number(self) -> int:
        """Return the number of the pass; a position that was saved before the first draw has fixed it already."""
        if self._seed is None or not self._drawn:
            number, self._drawn = self._source.number(), True
            self._seed = number if self._seed is None else self._seed
        return self._seed

    def _rows_of(self, which: Indices, generator: torch.Generator) -> Indices:
        """Return the next row of the dataset at each position; `which` has the numbers of the datasets."""
        places = np.argsort(which.astype(np.min_scalar_type(len(self._rows))), kind="stable")  # small ints sort faster
        counts = np.bincount(which, minlength=len(self._rows))
        rows = np.empty(len(which), dtype=np.int64)
        rows[places] = np.concatenate([self._rows_of_dataset(k, n, generator) for k, n in enumerate(counts.tolist())])
        self._taken += counts
        return rows

    def _rows_of_dataset(self, k: int, count: int, generator: torch.Generator) -> Indices:
        if not count:
            return np.empty(0, dtype=np.int64)
        if self._replacement:
            return _rows_at(
                self._rows[k],
                torch.randint(len(self._rows[k]), (count,), generator=generator, device="cpu").numpy(),
            )
        assert self._seed is not None
        return self._orders[k].slice(self._seed, int(self._taken[k]), count)


class _Order:
    """The rows of one dataset in shuffled order, followed by further shuffled orders without end."""

    def __init__(self, rows: range | Indices, number: int) -> None:
        self._rows, self._number = rows, number
        self._round, self._order = -1, np.empty(0, dtype=np.int64)

    def slice(self, seed: int, begin: int, count: int) -> Indices:
        parts = []
        while count:
            turn, place = divmod(begin, len(self._rows))
            parts.append(self._turn(seed, turn)[place : place + count])
            begin, count = begin + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts)

    def _turn(self, seed: int, turn: int) -> Indices:
        if self._round != turn:
            self._order = np.empty(0, dtype=np.int64)  # free the old order before the new one is made
            generator = seeded(seed, 1 + self._number, turn)
            self._order = _rows_at(
                self._rows, torch.randperm(len(self._rows), generator=generator, device="cpu").numpy()
            )
            self._round = turn
        return self._order


class Weighs(Numbers, Protocol):
    """A source of weights that may change, and of the number of rows to draw."""

    num_samples: int

    @property
    def weights(self) -> torch.Tensor:
        """The current weights."""

    @property
    def edits(self) -> int:
        """The number of writes to the weights."""

    def checked(self) -> Weights:
        """Return the weights. Raises ValueError if they allow no draw."""

    def cumulative(self) -> Weights:
        """Return the running sum of the weights. Raises ValueError if they allow no draw."""


class WeightedRows:
    """Rows in proportion to weights, independently of each other; a `memload.sampling.draws.RowStream`.

    The position contains the rows that were drawn but not yet seen by the loop, because the weights may have changed
    since the draw.
    """

    paced = False
    lookahead = 0  # changed weights must apply soon

    def __init__(self, source: Weighs, position: Position | None) -> None:
        position = position or {"row": 0, "pending": [], "generator": None}
        self._source = source
        self._all = source.num_samples
        self._begin: int = position["row"]
        self._pending: Indices | None = np.array(position["pending"], dtype=np.int64)
        self._recent = deque([self._pending])
        self._drawn: int = self._begin + len(self._pending)
        state = position["generator"]
        self._generator = None if state is None else restored(decode(state))
        self._seeded = self._generator is not None and not position.get("foreseen")
        self._number: int | None = position.get("seed")
        self.values = range(len(source.weights))
        self.total = self._all - self._begin

    def next(self, seen: int) -> Indices | None:
        """Draw the next rows, or return the drawn rows of the position first; None after the last."""
        pending, self._pending = self._pending, None
        if pending is not None and len(pending):
            return pending
        if self._drawn == self._all:
            return None
        if not self._seeded:
            number, self._seeded = self._source.number(), True
            self._begin_with(number)
        assert self._generator is not None
        rows = self._draw(min(WEIGHTED_CHUNK, self._all - self._drawn), self._generator)
        self._drawn += len(rows)
        self._recent.append(rows)
        while self._recent_begin + len(self._recent[0]) <= self._begin + seen:
            self._recent.popleft()
        return rows

    def position(self, seen: int) -> dict[str, Any]:
        """Return the row, the rows drawn ahead of it, and the generator's state after those."""
        row = min(self._begin + seen, self._all)
        foreseen = None if self._seeded else self._source.foreseen_number()
        if foreseen is not None:
            self._begin_with(foreseen)
        generator = None if self._generator is None else encode(self._generator.get_state())
        place = {"row": row, "pending": self._rows_from(row, self._drawn), "generator": generator}
        if self._number is not None:
            place["seed"] = self._number
        return place if self._seeded or generator is None else {**place, "foreseen": True}

    def fill(self, count: int) -> Indices:
        """Draw `count` rows after the last, independently of all others."""
        return drawn(self._source.cumulative(), count, seeded(self._number or 0, 0))

    def _begin_with(self, number: int) -> None:
        if self._generator is None:
            self._generator, self._number = torch.Generator().manual_seed(number), number

    def _draw(self, count: int, generator: torch.Generator) -> Indices:
        return drawn(self._source.cumulative(), count, generator)

    @property
    def _recent_begin(self) -> int:
        return self._drawn - sum(map(len, self._recent))

    def _rows_from(self, begin: int, end: int) -> list[int]:
        first = self._recent_begin
        rows: list[int] = np.concatenate(self._recent)[max(0, begin - first) : max(0, end - first)].tolist()
        return rows


class RankedRows(WeightedRows):
    """Rows in proportion to weights without repetition. They are ranked once, and again after weights have changed.

    The position contains the row at which the ranking was made, the rows taken before it, and the generator's state.
    """

    def __init__(self, source: Weighs, position: Position | None) -> None:
        super().__init__(source, position)
        ranking = position.get("ranking") if position else None
        self._ranking: Position | None = ranking
        self._rest: Indices | None = None
        self._edits = source.edits
        self._taken = np.zeros(len(self.values), dtype=np.bool_)
        self._skip = 0
        if ranking is not None:
            self._taken = _unpacked(ranking["taken"], len(self._taken))
            self._generator = restored(decode(ranking["generator"]))
            self._skip = max(0, self._begin - ranking["row"])

    def position(self, seen: int) -> dict[str, Any]:
        """Return the row, the rows after it from earlier rankings, and the data that repeats the last ranking."""
        place = super().position(seen)
        if self._ranking is None or self._generator is None:
            return place
        ranking = self._ranking
        if self._rest is not None and self._source.edits != self._edits:
            ranking = self._new_ranking(self._generator)
        elif self._rest is not None and ranking.get("weights") is None:
            self._ranking = ranking = {**ranking, "weights": _digest(self._source.checked())}
        return {**place, "pending": self._rows_from(place["row"], ranking["row"]), "ranking": ranking}

    def _draw(self, count: int, generator: torch.Generator) -> Indices:
        if self._rest is None or self._source.edits != self._edits:
            self._rank(generator)
        assert self._rest is not None
        rows, self._rest = self._rest[:count], self._rest[count:]
        self._taken[rows] = True
        return rows

    def _rank(self, generator: torch.Generator) -> None:
        weights, self._edits = self._source.checked(), self._source.edits
        if self._rest is None and self._ranking is not None:
            self._check_resumed(self._ranking, weights)
        else:
            self._ranking = self._new_ranking(generator)
        first = self._ranking["row"]
        order = ranked(np.where(self._taken, 0.0, weights), self._all - first, generator)
        self._taken[order[: self._skip]] = True
        self._rest, self._skip = order[self._skip :], 0

    def _new_ranking(self, generator: torch.Generator) -> dict[str, Any]:
        """Return a ranking that begins at the current row."""
        taken = base64.b64encode(np.packbits(self._taken).tobytes()).decode() if self._drawn else ""
        return {"row": self._drawn, "generator": encode(generator.get_state()), "taken": taken, "weights": None}

    def _check_resumed(self, ranking: Position, weights: Weights) -> None:
        if ranking["weights"] not in (None, _digest(weights)):
            raise ValueError(
                "the weights differ from those that the sampler had when the state was saved: set them before the pass "
                "resumes, because the order of its rows depends on them"
            )


def drawn(cumulative: Weights, count: int, generator: torch.Generator) -> Indices:
    """Draw `count` indices from a running sum of weights: index i with a probability proportional to weight i."""
    uniform = torch.rand(count, dtype=torch.float64, generator=generator, device="cpu").numpy()
    return steps_at(uniform * cumulative[-1], cumulative)


def steps_at(places: NDArray[np.float64], cumulative: Weights) -> Indices:
    """Return the steps of a running sum that contain these places; rounding may make a place equal to the total."""
    last = np.searchsorted(cumulative, cumulative[-1])  # the last index with a positive weight
    rows: Indices = np.minimum(np.searchsorted(cumulative, places, side="right"), last)
    return rows


def ranked(weights: Weights, count: int, generator: torch.Generator) -> Indices:
    """Draw `count` indices one after the other without replacement, by exponential races.

    Efraimidis and Spirakis, Weighted random sampling with a reservoir, Information Processing Letters 97 (2006).
    """
    check_enough(count, int(np.count_nonzero(weights)))
    with np.errstate(divide="ignore"):
        uniform = torch.rand(len(weights), dtype=torch.float64, generator=generator, device="cpu").numpy()
        np.maximum(uniform, 2.0**-54, out=uniform)
        arrival = np.log(-np.log1p(-uniform)) - np.log(weights)
    first = np.argpartition(arrival, count - 1)[:count] if count < len(weights) else np.arange(count)
    rows: Indices = first[np.argsort(arrival[first], kind="stable")]
    return rows


def check_enough(wanted: int, positive: int) -> None:
    """Raise ValueError if fewer rows have a positive weight than must be drawn without replacement."""
    if wanted > positive:
        raise ValueError(
            f"{wanted} rows are to be drawn without replacement, but only {positive} of those left have a positive "
            "weight: lower num_samples, or draw with replacement"
        )


def seeded(*numbers: int) -> torch.Generator:
    """Return a generator with a seed that is a hash of these numbers."""
    (seed,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64).tolist()
    return torch.Generator().manual_seed(seed)


def _rows_at(rows: range | Indices, places: Indices) -> Indices:
    return places + rows.start if isinstance(rows, range) else rows[places]


def _unpacked(bits: str, count: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(base64.b64decode(bits), dtype=np.uint8)
    return np.unpackbits(packed, count=count).astype(np.bool_) if bits else np.zeros(count, dtype=np.bool_)


def _digest(weights: Weights) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(weights).data)
