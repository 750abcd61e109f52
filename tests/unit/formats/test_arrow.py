"""Arrow files and datasets of Hugging Face: columns read in place, and batches equal to the stock loader's."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pytest
import strategies  # noqa: F401 - its settings for hypothesis
import torch
from damage import damaged, opens_or_says_why
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset

import memload

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import datasets

datasets.disable_progress_bars()

TYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64"]


def all_rows(field):
    return field.gather(np.arange(field.rows))


def write_arrow(path, table, chunk, *, stream=True, **options):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        out.write_table(table, max_chunksize=chunk)


def numbers(dtype, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


@st.composite
def columns(draw):
    """A numpy array and the Arrow array of the same rows: numbers, fixed lists, or lists that happen to be even."""
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    sides = draw(st.lists(st.integers(1, 4), max_size=3))
    rows = draw(st.integers(1, 9))
    array = numbers(dtype, (rows, *sides), draw(st.integers(0, 99)))
    arrow = pa.array(array.reshape(-1))
    for position in range(len(sides), 0, -1):
        side = sides[position - 1]
        if draw(st.booleans()):
            arrow = pa.FixedSizeListArray.from_arrays(arrow, side)
        else:
            offsets = np.arange(0, len(arrow) + 1, side, dtype=draw(st.sampled_from(["i4", "i8"])))
            kind = pa.ListArray if offsets.dtype == np.int32 else pa.LargeListArray
            arrow = kind.from_arrays(pa.array(offsets), arrow)
    return array, arrow


@given(columns(), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_a_column_is_read_in_place_as_pyarrow_reads_it(tmp_path_factory, column, chunk, skipped, stream):
    array, arrow = column
    path = tmp_path_factory.mktemp("arrow") / "x.arrow"
    table = pa.table({"x": arrow}).slice(min(skipped, len(array) - 1))
    write_arrow(path, table, chunk, stream=stream)
    field = memload.open(path).fields["x"]
    assert np.array_equal(all_rows(field).numpy(), array[min(skipped, len(array) - 1) :])
    assert {(storage.mapped, storage.name) for storage in field.column.storages} == {(True, str(path))}


def tensors(shape, order=None):
    kind = pa.fixed_shape_tensor(pa.int32(), shape, permutation=order)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12, dtype=np.int32)), 6)
    return pa.ExtensionArray.from_storage(kind, storage)


def test_tensors_of_arrow_have_the_shape_that_arrow_gives_them(tmp_path):
    for order in (None, [0, 1]):
        write_arrow(tmp_path / "x.arrow", pa.table({"x": tensors([2, 3], order)}), 1)
        with pa.memory_map(str(tmp_path / "x.arrow")) as file:
            expected = pa.ipc.open_stream(file).read_all()["x"].combine_chunks().to_numpy_ndarray()
        assert np.array_equal(all_rows(memload.open(tmp_path / "x.arrow").fields["x"]).numpy(), expected)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (tensors([2, 3], [1, 0]), r"axes in another order, \[1, 0\]"),
        (pa.array(["a", "b"]), "its type string is neither a number of fixed size"),
        (pa.array([True, False]), "bools are stored as single bits; cast the column to uint8"),
        (pa.array([1, None]), r"1 value is missing \(null\).*fill them with fill_null"),
        (
            pa.array(["x", "y"]).dictionary_encode(),
            r"its type dictionary.*; the numbers of a dictionary are array\.indices",
        ),
        (pa.array([1, 2], pa.timestamp("ns")), r"its type timestamp\[ns\] .*; cast the column to int64"),
        (pa.array([1, 2], pa.decimal128(9, 2)), "its type decimal128.*; cast the column to float64"),
        (pa.array([[1, None], [2, 3]]), r"1 value is missing \(null\)"),
        (pa.array([[1], [2, 3]]), r"rows differ in shape: \(1,\) and \(2,\)"),
        (pa.array([{"a": 1}, {"a": 2}]), "neither a number of fixed size"),
    ],
)
def test_columns_that_cannot_be_read_in_place_are_named_with_the_reason(tmp_path, column, message):
    write_arrow(tmp_path / "x.arrow", pa.table({"good": [1, 2], "bad": column}), 10)
    with pytest.raises(memload.FormatError, match=rf"'bad': .*{message}.*key=\['good'\]; or write all"):
        memload.open(tmp_path / "x.arrow")
    assert memload.open(tmp_path / "x.arrow", key="good")[1]["good"] == 2


def test_lists_that_are_even_within_each_batch_but_differ_between_them_are_refused(tmp_path):
    write_arrow(tmp_path / "x.arrow", pa.table({"x": pa.array([[1], [2], [3, 4]])}), 2)
    with pytest.raises(memload.FormatError, match=r"rows differ in shape: \(1,\) and \(2,\)"):
        memload.open(tmp_path / "x.arrow")


def test_compressed_buffers_say_what_to_do(tmp_path):
    write_arrow(tmp_path / "x.arrow", pa.table({"x": np.zeros(1000)}), 100, compression="zstd")
    with pytest.raises(memload.FormatError, match=r"buffers are compressed.*write the file without.*uncompressed"):
        memload.open(tmp_path / "x.arrow")


def test_a_file_without_rows_is_an_empty_dataset(tmp_path):
    write_arrow(tmp_path / "x.arrow", pa.table({"x": pa.array([], pa.int32())}), 10)
    assert len(memload.open(tmp_path / "x.arrow")) == 0


def test_parquet_files_say_what_to_do(tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "x.parquet")
    with pytest.raises(memload.FormatError, match=r"from_hf\(datasets\.Dataset\.from_parquet\("):
        memload.open(tmp_path / "x.parquet")


FEATURES = datasets.Features(
    {
        "image": datasets.Array3D((2, 3, 4), "uint8"),
        "volume": datasets.Array2D((3, 4), "float32"),
        "vector": datasets.Sequence(datasets.Value("float64"), length=5),
        "label": datasets.ClassLabel(names=["a", "b", "c"]),
        "small": datasets.Value("int16"),
        "half": datasets.Value("float16"),
    }
)


def hugging_face(rows=23):
    shapes = {"image": (2, 3, 4), "volume": (3, 4), "vector": (5,), "label": (), "small": (), "half": ()}
    values = {name: numbers("f4", (rows, *shape), seed) for seed, (name, shape) in enumerate(shapes.items())}
    values["label"] = values["label"] % 3
    stored = {"image": "u1", "volume": "f4", "vector": "f8", "label": "i8", "small": "i2", "half": "f2"}
    return datasets.Dataset.from_dict({n: v.astype(stored[n]) for n, v in values.items()}, features=FEATURES)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("hf") / "saved"
    hugging_face().save_to_disk(path, num_shards=3)
    return path


def test_a_directory_of_save_to_disk_is_read_in_place(saved):
    ds, original = memload.open(saved), hugging_face().with_format("numpy")
    assert {name: str(field.dtype) for name, field in ds.fields.items()} == {
        "image": "torch.uint8",
        "volume": "torch.float32",
        "vector": "torch.float64",
        "label": "torch.int64",
        "small": "torch.int16",
        "half": "torch.float16",
    }
    for name, field in ds.fields.items():
        assert np.array_equal(all_rows(field).numpy(), original[:][name])
        assert {storage.name for storage in field.column.storages} == set(map(str, saved.glob("data-*.arrow")))


def test_a_directory_of_several_splits_names_them(tmp_path):
    parts = hugging_face().train_test_split(0.2)
    parts.save_to_disk(tmp_path / "both")
    with pytest.raises(memload.FormatError, match=r"several splits.*both/train.*both/test"):
        memload.open(tmp_path / "both")
    assert len(memload.open(tmp_path / "both" / "test", key="label")) == 5


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("[]", "expected a JSON object, got list"),
        ("{", "not valid JSON"),
        ("{}", "names no data files"),
        (json.dumps({"_data_files": [{"filename": "../x.arrow"}]}), "names no data files in its directory"),
        (json.dumps({"_data_files": [{"filename": "x.arrow"}], "_indices_data_files": [1]}), "old release"),
    ],
)
def test_a_damaged_state_of_a_saved_dataset_is_named(tmp_path, state, message):
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(memload.FormatError, match=message):
        memload.open(tmp_path)


def test_from_hf_keeps_the_selection_and_the_dtypes_that_are_stored(saved):
    hf = datasets.load_from_disk(saved).shuffle(seed=3).select(range(2, 12)).with_format("torch")
    ds = memload.from_hf(hf)
    assert ds.fields["image"].dtype == torch.uint8
    assert torch.equal(all_rows(ds.fields["image"]).long(), hf[:]["image"])
    assert ds.fields["image"].column.storages[0].mapped
    assert list(memload.from_hf(hf, key="label").fields) == ["label"]
    with pytest.raises(KeyError, match="nothing is named 'labels'; there are 'image'"):
        memload.from_hf(hf, key="labels")
    with pytest.raises(TypeError, match=r"expected a datasets\.Dataset.*DatasetDict"):
        memload.from_hf(hf.train_test_split(0.5))


def equal_batches(first, second):
    first, second = list(first), list(second)
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        assert list(a) == list(b)
        for name in a:
            assert a[name].dtype == b[name].dtype, name
            assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16, torch.uint8, torch.int32, torch.float64])
@pytest.mark.parametrize("place", ["memory", "files", "selected"])
def test_fastloader_gives_the_batches_that_the_stock_loader_gives(saved, dtype, place):
    hf = hugging_face() if place == "memory" else datasets.load_from_disk(saved)
    hf = hf.shuffle(seed=1).select(range(3, 21)) if place == "selected" else hf
    hf = hf.with_format("torch", **({} if dtype is None else {"dtype": dtype}))
    seeded = {"batch_size": 4, "shuffle": True}
    fast = memload.FastLoader(hf, generator=torch.Generator().manual_seed(5), **seeded)
    assert fast.engine == "native", fast.why
    equal_batches(fast, DataLoader(hf, generator=torch.Generator().manual_seed(5), **seeded))


def test_images_are_resized_in_the_dtype_that_the_format_makes_of_them():
    columns = {name: datasets.Array2D((6, 7), name) for name in ("float64", "uint8")}
    images = {name: np.random.default_rng(0).integers(0, 200, (8, 6, 7)).astype(name) for name in columns}
    hf = datasets.Dataset.from_dict(images, features=datasets.Features(columns)).with_format("torch")
    rule = memload.Cast(torch.float32, augment=memload.Augment(resize=4))
    fast = memload.FastLoader(hf, 8, cast={"float64": rule})
    assert fast.engine == "native", fast.why
    assert torch.equal(next(iter(fast))["float64"], rule.apply(hf[:]["float64"], range(8)))
    with pytest.raises(TypeError, match=r"'uint8': resize= by bilinear weights.*got int64"):
        memload.FastLoader(hf, 8, cast={"uint8": rule})


def test_an_empty_selection_keeps_the_shapes_of_its_columns():
    hf = hugging_face()
    fields = memload.from_hf(hf.select([]), key=["image", "vector"]).fields
    assert {name: field.shape for name, field in fields.items()} == {
        name: field.shape for name, field in memload.from_hf(hf, key=["image", "vector"]).fields.items()
    }


def test_fastloader_follows_the_columns_of_the_format_and_torchs_own_wrappers():
    hf = hugging_face().with_format("torch", columns=["label", "image"])
    for wrapped in (hf, Subset(hf, [5, 1, 1]), ConcatDataset([hf, hf])):
        fast = memload.FastLoader(wrapped, batch_size=4)
        assert fast.engine == "native", fast.why
        equal_batches(fast, DataLoader(wrapped, batch_size=4))


def test_a_cast_follows_what_the_format_makes_of_a_column():
    hf = hugging_face().with_format("torch")
    cast = {"image": memload.Cast(torch.bfloat16, norm_removed=True), "vector": memload.Cast(torch.float64)}
    fast = memload.FastLoader(hf, batch_size=4, cast=cast)
    assert fast.engine == "native"
    with_function = hf.with_transform(lambda batch: hf.from_dict(batch, features=FEATURES).with_format("torch")[:])
    stock = memload.FastLoader(with_function, batch_size=4, cast=cast)
    assert stock.engine == "torch"
    equal_batches(fast, stock)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda hf: hf, r'its format is none: give dataset\.with_format\("torch"\)'),
        (lambda hf: hf.with_format("numpy"), "its format is 'numpy'"),
        (lambda hf: hf.with_transform(lambda rows: {"x": rows["label"]}), "go through a function: .*batch_transform="),
        (lambda hf: hf.with_format("torch", device="cpu"), "dtype= alone is known"),
        (lambda hf: hf.with_format("torch", columns=["label"], output_all_columns=True), "output_all_columns"),
        (lambda hf: hf.add_column("text", ["a"] * len(hf)).with_format("torch"), "'text': its type string"),
        (lambda hf: hf.add_column("big", np.zeros(len(hf), "u8")).with_format("torch"), r"'big'.*torch\.uint64"),
    ],
)
def test_why_says_what_keeps_a_dataset_from_being_native(change, why):
    hf = change(hugging_face())
    loader = memload.FastLoader(hf, batch_size=4)
    assert loader.engine == "torch"
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(loader.why)


def test_a_format_that_is_changed_in_mid_pass_shows_from_the_next_batch_on():
    fast, stock = hugging_face().with_format("torch"), hugging_face().with_format("torch")
    batches = []
    for hf, kind in ((fast, memload.FastLoader), (stock, DataLoader)):
        taken = []
        for batch in kind(hf, batch_size=4):
            taken.append(batch)
            hf.set_format("torch", columns=["label"])
        batches.append(taken)
    equal_batches(*batches)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "x.arrow"
    even = pa.ListArray.from_arrays(pa.array(np.arange(0, 21, 2, dtype="i4")), pa.array(np.arange(20.0)))
    table = pa.table({"x": np.arange(10), "y": even, "s": ["text"] * 10})
    write_arrow(path, table, 4)
    write_arrow(path.with_suffix(".file"), table, 4, stream=False)
    return [path.read_bytes(), path.with_suffix(".file").read_bytes()]


@given(st.data())
def test_a_damaged_file_opens_or_says_what_is_wrong(tmp_path_factory, sound, data):
    path = tmp_path_factory.getbasetemp() / "damaged.arrow"
    path.write_bytes(data.draw(damaged(data.draw(st.sampled_from(sound)))))
    opens_or_says_why(path, key=["x", "y"])
