"""The package zarr. Tests that import this module are skipped with Python 3.10, for which zarr 3 has no release."""

import sys

import pytest

if sys.version_info < (3, 11):
    pytest.skip("zarr 3 needs Python 3.11", allow_module_level=True)

import zarr
from zarr import codecs

__all__ = ["codecs", "zarr"]
