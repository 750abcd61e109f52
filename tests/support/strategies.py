"""What hypothesis draws: fields of any dtype and shape, and the bytes in them."""

import torch
from hypothesis import strategies as st

import memload
from memload.dtypes import TORCH_DTYPES

DTYPES = sorted(TORCH_DTYPES.values(), key=str)
dtypes = st.sampled_from(DTYPES)
row_shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
codecs = st.builds(
    memload.Codec,
    st.sampled_from(["lz4", "zstd", "blosc2"]),
    st.one_of(st.none(), st.integers(1, 5)),
    st.sampled_from([None, "none", "byte", "bit"]),
    st.one_of(st.none(), st.integers(1, 30)),
)


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor of random bytes, so that NaNs of every kind occur; bools are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (nbytes,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def as_bytes(tensor: torch.Tensor) -> bytes:
    """The tensor's bytes: what must be equal where NaN would not be."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def field_sets(draw, min_rows=1, max_rows=20):
    """Tensors of equal length by name, one to four of them."""
    rows = draw(st.integers(min_rows, max_rows))
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    seed = draw(st.integers(0, 255))
    return {name: random_tensor(draw(dtypes), (rows, *draw(row_shapes)), seed) for name in chosen}
