"""HDF5 files that temporaldata writes: what memload reads is what temporaldata says."""

import h5py
import numpy as np
import pytest
import torch
from temporaldata import ArrayDict, Data, Interval, IrregularTimeSeries, RegularTimeSeries

import memload

RNG = np.random.default_rng(0)
GRID = np.concatenate([np.arange(200), np.arange(400, 700)]) / 100
SPIKES = np.sort(RNG.uniform(0, 10, 300))
UNITS = RNG.integers(0, 3, 300)
TIMES = np.sort(RNG.choice(10_000, 250, replace=False)) / 1000


def session():
    return Data(
        spikes=IrregularTimeSeries(timestamps=SPIKES, unit_index=UNITS, domain=Interval(0.0, 10.0)),
        units=ArrayDict(id=np.array(["a", "b", "c", "silent"])),
        lfp=RegularTimeSeries(sampling_rate=250.0, raw=RNG.random((2000, 4)), z=RNG.random(2000), domain_start=1.0),
        cursor=IrregularTimeSeries(timestamps=TIMES, pos=RNG.random((250, 2)), vel=RNG.random(250), domain="auto"),
        gappy=RegularTimeSeries.from_gappy_timeseries(timestamps=GRID, sampling_rate=100.0, x=np.arange(500.0)),
        licks=IrregularTimeSeries(timestamps=np.array([1.0, 2.5]), domain=Interval(0.0, 10.0)),
        twice=IrregularTimeSeries(timestamps=np.array([1.0, 1.0]), x=np.arange(2), domain="auto"),
        trials=Interval(
            start=np.array([0.5, 4.0]), end=np.array([3.0, 9.0]), go=np.array([1, 2]), kind=np.array(["left", "right"])
        ),
        camera=Data(
            eye=RegularTimeSeries(sampling_rate=30.0, frames=RNG.integers(0, 256, (300, 3, 4), np.uint8)), domain="auto"
        ),
        session_id="t7",
        domain=Interval(0.0, 10.0),
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    place = tmp_path_factory.mktemp("temporaldata") / "session.h5"
    with h5py.File(place, "w") as file:
        session().to_hdf5(file)
    return place


def whole(recording, name):
    return recording.fields[name].gather(np.arange(recording.fields[name].rows)).numpy()


def test_series_are_those_of_temporaldata(path):
    found = memload.open_temporaldata(path)
    assert found.name == "t7"
    assert list(found.fields) == [
        *("camera.eye.frames", "cursor.pos", "cursor.vel", "gappy.x", "lfp.raw", "lfp.z", "licks", "spikes")
    ]
    assert found.left_out.keys() == {"twice.x"}
    assert "timestamps must rise" in found.left_out["twice.x"]
    with h5py.File(path) as file:
        data = Data.from_hdf5(file)
        for name in ("camera.eye.frames", "cursor.pos", "cursor.vel", "lfp.raw", "lfp.z", "gappy.x"):
            series, _, array = name.rpartition(".")
            theirs = data.get_nested_attribute(series)
            mask = theirs.index_mask() if name == "gappy.x" else slice(None)
            np.testing.assert_array_equal(whole(found, name), getattr(theirs, array)[mask])
            times = found.clocks[name].seconds(found.fields[name].rows)
            np.testing.assert_allclose(times, theirs.timestamps[mask], rtol=0, atol=1e-8)
        for unit in range(4):
            expected = data.spikes.timestamps[data.spikes.unit_index == unit]
            np.testing.assert_allclose(found.fields["spikes"].of_unit(unit), expected, atol=1e-9)
        np.testing.assert_array_equal(found.intervals["trials"].start, data.trials.start)
        assert found.intervals["trials"].columns["kind"].tolist() == data.trials.kind.tolist()
    assert found.fields["spikes"].names == ("a", "b", "c", "silent")
    assert found.fields["licks"].of_unit(0).tolist() == [1.0, 2.5]
    assert len(found.clocks["gappy.x"].pieces(500)[0]) == 2


def test_slices_are_those_of_temporaldata(path):
    """Of series whose rows lie on the edges of the slices, its slices have the same rows."""
    found = memload.open_recording(path).only("lfp.raw", "camera.eye.frames", "spikes")
    starts = np.arange(5, 40) / 5
    slices = found.slices(1.0, at=starts, rates={"spikes": 1})
    with h5py.File(path) as file:
        data = Data.from_hdf5(file)
        for row in slices:
            start = starts[int(row["onset"])]
            part = data.slice(start, start + 1.0)
            np.testing.assert_array_equal(row["lfp.raw"], part.lfp.raw)
            np.testing.assert_array_equal(row["camera.eye.frames"], part.camera.eye.frames)
            np.testing.assert_array_equal(row["spikes"][0], np.bincount(part.spikes.unit_index, minlength=4))
    assert len(slices) > 30


def test_listed_spikes_are_those_of_temporaldata(path):
    starts = np.round(np.random.default_rng(1).uniform(0, 9, 50), 4)
    slices = memload.open_temporaldata(path, fields=["spikes"]).slices(1.0, at=starts, sampling="times")
    assert len(slices) == 50
    with h5py.File(path) as file:
        data = Data.from_hdf5(file)
        for start, found in zip(starts, slices, strict=True):
            part = data.slice(start, start + 1.0).spikes
            np.testing.assert_allclose(found["spikes"].numpy(), part.timestamps, atol=1e-9)
            np.testing.assert_array_equal(found["spikes_unit_index"].numpy(), part.unit_index)


def test_fields_are_chosen_and_written(path, tmp_path):
    found = memload.open_temporaldata(path, fields=["cursor.vel", "spikes"])
    written = memload.write(tmp_path / "shards", found, progress=False)
    for one in (found, written):
        assert list(one.fields) == ["cursor.vel", "spikes"]
    arguments = {"rates": {"cursor.vel": 25, "spikes": 50}, "sampling": {"cursor.vel": "linear"}, "hop": 0.1}
    for a, b in zip(found.slices(0.2, **arguments, pad=True), written.slices(0.2, **arguments, pad=True), strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_other_files_are_refused(path, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = [1, 2]
    with pytest.raises(memload.FormatError, match=r"not of temporaldata; its groups are \['x'\]"):
        memload.open_temporaldata(tmp_path / "x.h5")
    with pytest.raises(memload.FormatError, match="no recording; expected"):
        memload.open_recording(tmp_path / "x.h5")
    with pytest.raises(KeyError, match=r"no field 'emg'; there are \['camera.eye.frames'"):
        memload.open_temporaldata(path, fields=["emg"])
    with pytest.raises(memload.FormatError, match=r"field 'twice.x': timestamps must rise"):
        memload.open_temporaldata(path, fields=["twice.x"])
    with pytest.raises(FileNotFoundError):
        memload.open_temporaldata(tmp_path / "none.h5")


def test_spikes_that_do_not_fit_their_units_are_told(path, tmp_path):
    copy = tmp_path / "damaged.h5"
    copy.write_bytes(path.read_bytes())
    with h5py.File(copy, "r+") as file:
        file["spikes/unit_index"][3] = 9
    spikes = memload.open_temporaldata(copy, fields=["spikes"]).fields["spikes"]
    with pytest.raises(memload.FormatError, match="unit_index does not fit the 300 timestamps and 4 units"):
        _ = spikes.names


def spikes_of(place, change, **more):
    data = Data(
        spikes=IrregularTimeSeries(timestamps=np.arange(1, 401) / 10, unit_index=np.arange(400) % 3, **more),
        units=ArrayDict(id=np.array(["a", "b", "c"])),
        domain=Interval(0.0, 40.0),
    )
    with h5py.File(place, "w") as file:
        change(data).to_hdf5(file)
    return memload.open_temporaldata(place)


def test_gaps_in_the_domain_of_spikes_are_no_silence(tmp_path):
    chosen = Interval(np.array([2.0, 20.0]), np.array([5.0, 30.0]))
    found = spikes_of(tmp_path / "x.h5", lambda data: data.select_by_interval(chosen), domain=Interval(0.0, 40.0))
    rows = found.only("spikes").slices(1.0, at=[3.0, 10.0, 21.0], rates={"spikes": 1}, pad=True)
    assert [row["spikes_mask"].tolist() for row in rows] == [[True], [False], [True]]
    assert [int(row["spikes"].sum()) for row in rows] == [10, 0, 10]
    kept = found.slices(1.0, at=[3.0, 10.0, 21.0], rates={"spikes": 1})
    assert [int(row["onset"]) for row in kept] == [0, 2]


def test_a_domain_that_ends_with_the_last_spike_contains_it(tmp_path):
    found = spikes_of(tmp_path / "x.h5", lambda data: data, domain="auto")
    assert len(found.fields["spikes"]) == 400


def test_what_stands_beside_spikes_and_units_of_one_name_is_told(tmp_path):
    def change(data):
        data.units = ArrayDict(id=np.array(["a", "b", "b"]))
        return data

    found = spikes_of(tmp_path / "x.h5", change, domain="auto", amp=np.zeros(400))
    assert found.fields["spikes"].names == (0, 1, 2)
    assert found.left_out == {
        "spikes.amp": "an array beside spikes, of which times and units are read alone",
        "units.id": "1 of 3 units have the id of another: all are numbered instead",
    }


def test_spikes_without_a_domain_are_told(tmp_path):
    spikes_of(tmp_path / "x.h5", lambda data: data, domain="auto")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file["spikes/domain"]
    with pytest.raises(memload.FormatError, match=r"as a recording: spikes: it has no domain"):
        memload.open_temporaldata(tmp_path / "x.h5")
