"""Permutations of rows as `torch.randperm` draws them, and the generator left as it leaves it.

Drawn natively for many rows: torch's takes several times longer, writes to pages that the system has to give one by
one, and leaves threads of OpenMP spinning on CPUs that have batches to gather.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core

FEWEST = 1 << 14
"""Rows from which on permutations are drawn natively."""

_MOST = (1 << 32) // 20
"""Rows from which on torch draws 64 bits for each."""

_TRIED = 2000
"""Rows with which the native way is tried before it is used, beyond one block of the generator's numbers."""


def permutation(rows: int, generator: torch.Generator | None) -> NDArray[np.int64]:
    """Return what ``torch.randperm(rows, generator=generator)`` draws, on whatever device that is."""
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
    """Whether a permutation is drawn natively.

    Not from torch's own generator, which other threads may use meanwhile: the state is read, and written back later, so
    what they draw between would be drawn again.
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
    except ValueError:  # a torch whose generators are others
        return False
    return bool(torch.equal(torch.from_numpy(drawn), wanted)) and torch.equal(state, generator.get_state())
