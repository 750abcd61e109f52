"""The claims of this process to blocks of a set: which requests still have them, and what the others failed of.

hold(blocks) -> claimed -> Claims.of(run) -> the request of a run -> Claim.end(error), unless the bytes come
                   |
                   +-- another process takes them over, or brings them: the claim stands no more
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from memload._core import BlockTable
from memload.formats.remote.cache_folder import ARRIVING, OF_OTHERS, PRESENT, STATE

Blocks = NDArray[np.int64]
Held = tuple[Blocks, Blocks, Blocks, Blocks]


@contextlib.contextmanager
def claiming(table: BlockTable, claims: list[Blocks]) -> Iterator[None]:
    """What is left in a list of what was claimed is absent again where an interrupt or an error comes."""
    try:
        yield
    except BaseException:
        for claimed in claims:
            table.failed(claimed)
        raise


class Claims:
    """The claims of this process to the blocks of a table, each of which has a number. Any thread may call anything.

    A block that another process took over from a request, and left, may be claimed again here while that request is
    under way. The table does not tell the two claims apart, so their numbers do.

    Args:
        table: the table.
    """

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self.errors: dict[int, BaseException] = {}
        self.lock = threading.RLock()
        self.numbers = np.zeros(table.blocks, dtype=np.uint32)  # of the last claim to each block

    def hold(self, blocks: Blocks, limit: int, again: bool, claims: list[Blocks]) -> Held:
        """Return what `BlockTable.hold` returns."""
        with self.lock:
            held: Held = self.table.hold(blocks, limit, again, claims)
            self.numbers[held[0]] += 1
        return held

    def take_over(self, blocks: Blocks, claims: list[Blocks]) -> None:
        """Claim blocks as `BlockTable.take_over`."""
        with self.lock:
            self.numbers[self.table.take_over(blocks, claims)] += 1

    def of(self, blocks: range) -> Claim:
        """Return the claim to neighbouring blocks that were claimed just now."""
        return Claim(self, blocks, self.numbers[blocks.start : blocks.stop].copy())

    def forget_errors(self, blocks: Blocks) -> None:
        """Forget the errors of earlier requests for blocks."""
        for block in blocks.tolist() if self.errors else ():
            self.errors.pop(block, None)

    def forget_errors_of_others(self, blocks: Blocks) -> None:
        """Forget errors that nobody waited for, of blocks that another process asks for by now."""
        for block in blocks.tolist() if self.errors else ():
            if self.table.states(block, 1)[0] & OF_OTHERS:
                self.errors.pop(block, None)

    def failed_of(self, blocks: Blocks) -> tuple[int, BaseException] | None:
        """Return the first of some blocks that is absent since its request failed, and the error; None if none is."""
        for block in blocks.tolist() if self.errors else ():
            state = self.table.states(block, 1)[0] & STATE
            if state == PRESENT:  # another process has brought it
                self.errors.pop(block, None)
            elif state == 0 and (error := self.errors.get(block)) is not None:  # another thread may forget it now
                return int(block), error
        return None


class Claim:
    """The claim of one request to neighbouring blocks; to each of them it stands until somebody else claims that block.

    Args:
        claims: which has it.
        blocks: the blocks.
        numbers: of the claim to each.
    """

    def __init__(self, claims: Claims, blocks: range, numbers: NDArray[np.uint32]) -> None:
        self._claims, self.blocks, self._numbers = claims, blocks, numbers

    def standing(self) -> Blocks:
        """Return the blocks to which it stands: they are neither here yet, nor does anybody else bring them."""
        claims, begin, end = self._claims, self.blocks.start, self.blocks.stop
        with claims.lock:
            states = claims.table.states(begin, end - begin)
            is_own = (states & (STATE | OF_OTHERS) == ARRIVING) & (claims.numbers[begin:end] == self._numbers)
        return np.asarray(begin + np.flatnonzero(is_own), dtype=np.int64)

    def part(self, first: int, count: int) -> Claim:
        """Return the claim to some of the blocks."""
        at = first - self.blocks.start
        return Claim(self._claims, range(first, first + count), self._numbers[at : at + count])

    def renew(self) -> None:
        """Claim what is awaited still, whoever asked for it, since its bytes are there and are about to be stored."""
        claims, begin, end = self._claims, self.blocks.start, self.blocks.stop
        with claims.lock:
            claims.numbers[begin:end] += 1
            self._numbers = claims.numbers[begin:end].copy()

    def end(self, error: BaseException | None = None) -> None:
        """Let the blocks to which it stands be absent, for an error that whoever waits for them raises, or for none."""
        with self._claims.lock:
            blocks = self.standing()
            if error is not None:
                self._claims.errors.update(dict.fromkeys(blocks.tolist(), error))
            self._claims.table.failed(blocks)
