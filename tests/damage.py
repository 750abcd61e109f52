"""Files that were damaged: what hypothesis does to their bytes."""

import numpy as np
from hypothesis import strategies as st

import memload


@st.composite
def damaged(draw, sound):
    """The bytes of a sound file, cut short or with some of them changed, or both."""
    broken = bytearray(sound[: draw(st.one_of(st.just(len(sound)), st.integers(1, len(sound))))])
    for _ in range(draw(st.integers(1, 6))):
        broken[draw(st.integers(0, len(broken) - 1))] = draw(st.integers(0, 255))
    return bytes(broken)


def opens_or_says_why(path, **stated):
    """Open a damaged file and read all rows; whatever memload says of it must name it."""
    try:
        ds = memload.open(path, **stated)
        said = f"{path}: {[field.gather(np.arange(min(field.rows, 1000))).shape for field in ds.fields.values()]}"
    except (memload.MemloadError, ValueError) as error:
        said = str(error)
    assert str(path) in said
