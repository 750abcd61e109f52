"""Damaged HDF5 files: memload's errors, or the bytes that h5py reads; never a crash, a long wait, or much memory."""

import random

import pytest
from programs import run, script
from repository import SUPPORT
from waiting import MOST_SECONDS

MUTANTS = SUPPORT / "hdf5_mutants.py"


def try_mutants(folder, first, count, seconds):
    done = run(script(MUTANTS, folder, str(first), str(count), str(seconds)), within=seconds + MOST_SECONDS)
    *numbers, last = done.out or [""]
    assert done.status == 0, f"mutant {(numbers or [last])[-1]} or {last}: {done.err[-2000:]}"
    return int(last.removeprefix("read alike: "))


def test_some_damaged_files_are_read_as_h5py_reads_them_or_refused(tmp_path):
    assert try_mutants(tmp_path, 0, 60, 60) > 20


@pytest.mark.slow
def test_damaged_files_for_ten_minutes(tmp_path):
    assert try_mutants(tmp_path, random.randrange(10**9), 10**9, 600) > 1000
