"""Each sentence that statistics can say stands on what was measured."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from disks import can_be_read_directly, evict

import memload
from memload.stats import LoaderStats

WAITING = LoaderStats(
    batches=100, wall_seconds=10.0, consumer_wait_seconds=8.0, gather_seconds=16.0, bytes_in=10**9, bytes_out=10**9
)
SENTENCES = [
    ({"disk_bytes": 10**6, "disk_seconds": 0.1, "major_faults": 7}, "for the copy of its batches"),
    ({"disk_bytes": 10**6, "advised_rows": 5000, "direct_bytes": 10**6}, "for the copy of its batches"),
    ({"disk_bytes": 249 * 10**6, "disk_seconds": 7.9}, "for the copy of its batches"),
    ({"disk_bytes": 250 * 10**6}, "from the disk (25% of their bytes): a faster disk"),
    ({"disk_bytes": 10**6, "disk_seconds": 8.0}, "from the disk (0% of their bytes, 50% of the time"),
    ({"major_faults": 900, "disk_seconds": 12.0}, "from the disk (0% of their bytes, 75% of the time"),
    ({"decode_seconds": 9.0, "disk_bytes": 10**6}, "stored compressed"),
    ({"decode_seconds": 15.0, "disk_bytes": 10**9, "disk_seconds": 0.1}, "stored compressed"),
    ({"decode_seconds": 15.0, "disk_bytes": 10**9, "disk_seconds": 8.0}, "from the disk (100% of their bytes, 50%"),
    ({"decode_seconds": 7.0}, "for the copy of its batches"),
    ({"gather_seconds": 3.9}, "for threads to begin"),
    ({"gather_seconds": 0.0}, "hand the kernels"),
    ({"copy_wait_seconds": 5.0, "disk_bytes": 10**9}, "for copies to the device"),
    ({"transform_seconds": 9.0, "transform_wait_seconds": 1.0}, "for the transform"),
    ({"transform_seconds": 9.0, "transform_wait_seconds": 7.0}, "for the copy of its batches"),
    ({"sampler_seconds": 9.0}, "The sampler took 90% of the time"),
    ({"sampler_seconds": 9.0, "consumer_wait_seconds": 0.1}, "The sampler took 90% of the time"),
    ({"consumer_wait_seconds": 0.9, "disk_bytes": 10**9}, "The loop is the limit"),
    ({"device_wait_seconds": 8.1, "copied_bytes": 10**10}, "its own kernels, or copies to it, at 1.0 GB/s"),
    ({"device_wait_seconds": 7.9, "copy_wait_seconds": 5.0}, "for copies to the device"),
    ({"device_wait_seconds": 0.9, "consumer_wait_seconds": 0.5}, "The loop is the limit"),
    ({"sampler_seconds": 0.001, "consumer_wait_seconds": 0.0, "wall_seconds": 0.002}, "The loop is the limit"),
    ({"fresh_batches": 26}, "the loop keeps batches"),
    ({"fresh_batches": 25}, "for the copy of its batches"),
    ({"batches": 2, "fresh_batches": 2}, "for the copy of its batches"),
]


@pytest.mark.parametrize(("figures", "words"), SENTENCES)
def test_a_sentence_follows_from_shares_that_were_measured(figures, words):
    limit = replace(WAITING, **figures).limit
    assert words in limit
    assert sum(one in limit for one in {words for _, words in SENTENCES}) == 1


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("stats") / "rows.npy"
    np.save(path, np.ones((1024, 64, 1024), np.uint8))
    return path


def counted(path, **options):
    loader = memload.FastLoader(memload.open(path), batch_size=64, cast={"data": torch.float32}, **options)
    for _ in loader:
        pass
    return loader.stats()


def test_the_disk_is_not_blamed_for_a_thousandth_of_the_bytes(rows):
    assert counted(rows).batches == 16  # after which it is in the page cache
    counted(rows)
    with rows.open("rb") as file:
        os.posix_fadvise(file.fileno(), 32 << 20, 64 << 10, os.POSIX_FADV_DONTNEED)
    stats = counted(rows)
    of_bytes, of_time = stats.disk_shares
    assert of_bytes < 0.05
    if of_time < 0.5:  # a disk that is slower than that does limit
        assert "disk" not in stats.limit


def test_what_was_read_from_the_disk_is_counted_however_it_was_read(rows):
    for direct in (True, False):
        evict(rows)
        stats = counted(rows, options=memload.EngineOptions(direct=direct))
        assert stats.disk_bytes >= stats.direct_bytes
        assert stats.disk_seconds > 0 or not stats.direct_bytes
        assert stats.disk_seconds <= stats.gather_seconds
    counted(rows)
    again = counted(rows)
    assert again.disk_bytes == 0
    assert "disk" not in again.limit or again.disk_shares[1] >= 0.5


def test_what_the_hybrid_tier_reads_comes_from_the_disk(rows):
    if not can_be_read_directly(rows):
        pytest.skip("this file system has no direct reads")
    dataset = memload.open(rows, tier="hybrid", cache_bytes="2MB", progress=False)
    loader = memload.FastLoader(dataset, batch_size=64)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats.disk_bytes >= stats.direct_bytes > stats.bytes_in / 2


def test_decoding_that_takes_the_time_is_named_though_the_bytes_come_from_the_disk():
    cold = replace(WAITING, decode_seconds=15.8, disk_bytes=10**9)
    assert "stored compressed, 100% of which came from the disk: 99% of the time to gather" in cold.limit
    assert "came from the disk" not in replace(cold, disk_bytes=10**6).limit


def test_a_sampler_that_takes_the_time_is_told_from_the_loop():
    class Slow(torch.utils.data.Sampler):
        def __iter__(self):
            for row in range(64):
                sum(range(200_000))
                yield row

        def __len__(self):
            return 64

    loader = memload.FastLoader(memload.from_arrays(x=np.zeros((64, 8), np.uint8)), batch_size=4, sampler=Slow())
    for _ in loader:
        pass
    assert loader.engine == "native"
    assert loader.stats().limit.startswith("The sampler took ")
