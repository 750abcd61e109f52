"""Files of numpy.savez: stored members are read in place."""

import os
import zipfile

import numpy as np
import pytest
import strategies  # noqa: F401 - its settings for hypothesis
import torch
from damage import damaged, opens_or_says_why
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import memload

DTYPES = st.sampled_from(["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"])


@st.composite
def named_arrays(draw):
    rows = draw(st.integers(0, 5))
    names = draw(st.lists(st.sampled_from(["x", "y", "a/b", "arr_0", "ü"]), min_size=1, unique=True))
    shapes = arrays.array_shapes(min_dims=0, max_dims=3, max_side=4)
    return {name: draw(arrays.arrays(draw(DTYPES), (rows, *draw(shapes)))) for name in names}


@given(named_arrays())
def test_its_arrays_are_read_in_place_as_numpy_reads_them(tmp_path_factory, named):
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    np.savez(path, **named)
    ds = memload.open(path)
    assert list(ds.fields) == list(named)
    with np.load(path) as loaded:
        for name, field in ds.fields.items():
            assert field.gather(np.arange(field.rows)).numpy().tobytes() == loaded[name].tobytes()
            assert {(s.mapped, s.name) for s in field.column.storages} <= {(True, str(path))}


def test_key_picks_arrays_of_one_length(tmp_path):
    np.savez(tmp_path / "x.npz", stim=np.zeros((5, 2)), robs=np.arange(5), mean=np.float64(3), valid=np.zeros(2))
    with pytest.raises(memload.FormatError, match=r"'mean' is a single number.*key="):
        memload.open(tmp_path / "x.npz")
    assert list(memload.open(tmp_path / "x.npz", key=["robs", "stim"]).fields) == ["robs", "stim"]
    assert memload.open(tmp_path / "x.npz", key="robs", field="y")[4]["y"] == 4


def test_arrays_of_other_lengths_that_were_picked_are_told_how_to_be_rows(tmp_path):
    np.savez(tmp_path / "x.npz", trial0=np.zeros(3), trial1=np.zeros(5))
    with pytest.raises(ValueError, match=r"trial0: 3, trial1: 5; arrays that are one row each .* memload\.ragged"):
        memload.open(tmp_path / "x.npz", key=["trial0", "trial1"])


@pytest.mark.parametrize("suffix", ["npz", "pt"])
def test_a_zip_file_that_was_cut_short_says_so(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(1000)) if suffix == "npz" else torch.save(torch.zeros(1000), file)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(memload.FormatError, match=r"not a valid .*; it begins as one: it was cut short.*get it again"):
        memload.open(path)


def test_a_npz_file_is_known_by_what_it_holds(tmp_path):
    with (tmp_path / "x.data").open("wb") as file:
        np.savez(file, x=np.arange(3))
    assert memload.open(tmp_path / "x.data")[2]["x"] == 2


def test_compressed_arrays_say_what_to_do_and_others_beside_them_are_read(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(3))
    with pytest.raises(memload.FormatError, match=r"x\.npy is compressed as a whole.*savez.*memload\.write"):
        memload.open(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", y=np.arange(3))
    with zipfile.ZipFile(tmp_path / "x.npz") as old, zipfile.ZipFile(tmp_path / "y.npz", "a") as new:
        new.writestr("x.npy", old.read("x.npy"), zipfile.ZIP_DEFLATED)
    assert memload.open(tmp_path / "y.npz", key="y")[1]["y"] == 1


def test_an_array_that_cannot_be_read_says_how_to_leave_it_out(tmp_path):
    np.savez(tmp_path / "x.npz", stim=np.arange(3), name=np.array(["a", "b", "c"]), robs=np.zeros(3))
    with pytest.raises(memload.FormatError, match=r"name\.npy: .* is text.*leave it out by key=\['stim', 'robs'\]"):
        memload.open(tmp_path / "x.npz")
    assert len(memload.open(tmp_path / "x.npz", key=["stim", "robs"])) == 3


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, "f4,i4"), r"several numbers in each element.*array\['f0'\]"),
        (np.asfortranarray(np.zeros((4, 3))), "x.npy: saved in Fortran order"),
        (np.zeros(3, dtype=">f4"), "x.npy: dtype >f4 has its bytes swapped"),
        (np.array([np.zeros(2), np.zeros(3)], object), r"pointers.*memload\.ragged\(list\(array\)\)"),
        (np.array([object()]), "pointers"),
    ],
)
def test_arrays_that_cannot_be_read_in_place_are_named(tmp_path, array, message):
    np.savez(tmp_path / "x.npz", x=array)
    with pytest.raises(memload.FormatError, match=message):
        memload.open(tmp_path / "x.npz")


def test_a_zip_file_of_something_else_is_not_one(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("readme.txt", "hello")
    with pytest.raises(memload.FormatError, match=r"without a \.npy member"):
        memload.open(tmp_path / "x.npz")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "x.npz"
    np.savez(path, x=np.arange(30).reshape(10, 3), y=np.ones(10))
    return path.read_bytes()


@given(st.data())
def test_a_damaged_file_opens_or_says_what_is_wrong(tmp_path_factory, sound, data):
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(data.draw(damaged(sound)))
    opens_or_says_why(path)
