"""The programs of examples/ learn what their synthetic sessions hold, and run on files."""

import datetime
import re
import runpy
import sys
import wave

import experanto_folders
import h5py
import numpy as np
import pynwb
import pytest
import scipy.io
from repository import ROOT

import memload

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
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == [
        *("encoding_model", "movie_to_responses", "spectrogram_classifier", "spike_decoder")
    ]
    assert all(len(path.read_text().splitlines()) < 100 for path in EXAMPLES.glob("*.py"))


def test_a_model_of_responses_learns_from_the_movie(run):
    losses = run("movie_to_responses", "--epochs", 2)
    assert len(losses) == 2
    assert losses[-1] < losses[0]


def test_a_decoder_learns_from_spikes(run):
    assert run("spike_decoder", "--epochs", 5)[-1] >= 80


def test_an_encoding_model_learns_from_images(run):
    losses = run("encoding_model", "--epochs", 2)
    assert losses[-1] < losses[0]
    assert losses[-1] < 0.7 * (1 / 3 + 0.25)  # of the variance of the betas


def test_an_encoding_model_reads_files_of_the_natural_scenes_dataset(run, tmp_path):
    rng = np.random.default_rng(0)
    design = {
        "masterordering": rng.integers(1, 11, (1, 1500)),
        "subjectim": np.stack([rng.permutation(20)[:10] + 1] * 8),
    }
    scipy.io.savemat(tmp_path / "design.mat", design)
    with h5py.File(tmp_path / "stimuli.hdf5", "w") as file:
        file.create_dataset("imgBrick", data=rng.integers(0, 256, (20, 40, 40, 3), np.uint8), chunks=(1, 40, 40, 3))
    rows = np.arange(60)
    memload.write(tmp_path / "betas", {"betas": rng.random((60, 9)), "session": rows // 30 + 1, "trial": rows % 30})
    paths = (tmp_path / "betas", tmp_path / "stimuli.hdf5", tmp_path / "design.mat")
    assert len(run("encoding_model", *paths, "--subject", 3, "--epochs", 1)) == 1


def test_a_classifier_of_sounds_learns_from_spectrograms(run):
    assert run("spectrogram_classifier", "--epochs", 2)[-1] >= 80


def test_a_classifier_of_sounds_reads_a_wav_file(run, tmp_path):
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 4000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(0).integers(-999, 999, 80_000, np.int16).tobytes())
    lines = [f"{k},{k + 0.9},{'ab'[k % 2]}" for k in range(20)]
    (tmp_path / "sounds.csv").write_text("\n".join(["start,stop,label", *lines]))
    assert len(run("spectrogram_classifier", tmp_path / "sound.wav", tmp_path / "sounds.csv", "--epochs", 1)) == 1


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
