"""Folders of BIDS: which runs there are, what they inherit, and their events."""

import json
import shutil

import nibabel
import numpy as np
import pytest
import torch
from nifti_cases import bids, events, rows_of, saved

import memload
from memload.cli.main import main

VALUES = np.random.default_rng(0).integers(0, 100, (3, 4, 5, 20)).astype("i2")


def test_runs_are_those_of_nibabel_with_their_times_and_events(tmp_path):
    runs = memload.open_bids(bids(tmp_path / "ds"))
    assert list(runs) == [f"sub-{s}_task-{t}_bold" for s in ("01", "02") for t in ("nback", "rest")]
    run = runs["sub-02_task-rest_bold"]
    path = tmp_path / "ds/sub-02/func/sub-02_task-rest_bold.nii"
    np.testing.assert_array_equal(rows_of(run), np.asarray(nibabel.load(path).dataobj).T)
    assert run.span == (0, 40)
    table = run.intervals["events"]
    np.testing.assert_allclose(table.start, [0, 10])
    np.testing.assert_allclose(table.stop, [4, 10.000001])
    assert list(table.columns["trial_type"]) == ["go", "stop"]
    np.testing.assert_array_equal(table.columns["score"], [1, np.nan])
    np.testing.assert_array_equal(table.columns["duration"], [4, 0])
    around = run.slices(6.0, at=table.start)
    assert torch.equal(around[1]["bold"], torch.from_numpy(rows_of(run)[5:8]))
    assert len(memload.concat([one.slices(8.0) for one in runs.values()])) == 4 * 5


def test_runs_are_chosen_by_parts_of_their_names(tmp_path):
    root = bids(tmp_path / "ds", subjects=("01", "02", "10"))
    assert len(memload.open_bids(root, task="rest")) == 3
    assert list(memload.open_bids(root, subject=["01", 10], task="rest")) == [
        "sub-01_task-rest_bold",
        "sub-10_task-rest_bold",
    ]
    assert list(memload.open_bids(root, subject="sub-02", task="nback")) == ["sub-02_task-nback_bold"]
    assert list(memload.open_bids(root / "sub-01")) == ["sub-01_task-nback_bold", "sub-01_task-rest_bold"]
    assert memload.open_bids(root / "sub-01" / "func", task="rest")["sub-01_task-rest_bold"].span == (0, 40)
    with pytest.raises(KeyError, match="no run has the task 'rst'; there are nback, rest"):
        memload.open_bids(root, task="rst")
    with pytest.raises(KeyError, match="no run has the space 'MNI'; there are none with one"):
        memload.open_bids(root, space="MNI")
    with pytest.raises(KeyError, match="no run has the subject 7; there are 01, 02, 10"):
        memload.open_bids(root, subject=7)


def test_side_cars_are_inherited_and_what_is_nearer_wins(tmp_path):
    root = bids(tmp_path / "ds", tasks=("rest",))
    (root / "bold.json").write_text(json.dumps({"RepetitionTime": 9, "StartTime": 1.0}))
    (root / "task-nback_bold.json").write_text(json.dumps({"RepetitionTime": 7}))  # of another task
    (root / "sub-01/func/sub-01_task-rest_bold.json").write_text(json.dumps({"RepetitionTime": 2.5}))
    runs = memload.open_bids(root)
    assert runs["sub-02_task-rest_bold"].span == (1, 41)
    first = runs["sub-01_task-rest_bold"]
    assert first.span == (1, 51)
    assert first.left_out["pixdim[4]"] == "2 s; RepetitionTime is 2.5 s, which is taken"


def test_sessions_and_what_was_derived(tmp_path):
    raw = tmp_path / "ds"
    stem = raw / "sub-01/ses-pre/func/sub-01_ses-pre_task-rest_run-1"
    saved(stem.with_name(f"{stem.name}_bold.nii"), VALUES)
    events(raw / "sub-01/ses-pre/func/sub-01_ses-pre_task-rest_events.tsv", ("2", "4", "go", "1"))
    (raw / "task-rest_bold.json").write_text(json.dumps({"RepetitionTime": 2.0}))
    assert (
        len(memload.open_bids(raw, session="pre", run=1)["sub-01_ses-pre_task-rest_run-1_bold"].intervals["events"])
        == 1
    )
    derived = raw / "derivatives/fmriprep"
    stem = derived / "sub-01/ses-pre/func/sub-01_ses-pre_task-rest_run-1_space-MNI_desc-preproc"
    saved(stem.with_name(f"{stem.name}_bold.nii"), VALUES.astype("f4"), units=("mm", "unknown"), seconds=1)
    (run,) = memload.open_bids(derived, space="MNI", desc="preproc", raw=raw).values()
    assert run.span == (0, 40)
    assert len(run.intervals["events"]) == 1
    (run,) = memload.open_bids(derived).values()
    assert not run.intervals
    assert run.span == (0, 20)


def test_times_of_volumes_are_taken_as_they_are(tmp_path):
    root = bids(tmp_path / "ds", subjects=("01",), tasks=("rest",))
    times = (2.0 * np.arange(20) + 8.0 * (np.arange(20) > 9)).tolist()
    (root / "task-rest_bold.json").write_text(json.dumps({"VolumeTiming": times}))
    (run,) = memload.open_bids(root).values()
    assert len(run.pieces("bold")[0]) == 2
    for timing, message in ((times[:5], r"VolumeTiming has 5 times, and .* 20 volumes"), (times[::-1], "must rise")):
        (root / "task-rest_bold.json").write_text(json.dumps({"VolumeTiming": timing}))
        with pytest.raises(memload.FormatError, match=message):
            memload.open_bids(root)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("zero", "1", "go", "1")], r"line 2: its onset is 'zero'; expected seconds"),
        ([("n/a", "1", "go", "1")], r"line 2: its onset is 'n/a'; expected seconds"),
        ([("0", "1", "go", "1"), ("3", "-1", "go", "1")], r"line 3: its duration is -1 s"),
        ([("1_0", "1", "go", "1")], r"line 2: its onset is '1_0'; expected seconds"),
        ([("\u0661", "1", "go", "1")], r"line 2: its onset is '\u0661'; expected seconds"),
        ([("1", "infinity", "go", "1")], r"line 2: its duration is 'infinity'; expected seconds"),
        ([("1", "1", '"go', "1"), ("2", "1", "stop", "2")], r"line 2: .* begins with a double quote; expected one at"),
        ([("1", "1", '"go"!', "1")], r"line 2: .* begins with a double quote; expected one at its end"),
        ([("0", "1", "go")], r"line 2 has 3 cells, expected 4: onset, duration, trial_type, score"),
        (
            [("4000", "1", "go", "1")],
            r"1 of 1 events lie outside of the run, 0 to 40 s, such as line 2 at 4000 s; onsets",
        ),
    ],
)
def test_damaged_events_are_told(tmp_path, rows, message):
    root = bids(tmp_path / "ds", subjects=("01",), tasks=("rest",))
    path = events(root / "sub-01/func/sub-01_task-rest_events.tsv", *rows)
    with pytest.raises(memload.FormatError, match=f"{path}: {message}"):
        memload.open_bids(root)


def columns_of(root, text):
    (root / "sub-01/func/sub-01_task-rest_events.tsv").write_text(text)
    (run,) = memload.open_bids(root).values()
    return run.intervals["events"].columns


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("1_1", "1_2", "2_1"), ["1_1", "1_2", "2_1"]),
        (("0012", "7", "8"), ["0012", "7", "8"]),
        (("\u0661", "\u0662", "3"), ["\u0661", "\u0662", "3"]),
        (("infinity", "1", "2"), ["infinity", "1", "2"]),
        (("12345678901234567", "n/a", "1"), ["12345678901234567", "n/a", "1"]),
        (("9" * 5000, "1", "2"), ["9" * 5000, "1", "2"]),
        (("n/a", "n/a", ""), ["n/a", "n/a", ""]),
        (("1", "-2", "0"), [1, -2, 0]),
        (("1.5", "2", "-.5e1"), [1.5, 2.0, -5.0]),
        (('"a\tb"', '"say ""go"""', 'a"b'), ["a\tb", 'say "go"', 'a"b']),
    ],
)
def test_cells_are_numbers_only_where_they_are_written_as_such(tmp_path, cells, expected):
    root = bids(tmp_path / "ds", subjects=("01",), tasks=("rest",))
    rows = "".join(f"0{number}.50\t1\t{cell}\n" for number, cell in enumerate(cells, 1))
    found = columns_of(root, f"onset\tduration\tx\n{rows}")["x"]
    assert found.tolist() == expected
    assert found.dtype == (object if isinstance(expected[0], str) else np.array(expected).dtype)


def test_two_columns_of_one_name_are_told(tmp_path):
    root = bids(tmp_path / "ds", subjects=("01",), tasks=("rest",))
    with pytest.raises(memload.FormatError, match=r"several columns are named 'x'; .* 'x', 'x'\]"):
        columns_of(root, "onset\tduration\tx\tx\n1\t1\ta\tb\n")


def test_events_outside_of_the_run_are_left_out_and_told(tmp_path):
    root = bids(tmp_path / "ds", subjects=("01",), tasks=("rest",))
    path = root / "sub-01/func/sub-01_task-rest_events.tsv"
    events(
        path, ("-3", "4", "early", "1"), ("-3", "2", "before", "2"), ("39", "9", "late", "3"), ("40", "1", "after", "4")
    )
    (run,) = memload.open_bids(root).values()
    assert list(run.intervals["events"].columns["trial_type"]) == ["early", "late"]
    assert run.left_out[path.name] == ("2 of 4 events lie outside of the run, 0 to 40 s, such as line 3 at -3 s")
    assert len(run.slices(2.0, within="events", pad=True)) == 2 + 5
    path.write_text("onset,duration\n1,2\n")
    with pytest.raises(memload.FormatError, match=r"no column 'onset'; .* are its cells parted by tabs\?"):
        memload.open_bids(root)
    events(path)  # names alone
    assert len(memload.open_bids(root)["sub-01_task-rest_bold"].intervals["events"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"RepetitionTime": "two"}', r"task-rest_bold\.json: RepetitionTime is 'two'; expected a number of seconds"),
        ('{"RepetitionTime": 0}', "RepetitionTime is 0; expected"),
        ('{"RepetitionTime": 2', r"task-rest_bold\.json: no JSON: "),
        ("[2]", r"expected an object with names such as RepetitionTime, got list"),
    ],
)
def test_damaged_side_cars_are_told(tmp_path, text, message):
    root = bids(tmp_path / "ds", subjects=("01",), tasks=("rest",))
    (root / "task-rest_bold.json").write_text(text)
    with pytest.raises(memload.FormatError, match=message):
        memload.open_bids(root)


def test_a_missing_side_car_is_told_where_the_header_has_no_time(tmp_path):
    root = bids(tmp_path / "ds", subjects=("01",), tasks=("rest",))
    (root / "task-rest_bold.json").unlink()
    assert memload.open_bids(root)["sub-01_task-rest_bold"].span == (0, 40)  # by the header
    saved(root / "sub-01/func/sub-01_task-rest_bold.nii", VALUES, seconds=0)
    with pytest.raises(memload.FormatError, match=r"no side-car \*_bold\.json that applies; give .* tr=2\.0"):
        memload.open_bids(root)
    (root / "task-rest_bold.json").write_text("{}")
    with pytest.raises(memload.FormatError, match=r"task-rest_bold\.json: RepetitionTime is missing"):
        memload.open_bids(root)


def test_what_is_no_folder_of_runs_is_told(tmp_path):
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds/README").write_text("none")
    with pytest.raises(memload.FormatError, match=r"no runs of BIDS: expected sub-\*/.*_bold\.nii .*\['README'\]"):
        memload.open_bids(tmp_path / "ds")
    with pytest.raises(NotADirectoryError, match="open_nifti one run"):
        memload.open_bids(tmp_path / "ds/README")
    with pytest.raises(FileNotFoundError, match="similar names there: 'ds'"):
        memload.open_bids(tmp_path / "dds")
    root = bids(tmp_path / "packed", ending=".nii.gz")
    with pytest.raises(memload.FormatError, match=r"it has subjects, as BIDS has them: memload\.open_bids"):
        memload.open(root)
    with pytest.raises(memload.FormatError, match=r"4 of 4 runs are compressed by gzip, .* memload write .*packed DST"):
        memload.open_bids(root)
    in_place = root / "sub-01/func/sub-01_task-rest_bold.nii"
    saved(in_place, VALUES)
    assert len(memload.open_bids(root, subject="01", task="rest")) == 1  # the one beside it is compressed
    shutil.copy(in_place, in_place.with_name("._sub-01_task-rest_bold.nii"))
    assert len(memload.open_bids(root, subject="01", task="rest")) == 1


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_files_that_datalad_has_not_fetched_are_told(tmp_path, capsys, ending):
    root = bids(tmp_path / "ds", subjects=("01",), ending=ending)
    run = root / f"sub-01/func/sub-01_task-rest_bold{ending}"
    run.unlink()
    run.symlink_to(f"../../.git/annex/objects/Xx/Yy/MD5E-s1--0{ending}/MD5E-s1--0{ending}")
    message = rf"ds: 1 of 2 runs are not here, such as {run.name}, a link .* has not fetched: datalad get {run}"
    with pytest.raises(FileNotFoundError, match=message):
        memload.open_bids(root)
    with pytest.raises(FileNotFoundError, match=message):
        memload.write_nifti(tmp_path / "out", root)
    assert main(["write", str(root), str(tmp_path / "out")]) == 2
    assert f"datalad get {run}" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=rf"{run.name}: a link .* datalad get {run}"):
        memload.open_nifti(run)
    run.unlink()
    car = root / "task-nback_bold.json"
    car.unlink()
    car.symlink_to(".git/annex/objects/Xx/Yy/MD5E-s1--0.json/MD5E-s1--0.json")
    with pytest.raises(FileNotFoundError, match=rf"{car}: a link .* datalad get {car}"):
        memload.write_nifti(tmp_path / "out", root)
