"""NWB files, written by pynwb: what memload reads is what pynwb says."""

import datetime
import pickle

import h5py
import numpy as np
import pynwb
import pytest
import torch
from hdmf.backends.hdf5.h5_utils import H5DataIO
from pynwb.base import Images
from pynwb.behavior import Position, SpatialSeries
from pynwb.ecephys import ElectricalSeries
from pynwb.image import GrayscaleImage, ImageSeries, IndexSeries
from pynwb.ophys import Fluorescence, ImageSegmentation, OpticalChannel, RoiResponseSeries, TwoPhotonSeries

import memload

# Of pynwb, about the order in which the parts of a file are made.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

RNG = np.random.default_rng(0)
FRAMES = RNG.integers(0, 2000, (80, 6, 5), np.int16)
TRACES = RNG.random((80, 4), np.float32)
TEMPLATES = RNG.integers(0, 256, (7, 4, 3), np.uint8)
SPIKES = [np.sort(RNG.uniform(0, 10, count)) for count in (40, 0, 15)]
EYE_TIMES = np.concatenate([np.arange(200) / 50, 6 + np.arange(100) / 50])


def plane_of(file):
    device = file.create_device(name="microscope")
    channel = OpticalChannel(name="green", description="-", emission_lambda=510.0)
    return file.create_imaging_plane(
        name="plane",
        optical_channel=channel,
        description="-",
        device=device,
        excitation_lambda=920.0,
        indicator="GCaMP",
        location="V1",
    )


def add_ophys(file):
    plane = plane_of(file)
    raw = TwoPhotonSeries(
        name="raw", data=H5DataIO(FRAMES, compression="gzip"), imaging_plane=plane, rate=8.0, unit="V",
        starting_time=0.25, conversion=0.5, offset=-3.0,
    )  # fmt: skip
    file.add_acquisition(raw)
    module = file.create_processing_module(name="ophys", description="-")
    segmentation = ImageSegmentation()
    table = segmentation.create_plane_segmentation(name="cells", description="-", imaging_plane=plane)
    for k in range(4):
        table.add_roi(pixel_mask=[(k, k, 1.0)])
    module.add(segmentation)
    rois = table.create_roi_table_region(region=[0, 1, 2, 3], description="-")
    timestamps = np.arange(80) / 8 + 0.25
    traces = RoiResponseSeries(name="traces", data=TRACES, rois=rois, unit="a.u.", timestamps=timestamps)
    module.add(Fluorescence(roi_response_series=traces))
    linked = RoiResponseSeries(name="neuropil", data=TRACES * 2, rois=rois, unit="a.u.", timestamps=traces)
    module.add(Fluorescence(name="Neuropil", roi_response_series=linked))


def add_stimuli(file):
    images = Images(name="images", images=[GrayscaleImage(name=f"i{k}", data=one) for k, one in enumerate(TEMPLATES)])
    file.add_stimulus_template(images)
    shown = np.array([3, 0, 6, 3, 2], np.uint32)
    file.add_stimulus(
        IndexSeries(name="shown", data=shown, indexed_images=images, unit="N/A", timestamps=np.arange(5) * 2.0)
    )
    movie = ImageSeries(name="movie", data=TEMPLATES, unit="n.a.", rate=30.0, format="raw")
    file.add_stimulus_template(movie)
    file.add_stimulus(
        ImageSeries(
            name="video",
            external_file=["video.mp4"],
            format="external",
            starting_frame=[0],
            timestamps=[0.0, 1.0],
            unit="-",
        )
    )


def add_rest(file):
    position = SpatialSeries(name="eye", data=RNG.random((300, 2)), reference_frame="-", timestamps=EYE_TIMES)
    file.create_processing_module(name="behavior", description="-").add(Position(spatial_series=position))
    for k, times in enumerate(SPIKES):
        file.add_unit(spike_times=times, obs_intervals=[[0.0, 10.0]], id=10 + k)
    file.add_trial_column(name="angle", description="-")
    file.add_trial_column(name="kind", description="-")
    for k in range(5):
        file.add_trial(start_time=2.0 * k, stop_time=2.0 * k + 1.5, angle=45.0 * k, kind="ab"[k % 2])
    file.add_epoch(start_time=0.0, stop_time=9.0, tags=["all", "good"])
    group = file.create_electrode_group(
        name="probe", description="-", location="-", device=file.create_device(name="probe device")
    )
    for k in range(3):
        file.add_electrode(group=group, location="-", id=k)
    region = file.create_electrode_table_region(region=[0, 1, 2], description="-")
    for name, factors in (("lfp", [2.0, 2.0, 2.0]), ("uneven", [1.0, 2.0, 3.0])):
        data = RNG.integers(-99, 99, (1000, 3), np.int16)
        file.add_acquisition(
            ElectricalSeries(
                name=name, data=data, electrodes=region, rate=100.0, conversion=1e-6, channel_conversion=factors
            )
        )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = pynwb.NWBFile("a session", "session 7", datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc))
    add_ophys(file)
    add_stimuli(file)
    add_rest(file)
    place = tmp_path_factory.mktemp("nwb") / "session.nwb"
    with pynwb.NWBHDF5IO(str(place), "w") as io:
        io.write(file)
    add_old_form(place)
    return place


def add_old_form(place):
    """Indices of a series of images, which pynwb reads, but does not write any more."""
    with h5py.File(place, "r+") as file:
        group = file.create_group("stimulus/presentation/again")
        group["data"] = np.arange(20, dtype=np.uint32) % 7
        group["starting_time"] = 0.0
        group["starting_time"].attrs["rate"] = 2.0
        group["indexed_timeseries"] = h5py.SoftLink("/stimulus/templates/movie")
        group.attrs.update(neurodata_type="IndexSeries", namespace="core", object_id="a", comments="", description="")
        group["data"].attrs.update(unit="N/A", conversion=1.0, offset=0.0, resolution=-1.0)


def whole(recording, name):
    field = recording.fields[name]
    return field.gather(np.arange(field.rows)).numpy()


def test_series_and_their_times_are_those_of_pynwb(path):
    session = memload.open_nwb(path)
    assert session.name == "session 7"
    with pynwb.NWBHDF5IO(str(path), "r") as io:
        file = io.read()
        theirs = {
            "raw": file.acquisition["raw"],
            "lfp": file.acquisition["lfp"],
            "traces": file.processing["ophys"]["Fluorescence"]["traces"],
            "neuropil": file.processing["ophys"]["Neuropil"]["neuropil"],
            "eye": file.processing["behavior"]["Position"]["eye"],
        }
        for name, series in theirs.items():
            np.testing.assert_array_equal(whole(session, name), series.data[:])
            np.testing.assert_allclose(
                session.clocks[name].seconds(len(series.data)), series.get_timestamps(), rtol=0, atol=1e-9
            )
            assert session.clocks[name].unit == series.unit
            if name in session.casts:
                mine = session.casts[name].apply(session.fields[name].gather(np.arange(50)))
                np.testing.assert_allclose(mine, series.get_data_in_units()[:50], rtol=1e-6, atol=1e-9)
        assert set(session.casts) == {"raw", "lfp"}
        np.testing.assert_array_equal(session.intervals["trials"].start, file.trials["start_time"][:])
        np.testing.assert_array_equal(session.intervals["trials"].columns["angle"], file.trials["angle"][:])
        assert session.intervals["trials"].columns["kind"].tolist() == list(file.trials["kind"][:])
        assert session.fields["units"].names == (10, 11, 12)
        for k in range(3):
            np.testing.assert_allclose(session.fields["units"].of_unit(k), file.units["spike_times"][k], atol=1e-9)
    assert len(session.intervals["epochs"]) == 1


def test_an_index_series_gives_the_images_that_it_chooses(path):
    session = memload.open_nwb(path)
    np.testing.assert_array_equal(whole(session, "shown"), TEMPLATES[[3, 0, 6, 3, 2]])
    np.testing.assert_array_equal(whole(session, "again"), TEMPLATES[np.arange(20) % 7])


def test_what_cannot_be_read_is_told(path):
    session = memload.open_nwb(path)
    assert session.left_out == {
        "/acquisition/uneven": "its channels differ in channel_conversion, which no cast of memload applies",
        "/stimulus/presentation/video": "it has no rows (its frames are in other files)",
    }
    assert "left out: /stimulus/presentation/video" in str(session)
    assert "raw" in str(session)
    assert "scale=0.5, offset=-3" in str(session)
    with pytest.raises(memload.FormatError, match=r"series 'video': it has no rows"):
        memload.open_nwb(path, fields=["video"])
    with pytest.raises(KeyError, match=r"no series 'pupil'; there are \['lfp'"):
        memload.open_nwb(path, fields=["pupil"])


def test_slices_of_a_file_are_those_of_its_arrays(path):
    session = memload.open_nwb(path, fields=["raw", "traces", "eye", "units"])
    arguments = {
        "duration": 1.0,
        "hop": 0.25,
        "rates": {"raw": 8, "traces": 16, "eye": 25, "units": 20},
        "sampling": {"traces": "linear", "raw": "mean"},
        "within": "trials",
        "columns": ["angle", "kind"],
    }
    slices = pickle.loads(pickle.dumps(session.slices(**arguments)))
    arrays = memload.recording(
        {"raw": FRAMES, "traces": TRACES, "eye": whole(session, "eye"), "units": memload.Spikes(SPIKES, 0, 10)},
        clocks={"raw": (8, 0.25), "traces": np.arange(80) / 8 + 0.25, "eye": EYE_TIMES},
        intervals={"trials": session.intervals["trials"]},
    )
    expected = arrays.slices(**arguments)
    assert len(slices) == len(expected) > 4
    for mine, theirs in zip(slices, expected, strict=True):
        assert mine.pop("kind") == theirs.pop("kind")
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    loader = memload.FastLoader(slices, batch_size=4, cast={"raw": memload.Cast(torch.float32, scale=0.5, offset=-3.0)})
    assert loader.engine == "native"
    batch = next(iter(loader))
    assert torch.equal(batch["raw"][0], expected[0]["raw"] * 0.5 - 3.0)
    assert int(slices[0]["interval"]) == 0
    assert all(row["eye"].shape == (25, 2) for row in slices)  # none crosses the gap


def test_files_that_are_no_recordings_are_refused(path, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = [1, 2]
    with pytest.raises(memload.FormatError, match=r"no NWB file: it has no nwb_version; its groups are \['x'\]"):
        memload.open_nwb(tmp_path / "x.h5")
    with pytest.raises(FileNotFoundError):
        memload.open_nwb(tmp_path / "none.nwb")
    (tmp_path / "cut.nwb").write_bytes(path.read_bytes()[:5000])
    with pytest.raises(memload.FormatError, match="HDF5 cannot read it"):
        memload.open_nwb(tmp_path / "cut.nwb")


def damaged(path, tmp_path, change):
    copy = tmp_path / "damaged.nwb"
    copy.write_bytes(path.read_bytes())
    with h5py.File(copy, "r+") as file:
        change(file)
    return copy


def test_a_series_with_bad_times_is_told_and_the_others_are_read(path, tmp_path):
    def change(file):
        file["processing/behavior/Position/eye/timestamps"][5] = np.nan
        del file["acquisition/lfp/starting_time"]
        file["stimulus/presentation/shown/data"][1] = 99
        del file["units/spike_times"]

    copy = damaged(path, tmp_path, change)
    session = memload.open_nwb(copy)
    assert "nan is no time at position 5" in session.left_out["/processing/behavior/Position/eye"]
    assert "neither timestamps nor a starting_time" in session.left_out["/acquisition/lfp"]
    assert "row 1 is image 99, and there are 7" in session.left_out["/stimulus/presentation/shown"]
    assert "units without spikes" in session.left_out["/units"]
    assert set(session.fields) == {"raw", "traces", "neuropil", "again"}
    with pytest.raises(memload.FormatError, match="units without spikes"):
        memload.open_nwb(copy, fields=["units"])


def written(place, *units):
    """A file of units, each the arguments of add_unit."""
    file = pynwb.NWBFile("units", "u", datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc))
    for one in units:
        file.add_unit(**one)
    with pynwb.NWBHDF5IO(str(place), "w") as io:
        io.write(file)
    return memload.open_nwb(place)


def test_units_of_one_id_are_numbered_and_none_is_lost(tmp_path):
    spikes = [[0.1, 0.2, 0.3], [1.1, 1.2, 1.3], [2.1, 2.2, 2.3]]
    session = written(
        tmp_path / "x.nwb", *({"spike_times": one, "id": k} for one, k in zip(spikes, (0, 0, 1), strict=True))
    )
    assert session.fields["units"].names == (0, 1, 2)
    for unit, expected in enumerate(spikes):
        np.testing.assert_allclose(session.fields["units"].of_unit(unit), expected, atol=1e-9)
    assert session.left_out == {"/units/id": "1 of 3 units have the id of another: all are numbered instead"}


def test_gaps_in_what_was_observed_are_no_silence(tmp_path):
    observed = [[0.0, 2.0], [6.0, 8.0]]
    units = [{"spike_times": [0.5, k + 1.0, 3.0, 6.5], "obs_intervals": observed} for k in range(2)]
    session = written(tmp_path / "x.nwb", *units)
    assert not session.left_out
    rows = session.slices(1.0, rates={"units": 1}, at=[0.0, 3.0, 6.0], pad=True)
    assert [row["units_mask"].tolist() for row in rows] == [[True], [False], [True]]
    assert [row["units"].tolist() for row in rows] == [[[1, 1]], [[0, 0]], [[1, 1]]]
    assert [int(row["onset"]) for row in session.slices(1.0, rates={"units": 1}, at=[0.0, 1.5, 3.0, 6.0])] == [0, 3]
    assert "5 spikes of 2 units, 0.0 to 8.0 s, 1 gap; 3 outside of these times are left out" in str(session)


@pytest.mark.parametrize(
    ("other", "pieces", "told"),
    [
        ([[1.0, 4.0], [4.0, 7.0]], ([1, 6], [2, 7]), "spikes are read where all of them were (2 s)"),
        ([[3.0, 5.0]], ([0, 3, 6], [2, 5, 8]), "where one of them was, since they never were together"),
        ([[0.0, 2.0], [np.nan, 3.0], [6.0, 8.0]], ([0, 6], [2, 8]), ""),
    ],
)
def test_units_that_were_observed_at_different_times_are_read_where_all_were(tmp_path, other, pieces, told):
    units = [{"spike_times": [0.5, 1.5, 3.5, 6.5], "obs_intervals": one} for one in ([[0.0, 2.0], [6.0, 8.0]], other)]
    session = written(tmp_path / "x.nwb", *units)
    np.testing.assert_array_equal(np.stack(session.pieces("units")) / 1e9, pieces)
    assert told in session.left_out.get("/units/obs_intervals", "")
    assert bool(session.left_out) == bool(told)


def test_spike_times_that_are_no_numbers_are_left_out_and_told(tmp_path):
    session = written(tmp_path / "x.nwb", {"spike_times": [0.5, np.nan, 1.5]}, {"spike_times": [0.7]})
    assert "3 spikes of 2 units, 0.5 to 1.5 s; 1 that is NaN or infinite is left out" in str(session)
    assert session.slices(1.0, rates={"units": 1})[0]["units"].tolist() == [[1, 1]]
    nothing = written(tmp_path / "y.nwb", {"spike_times": [np.nan, np.nan]})
    with pytest.raises(memload.FormatError, match=r"y\.nwb, /units: none of the 2 spike_times is a number"):
        print(nothing)


def _cut_index(file):
    file["units/spike_times_index"][0] = 99


def _without_index(file):
    del file["units/spike_times_index"]


def _flat_intervals(file):
    del file["units/obs_intervals"]
    file["units/obs_intervals"] = np.zeros((3, 1))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_cut_index, "spike_times_index does not fit the 55 spike_times"),
        (_without_index, "no spike_times_index"),
        (_flat_intervals, "pairs of a start and a stop, got shape (3, 1)"),
    ],
)
def test_units_that_are_damaged_are_told_and_the_series_are_read(path, tmp_path, change, why):
    copy = damaged(path, tmp_path, change)
    session = memload.open_nwb(copy)
    assert why in session.left_out["/units"]
    assert "raw" in session.fields
    with pytest.raises(memload.FormatError, match=r"damaged\.nwb, units: "):
        memload.open_nwb(copy, fields=["units"])


def test_columns_of_tables_are_read_whatever_text_they_have_or_are_told(path, tmp_path):
    copy = tmp_path / "copy.nwb"
    copy.write_bytes(path.read_bytes())
    with h5py.File(copy, "r+") as file:
        table = file["intervals/trials"]
        table["kind2"] = np.array([b"a", b"b", b"a", b"b", b"c"])
        table["short"] = np.arange(4)
        table["electrode"] = np.array([table.ref] * 5, dtype=h5py.ref_dtype)
        table.attrs["colnames"] = ["start_time", "stop_time", "angle", "kind2", "short", "electrode"]
    session = memload.open_nwb(copy)
    assert list(session.intervals["trials"].columns) == ["angle", "kind2"]
    assert session.intervals["trials"].columns["kind2"].tolist() == ["a", "b", "a", "b", "c"]
    assert session.left_out["/intervals/trials/short"] == "its shape is (4,), and there are 5 intervals"


def test_intervals_without_a_time_are_left_out_and_told(path, tmp_path):
    copy = tmp_path / "copy.nwb"
    copy.write_bytes(path.read_bytes())
    with h5py.File(copy, "r+") as file:
        file["intervals/trials/stop_time"][1] = np.nan
        file["intervals/trials/stop_time"][3] = 6.0
    session = memload.open_nwb(copy)
    trials = session.intervals["trials"]
    np.testing.assert_array_equal(trials.start, [0, 4, 8])
    np.testing.assert_array_equal(trials.columns["angle"], [0, 90, 180])
    assert session.left_out["/intervals/trials/start and stop"] == (
        "2 of 5 intervals are left out: 1 without a time, 1 that do not end behind their beginning; the first is "
        "number 1, from 2.0 to nan"
    )
    with h5py.File(copy, "r+") as file:
        file["intervals/trials/stop_time"][:] = np.nan
    with pytest.raises(
        KeyError, match=r"'trials'; there are \['epochs'\]; left out: /intervals/trials: stop: nan is no"
    ):
        memload.open_nwb(copy).slices(1.0, within="trials")


def test_memload_open_names_what_opens_a_recording(path):
    with pytest.raises(ValueError, match=r"by key=, or open it as a recording by memload\.open_nwb:"):
        memload.open(path)
