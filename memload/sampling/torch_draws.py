"""Draw seeds and permutations of rows exactly as torch does, with the same effect on the generator.

Native code draws permutations of many rows. torch's own takes several times longer, writes to pages that the system has
to provide one by one, and leaves OpenMP threads spinning on CPUs that have batches to gather.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core

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
