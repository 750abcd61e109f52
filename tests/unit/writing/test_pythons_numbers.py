"""Numbers of Python's, of pandas, pyarrow and h5py are stored with their values, row by row and in arrays."""

import math

import datasets
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import memload
from memload.dtypes import as_numbers

TIME = 1732800000.123  # seconds since 1970, which float32 rounds to 64 s


def values(ds, name="x"):
    return [row[name].tolist() for row in ds]


@pytest.mark.parametrize(
    "rows",
    [
        [{"x": TIME}, {"x": 2.0}],
        [{"x": TIME}, {"x": 2}],
        memload.from_arrays(i=torch.arange(2)).map(lambda row: {"x": [TIME, 2.0][int(row["i"])]}),
        datasets.Dataset.from_dict({"x": [TIME, 2.0]}),
        {"x": [TIME, 2.0]},
    ],
    ids=["floats", "a whole one", "a function", "datasets", "a list"],
)
def test_floats_keep_their_digits(tmp_path, rows):
    ds = memload.write(tmp_path / "set", rows, progress=False)
    assert ds.fields["x"].dtype == torch.float64
    assert values(ds) == [TIME, 2.0]


def test_a_shard_writer_and_a_list_of_rows_keep_them(tmp_path):
    with memload.ShardWriter(tmp_path / "set", ragged=["y"]) as writer:
        writer.append(x=TIME, y=[TIME])
        writer.extend(x=[1.5, TIME], y=[[], [1, 2]])
    assert values(memload.open(tmp_path / "set")) == [TIME, 1.5, TIME]
    assert values(memload.open(tmp_path / "set"), "y") == [[TIME], [], [1.0, 2.0]]
    assert memload.ragged([[TIME], [2.0]]).values.tolist() == [TIME, 2.0]


def test_rows_that_are_added_take_the_dtype_of_those_that_are_there(tmp_path):
    path = tmp_path / "set"
    memload.write(path, {"x": np.float32([1, 2]), "n": np.uint8([1, 2])}, progress=False)
    ds = memload.write(path, [{"x": 0.1, "n": 7}, {"x": 3, "n": 255}], append=True, progress=False)
    assert (ds.fields["x"].dtype, ds.fields["n"].dtype) == (torch.float32, torch.uint8)
    assert values(ds) == [1.0, 2.0, float(np.float32(0.1)), 3.0]
    for row in ({"x": 2**24 + 1, "n": 1}, {"x": 1.0, "n": 256}, {"x": 1.0, "n": 0.5}):
        with pytest.raises(ValueError, match=r"row 0: field '.' is .*, expected (float32|uint8)"):
            memload.write(path, [row], append=True, progress=False)
    assert values(memload.open(path)) == values(ds)


def test_a_row_that_was_refused_decides_nothing(tmp_path):
    path = tmp_path / "set"
    memload.write(path, {"x": np.float32([1])}, progress=False)
    with memload.ShardWriter(path, append=True) as writer:
        with pytest.raises(ValueError, match="field 'x' is float64"):
            writer.append(x=np.float64(2))
        writer.append(x=2.5)
    assert values(memload.open(path)) == [1.0, 2.5]


def test_rows_that_are_scaled_and_added_are_scaled_as_they_were_given(tmp_path):
    rows = [{"x": 1000.123}, {"x": 2000.456}]
    once = memload.write(tmp_path / "once", rows * 2, scale=0.001, cast="bfloat16", progress=False)
    for _ in range(2):
        twice = memload.write(tmp_path / "twice", rows, scale=0.001, cast="bfloat16", append=True, progress=False)
    assert values(once) == values(twice)


def test_columns_of_datasets_keep_their_dtypes(tmp_path):
    features = datasets.Features(
        {"a": datasets.Value("float32"), "b": datasets.Value("uint16"), "c": datasets.Value("string")}
    )
    table = datasets.Dataset.from_dict({"a": [0.5, 1.5], "b": [1, 65535], "c": ["x", ""]}, features=features)
    ds = memload.write(tmp_path / "set", table, progress=False)
    assert [field.dtype for field in ds.fields.values()][:2] == [torch.float32, torch.uint16]
    assert [ds[1]["a"].item(), ds[1]["b"].item(), ds[1]["c"]] == [1.5, 65535, ""]


def test_an_empty_list_takes_the_dtype_of_the_others(tmp_path):
    tokens = [[], [5, 6, 7], [], [8]]
    assert memload.ragged(tokens).values.dtype == torch.int64
    table = datasets.Dataset.from_dict({"x": tokens})
    assert values(memload.write(tmp_path / "hf", table, ragged=["x"], progress=False)) == tokens
    rows = [{"x": row} for row in tokens[1:]]
    assert values(memload.write(tmp_path / "rows", rows, ragged=["x"], progress=False)) == tokens[1:]
    with pytest.raises(ValueError, match="field 'x': the first row is an empty list, which has no dtype; give numpy"):
        memload.write(tmp_path / "first", [{"x": row} for row in tokens], ragged=["x"], progress=False)


@pytest.mark.parametrize("index", [[0, 2, 1, 3], [0.5, 1.5, 2.5, 3.5], [7, 8, 9, 10], list("abcd")])
@pytest.mark.parametrize("rows", [[0, 1], [3, 0, 0], np.array([True, True, False, False])])
def test_rows_of_a_series_are_taken_by_position(tmp_path, index, rows):
    series = pd.Series([10.0, 20.0, 30.0, 40.0], index=index)
    ds = memload.write(tmp_path / "set", {"x": series}, rows=rows, progress=False)
    assert values(ds) == series.to_numpy()[rows].tolist()


def test_rows_of_an_hdf5_dataset_are_taken_in_any_order(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(12.0).reshape(6, 2)
        for number, rows in enumerate(([3, 1], [1, 1, 5], range(5, 2, -1), [0, 2])):
            ds = memload.write(tmp_path / str(number), {"x": file["x"]}, rows=rows, progress=False)
            assert values(ds) == np.arange(12.0).reshape(6, 2)[[*rows]].tolist()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([0xDEADBEEFDEADBEEF, -5], r"the whole number 16045690984833335023 would be stored as 1\.6.*; give texts"),
        ([2**53 + 1, 0.5], "the whole number 9007199254740993 would be stored as 9007199254740992.0"),
        (pa.array([2**53 + 1, None]), r"1 row is null; fill them, as by array.fill_null\(0\)"),
        (pa.chunked_array([[1.5], [None, None]]), "2 rows are null"),
        (pd.Series([2**53 + 1, None], dtype="Int64"), "1 row is null; .*fillna"),
    ],
)
def test_what_would_be_rounded_or_lost_is_refused(tmp_path, given, said):
    with pytest.raises(ValueError, match=f"field 'x': {said}"):
        memload.write(tmp_path / "set", {"x": given}, progress=False)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype", "ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: torch.eye(3).to_sparse(), r"a tensor of the layout sparse_coo; give values.to_dense\(\)"),
        (lambda: torch.eye(3).to_sparse_csr(), "a tensor of the layout sparse_csr"),
        (lambda: torch.empty(3, device="meta"), "a tensor on the device meta has no numbers"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor; give memload.ragged"),
    ],
    ids=["coo", "csr", "meta", "nested"],
)
def test_tensors_without_rows_of_numbers_are_named(tmp_path, given, said):
    with pytest.raises(TypeError, match=f"field 'x': {said}"):
        memload.write(tmp_path / "set", {"x": given()}, progress=False)


def test_large_whole_numbers_are_uint64(tmp_path):
    ids = [0xDEADBEEFDEADBEEF, 0xDEADBEEFDEADBEF0, 5]
    assert values(memload.write(tmp_path / "set", {"x": ids}, progress=False)) == ids


def test_nan_in_a_list_of_floats_is_no_loss(tmp_path):
    ds = memload.write(tmp_path / "set", {"x": [1, 2.5, float("nan")]}, progress=False)
    assert values(ds)[:2] == [1.0, 2.5]


LIKES = [torch.uint8, torch.int16, torch.int64, torch.uint64, torch.float32, torch.float64, torch.bool, torch.complex64]


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats()
PAIRS = st.lists(NUMBERS, min_size=2, max_size=2)
NESTED = NUMBERS | PAIRS | st.lists(PAIRS, min_size=2, max_size=2)


@given(NESTED, st.sampled_from([None, *LIKES]))
def test_no_whole_number_is_changed_and_no_float_rounded_but_to_floats(given_numbers, like):
    flat = [given_numbers]
    while isinstance(flat[0], list):
        flat = [one for part in flat for one in (part if isinstance(part, list) else [part])]
    floats = any(isinstance(one, float) for one in flat)
    try:
        made = as_numbers(given_numbers, like)
    except (TypeError, ValueError, RuntimeError):
        return
    found = made.reshape(-1).tolist()
    if not floats:
        assert [int(one) for one in found] == flat  # as Python's own numbers, which have any size
        return
    rounds = like is not None and like.is_floating_point
    assert made.dtype in ((like, torch.float64) if rounds else (torch.float64,))
    for one, kept in zip(flat, found, strict=True):
        if isinstance(one, int) or not math.isfinite(one):
            assert kept == one or kept != kept or made.dtype == like
        else:
            assert math.isfinite(kept)
            assert kept == one or made.dtype == like


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (np.uint64(5), -1, "uint64"),
        (np.uint8(5), 256, "uint8"),
        (np.float16(5), 1e6, "float16"),
        (np.float32(5), 2**24 + 1, "float32"),
        (np.float64(5), 2**63 - 1, "float64"),
        (np.int64(5), 0.5, "int64"),
    ],
)
def test_a_number_that_the_rows_before_have_no_place_for_is_refused(tmp_path, first, second, dtype):
    with pytest.raises(ValueError, match=rf"row 1: field 'x' is .*, expected {dtype}"):
        memload.write(tmp_path / "set", [{"x": first}, {"x": second}], progress=False)
    with pytest.raises(TypeError, match="rows may differ along axis 0 alone"):
        memload.ragged([np.array([first]), [second]])


@pytest.mark.parametrize("given", [[2**53 + 1, 0.5], [[2**53 + 1, 0.5], [1, 2]], [[2**63 + 1, -1]]])
def test_whole_numbers_beside_floats_are_not_rounded_in_silence(tmp_path, given):
    for data in ([{"x": given}], {"x": given}):
        with pytest.raises((ValueError, TypeError), match=r"the whole number .* would be stored as|makes no array"):
            memload.write(tmp_path / "set", data, progress=False)


def test_what_comes_first_does_not_decide_whether_rows_go_together(tmp_path):
    half = torch.tensor(0.5)
    for number, rows in enumerate(([0.0, half], [half, 0.0], [0.0, np.float16(0.5)], [0.0, np.float64(0.5)])):
        ds = memload.write(tmp_path / str(number), [{"x": row} for row in rows], progress=False)
        assert values(ds) == [float(row) for row in rows]
    for rows in ([[2.0], np.float32([1.5])], [np.float32([2.0]), [1.5]], [[], np.float32([2.0, 1.5])]):
        assert memload.ragged(rows).values.dtype == torch.float32
    with pytest.raises(ValueError, match="row 1: field 'x' is float64"):  # rows that have a dtype keep it
        memload.write(tmp_path / "typed", [{"x": half}, {"x": np.float64(0.1)}], progress=False)


def test_conversions_of_a_field_change_nothing_for_the_others(tmp_path):
    path = tmp_path / "set"
    memload.write(path, {"x": np.float32([1]), "y": np.float32([1])}, progress=False)
    ds = memload.write(path, [{"x": np.float32(3), "y": 0.5}], append=True, scale={"x": 2.0}, progress=False)
    assert (values(ds), values(ds, "y")) == ([1.0, 6.0], [1.0, 0.5])
    masked = tmp_path / "masked"
    memload.write(masked, {"x": np.float32([[1, 2]])}, progress=False)
    mask = np.array([True, False, True])
    ds = memload.write(masked, [{"x": [0.5, 1.5, 2.5]}], append=True, mask=mask, progress=False)
    assert values(ds) == [[1.0, 2.0], [0.5, 2.5]]
    ragged = tmp_path / "ragged"
    for _ in range(2):
        rows = [{"x": [0.5]}, {"x": []}]
        ds = memload.write(ragged, rows, ragged=["x"], cast="float32", append=True, progress=False)
    ds = memload.write(ragged, rows[::-1], ragged=["x"], cast="float32", append=True, progress=False)
    assert values(ds) == [[0.5], [], [0.5], [], [], [0.5]]


LISTS = {
    "float64": (datasets.Sequence(datasets.Value("float64")), [[TIME, 2.0]]),
    "uint8": (datasets.Sequence(datasets.Value("uint8")), [[1, 255], [0, 3]]),
    "float16": (datasets.Sequence(datasets.Value("float16")), [[0.5, 1.5]]),
    "float32": (datasets.Array2D((2, 2), "float32"), [[[0.1, 0.2], [0.3, 0.4]]]),
    "bool": (datasets.Value("bool"), [True, False]),
    "int64": (datasets.ClassLabel(names=["a", "b"]), [0, 1]),
}


@pytest.mark.parametrize("dtype", LISTS)
def test_lists_of_datasets_keep_their_dtypes(tmp_path, dtype):
    feature, rows = LISTS[dtype]
    table = datasets.Dataset.from_dict({"x": rows}, features=datasets.Features({"x": feature}))
    ds = memload.write(tmp_path / "set", table, progress=False)
    assert str(ds.fields["x"].dtype) == f"torch.{dtype}"
    assert values(ds) == np.asarray(rows, dtype=dtype).tolist()


@pytest.mark.parametrize("rows", [[1.0, None], [[1, None]], [None, 1]])
def test_nulls_of_datasets_are_refused(tmp_path, rows):
    with pytest.raises(TypeError, match="field 'x'"):
        memload.write(tmp_path / "set", datasets.Dataset.from_dict({"x": rows}), progress=False)


def test_columns_of_datasets_are_appended_to_the_dtype_that_is_there(tmp_path):
    memload.write(tmp_path / "set", {"x": np.float32([1])}, progress=False)
    table = datasets.Dataset.from_dict({"x": [0.5]})
    assert values(memload.write(tmp_path / "set", table, append=True, progress=False)) == [1.0, 0.5]
