"""What memload.open and memload.from_arrays take, read in place, and refuse."""

import ctypes
import gzip
import json
import mmap
import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pandas
import pyarrow
import pytest
import strategies
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from programs import run
from safetensors.torch import save_file

import memload
from memload.formats import memory_maps

NUMPY_DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]


def rows_of(dataset, name="data"):
    return dataset.fields[name].gather(np.arange(len(dataset)))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_a_npy_file_of_any_dtype_is_mapped_row_by_row(tmp_path, dtype):
    array = np.arange(60).reshape(5, 3, 4).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    ds = memload.open(tmp_path / "a.npy")
    assert ds.fields["data"].column.storages[0].mapped
    assert np.array_equal(rows_of(ds).numpy(), array)


def test_a_masked_array_is_refused_since_its_mask_would_be_lost():
    with pytest.raises(TypeError, match=r"field 'x': a masked array, whose mask would be lost; pass array.filled"):
        memload.from_arrays(x=np.ma.masked_less(np.arange(5), 2))


@pytest.mark.parametrize("ragged", [[], ["x"]])
def test_masked_values_are_not_written_as_if_they_were_numbers(tmp_path, ragged):
    later = np.ma.masked_less(np.arange(4.0), 2)
    rows = [{"x": np.ma.masked_less(row, 2)} for row in (np.full(4, 7.0), later.data)]
    with pytest.raises(TypeError, match=r"field 'x': a masked array, whose mask would be lost; give array\.filled"):
        memload.write(tmp_path / "rows", rows, ragged=ragged)
    with pytest.raises(TypeError, match=r"masked array, whose mask would be lost"):
        memload.ragged([np.arange(3.0), later])
    unmasked = np.ma.masked_array(np.arange(8.0).reshape(2, 4))  # as netCDF4 gives, whatever is in the file
    assert memload.write(tmp_path / "all", {"x": unmasked})[1]["x"].tolist() == [4, 5, 6, 7]


def test_a_npy_field_takes_the_name_given(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 2)))
    assert list(memload.open(tmp_path / "a.npy", field="stim").fields) == ["stim"]
    with pytest.raises(ValueError, match="not a name"):
        memload.open(tmp_path / "a.npy", field="")


def test_a_npy_file_without_rows_is_an_empty_dataset(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 2)))
    assert len(memload.open(tmp_path / "a.npy")) == 0


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.asfortranarray(np.zeros((4, 3))), "Fortran order.*ascontiguousarray.*mmap_mode"),
        (np.array(1.0), "first axis"),
        (np.zeros(3, dtype=">f4"), "bytes swapped"),
        (np.zeros(3, dtype="f4,i4"), r"several numbers in each element.*array\['f0'\]"),
        (np.array(["a", "b"]), "is text; give a list of str"),
        (np.array([object()]), "pointers"),
        (np.zeros(3, dtype="M8[s]"), "is a time.*int64"),
        (np.zeros(3, dtype="c16"), r"convert by \.astype\(numpy\.complex64\)"),
    ],
)
def test_a_npy_file_that_cannot_be_read_in_place_says_why(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(memload.FormatError, match=message):
        memload.open(tmp_path / "a.npy")


@pytest.mark.parametrize(("change", "message"), [(-1, "cut short: 10 rows of 24 bytes.* 367"), (1, "longer .* 369")])
def test_a_npy_file_of_another_length_states_both(tmp_path, change, message):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((10, 3)))
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(memload.FormatError, match=message):
        memload.open(path)


@given(st.binary(max_size=200))
@example(b"\x93NUMPY\x01\x00\x14\x00" + b"(" * 20)
@example(b"\x93NUMPY\x01\x00\x30\x00{'descr':'<f4','fortran_order':False,'shape':(-4,)}")
@example(b"\x93NUMPY\x03\x00\x30\x00\x00\x00")
@example(b"\x93NUMPY\x01\x00\x3a\x00{'descr':'<f4','fortran_order':False,'shape':(True,4,)}   \n" + bytes(16))
def test_garbage_named_npy_is_a_format_error(tmp_path_factory, garbage):
    path = tmp_path_factory.getbasetemp() / "garbage.npy"
    path.write_bytes(garbage)
    with pytest.raises(memload.FormatError, match=r"garbage\.npy"):
        memload.open(path)


@pytest.mark.parametrize("dtype", [torch.float32, np.float32, "float32", np.dtype("<f4"), "f4"])
def test_bare_rows_are_read_by_the_dtype_and_shape_stated(tmp_path, dtype):
    array = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    (tmp_path / "a.dat").write_bytes(b"header" + array.tobytes())
    ds = memload.open(tmp_path / "a.dat", dtype=dtype, shape=(2, 3), offset=6, field="stim")
    assert np.array_equal(rows_of(ds, "stim").numpy(), array)


def test_bare_rows_may_be_bfloat16_and_single_numbers(tmp_path):
    expected = torch.arange(5).to(torch.bfloat16)
    (tmp_path / "a.dat").write_bytes(strategies.as_bytes(expected))
    assert torch.equal(rows_of(memload.open(tmp_path / "a.dat", dtype="bfloat16", shape=())), expected)


def test_the_shape_of_bare_rows_may_be_one_number(tmp_path):
    (tmp_path / "a.dat").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    assert memload.open(tmp_path / "a.dat", dtype="float32", shape=3)[1]["data"].tolist() == [3.0, 4.0, 5.0]


def test_a_file_that_states_its_dtype_is_read_as_bare_rows_only_from_a_stated_byte_on(tmp_path):
    array = np.arange(5 * 8 * 8, dtype=np.int16).reshape(5, 8, 8)
    np.save(tmp_path / "a.npy", array)  # its header is as long as one row
    with pytest.raises(TypeError, match=r"a\.npy: a \.npy file, not bare rows: leave out dtype= and shape="):
        memload.open(tmp_path / "a.npy", dtype="int16", shape=(8, 8))
    ds = memload.open(tmp_path / "a.npy", dtype="int16", shape=(8, 8), offset=128)
    assert torch.equal(rows_of(ds), torch.from_numpy(array))


def test_bare_bytes_that_are_no_whole_rows_state_the_figures(tmp_path):
    (tmp_path / "a.dat").write_bytes(bytes(100))
    figures = r"has 100 bytes, which are 8 rows of float32 \(3,\), 12 bytes each, and a remainder of 4 bytes"
    with pytest.raises(memload.FormatError, match=figures):
        memload.open(tmp_path / "a.dat", dtype="float32", shape=(3,))
    with pytest.raises(memload.FormatError, match=r"100 bytes, of which 90 from offset 10 on, .* remainder of 6 bytes"):
        memload.open(tmp_path / "a.dat", dtype="float32", shape=(3,), offset=10)
    with pytest.raises(memload.FormatError, match="nothing begins at offset 101"):
        memload.open(tmp_path / "a.dat", dtype="float32", shape=(3,), offset=101)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "float32"}, TypeError, "both dtype= and shape="),
        ({"shape": (3,)}, TypeError, "both dtype= and shape="),
        ({"dtype": "floot", "shape": (3,)}, TypeError, "not a dtype: 'floot'"),
        ({"dtype": torch.complex128, "shape": (3,)}, TypeError, "cannot be stored"),
        ({"dtype": "float32", "shape": (-1,)}, ValueError, "must be counts"),
        ({"dtype": "float32", "shape": -3}, ValueError, "must be counts"),
        ({"dtype": "float32", "shape": 3.0}, ValueError, "must be counts"),
        ({"dtype": "float32", "shape": (3,), "offset": -1}, ValueError, "must be counts"),
        ({"dtype": "float32", "shape": (0,)}, ValueError, "no bytes"),
    ],
)
def test_what_is_stated_of_bare_rows_is_checked(tmp_path, options, error, message):
    (tmp_path / "a.dat").write_bytes(bytes(120))
    with pytest.raises(error, match=message):
        memload.open(tmp_path / "a.dat", **options)


def test_each_tensor_of_a_safetensors_file_is_a_field(tmp_path):
    tensors = {"a": torch.arange(6).reshape(3, 2), "b": torch.ones(3, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"made": "elsewhere"})
    ds = memload.open(tmp_path / "x.safetensors")
    assert set(ds.fields) == {"a", "b"}
    assert all(torch.equal(rows_of(ds, name), tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({"a": torch.zeros(3, 2), "b": torch.zeros(4)}, ValueError, "a: 3, b: 4|b: 4, a: 3"),
        ({"a": torch.tensor(1.0)}, memload.FormatError, "single number"),
        ({}, memload.FormatError, "holds no arrays"),
    ],
)
def test_a_safetensors_file_that_is_no_table_says_why(tmp_path, tensors, error, message):
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(error, match=message):
        memload.open(tmp_path / "x.safetensors")


def test_tensors_of_a_safetensors_file_are_picked_by_key(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {"train.x": torch.rand(4, 2), "y": torch.arange(4), "mean": torch.rand(2), "rate": torch.tensor(30.0)}
    save_file(tensors, path)
    with pytest.raises((ValueError, memload.FormatError), match=r"pick those that belong together by key="):
        memload.open(path)
    ds = memload.open(path, key=["y", "train.x"])
    assert torch.equal(rows_of(ds, "train.x"), tensors["train.x"])
    assert torch.equal(rows_of(ds, "y"), tensors["y"])
    assert list(memload.open(path, key="train.x", field="x").fields) == ["x"]
    assert list(memload.open(path, key={"t": "y"}).fields) == ["t"]
    with pytest.raises(KeyError, match=r"nothing is named 'z'; there are"):
        memload.open(path, key="z")


@pytest.mark.parametrize("stated", [{}, {"key": "x"}, {"field": "x"}])
def test_a_folder_of_files_says_how_to_open_them_whatever_is_stated(tmp_path, stated):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(memload.ShardFormatError, match=r"no index\.json here.*by a pattern, such as '.*\*\.npy'$"):
        memload.open(tmp_path, **stated)


UNCOUNTABLE = [
    ([0, 2**62], r"0 times float64 .* multiplies to 2\^63 bytes or more"),
    ([0, 0, 2**31, 2**31], r"0 times float64 .* multiplies to 2\^63 bytes or more"),
    ([2**62, 0], r"4611686018427387904 rows; there can be fewer than 2\^53"),
]


@pytest.mark.parametrize(("shape", "message"), UNCOUNTABLE)
def test_a_safetensors_file_whose_sizes_overflow_is_a_format_error(tmp_path, shape, message):
    header = json.dumps({"a": {"dtype": "F64", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(memload.ShardFormatError, match=message):
        memload.open(tmp_path / "x.safetensors")


@pytest.mark.parametrize(("shape", "message"), UNCOUNTABLE)
def test_a_npy_file_whose_sizes_overflow_is_a_format_error(tmp_path, shape, message):
    with (tmp_path / "a.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(memload.FormatError, match=message):
        memload.open(tmp_path / "a.npy")


def test_bare_rows_and_tensors_whose_sizes_overflow_are_refused(tmp_path):
    (tmp_path / "a.dat").write_bytes(bytes(8))
    with pytest.raises(ValueError, match=r"2\^63 bytes or more"):
        memload.open(tmp_path / "a.dat", dtype="float64", shape=(2**62,), offset=8)
    with pytest.raises(ValueError, match=r"field 'x': .* rows; there can be fewer than 2\^53"):
        memload.from_arrays(x=torch.zeros(1).expand(2**53))
    with pytest.raises(ValueError, match=r"field 'x': .* 2\^63 bytes or more"):
        memload.write(tmp_path / "s", {"x": torch.empty(2, 0, 2**61)})


@pytest.mark.parametrize("options", [{"offset": 8}, {"trust": True}])
def test_what_a_format_states_itself_is_not_to_be_given(tmp_path, options):
    save_file({"a": torch.zeros(3, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(TypeError, match=f"leave out {next(iter(options))}="):
        memload.open(tmp_path / "x.safetensors", **options)


def test_a_field_of_shards_is_picked_from_the_dataset_not_by_key(tmp_path):
    memload.write(tmp_path / "s", {"x": np.zeros(3)})
    with pytest.raises(TypeError, match=r"leave out key=; ds\.only\(\.\.\.\) and ds\.as_tuple"):
        memload.open(tmp_path / "s", key="x")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("betas", r"^betas: there is nothing at this path, in the folder /.*; give a path that exists$"),
        ("sesion1.npy", r"similar names there: 'session1\.npy'; give a path"),
        ("x", r"nothing at this path, in the folder .*; that folder holds 'data', 'session1\.npy'; give a path"),
        ("data/x", r"; that folder is empty; give a path"),
        ("data/2024/session1.npy", r"nothing at this path, in the folder .*; data has no '2024'; give a path"),
        ("session1.npy/betas", r"session1\.npy is a file; what is inside of it is picked by key='betas'; give a path"),
    ],
)
@pytest.mark.parametrize("opens", [memload.open, memload.open_graphs])
def test_a_missing_path_says_where_it_was_looked_for_and_what_is_there(tmp_path, monkeypatch, path, message, opens):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    np.save("session1.npy", np.zeros(3))
    with pytest.raises(FileNotFoundError, match=message):
        opens(path)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("sesion*.npy", r"no path matches this pattern; similar names there: 'session1\.npy'$"),
        ("*.h5", r"no path matches this pattern; that folder holds 'data', 'session1\.npy'$"),
        ("dat/*.npy", r"no path matches this pattern: there is nothing .*; similar names there: 'data'$"),
        ("session1.npy/*.npy", r"no path matches this pattern; session1\.npy is a file$"),
        ("data/{session}.npy", r"no path matches this pattern; that folder is empty$"),
    ],
)
def test_a_pattern_that_nothing_matches_says_what_is_there(tmp_path, monkeypatch, pattern, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    np.save("session1.npy", np.zeros(3))
    with pytest.raises(FileNotFoundError, match=message):
        memload.open(pattern)


def test_a_loader_on_a_path_that_is_not_there_says_so_too(tmp_path):
    np.save(tmp_path / "session1.npy", np.zeros(3))
    with pytest.raises(TypeError, match=r"give memload\.open\(.*; but there is nothing .*names there: 'session1\.npy'"):
        memload.FastLoader(tmp_path / "sesion1.npy")
    with pytest.raises(TypeError, match=r"give memload\.open\('[^;]*'\)$"):
        memload.FastLoader(tmp_path / "session1.npy")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("https://example.com/betas.h5", "^https://example.com/betas.h5: a URL, but .*: download it"),
        (Path("s3://bucket/betas.zarr"), "^s3:/bucket/betas.zarr: a URL"),
        ("~/betas.h5", r"~ is for the shell; give Path\(\.\.\.\)\.expanduser"),
        ("betas.npy", "^betas.npy: a link to session9.npy, and there is nothing"),
        (Path("bet*.h5"), "no path matches this pattern"),
    ],
)
def test_what_cannot_be_there_says_what_to_give(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    Path("betas.npy").symlink_to("session9.npy")
    with pytest.raises(FileNotFoundError, match=message):
        memload.open(path)


def test_a_path_may_be_a_pattern(tmp_path):
    for name in ("b10.npy", "b9.npy"):
        np.save(tmp_path / name, np.full(2, len(name)))
    assert memload.open(tmp_path / "b*.npy").fields["data"].gather(np.arange(4)).tolist() == [6, 6, 7, 7]


def test_a_name_that_is_no_utf8_is_refused_by_what_opens_and_what_writes(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.npy")
    np.save(path, np.zeros(3))
    with pytest.raises(ValueError, match=r"udcff\.npy': not UTF-8; rename it"):
        memload.open(path)
    with pytest.raises(ValueError, match="not UTF-8"):
        memload.write(path + "s", {"x": np.zeros(3)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(3), r"got a ndarray; memload\.from_arrays"),
        ([torch.zeros(3)], r"got a Tensor; memload\.from_arrays"),
        ({"stim": "a.npy"}, r"got a dict; .*memload\.zip"),
        (None, "got None"),
    ],
)
def test_what_is_no_path_says_what_takes_it(given, message):
    with pytest.raises(TypeError, match=message):
        memload.open(given)


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors", "a.dat"])
def test_an_empty_file_says_so(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(memload.FormatError, match="an empty file"):
        memload.open(tmp_path / name)
    with pytest.raises(memload.FormatError, match="an empty file"):
        memload.open(tmp_path / name, dtype="uint8", shape=(1,))


def test_a_foreign_file_is_answered_with_the_known_formats(tmp_path):
    (tmp_path / "movie.raw").write_bytes(b"\0\0\0\x18ftyp")
    with pytest.raises(
        memload.FormatError, match=r"no format that memload knows; expected .*dtype= and shape=.*write$"
    ):
        memload.open(tmp_path / "movie.raw")
    (tmp_path / "movie.mp4").write_bytes(b"\0\0\0\x18ftyp")
    with pytest.raises(memload.FormatError, match=r"decoded once, into recordings: memload write .*movie\.mp4 DST$"):
        memload.open(tmp_path / "movie.mp4")
    (tmp_path / "photo.JPG").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(memload.FormatError, match=r"photo.JPG.*a set of shards: memload write --images DIR DST$"):
        memload.open(tmp_path / "photo.JPG")
    (tmp_path / "x.npy.gz").write_bytes(gzip.compress(b"\x93NUMPY"))
    with pytest.raises(memload.FormatError, match=r"it is compressed by gzip: decompress it first$"):
        memload.open(tmp_path / "x.npy.gz")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "a,b\n1,0.5\n2,1.5\n"),
        ("t.tsv", "a\tb\n1\t0.5\n2\t1.5\n"),
        ("t.json", '[{"a": 1, "b": 0.5}, {"a": 2, "b": 1.5}]'),
        ("t.jsonl", '{"a": 1, "b": 0.5}\n{"a": 2, "b": 1.5}\n'),
    ],
)
def test_the_lines_that_are_advised_for_a_table_write_its_rows(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(memload.FormatError, match="a table is written once: t = pandas") as raised:
        memload.open(tmp_path / name)
    exec(str(raised.value).partition("once: ")[2], {"pandas": pandas, "memload": memload, "DST": tmp_path / "made"})
    made = memload.open(tmp_path / "made")
    assert [row["a"].item() for row in made] == [1, 2]
    assert [row["b"].item() for row in made] == [0.5, 1.5]


@pytest.mark.parametrize("name", ["a.tar", "a.tfrecord"])
def test_streams_of_records_are_sent_to_the_page_that_converts_them(name, tmp_path):
    (tmp_path / name).write_bytes(b"x" * 1024)
    with pytest.raises(memload.FormatError, match=r"memload.ShardWriter\(DST\), once, as docs/migration.md shows$"):
        memload.open(tmp_path / name)


def test_a_file_of_the_kernels_is_named_by_what_it_ends_with():
    with pytest.raises((OSError, memload.FormatError), match="/proc/self/maps"):
        memload.open("/proc/self/maps")


def test_an_array_of_another_library_is_told_where_it_goes(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        stored = file.create_dataset("x", data=np.zeros(3))
        with pytest.raises(TypeError, match=r"got Dataset of h5py; memload\.open\(path, key=\.\.\.\) reads it"):
            memload.from_arrays(x=stored)
    with pytest.raises(TypeError, match=r"got Int64Array; give numpy\.asarray"):
        memload.from_arrays(x=pyarrow.array([1, 2]))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"it is empty; memload\.write makes a set"),
        (["notes.txt"], r"nothing in it is what memload opens; memload\.write makes a set"),
        (["b.npy", "a.npy"], r"by a pattern, such as '.*/\*\.npy'$"),
        (["a.JPG"], "memload write --images"),
        (["cat/0.png", "README"], "images lie in folders of it, of which `memload write --images DIR --labels folders"),
        (["train/cat/0.jpeg", ".cache/x.npy"], "folders of it, of which `memload write --images DIR --labels folders"),
        (["a/b/c/0.png"], r"nothing in it is what memload opens"),
        (["b2/recording.json", "b10/recording.json"], r"in it, 'b2', 'b10', .* by memload\.open_recording\('.*/b2'\)$"),
        (["train2/index.json", "train10/index.json"], r"sets lie in it, each of which opens: 'train2', 'train10'$"),
    ],
)
def test_a_directory_that_is_no_set_says_what_can_be_done_with_what_it_has(tmp_path, files, message):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).touch()
    with pytest.raises(memload.ShardFormatError, match=rf"no index\.json here.*{message}"):
        memload.open(tmp_path)


def test_a_directory_has_no_bare_rows(tmp_path):
    with pytest.raises(memload.FormatError, match="a directory"):
        memload.open(tmp_path, dtype="uint8", shape=(1,))


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(memload.FormatError, match="neither a file nor a directory"):
        memload.open(tmp_path / "pipe.npy")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user who may not read")
def test_an_unreadable_file_is_a_permission_error_with_its_path(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").chmod(0)
    code = (
        "import memload, os, sys\nos.seteuid(65534)\n"
        "try: memload.open(sys.argv[1])\nexcept PermissionError as error: print(error)"
    )
    for part in (tmp_path, *tmp_path.parents[:2]):
        part.chmod(0o755)
    done = run(code, tmp_path / "a.npy")
    assert "a.npy" in done.out[0], done.err


def repeated(array):
    return np.lib.stride_tricks.as_strided(array, (5, *array.shape), (0, *array.strides))


def windows(array):
    return np.lib.stride_tricks.sliding_window_view(array.reshape(-1), 7, writeable=True)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize(
    "part_of",
    [
        lambda a: a,
        lambda a: a[::2],
        lambda a: a[3:],
        lambda a: a[:, 1],
        lambda a: a[:, 0, :2],
        lambda a: repeated(a[0]),
        windows,
    ],
)
def test_rows_that_are_runs_are_borrowed_wherever_they_lie(part_of, kind):
    whole = np.arange(72, dtype=np.int32).reshape(6, 3, 4)
    ds = memload.from_arrays(x=kind(part_of(whole)))
    whole += 1
    assert np.array_equal(rows_of(ds, "x").numpy(), part_of(whole))


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("part_of", [lambda a: a[:, :, 1], lambda a: a[:, :, :2], lambda a: a.transpose(0, 2, 1)])
def test_rows_that_are_scattered_are_refused(part_of, kind):
    array = part_of(np.arange(72, dtype=np.int32).reshape(6, 3, 4))
    with pytest.raises(ValueError, match=r"field 'x': a row is not one contiguous run.*ascontiguousarray"):
        memload.from_arrays(x=kind(array))


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_memmap_is_read_as_its_file(tmp_path, mode, kind):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(200_000).reshape(1000, 200))
    array = np.load(path, mmap_mode=mode)
    ds = memload.from_arrays(x=kind(array[3::2, 5:7]))
    (storage,) = ds.fields["x"].column.storages
    assert storage.mapped
    assert storage.name == str(path)
    assert ds[9]["x"].tolist() == [(3 + 18) * 200 + 5, (3 + 18) * 200 + 6]
    assert len(pickle.dumps(ds)) < 1000
    if mode == "r+":
        array[3, 5] = 7
        assert ds[0]["x"][0].item() == 7


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_the_kernel_answers_for_one_address_what_stands_in_its_list(tmp_path, mode):
    np.save(tmp_path / "a b.npy", np.zeros(100_000))
    mapped, allocated = np.load(tmp_path / "a b.npy", mmap_mode=mode), np.zeros(10)
    addresses = [mapped.ctypes.data, mapped.ctypes.data + 4096 * 50, allocated.ctypes.data, 16]
    listed = [memory_maps.listed(address) for address in addresses]
    assert [one is not None and Path(one.path) == tmp_path / "a b.npy" for one in listed] == [True, True, False, False]
    assert listed[0].shows_file == (mode != "c")
    assert [memory_maps.mapping_of(address) for address in addresses] == listed


@pytest.mark.parametrize("way", ["not at all", "read", "written"])
def test_the_kernel_finds_a_written_page_of_a_private_mapping_as_its_list_tells_it(tmp_path, way):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(300 * mmap.PAGESIZE))
    array = np.memmap(path, mode="c")
    if way != "not at all":
        assert not array.any()
    if way == "written":
        array[mmap.PAGESIZE * 250] = 0  # the same number, but the page is a copy now
    mapping = memory_maps.mapping_of(array.ctypes.data)
    assert memory_maps.was_written(mapping) == memory_maps.listed_written(mapping) == (way == "written")


def test_a_private_mapping_that_was_written_to_is_borrowed_though_nobody_can_write_to_it_now(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    array = np.frombuffer(memory, np.uint8)
    array[:] = 7
    address, nbytes = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(address, nbytes, mmap.PROT_READ) == 0
    assert memload.from_arrays(x=array)[0]["x"] == 7


def test_a_memmap_whose_bytes_may_differ_from_the_file_is_borrowed(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(20).reshape(10, 2))
    copy_on_write = np.load(path, mmap_mode="c")
    copy_on_write[9] = 5
    replaced = np.load(path, mmap_mode="r")
    np.save(tmp_path / "b.npy", np.zeros((10, 2)))
    (tmp_path / "b.npy").rename(path)
    ds = memload.from_arrays(changed=copy_on_write, replaced=replaced)
    assert not any(field.column.storages[0].mapped for field in ds.fields.values())
    assert ds[9]["changed"].tolist() == [5, 5]
    assert ds[9]["replaced"].tolist() == [18, 19]


def test_a_memmap_of_a_file_that_is_cut_raises_instead_of_ending_the_process(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((100, 1024)))
    ds = memload.from_arrays(x=np.load(path, mmap_mode="r"))
    os.truncate(path, 10_000)
    with pytest.raises(memload.ShardReadError, match=r"a\.npy"):
        ds[99]


def jagged(rows):
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def freed(tensor, left=0):
    tensor.untyped_storage().resize_(left)  # as training in shards does to parameters
    return tensor


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.zeros((4, 3))[::-1], ValueError, "ascontiguousarray"),
        (np.zeros((4, 3)).T, ValueError, "ascontiguousarray"),
        (torch.zeros(4, 3).T, ValueError, "ascontiguousarray"),
        (np.array([object()]), TypeError, "pointers"),
        (np.zeros(3, dtype=">f4"), TypeError, "bytes swapped.*newbyteorder"),
        (np.array("a"), TypeError, "is text; give a list of str"),
        (np.array(1.0), ValueError, "first axis"),
        (torch.tensor(1.0), ValueError, "first axis"),
        (torch.zeros(3, dtype=torch.complex128), TypeError, "cannot be stored"),
        (torch.zeros(3, dtype=torch.complex64).conj(), ValueError, "resolve_conj"),
        (torch._efficientzerotensor(3)[1:], ValueError, "has 0 bytes, but its shape needs 12: .* placeholder of zeros"),
        (freed(torch.zeros(3)), ValueError, "has 0 bytes, but its shape needs 12: it was freed"),
        (freed(torch.zeros(3, 2)[1:], 20), ValueError, "has 20 bytes, but its shape needs 24"),
        (torch.zeros(3).to_sparse(), TypeError, "dense tensor on the CPU"),
        (torch.zeros(3, device="meta"), TypeError, "dense tensor on the CPU"),
        (jagged([torch.zeros(2), torch.zeros(3)]), TypeError, r"memload\.ragged\(tensor\.values"),
        ([1, 2, 3], TypeError, "got list; use torch.tensor.*memload.ragged"),
        ([], TypeError, "got an empty list"),
        (["a", None], TypeError, "list of texts, of which number 1 is a NoneType"),
    ],
)
def test_an_array_that_cannot_be_borrowed_says_why_and_what_to_do(array, error, message):
    with pytest.raises(error, match=f"field 'x': .*{message}"):
        memload.from_arrays(x=array)


def test_fields_of_different_length_are_all_stated():
    with pytest.raises(ValueError, match="the fields must have the same number of rows, got a: 3, b: 4"):
        memload.from_arrays(a=np.zeros(3), b=np.zeros(4))


def test_arrays_may_come_in_a_mapping_for_names_that_are_no_keywords():
    ds = memload.from_arrays({"a b": np.arange(3)}, c=np.zeros(3))
    assert list(ds.fields) == ["a b", "c"]
    with pytest.raises(TypeError, match=r"both the mapping and the keywords bring \['a'\]"):
        memload.from_arrays({"a": np.zeros(3)}, a=np.zeros(3))


def test_an_array_without_a_name_is_told_how_to_get_one():
    with pytest.raises(TypeError, match=r"needs a name: from_arrays\(stim=\.\.\., robs=\.\.\.\), got one Tensor"):
        memload.from_arrays(torch.zeros(3))


def test_no_fields_are_refused():
    with pytest.raises(ValueError, match="at least one field"):
        memload.from_arrays()


def test_zero_rows_make_an_empty_dataset():
    ds = memload.from_arrays(a=np.zeros((0, 3)), b=torch.zeros(0))
    assert len(ds) == 0
    assert ds.nbytes == 0


def test_torch_refuses_to_resize_a_tensor_that_is_borrowed():
    tensor = torch.zeros(10)
    ds = memload.from_arrays(x=tensor)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(10_000_000)
    assert ds[9]["x"].item() == 0.0


def share(tensor):
    tensor.share_memory_()


def share_another_view(tensor):
    tensor[3:].share_memory_()


def set_another(tensor):
    tensor.set_(torch.zeros(1000, 500))


@pytest.mark.parametrize("move", [share, share_another_view, set_another])
@pytest.mark.parametrize(
    "use",
    [
        lambda ds, _: ds[0],
        lambda ds, _: ds.fields["x"].gather(np.arange(3)),
        lambda ds, _: ds.select([5, 5])[1],
        lambda ds, _: ds.only("x").split(0.5, 0)[1][0],
        lambda ds, _: ds.as_tuple()[-1],
        lambda ds, _: memload.from_arrays(x=torch.zeros(1, 500)).concat(ds)[0],
        lambda ds, _: memload.zip(x=ds)[7],
        lambda ds, _: pickle.dumps(ds),
        lambda ds, path: memload.write(path, ds),
    ],
)
def test_a_tensor_that_was_moved_raises_instead_of_reading_freed_memory(tmp_path, move, use):
    tensor = torch.zeros(1000, 500)
    ds = memload.from_arrays(x=tensor)
    move(tensor)
    with pytest.raises(RuntimeError, match=r"field 'x': the tensor's memory was moved .*share_memory_\(\), set_\(\)"):
        use(ds, tmp_path / "s")


def test_an_array_that_is_a_tensors_memory_is_watched_too():
    tensor = torch.zeros(1000, 500)
    ds = memload.from_arrays(x=tensor.numpy()[::2, 3:7])
    assert ds[3]["x"].tolist() == [0.0] * 4
    tensor.share_memory_()
    with pytest.raises(RuntimeError, match="memory was moved"):
        ds[3]


def test_a_tensor_shared_before_the_dataset_was_made_is_read():
    tensor = torch.arange(1000.0).share_memory_()
    ds = memload.from_arrays(x=tensor)
    tensor += 1
    assert memload.concat([ds, ds])[1007]["x"].item() == 8.0
    assert len(memload.concat([ds] * 9).fields["x"].owners) == 1


@given(strategies.field_sets())
def test_borrowed_rows_have_the_bytes_of_the_arrays(arrays):
    ds = memload.from_arrays(**arrays)
    for name, array in arrays.items():
        assert strategies.as_bytes(rows_of(ds, name)) == strategies.as_bytes(array)
        assert strategies.as_bytes(ds[-1][name]) == strategies.as_bytes(array[-1])


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        (None, TypeError, "a path, a pattern, or a list of these, got None"),
        (b"x.npy", TypeError, "a path, a pattern, or a list of these, got b'x.npy'"),
        ([3], TypeError, "expected a path, got 3"),
        ("", ValueError, "the path is empty"),
    ],
)
def test_what_is_no_path_is_refused_in_words(path, error, words):
    with pytest.raises(error, match=words):
        memload.open(path)


def test_open_files_are_told_to_be_given_by_their_path(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)
    with path.open("rb") as file, pytest.raises(TypeError, match=rf"an open file.*; give its path, '{path}'"):
        memload.open(file)
    with h5py.File(path) as file:
        with pytest.raises(TypeError, match=rf"an open file \(File\); give its path, '{path}'"):
            memload.open(file)
        with pytest.raises(TypeError, match=r"a Dataset of h5py; give the path of its file, and its name by key="):
            memload.open(file["x"])


def test_a_key_that_is_no_name_is_refused_in_words(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(TypeError, match="key= takes a name, a list of names, or a mapping to names, got 3"):
        memload.open(tmp_path / "x.npz", key=3)


@pytest.mark.parametrize("shape", [np.int64(2), (np.int64(2),), [2], 2])
def test_the_shape_of_bare_rows_may_be_in_integers_of_numpy(tmp_path, shape):
    (tmp_path / "x.dat").write_bytes(bytes(range(10)))
    ds = memload.open(tmp_path / "x.dat", dtype="uint8", shape=shape, offset=np.int64(4))
    assert ds[0]["data"].tolist() == [4, 5]


@pytest.mark.parametrize("stated", [{"shape": True}, {"shape": (2.5,)}, {"shape": 2, "offset": 1.5}])
def test_the_shape_and_offset_of_bare_rows_are_counts(tmp_path, stated):
    (tmp_path / "x.dat").write_bytes(bytes(10))
    with pytest.raises(ValueError, match="shape= and offset= must be counts, got"):
        memload.open(tmp_path / "x.dat", dtype="uint8", **stated)
