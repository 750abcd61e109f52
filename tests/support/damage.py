"""Files that were damaged: what hypothesis does to their bytes."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
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
        rows = [field.gather(np.arange(min(field.rows, 1000))) for field in ds.fields.values()]
        said = f"{path}: {len(rows)} fields"
    except (memload.MemloadError, ValueError, KeyError) as error:  # a KeyError names what key= states and is not there
        said = str(error)
    assert str(path) in said


def shard_of(path):
    """The first shard of a set."""
    return path / "shard-00000.safetensors"


def told_by_reading_and_by_verify(sound, broken):
    """A set whose first shard has these bytes instead: reading fails in our words or not at all, verify sees data."""
    raw = shard_of(sound).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s")
        shutil.copytree(sound, path)
        shard_of(path).write_bytes(broken)
        opens_or_says_why(path)
        if broken[4096:] != raw[4096:] or len(broken) != len(raw):
            with pytest.raises(memload.ChecksumError):
                memload.verify(path)
