"""docs/recordings.md and the pages of formats that laboratories have: their programs run, one after the other."""

import re

import pytest
import torch
from repository import DOCS


def run(page, count):
    """Run the programs of a page in this folder, and return their names."""
    programs = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.M | re.S)
    assert len(programs) == count
    names = {}
    for program in programs:
        exec(compile(program, page, "exec"), names)
    return names


def test_the_programs_of_recordings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("recordings.md", 10)
    assert names["loader"].engine == "native"
    assert names["responses"].shape == (16, 8, 100)
    assert set(names["there"].sum(1).tolist()) <= {70, 100}
    assert not names["squared"][~names["there"][:, None].expand_as(names["squared"])].any()
    assert len(names["around"]) == 2
    assert str(names["again"]) == str(names["session"])
    assert len(names["same"]) > 60 * 3
    assert not set(names["parts"]["train"].start) & set(names["parts"]["test"].start)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_programs_of_nwb_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("nwb.md", 2)
    batch = names["batch"]
    assert names["loader"].engine == "native"
    assert {name: value.shape[1:] for name, value in batch.items()} == {
        "movie": (30, 24, 32),
        "wheel": (50,),
        "units": (100, 30),
        "interval": (),
        "orientation": (),
    }
    assert abs(float(batch["wheel"].mean())) < 0.3  # 800 values whose standard deviation is 1


def test_the_programs_of_experanto_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("experanto.md", 2)
    assert names["loader"].engine == "native"
    assert len(names["slices"]) == 8 * 17
    shapes = {name: value.shape[1:] for name, value in names["batch"].items()}
    assert shapes["screen"] == (60, 36, 64)
    assert shapes["responses"] == (16, 50)


def test_the_programs_of_temporaldata_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("temporaldata.md", 2)
    shapes = {name: tuple(value.shape[1:]) for name, value in names["batch"].items()}
    assert shapes == {"spikes": (100, 20), "cursor.vel": (50, 2), "interval": (), "target": ()}
    assert len(names["slices"]) == 20 * 16


def test_the_programs_of_nifti_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("nifti.md", 7)
    assert len({run.fields["bold"].shape for run in names["masked"].values()}) > 1
    assert names["loader"].engine == "native"
    assert names["batch"]["bold"].shape == (4, 10, 12, 18, 16)
    assert abs(float(names["batch"]["bold"].mean()) - 1000) < 5
    assert list(names["runs"]) == ["sub-01_task-faces_bold", "sub-02_task-faces_bold"]


def test_the_programs_of_matlab_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("matlab.md", 4)
    assert names["batch"]["rates"].shape == (32, 50)
    assert names["slices"][0]["rates"].shape == (60, 50)
    assert names["rows"].shape == (200, 50)


def test_the_programs_of_video_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("video.md", 4)
    assert len(names["parts"][0]) == 7
    shapes = {name: tuple(value.shape) for name, value in names["batch"].items()}
    assert shapes == {"movie": (4, 30, 48, 80, 3), "responses": (4, 16, 100)}
    levels = names["batch"]["movie"][0].float().mean((1, 2, 3))
    assert (levels - 2 * torch.arange(30)).abs().max() < 12  # by a codec with losses


def test_the_programs_of_spikeglx_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("spikeglx.md", 2)
    assert names["loader"].engine == "native"
    assert names["batch"]["ap"].shape[1:] == (300, 384)
    assert float(names["batch"]["ap"].abs().max()) <= 0.6 / 500 * (1 + 1e-6)
