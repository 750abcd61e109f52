"""Folders of experanto: what memload reads is what the arrays of their files say."""

import json
import shutil

import experanto_folders as folders
import numpy as np
import pytest
import torch

import memload

RNG = np.random.default_rng(0)
VIDEOS = [RNG.integers(0, 256, (60, 6, 8), np.uint8) for _ in range(3)]
IMAGE = RNG.integers(0, 256, (6, 8), np.uint8)
SHOWN = [(VIDEOS[0], "train"), (IMAGE, "train"), (128.0, "train"), (VIDEOS[1], "test"), (VIDEOS[2], "train")]
FRAMES = np.concatenate([VIDEOS[0], IMAGE[None], np.full((1, 6, 8), 128, np.uint8), VIDEOS[1], VIDEOS[2]])
# Images stay for half a second.
TIMES = 0.5 + np.cumsum(np.concatenate([np.full(60, 1 / 30), [0.5, 0.5], np.full(120, 1 / 30)])) - 1 / 30
RESPONSES = RNG.random((80, 5))
EYE = RNG.random((1000, 2), np.float32)
SPIKES = [np.sort(RNG.uniform(0, 9, count)) for count in (30, 0, 9)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    root = tmp_path_factory.mktemp("experanto") / "mouse7"
    folders.screen(root / "screen", SHOWN, TIMES)
    folders.sequence(root / "responses", RESPONSES, 8.0, 0.25, shifts=np.array([0, 0.01, 0.02, 0.03, 0.1]))
    folders.sequence(root / "eye_tracker", EYE, 100.0, mapped=True)
    folders.spikes(root / "units", SPIKES, 9.5)
    folders.intervals(root / "parts", train=[[0, 4], [5, 7]], test=[[4, 5]])
    return root


def whole(recording, name):
    return recording.fields[name].gather(np.arange(recording.fields[name].rows)).numpy()


def test_fields_are_those_of_the_files(path):
    session = memload.open_experanto(path)
    assert session.name == "mouse7"
    assert list(session.fields) == ["eye_tracker", "responses", "screen", "units"]
    np.testing.assert_array_equal(whole(session, "responses"), RESPONSES)
    np.testing.assert_array_equal(whole(session, "eye_tracker"), EYE)
    np.testing.assert_array_equal(whole(session, "screen"), FRAMES)
    assert session.clocks["responses"].seconds(3).tolist() == [0.25, 0.375, 0.5]
    np.testing.assert_allclose(session.clocks["screen"].seconds(182), TIMES, atol=1e-9)
    np.testing.assert_allclose(session.fields["units"].of_unit(2), SPIKES[2], atol=1e-9)
    assert len(session.intervals["train"]) == 2
    trials = session.intervals["trials"]
    assert trials.columns["tier"].tolist() == ["train", "train", "train", "test", "train"]
    assert set(trials.columns) == {"modality", "first_frame_idx", "tier", "condition"}
    np.testing.assert_allclose(trials.start, TIMES[[0, 60, 61, 62, 122]])
    np.testing.assert_allclose(trials.stop[:-1], trials.start[1:])
    assert "by 0 to 0.1 s are not applied" in session.left_out["responses/meta/phase_shifts.npy"]


def test_samples_are_those_of_experanto(path):
    """By its nearest_neighbor, whose index is the floor of the time since the start in periods."""
    session = memload.open_experanto(path)
    starts = RNG.uniform(0.5, 6, 40)
    slices = session.slices(
        1.0,
        at=starts,
        rates={"screen": 30, "responses": 8, "eye_tracker": 50, "units": 10},
        sampling="previous",
    )
    assert len(slices) == 40
    for start, row in zip(starts, slices, strict=True):
        times = {rate: start + np.arange(rate) / rate + 1e-6 for rate in (30, 8, 50)}
        shown = np.searchsorted(TIMES, times[30], side="right") - 1
        np.testing.assert_array_equal(row["screen"], FRAMES[shown])
        np.testing.assert_array_equal(row["responses"], RESPONSES[np.floor((times[8] - 0.25) * 8).astype(int)])
        np.testing.assert_array_equal(row["eye_tracker"], EYE[np.floor(times[50] * 100).astype(int)])


def test_entries_in_single_files_give_the_same(path, tmp_path):
    folders.screen(tmp_path / "screen", SHOWN, TIMES, combined=False)
    session = memload.open_recording(tmp_path)
    np.testing.assert_array_equal(whole(session, "screen"), FRAMES)
    assert session.intervals["trials"].columns["condition"].tolist() == [0, 1, 2, 0, 1]
    assert memload.open_experanto(path, fields=["units"]).fields.keys() == {"units"}


def test_trials_of_a_tier_are_a_split_and_are_written(path, tmp_path):
    session = memload.open_experanto(path)
    trials = session.intervals["trials"]
    train = session.only("screen", "responses").slices(
        0.5, rates={"screen": 30, "responses": 8}, within=trials.select(trials.columns["tier"] == "train")
    )
    written = memload.write(tmp_path / "shards", session, progress=False)
    again = written.only("screen", "responses").slices(
        0.5,
        rates={"screen": 30, "responses": 8},
        within=trials.select(trials.columns["tier"] == "train"),
    )
    assert len(train) == len(again) > 6
    assert all(torch.equal(a[name], b[name]) for a, b in zip(train, again, strict=True) for name in a)


def changed(root, **entries):
    meta = folders.yaml.safe_load((root / "meta.yml").read_text())
    folders.write_yaml(root / "meta.yml", {**meta, **entries})


def without(root, name):
    meta = folders.yaml.safe_load((root / "meta.yml").read_text())
    del meta[name]
    folders.write_yaml(root / "meta.yml", meta)


def saved(root, name, array):
    np.save(root / f"{name}.npy", array)


def encoded(root):
    entries = json.loads((root / "combined_meta.json").read_text())
    entries["00000"] |= {"encoded": True, "file_format": ".mp4"}
    (root / "combined_meta.json").write_text(json.dumps(entries))


def blank(value):
    """Give the blanks of a screen this value."""

    def damage(root):
        path = root / "combined_meta.json"
        entries = json.loads(path.read_text())
        for entry in entries.values():
            if "interleave_value" in entry:
                entry["interleave_value"] = value
        path.write_text(json.dumps(entries))

    return damage


@pytest.mark.parametrize(
    ("folder", "damage", "message"),
    [
        ("responses", lambda root: changed(root, modality="smell"), "its modality is 'smell'; known are sequence"),
        ("responses", lambda root: without(root, "sampling_rate"), r"meta\.yml has no 'sampling_rate'"),
        ("responses", lambda root: changed(root, n_timestamps=9), r"have 80 rows, and meta\.yml says 9"),
        ("responses", lambda root: (root / "data.npy").unlink(), r"there is no data\.npy"),
        ("eye_tracker", lambda root: changed(root, n_signals=-3), r"meta\.yml says that it has -3 signals"),
        ("eye_tracker", lambda root: changed(root, n_signals=3), r"data\.mem"),
        (
            "screen",
            lambda root: saved(root, "timestamps", TIMES[:-1]),
            "5 files have 182 frames, and 181 timestamps are there",
        ),
        ("screen", lambda root: saved(root, "timestamps", TIMES[::-1]), "timestamps must rise"),
        ("screen", lambda root: saved(root, "data/00003", VIDEOS[1][:9]), "has 9 frames, expected 60"),
        ("screen", lambda root: saved(root, "data/00003", VIDEOS[1] * 1.0), "frames differ: data/00000 has uint8"),
        ("screen", encoded, r"its frames are encoded \(data/00000\.mp4\)"),
        ("units", lambda root: changed(root, spike_indices=[0, 5]), r"spike_indices go to 5, and spikes\.npy has 39"),
        ("units", lambda root: changed(root, spike_indices=[]), r"spike_indices has the shape \(0,\); expected 0 and"),
        ("screen", blank(300), "a blank of 300, and its frames are uint8: 0 to 255"),
        ("screen", blank(-1), "a blank of -1, and its frames are uint8: 0 to 255"),
        ("screen", blank(float("inf")), "a blank of inf, and its frames are uint8: 0 to 255"),
        ("parts", lambda root: saved(root, "train", np.arange(4)), r"train\.npy has the shape \(4,\)"),
    ],
)
def test_what_does_not_fit_is_told(path, tmp_path, folder, damage, message):
    copy = shutil.copytree(path, tmp_path / "copy")
    damage(copy / folder)
    session = memload.open_experanto(copy)
    assert folder not in session.fields
    with pytest.raises(memload.FormatError, match=message):
        raise memload.FormatError(session.left_out[folder])
    if folder != "parts":
        with pytest.raises(memload.FormatError, match=message):
            memload.open_experanto(copy, fields=[folder])


def test_other_folders_are_refused(tmp_path, path):
    (tmp_path / "data").mkdir()
    with pytest.raises(memload.FormatError, match=r"none of its folders has a meta\.yml; there are \['data'\]"):
        memload.open_experanto(tmp_path)
    with pytest.raises(FileNotFoundError):
        memload.open_experanto(tmp_path / "none")
    with pytest.raises(KeyError, match=r"no folder 'treadmill'; there are \['eye_tracker', 'parts'"):
        memload.open_experanto(path, fields=["treadmill"])
    (tmp_path / "data" / "meta.yml").write_text("a: [")
    with pytest.raises(memload.FormatError, match="no YAML"):
        memload.open_experanto(tmp_path)
