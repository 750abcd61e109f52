"""Runs of NIfTI files are decoded once: equal to nibabel's values, in parallel, resumable."""

import os
import signal

import nibabel
import numpy as np
import pytest
import torch
from children import in_fork
from nifti_cases import bids, events, rows_of, saved

import memload
from memload.cli.main import main
from memload.formats.recordings.kinds import reader_of
from memload.writing import nifti as writing

RNG = np.random.default_rng(0)
MASK = RNG.random((4, 5, 6)) > 0.6


def masked(path, values=MASK, **options):
    return saved(path, values.astype(options.pop("kind", np.uint8)), **options)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_what_is_written_is_what_nibabel_reads(tmp_path, ending, order):
    path = saved(tmp_path / f"run{ending}", RNG.normal(9, 2, (4, 5, 6, 20)), dtype="i2", order=order)
    theirs = nibabel.load(path).get_fdata()
    (run,) = memload.write_nifti(tmp_path / "stored", path).values()
    assert run.fields["volumes"].kind == "int16"
    mine = run.casts["volumes"].apply(torch.from_numpy(rows_of(run, "volumes")))
    np.testing.assert_allclose(mine, theirs.T, rtol=1e-5)
    assert run.span == (0, 40)
    mask = masked(tmp_path / "mask.nii.gz")
    (run,) = memload.write_nifti(tmp_path / "meant", path, mask=mask, cast="float32", codec="zstd").values()
    assert not run.casts
    np.testing.assert_allclose(rows_of(run, "volumes"), theirs[MASK].T, rtol=1e-5)
    assert memload.open(tmp_path / "meant" / "volumes")[3]["volumes"].shape == (MASK.sum(),)


@pytest.mark.parametrize("dtype", ["u1", "i4", "f8"])
def test_masked_voxels_of_each_width_are_in_the_order_of_nibabel(tmp_path, dtype):
    path = saved(tmp_path / "run.nii.gz", RNG.integers(0, 99, (4, 5, 6, 7)).astype(dtype))
    (run,) = memload.write_nifti(tmp_path / "out", path, mask=masked(tmp_path / "mask.nii")).values()
    np.testing.assert_array_equal(rows_of(run, "volumes"), np.asarray(nibabel.load(path).dataobj)[MASK].T)


def test_a_folder_of_bids_becomes_a_folder_of_recordings(tmp_path):
    root = bids(tmp_path / "ds", ending=".nii.gz")
    runs = memload.write_nifti(tmp_path / "runs", root, threads=2)
    again = memload.open_bids(tmp_path / "runs")
    assert list(runs) == list(again) == sorted(runs)
    assert [str(one) for one in runs.values()] == [str(one) for one in again.values()]
    assert list(memload.open_bids(tmp_path / "runs", subject=2, task="nback")) == ["sub-02_task-nback_bold"]
    np.testing.assert_array_equal(again["sub-01_task-rest_bold"].intervals["events"].start, [0, 10])
    joined = memload.open(tmp_path / "runs" / "*" / "bold")
    assert len(joined) == 4 * 20


def test_a_call_keeps_what_an_earlier_one_completed(tmp_path, capfd):
    root = bids(tmp_path / "ds", ending=".nii.gz")
    broken = root / "sub-02/func/sub-02_task-rest_bold.nii.gz"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-20])
    with pytest.raises(memload.FormatError, match=f"{broken}: cut short, as by a copy"):
        memload.write_nifti(tmp_path / "runs", root, threads=1)
    assert len(memload.open_bids(tmp_path / "runs")) == 3
    broken.write_bytes(whole)
    capfd.readouterr()
    assert len(memload.write_nifti(tmp_path / "runs", root)) == 4
    assert capfd.readouterr().err.count("complete already") == 3
    events(root / "sub-01/func/sub-01_task-rest_events.tsv", ("2", "1", "go", "1"))
    with pytest.raises(FileExistsError, match=r"runs/sub-01_task-rest_bold: exists already"):
        memload.write_nifti(tmp_path / "runs", root)  # its events are others
    with pytest.raises(FileExistsError, match="exists already"):
        memload.write_nifti(tmp_path / "runs", root, cast="float32")


def test_a_killed_call_goes_on_behind_its_complete_shards(tmp_path, capfd):
    path = saved(tmp_path / "run.nii.gz", RNG.integers(0, 99, (4, 5, 6, 200)).astype("i2"))
    options = {"shard_bytes": 24_000, "progress": False}

    def killed():
        decoded, made = writing.Volumes._decoded, []

        def counted(self, start, count):
            for block in decoded(self, start, 5):
                if len(made) == 25:
                    os.kill(os.getpid(), signal.SIGKILL)
                made.append(block)
                yield block

        writing.Volumes._decoded = counted
        memload.write_nifti(tmp_path / "out", path, **options)

    assert in_fork(killed) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    capfd.readouterr()
    (run,) = memload.write_nifti(tmp_path / "out", path, shard_bytes=24_000).values()
    assert "resumed where it was interrupted, at row 1" in capfd.readouterr().err
    np.testing.assert_array_equal(rows_of(run, "volumes"), np.asarray(nibabel.load(path).dataobj).T)
    assert memload.verify(tmp_path / "out") > 0


def test_masks_that_do_not_fit_are_told(tmp_path):
    path = saved(tmp_path / "run.nii", RNG.integers(0, 99, (4, 5, 6, 7)).astype("i2"))

    def refused(mask, kind, message):
        with pytest.raises(kind, match=message):
            memload.write_nifti(tmp_path / "out", path, mask=mask)
        assert not (tmp_path / "out").exists()

    other = masked(tmp_path / "a.nii", MASK[1:])
    refused(
        other, ValueError, r"run\.nii: its volumes are \(4, 5, 6\), and the mask .*a\.nii is \(3, 5, 6\) \(x, y, z\)"
    )
    elsewhere = masked(tmp_path / "b.nii", affine=np.diag([3.0, 2.0, 2.0, 1.0]))
    refused(elsewhere, ValueError, r"lie elsewhere than those of the mask .*: sform is 2 0 0 0 / 0 2 0 0")
    refused(
        masked(tmp_path / "c.nii", 3 * MASK), ValueError, r"c\.nii: the mask has values other than 0 and 1, such as 3"
    )
    refused(masked(tmp_path / "d.nii", 0 * MASK), ValueError, r"d\.nii: the mask keeps none of its 120 elements")
    refused(path, memload.FormatError, "a mask is one volume")
    refused(tmp_path / "none.nii", FileNotFoundError, "there is nothing at this path")
    np.save(tmp_path / "mask.npy", MASK)
    refused(tmp_path / "mask.npy", memload.FormatError, "which says where its voxels lie")
    floats = saved(tmp_path / "e.nii", MASK.astype("f8"), dtype="i2")  # with a scale
    (run,) = memload.write_nifti(tmp_path / "out", path, mask=floats).values()
    assert run.fields["volumes"].shape == (MASK.sum(),)


def fmriprep(root):
    """Runs of two sessions and two spaces, as fMRIPrep writes them, with the mask of each beside it; these by run."""
    masks = {}
    for session, space in (("a", "T1w"), ("a", "MNI"), ("b", "T1w")):
        stem = f"sub-01_ses-{session}_task-rest_run-1_space-{space}"
        folder = root / "sub-01" / f"ses-{session}" / "func"
        saved(folder / f"{stem}_desc-preproc_bold.nii.gz", RNG.integers(0, 99, (4, 5, 6, 7)).astype("i2"))
        masks[f"{stem}_desc-preproc_bold"] = one = RNG.random((4, 5, 6)) > 0.5
        masked(folder / f"{stem}_desc-brain_mask.nii.gz", one)
    return masks


def test_each_run_of_fmriprep_has_the_mask_beside_it(tmp_path):
    root = tmp_path / "fmriprep"
    masks = fmriprep(root)
    runs = memload.write_nifti(tmp_path / "runs", root, mask="*_desc-brain_mask.nii.gz")
    assert runs.keys() == masks.keys()
    for name, run in runs.items():
        (path,) = root.glob(f"sub-01/*/func/{name}.nii.gz")
        np.testing.assert_array_equal(rows_of(run), np.asarray(nibabel.load(path).dataobj)[masks[name]].T)
    by_folder = str(root / "sub-*" / "**" / "*_desc-brain_mask.nii.gz")
    again = memload.write_nifti(tmp_path / "runs", root, mask=by_folder)  # of the same masks: complete already
    assert [str(one) for one in again.values()] == [str(one) for one in runs.values()]


def test_a_mask_of_few_entities_is_that_of_all_runs_that_have_them(tmp_path):
    root = bids(tmp_path / "ds")
    masked(root / "sub-01" / "sub-01_label-GM_mask.nii")
    own = masked(root / "sub-01" / "func" / "sub-01_task-nback_label-GM_mask.nii", ~MASK)
    masked(root / "sub-02" / "func" / "sub-02_desc-x_mask.nii.gz", ~MASK)
    runs = memload.write_nifti(tmp_path / "runs", root, mask="*_mask.nii*")
    assert {name: one.fields["bold"].shape[0] for name, one in runs.items()} == {
        "sub-01_task-nback_bold": (~MASK).sum(),  # its own goes before that of the subject
        "sub-01_task-rest_bold": MASK.sum(),
        "sub-02_task-nback_bold": (~MASK).sum(),
        "sub-02_task-rest_bold": (~MASK).sum(),
    }
    own.with_name("sub-01_task-nback_label-WM_mask.nii").write_bytes(own.read_bytes())
    with pytest.raises(ValueError, match=r"several masks that match '\*_mask.nii\*' are its masks: .*GM.*WM"):
        memload.write_nifti(tmp_path / "more", root, mask="*_mask.nii*")


@pytest.mark.parametrize("folder", [".", "{}"])
def test_a_run_that_matches_the_pattern_is_not_its_own_mask(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "sub-01_task-rest_bold.nii", RNG.integers(0, 99, (4, 5, 6, 7)).astype("i2"))
    masked(tmp_path / "sub-01_task-rest_desc-brain_mask.nii")
    run = f"{folder.format(tmp_path)}/sub-01_task-rest_bold.nii"
    for number, pattern in enumerate(["*.nii", "./*.nii", f"{tmp_path}/*.nii"]):
        written = memload.write_nifti(tmp_path / f"run{number}", run, mask=pattern, tr=1.0)
        assert written["sub-01_task-rest_bold"].fields["bold"].shape == (MASK.sum(),)


def test_masks_are_named_for_each_run(tmp_path, capsys):
    root = bids(tmp_path / "ds", subjects=("01",))
    files = {
        "sub-01_task-rest_bold": masked(tmp_path / "a.nii"),
        "sub-01_task-nback_bold": masked(tmp_path / "b.nii", ~MASK),
    }
    runs = memload.write_nifti(tmp_path / "runs", root, mask=files)
    assert {name: one.fields["bold"].shape[0] for name, one in runs.items()} == {
        "sub-01_task-rest_bold": MASK.sum(),
        "sub-01_task-nback_bold": (~MASK).sum(),
    }
    with pytest.raises(KeyError, match=r"mask: no run 'rest'; there are sub-01_task-nback_bold, sub-01_task-rest_bold"):
        memload.write_nifti(tmp_path / "more", root, mask={"rest": tmp_path / "a.nii"})
    files.pop("sub-01_task-rest_bold")
    with pytest.raises(ValueError, match="mask: no file for 1 of 2 runs, such as sub-01_task-rest_bold"):
        memload.write_nifti(tmp_path / "more", root, mask=files)
    given = [f"--mask={name}={file}" for name, file in files.items()]
    one = str(root / "sub-01/func/*nback_bold.nii")
    assert main(["write", one, str(tmp_path / "one"), *given, "--quiet"]) == 0
    assert main(["write", one, str(tmp_path / "two"), "--mask", "x.nii", "--mask", "y.nii"]) == 2
    assert "--mask is one file for all runs, a pattern in quotes" in capsys.readouterr().err


def test_a_run_without_a_mask_is_told_with_the_masks_that_there_are(tmp_path):
    root = tmp_path / "fmriprep"
    fmriprep(root)
    place = root / "sub-01/ses-b/func"
    one = place / "sub-01_ses-b_task-rest_run-1_space-T1w_desc-brain_mask.nii.gz"
    one.rename(place / "sub-01_ses-b_task-rest_run-2_space-T1w_desc-brain_mask.nii.gz")
    with pytest.raises(
        ValueError, match=r"ses-b_task-rest_run-1_.*: no mask that matches .* those that match are .*run-2"
    ):
        memload.write_nifti(tmp_path / "runs", root, mask="*_desc-brain_mask.nii.gz")
    with pytest.raises(ValueError, match=r"those that match are none, looked for in .*fmriprep, .*fmriprep/sub-01"):
        memload.write_nifti(tmp_path / "runs", root, mask="*_roi.nii.gz")


def test_the_mask_of_a_run_without_entities_has_its_name_and_more(tmp_path):
    for name, mask in (("mouse1", MASK), ("mouse10", ~MASK)):
        saved(tmp_path / f"{name}.nii.gz", RNG.integers(0, 99, (4, 5, 6, 7)).astype("i2"))
        masked(tmp_path / f"{name}_mask.nii", mask)
    sources = [tmp_path / "mouse1.nii.gz", tmp_path / "mouse10.nii.gz"]
    runs = memload.write_nifti(tmp_path / "runs", sources, mask="*_mask.nii")
    assert [one.fields["volumes"].shape[0] for one in runs.values()] == [MASK.sum(), (~MASK).sum()]


def test_what_cannot_be_written_is_told(tmp_path):
    path = saved(tmp_path / "run.nii", RNG.integers(0, 99, (4, 5, 6, 7)).astype("i2"))
    for options, kind, message in (
        ({"cast": memload.Cast("float32", scale=2)}, ValueError, "cast= is a dtype, since the header states scale"),
        ({"threads": 0}, ValueError, "threads is a number of threads"),
        ({"codec": {"bold": "zstd"}}, ValueError, "codec= names the field 'bold'; the rows have 'volumes'"),
    ):
        with pytest.raises(kind, match=message):
            memload.write_nifti(tmp_path / "out", path, **options)
    (tmp_path / "b").mkdir()
    twin = saved(tmp_path / "b" / "run.nii.gz", RNG.integers(0, 99, (4, 5, 6, 7)).astype("i2"))
    with pytest.raises(ValueError, match=r"two of the files would be written to .*out/run, such as .*run\.nii\.gz"):
        memload.write_nifti(tmp_path / "out", [path, twin])
    root = bids(tmp_path / "ds")
    with pytest.raises(ValueError, match="ds: the data set that is read; write to another folder"):
        memload.write_nifti(root, root)
    with pytest.raises(ValueError, match="func: has the files that are read"):
        memload.write_nifti(root / "sub-01/func", str(root / "sub-01/func/*.nii"))
    with pytest.raises(memload.FormatError, match=r"no runs of BIDS: expected sub-\*"):
        memload.write_nifti(tmp_path / "out", tmp_path / "b")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(memload.FormatError, match=r"x\.txt: no \.nii or \.nii\.gz file"):
        memload.write_nifti(tmp_path / "out", tmp_path / "x.txt")


def test_the_command_decodes_runs(tmp_path, capsys):
    root = bids(tmp_path / "ds", ending=".nii.gz")
    mask = str(masked(tmp_path / "mask.nii.gz"))
    out = tmp_path / "runs"
    assert main(["write", str(root), str(out), "--mask", mask, "--cast", "bfloat16", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert told.count(f"bfloat16 ({MASK.sum()},)  0.5 Hz, 0.0 to 40.0 s, 20 rows") == 4
    one = str(root / "sub-01/func/*task-rest_bold.nii.gz")
    assert main(["write", one, str(tmp_path / "one"), "--tr", "1", "--codec", "auto", "--quiet"]) == 0
    assert memload.open_recording(tmp_path / "one").span == (0, 20)
    assert main(["write", one, str(tmp_path / "two"), "--scale", "2"]) == 2
    assert "--scale: not for NIfTI files, which become recordings" in capsys.readouterr().err
    assert main(["write", one, str(tmp_path / "two"), "--cast", "float32,norm_removed"]) == 2
    assert "--cast is a dtype for NIfTI files" in capsys.readouterr().err
    assert main(["write", mask, str(tmp_path / "two"), "--tr", "2"]) == 2
    assert "--tr: only for files that are decoded into recordings" in capsys.readouterr().err
    assert reader_of(tmp_path / "one") is not None
