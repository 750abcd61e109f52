"""Sets of rows that fill a block of a cache each, and what is asked of their caches."""

import torch

from memload.formats.remote.cache_folder import PINNED


def rows_of_blocks(count):
    """Rows of a block of 64 KiB each; row `k` has `k + 1` everywhere."""
    return torch.arange(1, count + 1, dtype=torch.int32).repeat(16_384, 1).T.contiguous()


def cache_of(ds, field="x"):
    """The blocks of a dataset."""
    return ds.fields[field].column.storages[0].origin


def some(cache, bits, value):
    """Whether any block is in a state."""
    return bool((cache.table.states(0, cache.table.blocks) & bits == value).any())


def is_pinned(cache):
    """Whether any block is pinned."""
    return some(cache, PINNED, PINNED)
