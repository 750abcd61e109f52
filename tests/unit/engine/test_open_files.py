"""Data sets of more files than a process may open: descriptors are bounded, and a forked child has none of them."""

import json
import os
import pickle
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from disks import can_be_read_directly, descriptors_of, evict

import memload
from memload import _core

FILES, ROWS, WIDTH, MOST = 300, 4, 64, 16


def of_file(number):
    return np.arange(ROWS * WIDTH, dtype=np.int32).reshape(ROWS, WIDTH) + number * 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """HDF5 files of small rows: the first is made by h5py, and the others are copies with other numbers."""
    folder = tmp_path_factory.mktemp("sessions")
    first = folder / "s0.h5"
    with h5py.File(first, "w") as file:
        file["x"] = of_file(0)
        at = file["x"].id.get_offset()
    raw = first.read_bytes()
    for number in range(1, FILES):
        data = of_file(number).tobytes()
        (folder / f"s{number}.h5").write_bytes(raw[:at] + data + raw[at + len(data) :])
    if not can_be_read_directly(first):
        pytest.skip(f"{folder} is on a file system without O_DIRECT")
    return folder


@pytest.fixture
def few_descriptors():
    """Leave the process fewer descriptors than there are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 80, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize(
    ("tier", "most"),
    [
        ({}, None),
        ({"tier": "direct"}, None),
        ({"tier": "direct"}, MOST),
        ({"tier": "hybrid", "cache_bytes": "1MiB"}, MOST),
    ],
)
def test_more_files_than_a_process_may_open_are_one_dataset_on_any_tier(folder, tier, most):
    ds = memload.open(str(folder / "s*.h5"), max_open_files=most, **tier)
    assert len(ds) == FILES * ROWS
    expected = torch.from_numpy(np.concatenate([of_file(number) for number in range(FILES)]))
    order = torch.randperm(len(ds), generator=torch.Generator().manual_seed(1))
    loader = memload.FastLoader(ds.only("x").select(order), batch_size=64)
    found, open_ones = [], []
    for batch in loader:
        found.append(batch)
        open_ones.append(len(descriptors_of(folder)))
    assert torch.equal(torch.cat(found), expected[order])
    assert all(torch.equal(ds[row]["x"], expected[row]) for row in (0, 7, len(ds) - 1))
    if not tier:
        assert max(open_ones) == 0
        return
    assert loader.stats().direct_bytes > 0
    (table,) = {storage.files for storage in ds.fields["x"].column.storages}
    if most is None:
        assert table is None
    else:
        assert table.limit == MOST
        assert 0 < len(table) <= MOST
        assert max(open_ones) <= MOST + len(os.sched_getaffinity(0)) + 8  # and one for each thread that reads


def test_large_cold_rows_of_more_files_than_a_process_may_open_are_read(tmp_path, few_descriptors):
    paths = [tmp_path / f"{number}.npy" for number in range(120)]
    for number, path in enumerate(paths):
        np.save(path, np.full((1, 80_000), number, np.uint8))
    if not can_be_read_directly(paths[0]):
        pytest.skip(f"{tmp_path} is on a file system without O_DIRECT")
    ds = memload.open(paths, field="x", max_open_files=3)
    for path in paths:
        evict(path)
    loader = memload.FastLoader(ds.only("x"), batch_size=8)
    seen = torch.cat([batch[:, ::999].amax(1) for batch in loader])
    assert torch.equal(seen, torch.arange(120, dtype=torch.uint8))
    assert loader.stats().direct_bytes == loader.stats().bytes_in
    (table,) = {storage.files for storage in ds.fields["x"].column.storages}
    assert 0 < len(table) <= 3


def opened(folder, paths, **options):
    """Copies of two of the files, and a dataset of them of which one may be open."""
    for path, number in zip(paths, (5, 6), strict=True):
        path.write_bytes((folder / f"s{number}.h5").read_bytes())
    return memload.open(paths, max_open_files=1, tier="direct", **options).only("x")


def test_a_file_that_was_replaced_while_it_was_closed_is_never_read(folder, tmp_path):
    one, other = paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    ds = opened(folder, paths)
    five, six = torch.from_numpy(of_file(5)), torch.from_numpy(of_file(6))
    assert torch.equal(ds[0], five[0])
    assert torch.equal(ds[ROWS], six[0])  # and the first file is closed
    (tmp_path / "new.h5").write_bytes((folder / "s9.h5").read_bytes())
    (tmp_path / "new.h5").replace(one)
    assert torch.equal(ds[1], five[1])
    os.truncate(other, 100)
    with pytest.raises(memload.ShardReadError, match="truncated"):
        list(memload.FastLoader(ds.select([ROWS + 1]), 1))


def test_a_forked_child_opens_its_own(folder, tmp_path):
    ds = opened(folder, [tmp_path / "a.h5", tmp_path / "b.h5"])
    assert torch.equal(ds[0], torch.from_numpy(of_file(5)[0]))
    before = descriptors_of(tmp_path)
    assert len(before) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        good = not descriptors_of(tmp_path)
        for row in range(2 * ROWS):
            good = good and torch.equal(ds[row], torch.from_numpy(of_file(5 + row // ROWS)[row % ROWS]))
        os._exit(0 if good and len(descriptors_of(tmp_path)) == 1 else 1)
    for row in range(2 * ROWS):
        assert torch.equal(ds[row], torch.from_numpy(of_file(5 + row // ROWS)[row % ROWS]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_bound_travels_with_the_dataset_and_stays_on_other_tiers(folder, tmp_path):
    ds = opened(folder, [tmp_path / "a.h5", tmp_path / "b.h5"])
    assert all(
        len({s.files for s in pickle.loads(pickle.dumps(ds)).fields["x"].column.storages}) == 1 for _ in range(9)
    )
    for one in (pickle.loads(pickle.dumps(ds)), ds.with_tier("hybrid", cache_bytes="1MiB"), ds.select([5, 1])):
        (table,) = {storage.files for storage in one.fields["x"].column.storages}
        assert table.limit == 1
        assert len(list(memload.FastLoader(one, 3))) == -(-len(one) // 3)
        assert len(table) == 1


@pytest.mark.parametrize(
    ("most", "error", "message"),
    [
        (0, ValueError, "at least 1, got 0"),
        (-3, ValueError, "got -3"),
        ("x", TypeError, "a number of files, got a str"),
    ],
)
def test_a_bound_that_is_none_is_refused(folder, most, error, message):
    with pytest.raises(error, match=f"max_open_files is .*{message}"):
        memload.open(folder / "s0.h5", max_open_files=most)


PROGRAM = """
import importlib.util, json, resource, sys
spec = importlib.util.spec_from_file_location("_core", sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
print(json.dumps(core.OpenFiles.shared().limit))
"""


@pytest.mark.parametrize(("allowed", "limit"), [(40, 20), (256, 128), (1024, 256)])
def test_without_a_bound_half_of_the_descriptors_of_the_process_are_used_at_most_256(allowed, limit):
    program = [sys.executable, "-c", PROGRAM, _core.__file__, str(allowed)]
    assert json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout) == limit
