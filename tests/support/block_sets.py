"""Sets of rows that fill a block of a cache each, and what is asked of their caches."""

import torch
from waiting import until

from memload import _core
from memload.formats.remote import cache_folder
from memload.formats.remote.cache_folder import PINNED


def rows_of_blocks(count):
    """Rows of a block of 64 KiB each; row `k` has `k + 1` everywhere."""
    return torch.arange(1, count + 1, dtype=torch.int32).repeat(16_384, 1).T.contiguous()


def cache_of(ds, field="x"):
    """The blocks of a dataset."""
    return ds.fields[field].column.storages[0].origin


def closed(folder):
    """Return the sets of a cache once nobody has them open.

    The thread of the last request keeps the cache for a moment after its bytes are there.
    """
    sets = list(cache_folder._sets_in(folder))
    until(lambda: not any(_core.BlockTable.is_in_use(str(one.path / "blocks")) for one in sets))
    return sets


def some(cache, bits, value):
    """Whether any block is in a state."""
    return bool((cache.table.states(0, cache.table.blocks) & bits == value).any())


def is_pinned(cache):
    """Whether any block is pinned."""
    return some(cache, PINNED, PINNED)
