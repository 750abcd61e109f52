"""The programs of examples/ learn what their synthetic sessions hold, and run on files."""

import datetime
import re
import runpy
import sys

import experanto_folders
import numpy as np
import pynwb
import pytest
from repository import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example with these arguments and returns the figure of each epoch."""

    def of(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return [float(found) for found in re.findall(r"^epoch \d+: \D*([\d.]+)", capsys.readouterr().out, re.MULTILINE)]

    return of


def test_every_example_is_run_here_and_short():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == ["movie_to_responses", "spike_decoder"]
    assert all(len(path.read_text().splitlines()) < 100 for path in EXAMPLES.glob("*.py"))


def test_a_model_of_responses_learns_from_the_movie(run):
    losses = run("movie_to_responses", "--epochs", 2)
    assert len(losses) == 2
    assert losses[-1] < losses[0]


def test_a_decoder_learns_from_spikes(run):
    assert run("spike_decoder", "--epochs", 5)[-1] >= 80


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_examples_read_nwb_files(run, tmp_path):
    rng = np.random.default_rng(0)
    file = pynwb.NWBFile("-", "-", datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc))
    frames, responses = rng.integers(0, 256, (1800, 16, 20), np.uint8), rng.random((480, 6))
    file.add_stimulus(pynwb.image.ImageSeries(name="film", data=frames, unit="-", format="raw", rate=30.0))
    file.add_acquisition(pynwb.TimeSeries(name="dff", data=responses, unit="-", rate=8.0))
    for _ in range(5):
        file.add_unit(spike_times=np.sort(rng.uniform(0, 60, 200)), obs_intervals=[[0.0, 60.0]])
    file.add_trial_column(name="side", description="-")
    for trial in range(15):
        file.add_trial(start_time=4.0 * trial, stop_time=4.0 * trial + 3.0, side=float(trial % 2))
    with pynwb.NWBHDF5IO(str(tmp_path / "session.nwb"), "w") as io:
        io.write(file)
    path = tmp_path / "session.nwb"
    assert len(run("movie_to_responses", path, "--movie", "film", "--responses", "dff", "--epochs", 1)) == 1
    assert len(run("spike_decoder", path, "--label", "side", "--epochs", 1)) == 1


def test_the_example_of_a_movie_reads_a_folder_of_experanto(run, tmp_path):
    rng = np.random.default_rng(0)
    shown = [(rng.integers(0, 256, (120, 16, 20), np.uint8), "train") for _ in range(10)]
    experanto_folders.screen(tmp_path / "screen", shown, np.arange(1200) / 30)
    experanto_folders.sequence(tmp_path / "responses", rng.random((320, 6)), 8.0)
    assert len(run("movie_to_responses", tmp_path, "--movie", "screen", "--epochs", 1)) == 1
