"""MATLAB files up to version 7: the rows are what scipy reads, and what cannot be a field is told."""

import json
import os
import shutil
import signal
import struct

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from children import in_fork

import memload
from memload.cli.main import main
from memload.writing.stream import ShardStream

RNG = np.random.default_rng(0)
RATES, ANGLE = RNG.random((40, 7)), np.arange(40) % 8 * 45.0
MOVIE = RNG.integers(0, 256, (5, 6, 40), np.uint8)


def saved(path, *, compress=True, **variables):
    scipy.io.savemat(path, variables, do_compression=compress, oned_as="column")
    return path


def cells(*values):
    made = np.empty((len(values), 1), object)
    made[:, 0] = values
    return made


@pytest.mark.parametrize("compress", [True, False])
def test_variables_are_those_of_scipy(tmp_path, compress):
    path = saved(tmp_path / "x.mat", compress=compress, rates=RATES, angle=ANGLE, movie=MOVIE, fs=30.0)
    ds = memload.open_matlab(path, key=["rates", "angle", "movie"], axis={"movie": -1})
    theirs = scipy.io.loadmat(path)
    np.testing.assert_array_equal(torch.stack([row["rates"] for row in ds]), theirs["rates"])
    np.testing.assert_array_equal(torch.stack([row["angle"] for row in ds]), theirs["angle"][:, 0])
    np.testing.assert_array_equal(torch.stack([row["movie"] for row in ds]), np.moveaxis(theirs["movie"], -1, 0))
    assert ds.fields["movie"].described == "uint8 (5, 6)"
    assert memload.FastLoader(ds, 8).engine == "native"
    single = memload.open_matlab(path, key="rates", field="r", axis=1)
    np.testing.assert_array_equal(single[3]["r"], theirs["rates"][:, 3])


@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "i8", "f4", "f8"])
def test_dtypes_stay(tmp_path, dtype):
    ds = memload.open_matlab(saved(tmp_path / "x.mat", x=np.arange(12, dtype=dtype).reshape(4, 3)))
    assert ds[2]["x"].numpy().dtype == dtype
    assert ds[2]["x"].tolist() == [6, 7, 8]


def test_logical_texts_cells_and_structs(tmp_path):
    path = saved(
        tmp_path / "x.mat",
        good=np.array([True, False, True]),
        names=np.array(["go", "stop", "wait"]),
        labels=cells("left", "", "right"),
        spikes=cells(np.array([0.5, 1.5]), np.zeros((0, 0)), np.array([[2.5]])),
        session={"rate": np.array([1.0, 2.0, 3.0]), "unit": {"depth": np.array([10, 20, 30])}},
    )
    ds = memload.open_matlab(path)
    assert list(ds.fields) == ["good", "names", "labels", "spikes", "session/rate", "session/unit/depth"]
    assert ds.fields["good"].dtype == torch.bool
    assert [(row["names"].rstrip(), row["labels"]) for row in ds] == [("go", "left"), ("stop", ""), ("wait", "right")]
    assert [row["spikes"].tolist() for row in ds] == [[0.5, 1.5], [], [2.5]]
    assert [int(row["session/unit/depth"]) for row in ds] == [10, 20, 30]
    assert list(memload.open_matlab(path, key="session").fields) == ["rate", "unit/depth"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([1 + 2j, 3]), r"x: complex numbers; store real\(x\) and imag\(x\)"),
        (scipy.sparse.eye(3).tocsc(), r"x: a sparse matrix; store full\(x\)"),
        (np.array([(1.0,), (2.0,)], dtype=[("k", "f8")]), r"x: a struct of 2 elements, no array of numbers"),
        ({"z": np.array([1j, 2])}, r"mat: z: complex numbers; store real"),
        (cells(np.array([1j, 2]), np.arange(3.0)), r"x: 2 cells, neither all texts nor all vectors"),
        (cells("a", np.arange(3.0)), r"x: 2 cells, neither all texts nor all vectors"),
        (cells(np.ones((2, 2)), np.ones((3, 2))), r"x: 2 cells, neither all texts nor all vectors"),
        (3.0, r"'x' is a single number"),
    ],
)
def test_what_is_no_field_is_told(tmp_path, value, message):
    with pytest.raises(memload.FormatError, match=message):
        memload.open_matlab(saved(tmp_path / "x.mat", x=value), key="x")


def test_what_does_not_fit_together_is_told(tmp_path):
    path = saved(tmp_path / "x.mat", rates=RATES, movie=MOVIE, fs=30.0, z=np.array([1j, 2]))
    with pytest.raises(
        memload.FormatError, match=r"z: complex numbers; .* leave it out by key=\['rates', 'movie', 'fs'\]"
    ):
        memload.open_matlab(path)
    with pytest.raises(ValueError, match=r"the same number of rows, got rates: 40, movie: 5"):
        memload.open_matlab(path, key=["rates", "movie"])
    with pytest.raises(KeyError, match=r"nothing is named 'rate'; there are 'rates', 'movie'"):
        memload.open_matlab(path, key="rate")
    with pytest.raises(KeyError, match=r"axis= names 'film'; there are \['movie'\]"):
        memload.open_matlab(path, key="movie", axis={"film": 1})
    with pytest.raises(ValueError, match=r"axis=3: an array of shape \(5, 6, 40\) has no such axis"):
        memload.open_matlab(path, key="movie", axis=3)
    with pytest.raises(
        memload.FormatError, match=r"a MATLAB file of rates double \(40, 7\), .*, which are stored column"
    ):
        memload.open(path)
    with pytest.raises(FileNotFoundError, match="there is nothing at this path"):
        memload.open_matlab(tmp_path / "y.mat")
    with pytest.raises(IsADirectoryError, match=r"a folder; expected a file, such as one of 'x\.mat' in it"):
        memload.open_matlab(tmp_path)


def test_damaged_files_are_told(tmp_path):
    path = saved(tmp_path / "x.mat", rates=RATES, angle=ANGLE)
    whole = path.read_bytes()
    for raw, message in (
        (whole[:-9], r"x\.mat: cut short: its last variable ends at byte .*: get it again"),
        (whole[:100], "cut short"),
        (whole[:140] + b"\xff" * 40 + whole[180:], r"no MATLAB file, or a damaged one \("),
        (b"plain text, and nothing else" * 9, r"no MATLAB file, or a damaged one \("),
    ):
        path.write_bytes(raw)
        with pytest.raises(memload.FormatError, match=message):
            memload.open_matlab(path)
        with pytest.raises(memload.FormatError, match=message):
            memload.open(path)


def test_version_73_is_hdf5_and_read_in_place(tmp_path):
    path = tmp_path / "x.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["rates"] = RATES.T  # as MATLAB writes an array of 40 x 7
    raw = bytearray(path.read_bytes())
    raw[:124] = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124)
    path.write_bytes(raw)
    assert memload.open(path, key="rates").fields["rates"].shape == (40,)
    with pytest.raises(memload.FormatError, match=r"7\.3 file, which is HDF5: .* the last one counts the rows"):
        memload.open_matlab(path)


def test_the_command_writes_variables(tmp_path, capsys):
    for number in (1, 2):
        saved(tmp_path / f"s{number}.mat", rates=RATES.T + number, angle=ANGLE, fs=30.0)
    sources, out = str(tmp_path / "s*.mat"), tmp_path / "out"
    chosen = ["--key", "rates", "--key", "angle", "--axis", "rates=-1", "--cast", "float32", "--quiet"]
    assert main(["write", sources, str(out), *chosen]) == 0
    ds = memload.open(out)
    assert len(ds) == 80
    np.testing.assert_allclose(ds[45]["rates"], RATES[5] + 2, rtol=1e-6)
    capsys.readouterr()
    for options, message in (
        (["--row-field", "row"], "--row-field: not for MATLAB files, whose variables --key names"),
        (["--key", "x"], "nothing is named 'x'; there are 'rates', 'angle', 'fs'"),
        (["--key", "rates", "--axis", "last"], "--axis: 'last' is no number of an axis"),
    ):
        assert main(["write", sources, str(tmp_path / "no"), *options]) == 2
        assert message in capsys.readouterr().err
    np.save(tmp_path / "x.npy", RATES)
    assert main(["write", str(tmp_path / "x.npy"), str(tmp_path / "no"), "--axis", "-1"]) == 2
    assert "--axis is for MATLAB files" in capsys.readouterr().err


def test_the_command_lists_variables(tmp_path, capsys):
    first, second = (saved(tmp_path / f"s{number}.mat", rates=RATES, good=np.array([True])) for number in (1, 2))
    assert main(["info", str(first)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{first}: a MATLAB file, which is read once, by memload.open_matlab or memload write {first} DST",
        "  rates: double (40, 7)",
        "  good: logical (1, 1)",
    ]
    assert main(["info", str(tmp_path / "s*.mat"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["variables"]
    assert told[str(second)] == {
        "rates": {"class": "double", "shape": [40, 7]},
        "good": {"class": "logical", "shape": [1, 1]},
    }
    assert main(["info", str(first), "--plot", str(tmp_path / "x.png")]) == 2
    assert "--plot draws what opens in place" in capsys.readouterr().err
    first.write_bytes(first.read_bytes()[:-9])
    assert main(["info", str(first)]) == 2
    assert "cut short" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ((50, 1), None, (50,)),
        ((1, 50), None, (50,)),
        ((50, 1), -1, (1, 50)),
        ((50, 1), {"x": 1}, (1, 50)),
        ((50, 1), {"x": 0}, (50,)),
        ((1, 50), 0, (1, 50)),
        ((1, 50), -1, (50,)),
        ((1, 1), -1, (1,)),
        ((5, 1, 3), 1, (1, 5, 3)),
    ],
)
def test_a_stated_axis_is_followed_whatever_the_shape(tmp_path, shape, axis, expected):
    values = RNG.random(shape)
    ds = memload.open_matlab(saved(tmp_path / "x.mat", x=values), axis=axis)
    assert (len(ds), *ds.fields["x"].shape) == expected
    whole = np.stack([row["x"].numpy() for row in ds])
    np.testing.assert_array_equal(whole.ravel(), np.moveaxis(values, -1 if axis == -1 else 1, 0).ravel())


def test_files_of_one_and_of_many_trials_are_one_set(tmp_path):
    for number, trials in enumerate((3, 1, 2)):
        saved(tmp_path / f"mouse{number}.mat", rates=np.full((50, trials), float(number)))
    assert main(["write", str(tmp_path / "mouse*.mat"), str(tmp_path / "out"), "--axis", "-1", "--quiet"]) == 0
    rates = [row["rates"] for row in memload.open(tmp_path / "out")]
    assert [(tuple(row.shape), row[0].item()) for row in rates] == [((50,), one) for one in (0, 0, 0, 1, 2, 2)]


def test_classes_are_those_of_matlab_at_every_depth(tmp_path):
    inside = {"good": np.array([True, False]), "deep": {"bad": np.array([False, True])}}
    path = saved(tmp_path / "x.mat", compress=False, s=inside, x=np.array([[3], [7]], np.uint8))
    raw = path.read_bytes()
    kind = raw.rindex(struct.pack("<4I", 6, 8, 9, 0))  # array flags: class 9, uint8
    path.write_bytes(raw[: kind + 8] + struct.pack("<I", 6) + raw[kind + 12 :])  # a double, stored in bytes
    ds = memload.open_matlab(path)
    assert ds.fields["s/good"].dtype == ds.fields["s/deep/bad"].dtype == torch.bool
    assert [bool(row["s/deep/bad"]) for row in ds] == [False, True]
    assert ds.fields["x"].dtype == torch.float64
    assert [float(row["x"]) for row in ds] == [3, 7]


def test_an_interrupted_conversion_goes_on_behind_its_complete_shards(tmp_path, capfd):
    values = np.arange(8000.0).reshape(8, 1000)
    spikes = np.empty((1, 1000), object)
    for row in range(1000):
        spikes[0, row] = np.arange(row % 5 + 1.0)[None]
    place = tmp_path / "x.mat"
    scipy.io.savemat(place, {"rates": values, "spikes": spikes, "angle": np.arange(1000.0)})

    def write(target, rows=None, **more):
        ds = memload.open_matlab(place, axis={"rates": -1})
        return memload.write(target, ds, rows=rows, shard_bytes=20_000, **more)

    def interrupted(rows=None):
        finished, made = ShardStream.finish, []

        def stops(self):
            finished(self)
            made.append(self)
            if len(made) == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        ShardStream.finish = stops
        write(tmp_path / "set", rows, progress=False)

    assert in_fork(interrupted) == -signal.SIGKILL
    capfd.readouterr()
    scipy.io.savemat(place, {"rates": values, "spikes": spikes, "angle": np.arange(1000.0)}, do_compression=True)
    found = write(tmp_path / "set")  # a file of the same variables
    assert "resumed where it was interrupted, at row" in capfd.readouterr().err
    assert torch.equal(found[999]["rates"], torch.from_numpy(values[:, 999]))
    assert [len(row["spikes"]) for row in found] == [row % 5 + 1 for row in range(1000)]
    shutil.rmtree(tmp_path / "set")
    assert in_fork(interrupted) == -signal.SIGKILL
    capfd.readouterr()
    write(tmp_path / "set", np.arange(1000)[::-1])
    assert "resumed" not in capfd.readouterr().err  # the rows come in another order
    values[3, 3] = -1
    shutil.rmtree(tmp_path / "set")
    assert in_fork(interrupted) == -signal.SIGKILL
    capfd.readouterr()
    scipy.io.savemat(place, {"rates": values, "spikes": spikes, "angle": np.arange(1000.0)})
    assert write(tmp_path / "set")[3]["rates"][3] == -1
    assert "resumed" not in capfd.readouterr().err
