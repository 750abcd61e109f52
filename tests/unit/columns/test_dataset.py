"""A dataset is index arithmetic on columns: what each operation gives, and what it refuses."""

import copy
import gc
import itertools
import math
import os
import pickle
import re
import shutil

import numpy as np
import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import memload


@pytest.fixture
def ds():
    return memload.from_arrays(stim=torch.arange(30, dtype=torch.uint8).reshape(10, 3), robs=torch.arange(10.0))


def column(dataset, name):
    return torch.stack([dataset[i][name] for i in range(len(dataset))]).tolist()


def test_a_row_is_a_dict_of_fresh_tensors_in_the_order_of_the_fields(ds):
    row = ds[2]
    assert list(row) == ["stim", "robs"]
    assert row["stim"].tolist() == [6, 7, 8]
    assert row["robs"].item() == 2.0
    row["stim"].zero_()
    assert ds[2]["stim"].tolist() == [6, 7, 8]


@pytest.mark.parametrize("index", [-1, np.int64(9), torch.tensor(9)])
def test_a_row_may_be_counted_from_the_end_and_by_any_integer(ds, index):
    assert ds[index]["robs"].item() == 9.0


@pytest.mark.parametrize("index", [10, -11, 2**70])
def test_a_row_beyond_the_end_says_how_many_there_are(ds, index):
    with pytest.raises(IndexError, match=f"row {index} is not one of the 10 rows"):
        ds[index]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (slice(1, 3), r"got a slice; ds\.select\(range\(start, stop\)\)"),
        ([1, 2], r"got a list; ds\.select\(\[\.\.\.\]\) takes several rows"),
        (torch.tensor([1, 2]), r"got a Tensor; ds\.select\("),
        (1.5, "by an integer, got a float"),
        ("stim", r"got 'stim'; ds\.only\('stim'\)"),
    ],
)
def test_an_index_that_is_no_row_points_to_what_takes_it(ds, index, message):
    with pytest.raises(TypeError, match=message):
        ds[index]


def test_iterating_a_dataset_ends(ds):
    assert len(list(ds)) == 10


@pytest.mark.parametrize(
    "rows",
    [
        [4, 0, 4],
        (4, 0, 4),
        np.array([4, 0, 4], dtype=np.uint8),
        np.array([4, 9, 0, 9, 4])[::2],
        torch.tensor([4, 0, 4]),
        range(4, 3, -1),
    ],
)
def test_select_takes_any_sequence_of_integers(ds, rows):
    assert column(ds.select(rows), "robs") == [float(row) for row in rows]


def test_select_of_a_selection_counts_in_the_selection(ds):
    assert column(ds.select([9, 5, 7]).select([2, 2, 0]), "robs") == [7.0, 7.0, 9.0]


def test_select_by_bools_keeps_the_true_rows(ds):
    keep = torch.tensor([False, True] * 5)
    assert column(ds.select(keep), "robs") == [1.0, 3.0, 5.0, 7.0, 9.0]
    with pytest.raises(IndexError, match="one bool for each of the 10 rows is expected, got 3"):
        ds.select([True, False, True])


def test_select_names_the_first_bad_position_and_value(ds):
    with pytest.raises(IndexError, match=r"row -1 at position 2 .* 10 rows.* negative"):
        ds.select([3, 4, -1, 99])
    with pytest.raises(IndexError, match="row 10 at position 1"):
        ds.select([3, 10])
    with pytest.raises(IndexError, match="row 18446744073709551615 at position 0"):
        ds.select(np.array([2**64 - 1], dtype=np.uint64))


@pytest.mark.parametrize("rows", [[0.0, 1.0], ["a"], [[0, 1]], 3, [2**70]])
def test_select_refuses_what_are_no_row_numbers(ds, rows):
    with pytest.raises(TypeError):
        ds.select(rows)


@pytest.mark.parametrize(
    ("rows", "kind"), [(3, "an int"), (slice(3), "a slice"), ((row for row in range(3)), "a generator"), ({3}, "a set")]
)
def test_select_names_what_is_no_sequence(ds, rows, kind):
    with pytest.raises(TypeError, match=rf"such as \[3\] or range\(0, 3\), got {kind}"):
        ds.select(rows)


def test_no_rows_make_an_empty_dataset(ds):
    empty = ds.select([])
    assert len(empty) == 0
    assert list(DataLoader(empty)) == []
    with pytest.raises(IndexError, match="row 0 is not one of the 0 rows"):
        empty[0]


@given(st.integers(2, 50), st.floats(0.05, 0.95), st.integers(0, 2**63 - 1))
def test_split_is_disjoint_complete_and_repeatable(rows, fraction, seed):
    ds = memload.from_arrays(x=torch.arange(rows)).only("x")
    if not 0 < round(fraction * rows) < rows:
        with pytest.raises(ValueError, match="a part is empty"):
            ds.split(fraction, seed)
        return
    first, second = ds.split(fraction, seed)
    assert len(first) == round(fraction * rows)
    assert sorted(int(row) for part in (first, second) for row in part) == list(range(rows))
    assert [int(row) for row in ds.split(fraction, seed)[0]] == [int(row) for row in first]


def test_split_shuffles_by_the_seed():
    ds = memload.from_arrays(x=torch.arange(100)).only("x")
    one, other = ([int(row) for row in ds.split(0.5, seed)[0]] for seed in (1, 2))
    assert one != sorted(one)
    assert one != other


@given(st.lists(st.integers(-3, 9), min_size=2, max_size=60), st.floats(0.05, 0.95), st.integers(0, 2**63 - 1))
def test_split_by_keys_puts_the_rows_of_a_key_on_one_side(keys, fraction, seed):
    ds = memload.from_arrays(x=torch.arange(len(keys)), key=torch.tensor(keys))
    different = len(set(keys))
    if not 0 < round(fraction * different) < different:
        with pytest.raises(ValueError, match="a part is empty"):
            ds.split(fraction, seed, by="key")
        return
    first, second = ([int(row["x"]) for row in part] for part in ds.split(fraction, seed, by="key"))
    assert len({keys[row] for row in first}) == round(fraction * different)
    assert not {keys[row] for row in first} & {keys[row] for row in second}
    assert first == sorted(first)
    assert sorted(first + second) == list(range(len(keys)))


@pytest.mark.parametrize("form", [list, np.array, torch.tensor, lambda keys: [f"trial {key}" for key in keys]])
def test_split_takes_keys_in_any_form(form):
    keys = [3, 3, 1, 1, 1, 2, 0, 0]
    ds = memload.from_arrays(x=torch.arange(8), key=[f"trial {key}" for key in keys]).only("x")
    wanted = [[int(row) for row in part] for part in ds.split(0.5, 4, by=torch.tensor(keys))]
    assert wanted[0]
    assert [[int(row) for row in part] for part in ds.split(0.5, 4, by=form(keys))] == wanted
    mapped = ds.map(torch.neg).split(0.5, 4, by=form(keys))
    assert [[-int(row) for row in part] for part in mapped] == wanted


def test_split_by_a_field_of_texts_is_that_by_its_values():
    keys = ["b", "b", "ä", "ä", "c", "", ""]
    ds = memload.from_arrays(x=torch.arange(7), key=keys)
    by_name, by_values = ds.split(0.5, 2, by="key"), ds.split(0.5, 2, by=keys)
    assert [[int(row["x"]) for row in part] for part in by_name] == [[int(r["x"]) for r in part] for part in by_values]


@pytest.mark.parametrize("seed", range(8))
def test_split_by_objects_that_cannot_be_sorted_keeps_equal_ones_on_one_side(seed):
    numbers = [2.0, float("nan"), 1.0, 2.0, float("nan"), 3.0, 1.0, 2.0, 3.0, float("nan")]
    for keys in (numbers, [frozenset([number]) for number in numbers if number == number]):
        by = np.array([*keys, None], dtype=object)[:-1]
        parts = memload.from_arrays(row=torch.arange(len(keys))).split(0.5, seed, by=by)
        first, second = ({str(by[row["row"]]) for row in part} for part in parts)
        assert not first & second


def test_split_by_numbers_that_numpy_has_no_dtype_for_and_by_those_with_gradients():
    keys = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0])
    ds = memload.from_arrays(row=torch.arange(5), key=keys.bfloat16())
    wanted = [[int(row["row"]) for row in part] for part in ds.split(0.5, 0, by=keys)]
    for by in ("key", keys.bfloat16(), keys.clone().requires_grad_()):
        assert [[int(row["row"]) for row in part] for part in ds.split(0.5, 0, by=by)] == wanted
    assert len(ds.with_lags(row=range(2), segments="key")) == 2


@pytest.mark.parametrize(
    ("by", "error", "said"),
    [
        ("nobody", KeyError, "no field 'nobody'"),
        ("movie", ValueError, "by='movie': a row of this field is .*; labels are one number or one text"),
        ([1, 2], ValueError, r"by has the shape \(2,\), expected one key for each of 6 rows: \(6,\), or the name"),
        ([None, "a"] * 3, TypeError, "by has keys that cannot be compared: .*; fill what is missing"),
        ([("a", 1), ("a",)] * 3, ValueError, "by has sequences among its keys, such as tuples: join each to one text"),
        ([1] * 6, ValueError, "cuts 1 key into 0 and 1: a part is empty"),
    ],
)
def test_split_names_what_are_no_keys(by, error, said):
    ds = memload.from_arrays(x=torch.arange(6), movie=torch.zeros(6, 4))
    with pytest.raises(error, match=said):
        ds.split(0.5, 0, by=by)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 80, float("nan")])
def test_split_refuses_a_fraction_that_is_none(ds, fraction):
    with pytest.raises(ValueError, match="between 0 and 1"):
        ds.split(fraction, seed=0)


@pytest.mark.parametrize("seed", [None, 1.5, "a", 2**64])
def test_split_refuses_a_seed_that_is_no_integer(ds, seed):
    with pytest.raises(TypeError, match="seed must be an integer"):
        ds.split(0.5, seed)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=6), st.integers(0, 200), st.integers(0, 99), st.booleans())
def test_split_into_several_parts_takes_each_row_once_in_the_order_of_one_permutation(counts, rows, seed, keyed):
    shares = [count / sum(counts) for count in counts]
    ds = memload.from_arrays(x=torch.arange(3 * rows)) if rows else memload.from_arrays(x=torch.arange(1))
    by = [row // 3 for row in range(3 * rows)] if keyed and rows else None
    units = len(ds) if by is None else rows
    borders = [0, *(round(math.fsum(shares[: place + 1]) * units) for place in range(len(shares) - 1)), units]
    sizes = [end - begin for begin, end in itertools.pairwise(borders)]
    if min(sizes) <= 0:
        with pytest.raises(ValueError, match=r"cuts .* into .*: a part is empty"):
            ds.split(shares, seed, by=by)
        return
    parts = [[int(row["x"]) for row in part] for part in ds.split(shares, seed, by=by)]
    order = torch.randperm(units, generator=torch.Generator().manual_seed(seed)).tolist()
    for part, begin, end in zip(parts, borders[:-1], borders[1:], strict=True):
        if by is None:
            assert part == order[begin:end]
        else:
            assert part == sorted(3 * key + place for key in order[begin:end] for place in range(3))


def test_two_shares_are_one_fraction(ds):
    for one, other in zip(ds.split([0.7, 0.3], seed=3), ds.split(0.7, seed=3), strict=True):
        assert column(one, "robs") == column(other, "robs")
    for view in (ds.map(dict), memload.concat({"a": ds})):
        assert [len(part) for part in view.split(np.array([0.5, 0.2, 0.3]), seed=3)] == [5, 2, 3]


@pytest.mark.parametrize(
    ("shares", "error", "said"),
    [
        ([80, 20], ValueError, r"sum to 1, such as \[0\.8, 0\.1, 0\.1\], got \[80, 20\]$"),
        ([8, 2], ValueError, r"got \[8, 2\]; counts are fractions as in \[8 / 10, \.\.\.\]"),
        ([0.5, 0.6], ValueError, "sum to 1"),
        ([1.0], ValueError, "two or more that sum"),
        ([1.5, -0.5], ValueError, "sum to 1"),
        ([0.5, float("nan")], ValueError, "sum to 1"),
        ("half", TypeError, "got a str"),
        ({"train": 0.8}, TypeError, "got a dict"),
        (None, TypeError, "got a NoneType"),
    ],
)
def test_split_refuses_shares_that_are_none(ds, shares, error, said):
    with pytest.raises(error, match=said):
        ds.split(shares, 1)


def test_concat_puts_rows_one_after_the_other(ds):
    joined = memload.concat([ds.select([1, 0]), ds, ds.select([9])])
    assert column(joined, "robs") == [1.0, 0.0, *map(float, range(10)), 9.0]
    assert column(ds.concat(ds), "stim") == column(ds, "stim") * 2


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"stim": torch.zeros(2, 3, dtype=torch.uint8)}, r"fields \['stim'\].*first one has \['robs', 'stim'\]"),
        (
            {"stim": torch.zeros(2, 3), "robs": torch.zeros(2)},
            r"'stim' is float32 \(3,\) in dataset 1, but uint8 \(3,\)",
        ),
        (
            {"stim": torch.zeros(2, 4, dtype=torch.uint8), "robs": torch.zeros(2)},
            r"'stim' is uint8 \(4,\) in dataset 1",
        ),
    ],
)
def test_concat_names_the_first_difference(ds, other, difference):
    with pytest.raises(ValueError, match=difference):
        ds.concat(memload.from_arrays(**other))


@pytest.mark.parametrize("none", [(), ([],)])
def test_concat_needs_a_dataset(none):
    with pytest.raises(ValueError, match="at least one"):
        memload.concat(*none)


def test_concat_takes_datasets_as_arguments_or_in_one_iterable(ds):
    for joined in (memload.concat(ds, ds), memload.concat([ds, ds]), memload.concat(part for part in (ds, ds))):
        assert column(joined, "robs") == column(ds, "robs") * 2
    assert len(memload.concat(ds)) == 10


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (lambda ds: ds.concat([ds]), r"dataset 1 is a list; expected one\.concat\(two, three\)"),
        (lambda ds: memload.concat(ds, torch.zeros(3)), "dataset 1 is a Tensor"),
        (lambda ds: memload.concat(torch.zeros(3)), "dataset 0 is a Tensor"),
        (lambda ds: memload.zip(ds, ds), r"by a keyword.*memload\.zip\(betas=a, stim=b\)"),
        (lambda ds: memload.zip(a=ds.map(len)), r"a is a MappedDataset, .*come after: memload\.zip\(\.\.\.\)\.map"),
        (lambda ds: memload.zip(a=torch.zeros(10)), r"a is a Tensor, .*memload\.from_arrays\(a=\.\.\.\)"),
    ],
)
def test_what_is_joined_must_be_datasets(ds, join, message):
    with pytest.raises(TypeError, match=message):
        join(ds)


def test_zip_names_single_fields_by_keyword_and_keeps_the_names_of_several(ds):
    images = memload.from_arrays(image=torch.arange(3))
    joined = memload.zip(trials=ds, stimulus=images.select([2, 0, 0, 1, 1, 1, 2, 2, 2, 0]))
    assert list(joined.fields) == ["stim", "robs", "stimulus"]
    assert column(joined, "stimulus") == [2, 0, 0, 1, 1, 1, 2, 2, 2, 0]


def test_zip_refuses_a_clash_of_names(ds):
    with pytest.raises(ValueError, match="both 'a' and 'stim' bring a field 'stim'"):
        memload.zip(a=ds, stim=ds.only("robs"))


def test_zip_states_all_lengths(ds):
    with pytest.raises(ValueError, match="a: 10, b: 3, c: 10"):
        memload.zip(a=ds, b=ds.select([0, 1, 2]), c=ds)


def test_zip_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one field"):
        memload.zip()


def test_tuples_and_single_tensors_are_what_a_loop_expects(ds):
    for x, y in DataLoader(ds.as_tuple("robs", "stim"), batch_size=10):
        assert x.shape == (10,)
        assert y.shape == (10, 3)
    for x in DataLoader(ds.only("stim"), batch_size=10):
        assert x.shape == (10, 3)
    assert [type(part) for part in ds.as_tuple()[0]] == [torch.Tensor, torch.Tensor]


def test_the_layout_survives_select_split_and_concat(ds):
    pairs = ds.as_tuple("robs", "stim")
    for derived in (pairs.select([1]), pairs.split(0.5, 0)[1], pairs.concat(ds), pickle.loads(pickle.dumps(pairs))):
        assert derived.layout == "tuple"
        assert list(derived.fields) == ["robs", "stim"]


def test_an_unknown_field_is_answered_with_the_known(ds):
    with pytest.raises(KeyError, match=r"no field 'stym'; there are .*stim"):
        ds.as_tuple("stym")
    with pytest.raises(KeyError, match="no field 'x'"):
        ds.only("x")


def test_a_list_of_names_is_answered_with_how_to_give_them(ds):
    with pytest.raises(TypeError, match=r'by a str, got a list; .*as_tuple\("stim", "robs"\)'):
        ds.as_tuple(["stim", "robs"])
    with pytest.raises(TypeError, match="by a str, got a list"):
        ds.only(["stim"])


def test_a_field_named_twice_is_refused(ds):
    with pytest.raises(ValueError, match="named once, got 'stim', 'robs', 'stim'"):
        ds.as_tuple("stim", "robs", "stim")


def test_the_repr_tells_rows_dtypes_shapes_bytes_and_place(ds):
    shown = repr(ds.as_tuple())
    for part in ("10 rows", "70 B", "in memory", "tuples", "uint8", "(3,)", "3 B a row", "float32", "()", "40 B"):
        assert part in shown


def test_a_field_tells_what_a_row_is_and_no_addresses():
    field = memload.from_arrays(x=torch.zeros(3, 2)).fields["x"]
    assert repr(field) == "Field(dtype=torch.float32, shape=(2,))"


def test_nbytes_counts_what_reading_all_rows_gives(ds):
    assert ds.nbytes == 10 * (3 + 4)
    assert ds.select([0] * 100).nbytes == 100 * 7
    assert ds.fields["stim"].row_bytes == 3


def test_a_dataset_cannot_be_changed(ds):
    with pytest.raises(AttributeError):
        ds.layout = "tuple"
    with pytest.raises(TypeError):
        ds.fields["new"] = ds.fields["stim"]
    assert copy.copy(ds) is ds


def test_borrowed_memory_is_kept_alive_and_never_copied():
    array = np.zeros((1000, 100))
    ds = memload.from_arrays(x=array)
    array[3, 5] = 7.0
    del array
    gc.collect()
    assert ds[3]["x"][5].item() == 7.0


@given(strategies.field_sets(min_rows=0), st.data())
def test_pickling_keeps_every_byte(arrays, data):
    ds = memload.from_arrays(**arrays)
    if len(ds) and data.draw(st.booleans()):
        ds = ds.select(data.draw(st.lists(st.integers(0, len(ds) - 1))))
    again = pickle.loads(pickle.dumps(ds))
    assert len(again) == len(ds)
    for name, field in ds.fields.items():
        rows = np.arange(len(ds))
        assert strategies.as_bytes(again.fields[name].gather(rows)) == strategies.as_bytes(field.gather(rows))


def test_pickled_memory_is_only_what_is_used():
    ds = memload.from_arrays(x=torch.zeros(10_000, 100)).select([5, 5, 5])
    assert len(pickle.dumps(ds)) < 5000


def test_a_pickled_dataset_on_files_is_small_and_maps_them_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    memload.write("shards", {"x": torch.arange(100_000)}, shard_bytes="100kB")
    sent = pickle.dumps(memload.open("shards").concat(memload.from_arrays(x=torch.tensor([7]))))
    monkeypatch.chdir("/")
    again = pickle.loads(sent)
    assert len(sent) < 5000
    assert again[99_999]["x"].item() == 99_999
    assert again[100_000]["x"].item() == 7


def test_a_file_that_changed_its_length_is_noticed_when_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000))
    sent = pickle.dumps(memload.open(tmp_path / "x.npy"))
    np.save(tmp_path / "x.npy", np.arange(2000))
    with pytest.raises(memload.FormatError, match="had 8128 bytes when the dataset was made, now it has 16128"):
        pickle.loads(sent)


def replace_by_copy(path, values):
    np.save(path.with_name("new.npy"), values)
    path.with_name("new.npy").replace(path)


def write_in_place(path, values):
    with path.open("r+b") as file:
        np.save(file, values)


@pytest.mark.parametrize("tier", ["mmap", "ram"])
@pytest.mark.parametrize("change", [replace_by_copy, write_in_place])
def test_a_file_of_the_same_length_that_is_another_one_is_noticed_when_unpickled(tmp_path, tier, change):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(1000))
    os.utime(path, (1, 1))
    ds = memload.open(path, tier=tier, field="x")
    sent = pickle.dumps(ds)
    change(path, np.ones(1000))
    if float(ds[999]["x"]):  # as this process sees it
        assert (tier, change) == ("mmap", write_in_place)
        assert float(pickle.loads(sent)[999]["x"])
        return
    for one in (sent, pickle.dumps(ds)):
        if change is write_in_place:  # or its time alone was set
            with pytest.warns(RuntimeWarning, match=f"{path}: may have been written to since its rows were loaded"):
                pickle.loads(one)
            continue
        with pytest.raises(memload.FormatError, match=f"{path}: was replaced by another file .*open the data set"):
            pickle.loads(one)


@pytest.mark.parametrize("tier", ["mmap", "ram", "hybrid"])
def test_copies_in_the_process_read_what_was_opened(tmp_path, tier):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(1000))
    ds = memload.open(path, tier=tier, field="x").split(0.5, seed=0)[0]
    replace_by_copy(path, np.ones(1000))
    loader = memload.FastLoader(ds, batch_size=500)
    for one in (copy.deepcopy(ds), copy.deepcopy(ds.map(dict)), copy.deepcopy(memload.concat({"a": ds}))):
        assert not one[499]["x"].any()
    assert not next(iter(copy.deepcopy(loader)))["x"].any()


def test_a_deep_copy_of_a_dataset_in_memory_has_memory_of_its_own():
    values = torch.zeros(10)
    ds = memload.from_arrays(x=values)
    again = copy.deepcopy([ds, ds])
    values += 1
    assert ds[9]["x"] == 1
    assert again[0][9]["x"] == 0
    assert again[0] is again[1]


def test_a_copy_that_keeps_its_time_is_opened_by_a_pickle(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1000))
    sent = pickle.dumps(memload.open(path, field="x"))
    shutil.copy2(path, tmp_path / "copy.npy")
    (tmp_path / "copy.npy").replace(path)
    assert int(pickle.loads(sent)[999]["x"]) == 999


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_the_stock_loader_reads_a_dataset_in_workers(tmp_path, start):
    files = memload.write(tmp_path / "s", {"stim": torch.arange(60.0).reshape(20, 3)})
    ds = memload.zip(stim=files, robs=memload.from_arrays(robs=torch.arange(20))).as_tuple("stim", "robs")
    loader = DataLoader(ds, batch_size=8, num_workers=1, multiprocessing_context=start)
    stim, robs = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert torch.equal(stim, torch.arange(60.0).reshape(20, 3))
    assert torch.equal(robs, torch.arange(20))


@pytest.mark.parametrize("layout", ["dict", "tuple", "only"])
def test_renamed_fields_keep_their_order_rows_and_layout(layout):
    ds = memload.from_arrays(data=torch.arange(12).reshape(6, 2), robs=torch.arange(6), words=[*"abcdef"])
    if layout != "dict":
        ds = ds.as_tuple("robs", "data") if layout == "tuple" else ds.only("data")
    renamed = ds.rename({"data": "stim"})
    assert list(renamed.fields) == ["stim" if name == "data" else name for name in ds.fields]
    assert renamed.layout == ds.layout
    sample = renamed[4]
    if layout == "dict":
        assert sample["stim"].tolist() == [8, 9]
    elif layout == "tuple":
        assert sample[1].tolist() == [8, 9]
    else:
        assert sample.tolist() == [8, 9]
    assert list(ds.fields).count("data") == 1  # which stays as it is


def test_renamed_datasets_keep_windows_ragged_forms_recordings_and_casts(tmp_path):
    one = memload.from_arrays(
        data=torch.arange(10, dtype=torch.uint8), words=memload.ragged([torch.arange(k) for k in range(10)])
    )
    both = one.with_ragged("padded").concat(one.with_ragged("padded")).rename({"words": "tokens"})
    lagged = both.with_lags(data=range(3)).rename({"data": "stim", "tokens": "data"})
    assert len(lagged) == 16  # no window reaches from one recording into the next
    loader = memload.FastLoader(lagged, 4, cast={"stim": memload.Cast(torch.float32)})
    batch = next(iter(loader))
    assert loader.engine == "native"
    assert batch["stim"].dtype == torch.float32
    assert type(batch["data"]) is memload.Padded
    assert memload.write(tmp_path / "set", lagged)[3]["stim"].tolist() == [5, 4, 3]
    swapped = one.rename({"data": "words", "words": "data"})
    assert swapped[3]["words"] == 3


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ({"stmi": "stim"}, KeyError, r"rename: no field 'stmi'; there are \['stim', 'robs'\]"),
        ({"stim": "robs"}, ValueError, "two fields would have the name 'robs'"),
        ({"stim": "x", "robs": "x"}, ValueError, "two fields would have the name 'x'"),
        ({"stim": ""}, ValueError, "not a name for a field: ''"),
        ({"stim": 3}, ValueError, "not a name for a field: 3"),
        (["stim"], TypeError, "a mapping from old names to new ones"),
    ],
)
def test_names_that_cannot_be_given_are_refused(ds, names, error, message):
    with pytest.raises(error, match=message):
        ds.rename(names)


def test_joined_and_mapped_datasets_are_renamed_or_say_how():
    a, b = memload.from_arrays(x=torch.arange(3)), memload.from_arrays(x=torch.zeros(5, 2), y=torch.arange(5))
    grouped = memload.concat({"a": a, "b": b}).rename({"x": "stim"})
    assert grouped[1]["stim"] == 1
    assert list(grouped[4]) == ["stim", "y", "dataset_idx"]
    with pytest.raises(KeyError, match=r"no dataset has a field 'z'; there are \['x', 'y'\]"):
        memload.concat({"a": a, "b": b}).rename({"z": "x"})
    with pytest.raises(ValueError, match="dataset 'b': rename: two fields would have the name 'y'"):
        memload.concat({"a": a, "b": b}).rename({"x": "y"})
    alike = memload.concat({"a": a, "b": a})
    assert alike.rename({"x": "stim"})[4] == {"stim": torch.tensor(1), "dataset_idx": 1}
    assert alike.rename({"x": "stim"}).rows_by_name() == {"a": range(3), "b": range(3, 6)}
    with pytest.raises(ValueError, match="'dataset_idx' says which of the joined datasets"):
        alike.rename({"dataset_idx": "k"})
    with pytest.raises(TypeError, match=r"what the function of map\(\) returns has the names that the function gives"):
        a.map(lambda sample: sample).rename({"x": "stim"})


def test_a_field_that_is_not_there_names_those_that_are_and_how_to_rename_them(tmp_path):
    np.save(tmp_path / "stim.npy", np.zeros((4, 2)))
    with pytest.raises(KeyError, match=r"no field 'stim'; there are \['data'\]; ds\.rename\(\{'data': 'stim'\}\)"):
        memload.open(tmp_path / "stim.npy").only("stim")


def test_a_dataset_whose_field_has_the_name_of_arrays_without_one_says_how_to_name_it(tmp_path):
    np.save(tmp_path / "stim.npy", np.zeros((4, 2)))
    ds = memload.open(tmp_path / "stim.npy")
    assert "one field 'data': field=\"stim\", or rename" in repr(ds)
    assert "rename" not in repr(ds.rename({"data": "stim"}))


def test_parts_of_datasets_that_were_joined_by_name_keep_the_names_and_other_names_are_refused():
    def named(order):
        return memload.concat({name: memload.from_arrays(x=torch.full((2,), ord(name))) for name in order})

    train, valid = named("ab").split(0.5, seed=0)
    assert {name: len(rows) for name, rows in train.concat(valid).rows_by_name().items()} == {"a": 2, "b": 2}
    with pytest.raises(ValueError, match=r"dataset 1: 'dataset_idx' stands for \['b', 'a'\], in the first one for"):
        named("ab").concat(named("ba"))


@pytest.mark.parametrize(
    "cast", [None, torch.float32, memload.Cast(torch.float32, mean=[0.5, 2.0, 1.0], std=[2.0, 3.0, 0.5], channels=-1)]
)
def test_rows_that_lie_one_behind_the_other_are_those_of_numpy(tmp_path, cast):
    parts = [np.random.default_rng(k).integers(0, 256, (n, 5, 3), np.uint8) for k, n in enumerate((7, 1, 40))]
    for k, part in enumerate(parts):
        np.save(tmp_path / f"x{k}.npy", part)
    whole = np.concatenate(parts)
    rows = [3, 4, 5, 6, 7, 8, 9, 9, 10, 9, 8, 46, 47, 0, 1, 2, 2, 3, *range(48), *range(47, 0, -1)]
    stored = memload.open([tmp_path / f"x{k}.npy" for k in range(3)])
    for ds in (stored, stored.select(range(47, -1, -1)).select(range(47, -1, -1)), stored.concat(stored)):
        for batch_size in (1, 5, len(rows)):
            casts = {} if cast is None else {"data": cast}
            batches = [b["data"] for b in memload.FastLoader(ds.select(rows), batch_size, num_workers=2, cast=casts)]
            expected = torch.from_numpy(whole[rows])
            rule = cast if isinstance(cast, memload.Cast) else None
            expected = rule.apply(expected) if rule else expected.to(cast or torch.uint8)
            assert torch.equal(torch.cat(batches), expected)


def test_the_row_that_a_shortened_file_lacks_is_named_within_a_run(tmp_path):
    rows, row_bytes = 4096, 1024
    np.save(tmp_path / "x.npy", np.zeros((rows, row_bytes), np.uint8))
    loader = memload.FastLoader(memload.open(tmp_path / "x.npy"), rows, num_workers=1)
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(128 + 2300 * row_bytes)
    with pytest.raises(memload.ShardReadError) as caught:
        next(iter(loader))
    assert 2300 <= int(re.search(r"row (\d+)", str(caught.value).replace(",", "")).group(1)) < rows
