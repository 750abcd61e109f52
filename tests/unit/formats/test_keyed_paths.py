"""Rows know where they come from: what their file's name says, its path, and their number in it."""

import os
import pickle
import subprocess
import sys
import warnings

import h5py
import numpy as np
import pytest
import torch
from waiting import MOST_SECONDS

import memload
from memload.writing.same_source import identity_of

PATTERN = "betas_session{session:d}.npy"
ROWS = {1: 4, 2: 3, 10: 5}
TRIALS = [(session, trial) for session, rows in ROWS.items() for trial in range(rows)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of three sessions, with values that say which session and trial they are."""
    monkeypatch.chdir(tmp_path)
    for session, rows in ROWS.items():
        np.save(
            f"betas_session{session:02}.npy",
            session * 100 + np.arange(rows, dtype=np.int16)[:, None] * np.ones(3, np.int16),
        )
    return tmp_path


def trials(ds):
    return [(int(row["session"]), int(row["trial"])) for row in (ds[k] for k in range(len(ds)))]


def assert_rows_are_theirs(ds, name="betas"):
    for k in range(len(ds)):
        assert int(ds[k][name].flatten()[0]) == int(ds[k]["session"]) * 100 + int(ds[k]["trial"])


def keyed(path=PATTERN, **options):
    return memload.open(path, **{"field": "betas", "row_field": "trial", **options})


def test_a_pattern_with_a_name_in_braces_gives_each_row_its_session_and_trial(folder):
    ds = keyed()
    assert list(ds.fields) == ["betas", "session", "trial"]
    assert ds.fields["session"].dtype == ds.fields["trial"].dtype == torch.int64
    assert trials(ds) == TRIALS
    assert_rows_are_theirs(ds)
    loader = memload.FastLoader(ds, 5, shuffle=True)
    for batch in loader:
        assert torch.equal(batch["betas"][:, 0].long(), batch["session"] * 100 + batch["trial"])
    assert loader.engine == "native"


def test_keys_stay_with_their_rows_wherever_these_go(folder):
    ds = keyed(file_field="file")
    first, second = ds.split(0.5, seed=1)
    written = memload.write("set", ds.select(range(11, -1, -1)), scale={"betas": 1.0}, shard_bytes=64)
    beside = memload.zip(trials=ds, more=memload.from_arrays(more=torch.arange(len(ds))))
    for one in (
        ds.select([11, 0, 5, 5]),
        first.concat(second),
        pickle.loads(pickle.dumps(ds.select([3, 9]))),
        beside,
        memload.open("set"),
        ds.with_tier("ram"),
        keyed(tier="ram"),
        keyed(max_open_files=1, tier="direct"),
        ds.rename({"betas": "values"}).rename({"values": "betas"}),
    ):
        assert_rows_are_theirs(one)
    assert written[0]["file"] == "betas_session10.npy"
    assert set(ds.fields) == {"betas", "session", "trial", "file"}
    assert pickle.loads(pickle.dumps(ds))[4]["file"] == "betas_session02.npy"


def test_windows_of_keyed_files_end_with_them_and_say_which_frame_they_are_of(folder):
    lagged = keyed().with_lags(betas=range(2))
    assert trials(lagged) == [(session, trial) for session, trial in TRIALS if trial]
    for k in range(len(lagged)):
        row = lagged[k]
        assert row["betas"][:, 0].tolist() == [100 * row["session"] + row["trial"] - lag for lag in range(2)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("sub-{subject}/ses-{session:d}_bold.npy", [{"subject": "a1", "session": 2}, {"subject": "b10", "session": 3}]),
        ("*/ses-{session:d}_*.npy", [{"session": 2}, {"session": 3}]),
        ("**/ses-{session:d}_bold.npy", [{"session": 2}, {"session": 3}]),
        ("sub-[ab]*{number:d}/*", [{"number": 1}, {"number": 10}]),
        ("sub-?{number:d}/ses-0?_bold.npy", [{"number": 1}, {"number": 10}]),
        ("sub-[!b]{number:d}/ses-{session:d}_bold.npy", [{"number": 1, "session": 2}]),
        (
            "{kind}-{subject}/ses-{n:d}_bold.npy",
            [{"kind": "sub", "subject": "a1", "n": 2}, {"kind": "sub", "subject": "b10", "n": 3}],
        ),
        ("same{k:d}/{k:d}.npy", [{"k": 7}]),
    ],
)
def test_patterns_with_keys_are_patterns_in_all_else(tmp_path, monkeypatch, pattern, expected):
    monkeypatch.chdir(tmp_path)
    for path in ("sub-a1/ses-02_bold.npy", "sub-b10/ses-03_bold.npy", "same7/7.npy", "same7/8.npy"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        np.save(path, np.zeros((2, 1)))
    for one in (pattern, os.fspath(tmp_path / pattern), tmp_path / pattern, [pattern], iter([pattern])):
        ds = memload.open(one)
        names = list(expected[0])
        found = [{name: ds[k][name] for name in names} for k in range(0, len(ds), 2)]
        assert [{name: v if isinstance(v, str) else int(v) for name, v in row.items()} for row in found] == expected


def test_what_is_no_number_does_not_match_a_number(folder):
    np.save("betas_session_mean.npy", np.zeros((1, 3), np.int16))
    assert trials(keyed()) == TRIALS
    with pytest.raises(FileNotFoundError, match="no path matches this pattern"):
        keyed("betas_mean{session:d}.npy")


@pytest.mark.parametrize(
    ("pattern", "options", "error", "message"),
    [
        ("{a}_{b}_mean.npy", {}, ValueError, r"matches '\{a\}_\{b\}_mean\.npy' in two ways, as .* and as"),
        ("betas_session{1,2,10}.npy", {}, ValueError, r"expected the name of a key in braces, .*got \{1,2,10\}"),
        ("betas_session{session:int}.npy", {}, ValueError, r"\{session:d\} for a number, got \{session:int\}"),
        ("{session}_session{session:d}.npy", {}, ValueError, "'session' is both a text and a number"),
        ("betas_session{betas:d}.npy", {}, ValueError, "two fields would have the name 'betas'; give the key"),
        (PATTERN, {"row_field": "session"}, ValueError, "two fields would have the name 'session'"),
        (PATTERN, {"row_field": "betas"}, ValueError, "two fields would have the name 'betas'"),
        (PATTERN, {"file_field": "trial"}, ValueError, "two fields would have the name 'trial'"),
        (PATTERN, {"file_field": ""}, ValueError, "not a name for a field: ''"),
        ("long{n:d}.npy", {}, ValueError, r"which 64 bits do not hold; make it a text, as \{n\}"),
        ([PATTERN, "betas_session01.npy"], {}, ValueError, "dataset 3 has the fields"),
    ],
)
def test_keys_that_cannot_be_had_are_refused(folder, pattern, options, error, message):
    np.save("x_y_z_mean.npy", np.zeros((1, 3), np.int16))
    np.save(f"long{'9' * 19}.npy", np.zeros((1, 3), np.int16))
    with pytest.raises(error, match=message):
        keyed(pattern, **options)


def test_a_path_with_braces_that_is_there_is_no_pattern(folder):
    (folder / "betas_session01.npy").rename("betas{session:d}.npy")
    ds = keyed("betas{session:d}.npy")
    assert list(ds.fields) == ["betas", "trial"]
    assert len(ds) == 4


def test_files_of_bare_rows_and_sets_of_shards_have_keys_too(folder):
    for session in ROWS:
        np.load(f"betas_session{session:02}.npy").tofile(f"raw{session}.dat")
        memload.write(f"set{session}", {"betas": np.load(f"betas_session{session:02}.npy")})
    raw = keyed("raw{session:d}.dat", dtype="int16", shape=3)
    sets = memload.open("set{session:d}", row_field="trial")
    for ds in (raw, sets):
        assert trials(ds) == TRIALS
        assert_rows_are_theirs(ds)


def test_a_conversion_with_keys_is_taken_up_by_another_process(folder):
    program = f"""
import memload
from memload.writing.same_source import identity_of
print(identity_of(memload.open({PATTERN!r}, field="betas", row_field="trial", file_field="file")))
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=MOST_SECONDS
    )
    own = identity_of(keyed(file_field="file"))
    assert own == told.stdout.strip()
    assert len(own) == 16
    assert own != identity_of(keyed("betas_session{session}.npy", file_field="file"))
    np.save("many1.npy", np.zeros(200_000, np.int8))
    assert identity_of(keyed("many{session:d}.npy")) is not None


def test_the_advice_to_convert_keeps_the_keys(folder):
    for session in ROWS:
        with h5py.File(f"betas{session}.h5", "w") as file:
            file.create_dataset("betas", data=np.ones((600, 400), np.int16), chunks=(600, 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        memload.open("betas{session:d}.h5", key="betas", row_field="trial")
    assert "memload write --key betas --row-field trial 'betas{session:d}.h5' betas1-shards" in str(caught[0].message)
