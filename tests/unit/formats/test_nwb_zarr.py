"""NWB in folders of Zarr, written by hdmf-zarr 0.13 (Zarr 2) and 0.14 (Zarr 3): what memload reads is what pynwb says.

tests/data/nwb-zarr/make.py wrote them: hdmf-zarr runs beside no version of zarr and Python that memload's tests share.
"""

import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest
import torch
import zarr3  # noqa: F401 - skips these tests where there is no zarr
from repository import ROOT

import memload

DATA = ROOT / "tests" / "data" / "nwb-zarr"


@pytest.fixture(params=["zarr2", "zarr3"])
def kind(request):
    return request.param


@pytest.fixture
def path(kind, tmp_path):
    place = tmp_path / "session.nwb.zarr"
    with zipfile.ZipFile(DATA / f"{kind}.zip") as archive:
        archive.extractall(place)
    return place


@pytest.fixture
def said(kind):
    with np.load(DATA / f"{kind}.npz") as values:
        return dict(values)


def rows_of(recording, name):
    field = recording.fields[name]
    return field.gather(np.arange(field.rows)).numpy()


def test_series_units_and_trials_are_those_of_pynwb(path, said, kind):
    session = memload.open_nwb(path)
    assert session.name == "session 7"
    for name in ("wheel", "linked", "movie", "shown_images"):
        np.testing.assert_array_equal(rows_of(session, name), said[name])
    for name in ("wheel", "linked"):
        np.testing.assert_allclose(session.clocks[name].seconds(1000), said["wheel_times"], atol=1e-9)
        assert (session.casts[name].scale, session.casts[name].offset) == (0.001, 2.0)
    assert (session.clocks["movie"].hertz, session.clocks["movie"].start) == (30.0, 0.5)
    assert session.clocks["wheel"].unit == "m/s"
    units = session.fields["units"]
    assert list(units.names) == said["units"].tolist()
    for unit in range(3):
        np.testing.assert_allclose(units.of_unit(unit), said[f"spikes_{unit}"], atol=1e-9)
    trials = session.intervals["trials"]
    for name in ("start", "stop"):
        np.testing.assert_allclose(getattr(trials, name), said[name])
    np.testing.assert_array_equal(trials.columns["angle"], said["angle"])
    assert trials.columns["label"].tolist() == said["label"].tolist()


def test_an_order_of_images_is_followed_where_it_is_no_pickle(path, said, kind):
    session = memload.open_nwb(path)
    if kind == "zarr3":
        np.testing.assert_array_equal(rows_of(session, "shown_ordered"), said["shown_ordered"])
        assert not session.left_out
    else:
        assert list(session.left_out) == ["/stimulus/presentation/shown_ordered"]
        assert "pickle" in session.left_out["/stimulus/presentation/shown_ordered"]


def test_slices_are_gathered_from_the_chunks(path, said):
    session = memload.open_recording(path).only("wheel", "movie", "units")
    slices = session.slices(0.5, hop=0.25, rates={"wheel": 100, "units": 20}, within="trials", columns=["label"])
    loader = memload.FastLoader(slices, batch_size=5, cast=session.casts)
    assert loader.engine == "native"
    first = next(iter(loader))
    start = round(float(session.intervals["trials"].start[int(first["interval"][0])]) * 100) + 50
    wanted = session.casts["wheel"].apply(torch.from_numpy(said["wheel"][start : start + 50]))
    assert torch.equal(first["wheel"][0], wanted)
    again = pickle.loads(pickle.dumps(slices))
    assert torch.equal(again[3]["movie"], slices[3]["movie"])
    assert again[3]["label"] == said["label"][again[3]["interval"]]


def test_a_folder_is_written_as_shards(path, tmp_path):
    session = memload.open_nwb(path, fields=["movie", "units"])
    memload.write(tmp_path / "shards", session, progress=False)
    again = memload.open_recording(tmp_path / "shards")
    np.testing.assert_array_equal(rows_of(again, "movie"), rows_of(session, "movie"))
    assert len(again.fields["units"]) == len(session.fields["units"])


def test_links_to_another_folder_are_followed_and_to_nothing_are_told(path, tmp_path, kind, said):
    file, key = {"zarr2": (".zattrs", "zarr_link"), "zarr3": ("zarr.json", "_LINKS")}[kind]
    shutil.copytree(path, path.parent / "other.nwb.zarr")
    place = path / "acquisition" / "linked" / file
    stated = json.loads(place.read_text())
    links = (stated if kind == "zarr2" else stated["attributes"])[key]
    for link in links:
        link["source"] = "../other.nwb.zarr"
    place.write_text(json.dumps(stated))
    np.testing.assert_array_equal(rows_of(memload.open_nwb(path), "linked"), said["linked"])
    shutil.rmtree(path.parent / "other.nwb.zarr")
    assert "where there is no folder of Zarr" in memload.open_nwb(path).left_out["/acquisition/linked"]
    links[0]["source"], links[0]["path"] = ".", "/acquisition/linked/data"
    place.write_text(json.dumps(stated))
    assert "which leads back to it" in memload.open_nwb(path).left_out["/acquisition/linked"]
    links[0]["path"] = "/acquisition/nothing"
    place.write_text(json.dumps(stated))
    assert "'data' is a link to /acquisition/nothing" in memload.open_nwb(path).left_out["/acquisition/linked"]


def test_folders_that_are_no_recordings_are_refused(path, tmp_path, kind):
    with pytest.raises(FileNotFoundError, match=r"absent\.zarr"):
        memload.open_nwb(tmp_path / "absent.zarr")
    (tmp_path / "plain").mkdir()
    with pytest.raises(memload.FormatError, match="a folder, but no NWB file: it has no nwb_version"):
        memload.open_nwb(tmp_path / "plain")
    with pytest.raises(KeyError, match=r"no series 'eye'; there are .*'wheel'"):
        memload.open_nwb(path, fields=["eye"])
    file = {"zarr2": ".zattrs", "zarr3": "zarr.json"}[kind]
    (path / file).write_text("[1]")
    with pytest.raises(memload.FormatError, match=r"it should be an object of JSON, and is list"):
        memload.open_nwb(path)
    (path / file).write_text("{")
    with pytest.raises(memload.FormatError, match=r"it should be JSON"):
        memload.open_nwb(path)
