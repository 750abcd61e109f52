"""`memload info`: how each field of any source is read, and what a row costs."""

import numpy as np
import pyarrow as pa
import pytest
import torch

import memload
from memload.cli.main import main


def told(capsys, *arguments):
    assert main(["info", *map(str, arguments)]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_fields_that_lie_in_place_are_told_as_such(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", stim=np.zeros((5, 2)), robs=np.zeros(5))
    assert told(capsys, tmp_path / "x.npz")[-2:] == [
        "stim: read in place; a row takes its own 16 B",
        "robs: read in place; a row takes its own 8 B",
    ]
    torch.save({"x": torch.zeros(3, 2)}, tmp_path / "x.pt")
    assert told(capsys, tmp_path / "x.pt")[-1] == "x: read in place; a row takes its own 8 B"
    (tmp_path / "x.dat").write_bytes(bytes(24))
    assert (
        told(capsys, tmp_path / "x.dat", "--dtype", "float32", "--shape", "3")[-1]
        == "data: read in place; a row takes its own 12 B"
    )


def test_chunks_tell_what_a_row_costs(tmp_path, capsys):
    from zarr3 import zarr

    zarr.create_array(tmp_path / "x.zarr", shape=(40, 100), chunks=(4, 50), dtype="f4")[:] = 1
    assert told(capsys, tmp_path / "x.zarr")[-1] == (
        "data: decoded: zstd, 4 rows a chunk, 2 chunks a row; a row of 400 B takes 2 chunks, 1.6 kB"
    )


def test_a_file_whose_only_array_cannot_be_read_says_so(tmp_path, capsys):
    np.savez_compressed(tmp_path / "x.npz", stim=np.zeros((5, 2)))
    first, second = told(capsys, tmp_path / "x.npz")
    assert first.endswith("x.npz: 1 array, which cannot be read")
    assert second.startswith("stim: unfit: stim.npy is compressed as a whole")


def test_arrays_that_do_not_form_one_dataset_are_listed_one_by_one(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", stim=np.zeros((5, 2)), mean=np.float64(1), across=np.asfortranarray(np.zeros((3, 2))))
    lines = told(capsys, tmp_path / "x.npz")
    assert lines[0].endswith("3 arrays, which do not form one dataset; select those that belong together by --key")
    assert lines[1] == "stim: 5 rows of float64 (2,); read in place; a row takes its own 16 B"
    assert lines[2].startswith("mean: unfit: 'mean' is a single number")
    assert lines[3].startswith("across: unfit: across.npy: saved in Fortran order")
    assert told(capsys, tmp_path / "x.npz", "--key", "stim")[-1] == "stim: read in place; a row takes its own 16 B"


def test_a_pattern_opens_as_elsewhere_and_says_if_its_files_form_no_dataset(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", stim=np.zeros((5, 2)))
    np.savez("b.npz", stim=np.zeros((6, 2)))
    assert told(capsys, "*.npz")[0].startswith("memload.Dataset: 11 rows")
    np.savez("c.npz", stim=np.zeros((5, 3)))
    step = "; to make them fields side by side, name each: `memload write a=a.npz c=c.npz DST`"
    for given, found, last in (
        (["*.npz"], "*.npz matches 3 paths", ""),
        (["a.npz", "c.npz"], "there are 2 paths", step),
    ):
        assert main(["info", *given]) == 2
        said = capsys.readouterr().err
        assert said.startswith("memload: these are no one dataset: field 'stim' is float64 (3,)")
        assert said.endswith(f"; {found}: to see what each has, give one, such as a.npz{last}\n")


def test_a_pattern_that_one_file_matches_lists_its_arrays(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", stim=np.zeros((5, 2)), other=np.zeros((3, 2)))
    lines = told(capsys, tmp_path / "*.npz")
    assert (
        lines[0]
        == f"{tmp_path}/x.npz: 2 arrays, which do not form one dataset; select those that belong together by --key"
    )
    assert lines[1].startswith("stim: 5 rows")


def test_columns_that_are_unfit_are_told_with_the_reason(tmp_path, capsys):
    table = pa.table({"x": np.arange(3), "name": ["a", "b", "c"]})
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    lines = told(capsys, tmp_path / "x.arrow")
    assert lines[1] == "x: 3 rows of int64 (); read in place; a row takes its own 8 B"
    assert lines[2].startswith(
        "name: unfit: columns that cannot be read in place: 'name': its type string is neither a number of fixed size"
    )


def test_groups_of_different_lengths_are_told_by_their_paths(tmp_path, capsys):
    from zarr3 import zarr

    group = zarr.create_group(tmp_path / "x.zarr")
    for name, rows in (("train/x", 8), ("test/x", 2)):
        group.create_array(name, shape=(rows, 3), chunks=(1, 3), dtype="u1", compressors=None)[:] = 1
    assert sorted(told(capsys, tmp_path / "x.zarr")[1:]) == [
        "test/x: 2 rows of uint8 (3,); read in place; a row takes its own 3 B",
        "train/x: 8 rows of uint8 (3,); read in place; a row takes its own 3 B",
    ]


@pytest.mark.parametrize("name", ["x.npz", "x.pt", "x.arrow"])
def test_what_is_damaged_is_an_error(tmp_path, capsys, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 nonsense")
    assert main(["info", str(tmp_path / name)]) == 2
    assert str(tmp_path / name) in capsys.readouterr().err


def test_the_address_of_a_set_in_a_store_is_no_path_of_a_recording(tmp_path, capsys):
    rows = torch.arange(12).reshape(6, 2)
    memload.write(tmp_path / "there", {"x": rows}, progress=False)
    address = f"file://{tmp_path}/there"
    assert told(capsys, address)[-1].startswith("x: ")
    assert main(["write", address, str(tmp_path / "here")]) == 0
    assert torch.equal(torch.stack([row["x"] for row in memload.open(tmp_path / "here")]), rows)


def test_rows_of_a_store_are_told_as_fetched(tmp_path, proxy, store_server, capsys):
    memload.write(tmp_path / "set", {"x": torch.zeros(9, 2), "y": torch.zeros(9)}, codec={"y": "zstd"}, progress=False)
    store_server.put(tmp_path / "set", "set")
    assert told(capsys, "s3://bucket/set")[-2:] == [
        "x: fetched from its store; a row takes its own 8 B",
        "y: fetched from its store, decoded: shuffle+zstd, 4,096 rows a chunk; a row of 4 B takes 1 chunk, 36 B",
    ]
