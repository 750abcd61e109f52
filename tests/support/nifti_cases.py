"""NIfTI files and folders of BIDS, as nibabel writes them."""

import json

import nibabel
import numpy as np


def image(values, *, seconds=2.0, dtype=None, version=1, order="<", units=("mm", "sec"), affine=None):
    """An image of these values (x, y, z, t); floats of a dtype of whole numbers get a scale."""
    kind = {1: nibabel.Nifti1Image, 2: nibabel.Nifti2Image}[version]
    header = kind.header_class(endianness=order)
    header.set_data_dtype(np.dtype(dtype or values.dtype).newbyteorder(order))
    made = kind(values, np.diag([2.0, 2.0, 2.0, 1.0]) if affine is None else affine, header)
    made.header.set_xyzt_units(*units)
    if values.ndim > 3:
        made.header["pixdim"][4] = seconds
    return made


def saved(path, values, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image(values, **options), path)
    return path


def bids(root, subjects=("01", "02"), tasks=("rest", "nback"), *, ending=".nii", volumes=20, seed=0):
    """A data set of runs of 40 s, with the time in one side-car, and events of each task."""
    rng = np.random.default_rng(seed)
    root.mkdir(exist_ok=True)
    (root / "task-rest_bold.json").write_text(json.dumps({"RepetitionTime": 2.0, "TaskName": "rest"}))
    (root / "task-nback_bold.json").write_text(json.dumps({"RepetitionTime": 2.0, "TaskName": "nback"}))
    for subject in subjects:
        for task in tasks:
            stem = root / f"sub-{subject}/func/sub-{subject}_task-{task}"
            values = rng.integers(-500, 500, (4, 5, 6, volumes)).astype(np.int16)
            saved(stem.with_name(f"{stem.name}_bold{ending}"), values)
            events(stem.with_name(f"{stem.name}_events.tsv"), ("0", "4", "go", "1"), ("10", "0", "stop", "n/a"))
    return root


def events(path, *rows, columns=("onset", "duration", "trial_type", "score")):
    path.write_text("".join("\t".join(row) + "\n" for row in (columns, *rows)))
    return path


def rows_of(recording, name="bold"):
    """All stored rows of a field."""
    field = recording.fields[name]
    return field.gather(np.arange(field.rows)).numpy()
