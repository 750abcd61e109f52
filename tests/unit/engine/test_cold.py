"""Large rows that are not in the page cache: read past it at first, through it when they are wanted again."""

import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from disks import can_be_read_directly, descriptors_of, evict

import memload
from memload.engine.readers import resolve
from memload.engine.request import EngineOptions
from memload.engine.settings import reads_directly
from memload.stats import LoaderStats

ROWS, ROW = 96, 100_001  # large, and no multiple of anything
DATA = np.random.default_rng(0).integers(0, 256, (ROWS, ROW), np.uint8)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, DATA)
    if not can_be_read_directly(path):
        pytest.skip(f"{path} is on a file system without O_DIRECT")
    return path


def opened_cold(path):
    evict(path)
    return memload.open(path)


def read(ds, direct=None, **kwargs):
    """Make one pass, compare every row, and return its statistics."""
    loader = memload.FastLoader(ds.only(*ds.fields), batch_size=4, options=EngineOptions(direct=direct), **kwargs)
    seen = 0
    for batch in loader:
        assert np.array_equal(batch.numpy(), DATA[seen : seen + len(batch)])
        seen += len(batch)
    assert seen == len(ds)
    return loader.stats()


def test_the_first_cold_pass_goes_past_the_page_cache_the_second_through_it_and_the_third_finds_it_there(path):
    ds = opened_cold(path)
    stats = read(ds)
    assert stats.direct_bytes == stats.bytes_in == ROWS * ROW
    assert stats.advised_rows == 0
    second = read(ds)
    assert second.direct_bytes == 0
    assert second.advised_rows > 0
    third = read(ds)
    assert third.direct_bytes == third.advised_rows == third.major_faults == 0


def test_a_pass_that_was_left_early_does_not_count_as_the_first(path):
    ds = opened_cold(path)
    iterator = iter(memload.FastLoader(ds, batch_size=4, depth=1))
    next(iterator)
    del iterator
    stats = read(ds)
    assert stats.direct_bytes > ROWS * ROW // 2


def test_a_pass_that_reads_rows_several_times_goes_through_the_page_cache(path):
    trials = np.random.default_rng(1).integers(0, ROWS, 3 * ROWS)
    loader = memload.FastLoader(opened_cold(path).select(trials), batch_size=4)
    (name,) = loader.dataset.fields
    assert np.array_equal(torch.cat([batch[name] for batch in loader]).numpy(), DATA[trials])
    assert loader.stats().direct_bytes == 0


def test_rows_read_directly_are_cast_as_any_others(path):
    ds = opened_cold(path)
    (name,) = ds.fields
    cast = {name: memload.Cast(torch.bfloat16, norm_removed=True)}
    loader = memload.FastLoader(ds, batch_size=5, cast=cast)
    got = torch.cat([batch[name] for batch in loader])
    assert loader.stats().direct_bytes == ROWS * ROW
    expected = memload.cast_stim(torch.from_numpy(DATA), norm_removed=True, dtype=torch.bfloat16)
    assert torch.equal(got.view(torch.int16), expected.view(torch.int16))


def test_direct_true_stays_past_the_page_cache_and_false_never_leaves_it(path):
    ds = opened_cold(path)
    assert [read(ds, direct=True).direct_bytes for _ in range(2)] == [ROWS * ROW] * 2
    assert read(ds, direct=False).direct_bytes == 0
    assert read(ds, direct=True).direct_bytes == 0, "what is in the page cache is not read from the disk"


def test_small_rows_are_never_read_directly(tmp_path):
    path = tmp_path / "small.npy"
    np.save(path, DATA[:, :60_000])
    ds = opened_cold(path)
    loader = memload.FastLoader(ds, batch_size=4, options=EngineOptions(direct=True))
    (name,) = ds.fields
    assert torch.equal(torch.cat([b[name] for b in loader]), torch.from_numpy(DATA[:, :60_000]))
    assert loader.stats().direct_bytes == 0


def test_files_that_the_page_cache_cannot_hold_are_read_directly_in_every_pass(path):
    path = path.parent / "huge.dat"
    path.touch()
    os.truncate(path, 2 << 40)  # a hole: zeros that take no room
    ds = memload.open(path, dtype="uint8", shape=(1 << 20,)).select([3, 1 << 20, 7])
    (name,) = ds.fields
    for _ in range(3):
        loader = memload.FastLoader(ds, batch_size=2)
        assert not any(batch[name].any() for batch in loader)
        assert loader.stats().direct_bytes == 3 << 20


def test_a_file_truncated_while_it_is_read_directly_raises_with_file_and_row(path):
    ds = opened_cold(path)
    iterator = iter(memload.FastLoader(ds, batch_size=2, depth=1))
    next(iterator)
    os.truncate(path, 20 * ROW)
    with pytest.raises(memload.ShardReadError, match="truncated") as caught:
        list(iterator)
    assert caught.value.file == str(path)
    assert 19 <= caught.value.row < ROWS


def test_a_file_put_in_the_place_of_an_open_one_is_not_read(path):
    ds = opened_cold(path)
    np.save(path.with_name("other.npy"), 255 - DATA)
    path.with_name("other.npy").replace(path)
    assert read(ds).direct_bytes == 0


def test_a_file_system_in_memory_is_read_as_ever():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, DATA)
        assert read(opened_cold(path), direct=True).direct_bytes == 0


def test_hundreds_of_loaders_leave_no_descriptor(path):
    evict(path)
    kept = opened_cold(path).select([50])
    for i in range(300):
        ds = memload.open(path).select([50]) if i % 2 else kept
        loader = memload.FastLoader(ds, options=EngineOptions(direct=True))
        assert len(list(loader)) == 1
        assert loader.stats().direct_bytes == ROW
    assert len(descriptors_of(path.parent)) == 2
    del ds, kept, loader
    gc.collect()
    assert len(descriptors_of(path.parent)) == 0


def test_of_a_data_set_of_many_files_only_some_are_kept_open(path):
    folder = path.parent
    for i in range(ROWS):
        np.save(folder / f"{i}.npy", DATA[i : i + 1])
    ds = memload.open([folder / f"{i}.npy" for i in range(ROWS)], field="x", max_open_files=32)
    for i in range(ROWS):
        evict(folder / f"{i}.npy")
    assert read(ds).direct_bytes == ROWS * ROW
    assert 0 < len(descriptors_of(folder)) <= 32


@pytest.mark.parametrize("direct", [None, True])
def test_of_files_whose_residency_is_not_told_direct_true_alone_reads_past_the_page_cache(direct):
    if os.geteuid():
        pytest.skip("only root can become somebody who does not own the file")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "rows.npy"
        np.save(path, DATA)
        os.seteuid(65534)
        try:
            loader = memload.FastLoader(
                opened_cold(path), batch_size=4, shuffle=True, options=EngineOptions(direct=direct)
            )
            (name,) = loader.dataset.fields
            assert sum(int(batch[name].sum()) for batch in loader) == DATA.sum()
        finally:
            os.seteuid(0)
        stats = loader.stats()
        if not can_be_read_directly(path):
            return
        assert stats.disk_bytes > 0, "which is how such a pass is found to be cold"
        assert (stats.direct_bytes > 0) == bool(direct)


@pytest.mark.parametrize("value", [1, "yes", 0.5])
def test_direct_is_a_bool_or_none(value):
    with pytest.raises(ValueError, match=r"direct must be True, False, or None .* got"):
        EngineOptions(direct=value)


def test_memory_is_no_reason_to_read_directly():
    source = resolve(memload.from_arrays(x=DATA))
    assert not reads_directly(source, ROWS, None)


def test_fields_in_memory_do_not_count_among_what_a_pass_wants_of_its_files(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, DATA)
    files = memload.open(path)
    alone = reads_directly(resolve(files), ROWS, None)
    beside = memload.zip(x=files, y=memload.from_arrays(y=np.zeros((ROWS, 2 * ROW), np.uint8)))
    assert reads_directly(resolve(beside), ROWS, None) == alone


def test_a_loop_that_waits_for_direct_reads_is_told_so():
    stats = LoaderStats(
        batches=9, wall_seconds=1.0, consumer_wait_seconds=0.9, gather_seconds=2.0, bytes_in=1 << 30, disk_bytes=1 << 30
    )
    assert "disk (100% of their bytes" in stats.limit
