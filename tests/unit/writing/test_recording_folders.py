"""Recordings written as folders: what is read back is what was written, to the bit."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import memload
from memload.cli.main import main
from memload.formats.recordings.kinds import reader_of
from memload.writing import recordings as writing

EPOCH = 1.7e9  # seconds since 1970, where a float64 is no whole nanosecond


def session(folder=None, start=EPOCH, seed=0):
    rng = np.random.default_rng(seed)
    times = start + np.cumsum(rng.uniform(0.1, 0.14, 200)) + 5 * (np.arange(200) > 100)
    arrays = {
        "stim": rng.integers(0, 256, (1800, 4, 5), np.uint8),
        "plane 1/dff": rng.random((200, 3), np.float32),
        "plane_1_dff": rng.random((200,)),
    }
    fields = dict(arrays)
    if folder is not None:
        for number, (name, array) in enumerate(arrays.items()):
            np.save(folder / f"{number}.npy", array)
            fields[name] = memload.open(folder / f"{number}.npy")
    spikes = {"a": start + np.sort(rng.uniform(0, 30, 200)), "b": [], 7: [start + 1]}
    return memload.recording(
        {**fields, "units": memload.Spikes(spikes, start, start + 31)},
        clocks={
            "stim": memload.Clock(rate=59.94, start=start, unit="px"),
            "plane 1/dff": memload.Clock(timestamps=times, gap=2.0),
            "plane_1_dff": times,
        },
        intervals={
            "trials": {
                "start": start + np.arange(6) * 4.1,
                "stop": start + np.arange(6) * 4.1 + 3.3,
                "angle": np.arange(6) * 45.0,
                "kind": ["x", "y"] * 3,
            },
            "none": np.empty((0, 2)),
        },
        name="mouse1",
    )


def slices_of(recording):
    return recording.slices(
        0.5,
        rates={"stim": 30, "plane 1/dff": 8, "plane_1_dff": 12, "units": 20},
        sampling={"plane 1/dff": "linear", "plane_1_dff": "mean"},
        hop=0.05,
        within="trials",
        columns=["angle", "kind"],
        pad=True,
    )


def assert_same(found, expected):
    assert str(found) == str(expected)
    assert list(found.fields) == list(expected.fields)
    mine, theirs = slices_of(found), slices_of(expected)
    assert len(mine) == len(theirs) > 50
    for a, b in zip(mine, theirs, strict=True):
        assert all(torch.equal(a[name], b[name]) if torch.is_tensor(b[name]) else a[name] == b[name] for name in b)


def test_a_recording_is_read_back_as_it_was_written(tmp_path):
    recording = session()
    written = memload.write(tmp_path / "shards", recording, progress=False)
    assert_same(written, recording)
    assert_same(memload.open_recording(tmp_path / "shards"), recording)
    assert_same(pickle.loads(pickle.dumps(memload.open_recording(tmp_path / "shards"))), recording)
    found = memload.open_recording(tmp_path / "shards", fields=["units"])
    assert list(found.fields) == ["units"]
    assert found.fields["units"].names == ("a", "b", 7)
    for name in ("plane 1/dff", "stim"):
        np.testing.assert_array_equal(written.clocks[name].times(1800), recording.clocks[name].times(1800))
    assert memload.verify(tmp_path / "shards") > 36_000
    assert len(memload.open(tmp_path / "shards" / "stim")) == 1800  # a set like others


def beside(column=None, units=None):
    """A recording with a column of intervals, and spikes of units of these names."""
    units = {1: [0.5], 2: [1.0]} if units is None else {name: [0.5] for name in units}
    return memload.recording(
        {"x": np.arange(60), "units": memload.Spikes(units, 0.0, 2.0)},
        clocks={"x": 30},
        intervals={"trials": {"start": [0, 1], "stop": [1, 2], "kind": np.array([0, 1]) if column is None else column}},
    )


def objects(*values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (objects(1, 2), "int64"),
        (objects(np.int16(1), 2), "int64"),
        (objects(1, 2.5), "float64"),
        (objects(float("nan"), 2), "float64"),
        (objects(True, False), "bool"),
        (objects("1", "2"), "object"),
        (np.array([b"go", b"stop"]), "object"),
        (np.array([["a", "b"], ["c", "d"]]), "object"),
        (np.array([[1, 2], [3, 4]], object), "int64"),
    ],
)
def test_columns_of_objects_are_read_back_as_they_were(tmp_path, column, dtype):
    found = memload.write(tmp_path / "r", beside(column), progress=False).intervals["trials"].columns["kind"]
    assert found.dtype == dtype
    expected = np.char.decode(column) if column.dtype.kind == "S" else column
    np.testing.assert_array_equal(found, expected.astype(dtype))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (objects(None, 2), "has None in row 0"),
        (objects("go", None), "has None in row 1"),
        (objects("go", 2), "has an int in row 1"),
        (objects(2, 2**70), "has an int in row 1"),
        (objects([1], [2, 3]), "has a list in row 0"),
    ],
)
def test_columns_that_would_be_others_are_told_before_anything_is_written(tmp_path, column, message):
    with pytest.raises(ValueError, match=rf"the column 'kind' of the intervals 'trials' {message}; .* give NaN, or"):
        memload.write(tmp_path / "r", beside(column), progress=False)
    assert not list(tmp_path.iterdir())


def test_names_of_units_are_read_back_as_they_were(tmp_path):
    names = (1.5, 2.5, "a", 3, np.float64(0.1), 1e300)
    found = memload.write(tmp_path / "r", beside(units=names), progress=False).fields["units"].names
    assert found == names
    assert [type(one) for one in found] == [float, float, str, int, float, float]
    with pytest.raises(ValueError, match=r"the unit 1 of 'units' is named None; expected a number or a text"):
        memload.write(tmp_path / "s", beside(units=[1, None]), progress=False)


@settings(max_examples=10)
@given(st.lists(st.integers(-(2**53), 2**53), min_size=2, max_size=20, unique=True), st.randoms(use_true_random=False))
def test_times_stay_whole_nanoseconds(tmp_path_factory, times, random):
    times = 10_000 * np.sort(np.array(times) // 10_000)
    times = times[np.diff(times, prepend=times[0] - 10_000) > 0]
    clock = memload.Clock.at_nanoseconds(times)
    spikes = memload.Spikes([times / 1e9], float(times[0] / 1e9), float(times[-1] / 1e9))
    trials = memload.Intervals(times / 1e9, times / 1e9 + random.random() + 1e-3)
    place = tmp_path_factory.mktemp("times") / "r"
    recording = memload.Recording(
        {"x": memload.from_arrays(x=np.arange(len(times))).fields["x"], "s": spikes}, {"x": clock}, {"trials": trials}
    )
    found = memload.write(place, recording, progress=False)
    np.testing.assert_array_equal(found.clocks["x"].times(len(times)), times)
    np.testing.assert_array_equal(found.fields["s"].units.times[0], spikes.units.times[0])
    assert (found.fields["s"].begin, found.fields["s"].end) == (spikes.begin, spikes.end)
    np.testing.assert_array_equal(found.intervals["trials"].begins, trials.begins)
    np.testing.assert_array_equal(found.intervals["trials"].ends, trials.ends)
    shutil.rmtree(place)


def test_an_interrupted_writing_leaves_nothing_that_opens_and_goes_on(tmp_path, monkeypatch):
    recording, target = session(tmp_path), tmp_path / "shards"
    whole, made = writing._Kept.write, []

    def stopped(self, folder, *rest):
        made.append(folder)
        if len(made) == 3:
            raise KeyboardInterrupt
        whole(self, folder, *rest)

    monkeypatch.setattr(writing._Kept, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        memload.write(target, recording, progress=False)
    assert not target.exists()
    monkeypatch.undo()
    (kept,) = tmp_path.glob(".shards.memload/set/stim/index.json")
    inode = kept.stat().st_ino
    assert_same(memload.write(target, recording, progress=False), recording)
    assert (target / "stim/index.json").stat().st_ino == inode
    assert not list(tmp_path.glob(".shards.memload"))
    with pytest.raises(FileExistsError, match="exists already"):
        memload.write(target, recording)


def test_other_files_are_written_anew(tmp_path, monkeypatch):
    recording, target = session(tmp_path), tmp_path / "shards"
    monkeypatch.setattr(writing._Kept, "remove_others", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        memload.write(target, recording, progress=False)
    monkeypatch.undo()
    changed = session(tmp_path, seed=1)
    assert_same(memload.write(target, changed, progress=False), changed)


def test_casts_are_kept_as_scale_and_offset(tmp_path):
    fields = {"v": memload.from_arrays(v=np.arange(100, dtype=np.int16)).fields["v"]}
    cast = memload.Cast(torch.float32, scale=0.5, offset=-3.0)
    recording = memload.Recording(fields, {"v": memload.Clock(rate=10)}, casts={"v": cast})
    assert memload.write(tmp_path / "a", recording, codec="zstd").casts == {"v": cast}
    odd = memload.Recording(fields, {"v": memload.Clock(rate=10)}, casts={"v": memload.Cast(torch.float32, mean=1.0)})
    with pytest.raises(ValueError, match="a recording keeps a scale and an offset alone"):
        memload.write(tmp_path / "b", odd)
    with pytest.raises(TypeError, match="mask=: not for a recording"):
        memload.write(tmp_path / "b", recording, mask=np.ones(3, bool))
    with pytest.raises(ValueError, match="codec= names the field 'x'; the rows have 'v'"):
        memload.write(tmp_path / "b", recording, codec={"x": "zstd"})


def damaged(path, change):
    document = json.loads((path / "recording.json").read_text())
    change(document)
    (path / "recording.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(version=2), "a recording of version 2; this memload reads 1"),
        (lambda document: document.update(format="x"), "has the format 'x'"),
        (lambda document: document["fields"]["stim"].update(folder="../stim"), "no name of a folder"),
        (lambda document: document["fields"]["stim"].update(folder="plane_1_dff"), "has the fields"),
        (lambda document: document["fields"]["stim"]["clock"].update(rate=[1, 0]), "ZeroDivisionError"),
        (lambda document: document["fields"]["plane_1_dff"]["clock"].update(times="clock/9"), "clock/9"),
        (lambda document: document.pop("fields"), "KeyError: 'fields'"),
    ],
)
def test_damaged_folders_are_told(tmp_path, change, message):
    memload.write(tmp_path / "shards", session(), progress=False)
    damaged(tmp_path / "shards", change)
    with pytest.raises(memload.ShardFormatError, match=message):
        memload.open_recording(tmp_path / "shards")


def test_damaged_times_are_told(tmp_path):
    memload.write(tmp_path / "shards", session(), progress=False)
    path = tmp_path / "shards/times.npz"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(memload.ChecksumError, match=r"times\.npz"):
        memload.verify(tmp_path / "shards")
    path.write_bytes(content[:500])
    with pytest.raises(memload.ShardFormatError, match="a damaged recording: BadZipFile"):
        memload.open_recording(tmp_path / "shards")


def test_what_is_no_recording_is_told(tmp_path):
    memload.write(tmp_path / "all" / "mouse1", session(), progress=False)
    with pytest.raises(memload.FormatError, match=r"no recording; expected .*; recordings in it are mouse1"):
        memload.open_recording(tmp_path / "all")
    with pytest.raises(FileNotFoundError):
        reader_of(tmp_path / "none")
    with pytest.raises(KeyError, match=r"no field 'eye'; there are \['stim'"):
        memload.open_recording(tmp_path / "all" / "mouse1", fields=["eye"])
    with pytest.raises(memload.FormatError, match=r"a recording, .*: open it by memload\.open_recording\('.*mouse1'\)"):
        memload.open(tmp_path / "all" / "mouse1")


def test_the_command_writes_several_and_goes_on(tmp_path, capsys):
    for name in ("mouse1", "mouse2"):
        (tmp_path / name).mkdir()
        memload.write(tmp_path / "raw" / name, session(tmp_path / name), progress=False)
    sources = str(tmp_path / "raw" / "mouse*")
    assert main(["write", sources, str(tmp_path / "out"), "--codec", "zstd", "--quiet"]) == 0
    assert_same(memload.open_recording(tmp_path / "out" / "mouse2"), session())
    before = (tmp_path / "out" / "mouse1" / "recording.json").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "out" / "mouse2")
    assert main(["write", sources, str(tmp_path / "out"), "--codec", "zstd", "--quiet"]) == 0
    assert (tmp_path / "out" / "mouse1" / "recording.json").stat().st_mtime_ns == before
    assert_same(memload.open_recording(tmp_path / "out" / "mouse2"), session())
    capsys.readouterr()
    assert main(["info", str(tmp_path / "out" / "mouse*")]) == 0
    assert capsys.readouterr().out.count("memload.Recording 'mouse1'") == 2
    assert main(["info", str(tmp_path / "out" / "mouse*"), "--plot", "x.png"]) != 0
    assert "--plot draws one recording, and there are 2" in capsys.readouterr().err
    assert main(["write", sources, str(tmp_path / "x"), "--mask", "roi.npy"]) != 0
    assert "--mask: not for recordings" in capsys.readouterr().err


def test_the_command_tells_and_draws(tmp_path, capsys):
    memload.write(tmp_path / "r", session(start=2.0), progress=False)
    assert main(["info", str(tmp_path / "r"), "--plot", str(tmp_path / "r.png"), f"--json={tmp_path}/r.json"]) == 0
    told = capsys.readouterr().out
    assert "memload.Recording 'mouse1'" in told
    assert "1 gap" in told
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["fields"]["stim"]["rate"] == 59.94
    assert len(document["fields"]["plane 1/dff"]["pieces"]) == 2
    assert document["intervals"]["trials"] == {
        "count": 6,
        "seconds": pytest.approx(19.8),
        "columns": ["angle", "kind"],
    }


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("file:///data/mouse1", "give its path, /data/mouse1"),
        ("s3://bucket/mouse1", "download it, or mount its storage"),
    ],
)
def test_the_address_of_a_recording_is_told_to_be_no_path(address, told):
    with pytest.raises(FileNotFoundError, match=f"^{address}: a URL, but recordings are opened in .*: {told}$"):
        memload.open_recording(address)
