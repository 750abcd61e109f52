"""What tests of rows that differ in length share: the plainest reference, lists of tensors."""

import torch
from hypothesis import strategies as st
from strategies import as_bytes, dtypes, random_tensor

import memload
from memload.columns.ragged_forms import is_ragged, rows_of

lengths = st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 300)), min_size=1, max_size=25)
item_shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
forms = st.sampled_from(["offsets", "padded", "jagged"])


@st.composite
def row_lists(draw, axis=0):
    """Rows of one dtype and item shape, of any length."""
    dtype, item, seed = draw(dtypes), draw(item_shapes), draw(st.integers(0, 99))
    before = (draw(st.integers(1, 3)),) if axis else ()
    return [random_tensor(dtype, (*before, n, *item), seed + k) for k, n in enumerate(draw(lengths))]


def same_tensor(one, other):
    return (one.dtype, one.shape, as_bytes(one)) == (other.dtype, other.shape, as_bytes(other))


def same_rows(rows, others):
    return len(rows) == len(others) and all(
        one == other if isinstance(one, str) else same_tensor(one, other)
        for one, other in zip(rows, others, strict=True)
    )


def same(one, other):
    """Whether two batches are equal to the bit, in containers of the same types."""
    if is_ragged(one) or is_ragged(other):
        if type(one) is not type(other) or not same_rows(rows_of(one), rows_of(other)):
            return False
        padded = isinstance(one, memload.Padded)
        return same_tensor(one.values, other.values) if padded else True
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and same_tensor(one, other)
    if isinstance(one, dict):
        return type(one) is type(other) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def sentences(n=60, seed=0):
    """A dataset of token rows of 0 to 40 items, a number and a text for each."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 41, (n,), generator=generator).tolist()
    counts[1] = 0
    tokens = [torch.randint(0, 30_000, (count,), generator=generator) for count in counts]
    texts = [f"row {k}: " + "ä" * (k % 7) for k in range(n)]
    return memload.from_arrays(tokens=memload.ragged(tokens), label=torch.arange(n), text=texts)


def graphs(n=30, seed=0):
    """Node features and edges of small graphs, as lists of tensors."""
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randint(1, 9, (n,), generator=generator).tolist()
    x = [torch.randn(count, 3, generator=generator) for count in nodes]
    edges = [torch.randint(0, count, (2, 2 * count - 2), generator=generator) for count in nodes]
    return x, edges
