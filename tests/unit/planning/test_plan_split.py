"""Plans of rows that lie in a GPU's memory and in pinned RAM, and advice beside rows that lie on the GPU."""

import re

import pytest
import torch
from torch import nn

import memload

SHAPE = memload.DatasetShape(300_000, {"betas": ("float32", (150, 150, 10)), "label": ("int64", ())})
ROW = 150 * 150 * 10 * 4 + 8
MACHINE = {"ram": "256GB", "gpu": "80GB", "disk": "4TB"}


def planned(tier, **options):
    return memload.plan(SHAPE, 32, tier=tier, **{**MACHINE, **options})


def test_rows_on_the_gpu_and_in_pinned_ram_are_counted_where_they_lie():
    found, pinned = planned("split", device_bytes="60GB"), planned("pinned")
    assert found.gpu.of("rows on the GPU") == 60 * 10**9
    assert found.ram.of("rows in RAM") == 300_000 * ROW - 60 * 10**9
    assert found.gpu.of("batches") == pinned.gpu.of("batches") == 5 * 32 * ROW
    assert planned("split", device_bytes="60GB", ram="1TB", processes=2).ram.of("rows in RAM") == 2 * found.ram.of(
        "rows in RAM"
    )
    whole = planned("split", device_bytes="1TB", gpu="300GB")
    assert (whole.gpu.of("rows on the GPU"), whole.fits) == (300_000 * ROW, True)
    assert "rows in RAM" not in [line.name for line in whole.ram.lines]


def test_a_set_that_does_not_fit_is_planned_over_both_memories_with_figures():
    for refused in (planned("device"), planned("pinned", ram="230GB"), planned("split", device_bytes="100GB")):
        assert not refused.fits
        assert re.match('tier="split", device_bytes="77.[67] GB": 29% of the rows on the GPU, ', refused.ways_out[0])
    assert planned("split", device_bytes="77.7 GB").fits
    short = planned("split", device_bytes="10GB", ram="128GB")
    assert [way.split(",")[0].split(":")[0] for way in short.ways_out] == ['tier="hybrid"', 'tier="mmap"']


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tier": "split"}, "go together; the tier is 'split', and device_bytes=None"),
        ({"tier": "device", "device_bytes": "1GB"}, "go together; the tier is 'device'"),
        ({"device_bytes": "1GB"}, "go together; the tier is 'mmap'"),
        ({"tier": "split", "device_bytes": "1 XB"}, "not a size"),
        ({"tier": "split", "device_bytes": -1}, "at least one byte"),
        ({"tier": "split", "device_bytes": 1, "ram_dtype": {"betas": "bfloat16"}}, "ram_dtype= is for rows"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        memload.plan(SHAPE, 32, **given)
    with pytest.raises(ValueError, match="device_bytes= is for one data set"):
        memload.plan({"a": SHAPE, "b": SHAPE}, 32, tier="split", device_bytes="1GB")


def test_rows_on_the_gpu_leave_less_for_a_step():
    model = nn.Sequential(nn.Linear(10_000, 1000), nn.ReLU(), nn.Linear(1000, 10))

    def advised(**given):
        sample = torch.rand(1, 10_000)
        return memload.fit(model, sample, "8GB", effective_batch=1 << 16, mode="static", **given).for_memory("8GB")

    alone, beside = advised(), advised(device_bytes="6GB")
    assert alone.batch_size > beside.batch_size > 0
    assert beside.nbytes > 6 * 10**9
    assert advised(device_bytes="8GB").batch_size == 0
    with pytest.raises(ValueError, match="device_bytes= are of rows on a GPU"):
        advised(device="cpu", device_bytes="6GB")
