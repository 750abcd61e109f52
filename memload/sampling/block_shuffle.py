"""Shuffle with locality: blocks over the whole set, rows within a window of blocks.

    blocks      0 1 2 3 4 5 6 7           rows that are stored together, such as the chunks of a file
    shuffled    5 2 | 7 0 | 3 6 | 1 4     over the whole set, anew for each pass; cut into windows of 2
    rows        the rows of 5 and 2 shuffled together, then those of 7 and 0, ...

The number of a pass decides the order of its blocks and, with the number of a window, the order of the window's rows.
So any window can be drawn by itself, and a pass resumes at any row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from memload.sampling.blocks import Blocks, blocks_of
from memload.sampling.draws import LOOKAHEAD, Indices, Position
from memload.sampling.ranks import CommonRows, count
from memload.sampling.samplers import RankedSampler
from memload.sampling.weighted_draws import Numbers, seeded
from memload.sizes import counted


class BlockShuffle(RankedSampler):
    """Shuffles blocks of rows over the whole dataset, and rows within windows of a few blocks.

    Rows that are stored together are used together. So a chunk of a compressed file is read and decoded once in a pass,
    where full shuffling decodes it again for each batch that has one of its rows; and a disk reads long runs. Every row
    comes once in a pass. FastLoader keeps the decoded chunks of a window; `loader.nbytes` has their bytes.

    A batch has rows of one window, or of two neighbouring ones at their border. `mixing` is the share of all pairs of
    rows that are in the same window, in a pass on average. With full shuffling it is 1; at 0.01 a batch shows 1 % of
    what could meet. Blocks of neighbouring rows that are alike (sorted by label or by session) need windows of many
    blocks.

    With several ranks each gets its share of one common order, and equally many rows: the first rows of the order come
    again at its end if that is necessary. All ranks use all blocks, so each rank decodes each chunk once. As with
    torch's DistributedSampler, the order follows from ``seed + epoch``: call ``set_epoch`` before each epoch.

    Args:
        dataset: the dataset whose rows are shuffled, or their number.
        block: rows of a block, of which the last may have fewer. None: the chunks of the file, if all chunked fields
            (HDF5, Zarr, compressed shards) have their borders in common somewhere; rows of one chunk are a block also
            in a selection, such as one half of `ds.split`. Plain fields of a set in a store have the blocks in which
            the field of the largest rows is fetched. Datasets that were joined by name each have their own blocks.
        window: blocks whose rows are shuffled together. More mix better, and take more memory.
        generator: draws one number a pass, for one process; default: torch's own.
        seed: of the orders, the same on all ranks, in place of a generator; default with several ranks: 0.
        drop_last: whether to leave out the last rows if the ranks cannot have equally many.
        num_replicas: ranks that share the epoch; None: those of torch.distributed, if it is initialised when a pass
            begins, otherwise 1.
        rank: of this process, from 0; None: that of torch.distributed.

    Raises:
        ValueError: the dataset has no rows or, without ``block``, no chunks; an argument is out of range, or a
            generator is given and there are several ranks.
        TypeError: an argument is of another type.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(x=torch.arange(1000))
        >>> sampler = memload.BlockShuffle(ds, block=10, window=20, seed=0)
        >>> sampler
        BlockShuffle(1,000 rows in 100 blocks, windows of 20 blocks (about 200 rows): 19.9 % of pairs of rows can meet)
        >>> loader = memload.FastLoader(ds, batch_size=50, sampler=sampler)
        >>> sorted(row for batch in loader for row in batch["x"].tolist()) == list(range(1000))
        True
    """

    def __init__(
        self,
        dataset: Any,
        block: int | None = None,
        window: int = 16,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.blocks = blocks_of(dataset, None if block is None else count("block", block))
        self.window = min(count("window", window), len(self.blocks))
        self.num_samples, self.replacement = self.blocks.rows, False
        self._set_draws(generator, seed, drop_last, num_replicas, rank)

    @property
    def mixing(self) -> float:
        """The share of all pairs of rows that are in the same window, in a pass on average: from 0 to 1.

        For K blocks of b rows each in windows of W blocks, where W divides K, that is (W b - 1) / (K b - 1). In
        general, pairs within a block always meet, and of K (K - 1) ordered pairs of blocks a window of w blocks holds
        w (w - 1).
        """
        total = self.blocks.rows * (self.blocks.rows - 1)
        if not total:
            return 1.0
        sizes = self.blocks.sizes.astype(np.float64)
        within, number = float((sizes * (sizes - 1)).sum()), len(sizes)
        whole, rest = divmod(number, self.window)
        meeting = whole * self.window * (self.window - 1) + rest * (rest - 1)
        return (within + (total - within) * meeting / max(1, number * (number - 1))) / total

    @property
    def window_rows(self) -> int:
        """The most rows that a window can have."""
        return int(np.sort(self.blocks.sizes)[-self.window :].sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks, of their order, and of the rows of the windows that are drawn ahead."""
        return self.blocks.nbytes + 8 * len(self.blocks) + 8 * (LOOKAHEAD + 2 * self.window_rows)

    def blocks_in_use(self, rows: int) -> int:
        """Return how many blocks at most have rows among `rows` consecutive rows of the common order, and before them.

        These are the blocks of the windows that the rows are in, of which the first has begun before.
        """
        least = max(1, int(np.sort(self.blocks.sizes)[: self.window].sum()))
        windows = 2 + -(-max(0, rows - 1) // least)
        return min(len(self.blocks), windows * self.window)

    def __repr__(self) -> str:
        blocks = len(self.blocks)
        rows = round(self.blocks.rows * self.window / blocks)
        return (
            f"{type(self).__name__}({counted(self.blocks.rows, 'row')} in {counted(blocks, 'block')}, windows of "
            f"{counted(self.window, 'block')} (about {counted(rows, 'row')}): {100 * self.mixing:.3g} % of pairs of "
            "rows can meet)"
        )

    def _common_rows(self, position: Position | None) -> CommonRows:
        return BlockRows(self.blocks, self.window, self, position)


class BlockRows:
    """The rows of all ranks in one pass; a `memload.sampling.draws.RowStream`.

    Args:
        blocks: the blocks.
        window: blocks of a window.
        source: gives the number of the pass.
        position: where to go on; None: at the beginning.
    """

    paced = False
    lookahead = LOOKAHEAD

    def __init__(self, blocks: Blocks, window: int, source: Numbers, position: Position | None) -> None:
        position = position or {"row": 0, "seed": None}
        self._begin: int = position["row"]
        self._seed: int | None = position["seed"]
        self._drawn = self._seed is not None and not position.get("foreseen")
        self._blocks, self._size, self._source = blocks, window, source
        self._order: Indices | None = None
        self._window = 0
        self._skip = self._begin  # rows before the position, in windows that are not drawn yet
        self.values, self.total = range(blocks.rows), blocks.rows - self._begin

    def next(self, seen: int) -> Indices | None:  # noqa: ARG002 - nothing is remembered
        """Draw the next window, or the remainder of the first; None after the last."""
        order = self._block_order()
        while self._window * self._size < len(order):
            number, self._window = self._window, self._window + 1
            size = int(self._blocks.sizes[self._of_window(order, number)].sum())
            if self._skip >= size:
                self._skip -= size
                continue
            skip, self._skip = self._skip, 0
            return self._rows_of(order, number)[skip:]
        return None

    def position(self, seen: int) -> dict[str, Any]:
        """Return the row, and the number of the pass."""
        if not self._drawn and self._seed is None:
            self._seed = self._source.foreseen_number()
        place = {"row": min(self._begin + seen, self._blocks.rows), "seed": self._seed}
        return place if self._drawn or self._seed is None else {**place, "foreseen": True}

    def fill(self, count: int) -> Indices:
        """Return the first `count` rows of the pass, from the beginning again if there are fewer."""
        order = self._block_order()
        parts: list[Indices] = []
        number = 0
        while count:
            rows = self._rows_of(order, number % -(-len(order) // self._size))[:count]
            parts.append(rows)
            count, number = count - len(rows), number + 1
        return np.concatenate(parts)

    def _of_window(self, order: Indices, number: int) -> Indices:
        return order[number * self._size : (number + 1) * self._size]

    def _rows_of(self, order: Indices, number: int) -> Indices:
        assert self._seed is not None
        rows = self._blocks.rows_of(self._of_window(order, number))
        shuffled: Indices = rows[_permutation(len(rows), self._seed, 1 + number)]
        return shuffled

    def _block_order(self) -> Indices:
        """Return the order of the blocks; a position that was saved before the first draw has fixed it already."""
        if self._seed is None or not self._drawn:
            number, self._drawn = self._source.number(), True
            self._seed = number if self._seed is None else self._seed
        if self._order is None:
            self._order = _permutation(len(self._blocks), self._seed, 0)
        return self._order


def _permutation(length: int, seed: int, part: int) -> Indices:
    drawn: Indices = torch.randperm(length, generator=seeded(seed, 2, part), device="cpu").numpy()
    return drawn
