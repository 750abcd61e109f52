"""The first bytes of files, and the names in directories, that identify formats."""

from __future__ import annotations

NIFTI = (".nii", ".nii.gz")  # names: the signature comes late in the header, and compressed files have that of gzip
NPY_MAGIC = b"\x93NUMPY"
ARROW_MAGIC = b"ARROW1"
PARQUET_MAGIC = b"PAR1"
TORCH_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save before torch 1.6, or on request

SAVED_STATE = "state.json"  # of datasets.Dataset.save_to_disk
SAVED_SPLITS = "dataset_dict.json"
ZARR_NAMES = ("zarr.json", ".zarray", ".zgroup")
