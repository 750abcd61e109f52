"""Draw what torch's samplers and loaders draw: the same numbers, with the same effect on the generator.

At the top are seeds and permutations, below them the draws of each known sampler of torch as numbered draws.

Native code draws permutations of many rows. torch's own takes several times longer, writes to pages that the system has
to provide one by one, and leaves OpenMP threads spinning on CPUs that have batches to gather.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from memload import _core
from memload.columns.numbers import as_indices
from memload.sampling.draws import LOOKAHEAD, Draws, Indices, Position

FEWEST = 1 << 14
"""The least number of rows for which permutations are drawn natively."""

_MOST = (1 << 32) // 20
"""The least number of rows for which torch draws 64 bits for each row."""

_TRIED = 2000
"""Rows of the trial permutation that is compared with torch's before native code is used; more than one block."""


def default_generator() -> torch.Generator:
    """Return the generator that torch's random functions use on the default device."""
    device = torch.get_default_device()
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    found: torch.Generator = generators[device.index or 0] if generators else torch.default_generator
    return found


def drawn_seed(generator: torch.Generator | None) -> int:
    """Draw a seed as torch's samplers and iterators do, which leaves the generator in the same state as theirs."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def peeked_seed(generator: torch.Generator | None) -> int:
    """Return the seed that would be drawn next, without drawing it."""
    source = default_generator() if generator is None else generator
    return drawn_seed(source.clone_state())


def drawn_generator() -> torch.Generator:
    """Return a generator with a seed drawn from torch's own, as ``RandomSampler`` makes one for a pass."""
    return torch.Generator().manual_seed(drawn_seed(None))


def foreseen_generator() -> torch.Generator:
    """Return what `drawn_generator` would return next, without drawing anything."""
    return torch.Generator().manual_seed(peeked_seed(None))


def permutation(rows: int, generator: torch.Generator | None) -> NDArray[np.int64]:
    """Return the permutation that ``torch.randperm(rows, generator=generator)`` draws, on the generator's device."""
    if generator is None or not is_native(rows, generator):
        drawn: NDArray[np.int64] = torch.randperm(rows, generator=generator).cpu().numpy()
        return drawn
    state = generator.get_state()
    drawn = _core.permutation(state.numpy(), rows)
    generator.set_state(state)
    return drawn


def skip_permutation(rows: int, generator: torch.Generator | None) -> None:
    """Leave the generator as ``torch.randperm(rows, generator=generator)`` leaves it."""
    if generator is None or not is_native(rows, generator):
        torch.randperm(rows, generator=generator)
        return
    state = generator.get_state()
    _core.skip_permutation(state.numpy(), rows)
    generator.set_state(state)


def is_native(rows: int, generator: torch.Generator) -> bool:
    """Return whether a permutation is drawn natively.

    Torch's own generator is excluded, because other threads may use it meanwhile. Native code reads its state and
    writes it back later, so numbers that they draw in between would be drawn again.
    """
    plain = type(generator) is torch.Generator and generator is not torch.default_generator
    plain = plain and generator.device.type == torch.get_default_device().type == "cpu"
    return plain and FEWEST <= rows < _MOST and _draws_as_torch()


@functools.cache
def _draws_as_torch() -> bool:
    generator = torch.Generator().manual_seed(_TRIED)
    state = generator.get_state()
    wanted = torch.randperm(_TRIED, generator=generator)
    try:
        drawn = _core.permutation(state.numpy(), _TRIED)
    except ValueError:  # this torch has different generators
        return False
    return bool(torch.equal(torch.from_numpy(drawn), wanted)) and torch.equal(state, generator.get_state())


SEQUENTIAL_CHUNK = LOOKAHEAD
"""Rows per array of a sequential plan. Chunks keep the plan of a long pass from lying in memory as a whole."""


def draws_of(sampler: Any) -> Draws:
    """Return the draws of one pass over a known sampler of torch that draws for one process."""
    return DRAWS[type(sampler)](sampler)


def _sequential(sampler: SequentialSampler) -> Draws:
    total = len(sampler)

    def chunk(number: int, _: torch.Generator | None) -> Indices:
        begin = number * SEQUENTIAL_CHUNK
        return np.arange(begin, min(begin + SEQUENTIAL_CHUNK, total), dtype=np.int64)

    return Draws(range(total), total, SEQUENTIAL_CHUNK, -(-total // SEQUENTIAL_CHUNK), chunk)


def _random(sampler: RandomSampler) -> Draws:
    n, total, shared = len(sampler.data_source), sampler.num_samples, sampler.generator is not None
    # Draws of 32 give the same numbers as one large draw, and keep a generator of the user from running ahead.
    step = n if not sampler.replacement else 32 if shared else total

    def whole_or_part(number: int, generator: torch.Generator | None) -> Indices:
        if number < total // n:
            return permutation(n, generator)
        if total % n:
            return permutation(n, generator)[: total % n].copy()  # a view would keep the whole permutation
        skip_permutation(n, generator)
        return np.empty(0, dtype=np.int64)

    def chunk(number: int, generator: torch.Generator | None) -> Indices:
        size = (min(step, total - number * step),)
        return torch.randint(high=n, size=size, dtype=torch.int64, generator=generator).cpu().numpy()

    make = chunk if sampler.replacement else whole_or_part
    count = -(-total // step) if sampler.replacement else total // n + 1  # the last draw is made even if it is unused
    if shared:
        return Draws(range(n), total, step, count, make, lambda: sampler.generator, shared)
    return Draws(
        range(n),
        total,
        step,
        count,
        make,
        drawn_generator,
        foreseen=foreseen_generator,
    )


def _subset_random(sampler: SubsetRandomSampler) -> Draws:
    indices = as_indices(sampler.indices)
    values = range(int(indices.min()), int(indices.max()) + 1) if indices.size else range(0)

    total, ready = len(indices), [indices]
    del indices

    def chosen(_: int, generator: torch.Generator | None) -> Indices:
        # Popped within one expression: a variable for either array would keep it until the pass ends.
        rows = ready.pop() if ready else as_indices(sampler.indices)
        chosen: Indices = rows[permutation(total, generator)]
        return chosen

    return Draws(values, total, max(1, total), 1, chosen, _given(sampler), True, _foreseen(sampler))


def _weighted(sampler: WeightedRandomSampler) -> Draws:
    total = sampler.num_samples

    def chosen(_: int, generator: torch.Generator | None) -> Indices:
        drawn = torch.multinomial(sampler.weights, total, sampler.replacement, generator=generator)
        rows: Indices = drawn.cpu().numpy()  # weights are on the default device of the time that made the sampler
        return rows

    return Draws(range(len(sampler.weights)), total, total, 1, chosen, _given(sampler), True, _foreseen(sampler))


def _given(sampler: Any) -> Callable[[], torch.Generator]:
    return lambda: sampler.generator or default_generator()


def _foreseen(sampler: Any) -> Callable[[], torch.Generator] | None:
    return None if sampler.generator is not None else lambda: default_generator().clone_state()


DRAWS: dict[type, Callable[[Any], Draws]] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    SubsetRandomSampler: _subset_random,
    WeightedRandomSampler: _weighted,
}


class DistributedRows:
    """The rows of one rank in a pass of DistributedSampler, or in the remainder of a pass by any number of ranks.

    Ranks take turns, so together any number of them take the epoch's order from its front: after `d` batches of `b`
    rows on `w` ranks, its first ``d * b * w`` rows. The remaining rows are shared out in the same manner to the present
    ranks. They are made divisible as by the sampler: by appending rows from the front of the epoch's order, or, with
    drop_last, by leaving out the last rows.
    """

    paced = False  # the sampler draws from a private generator
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
        """Return the rows of this rank on the first call, None afterwards."""
        if self._made:
            return None
        self._made = True
        if self._epoch is None:
            self._epoch = self._sampler.epoch
        return self._dealt(self._order(self._epoch))

    def position(self, seen: int) -> dict[str, Any]:
        """Return the epoch, and how many rows of its order all ranks together have seen."""
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
        filling = first + (self.total - 1) * ranks - self._rows  # the last turn exceeds the order: repeat its front
        return np.append(rows, order[filling % self._rows])
