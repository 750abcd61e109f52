"""Plans of rows that lie in a GPU's memory and in pinned RAM, and advice beside rows that lie on the GPU."""

import re

import pytest
import torch
from torch import nn

import memload
from memload.cli.main import main

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
    assert found.ram.of("slots") == 3 * 32 * ROW  # where the copy engine brings rows; see memload.device.copied_rows
    assert found.gpu.of("arriving rows") == 2 * 32 * ROW
    small = memload.plan(SHAPE, 1, tier="split", device_bytes="60GB", **MACHINE)
    assert (small.ram.of("slots"), small.gpu.of("arriving rows")) == (9 * ROW, 8 * ROW)
    assert not {"slots", "arriving rows"} & {line.name for line in (*pinned.ram.lines, *pinned.gpu.lines)}
    whole = planned("split", device_bytes="1TB", gpu="300GB")
    assert (whole.gpu.of("rows on the GPU"), whole.fits) == (300_000 * ROW, True)
    assert not {"rows in RAM", "slots"} & {line.name for line in whole.ram.lines}
    assert "arriving rows" not in [line.name for line in whole.gpu.lines]


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


def test_processes_that_share_their_rows_keep_each_once():
    stored = 300_000 * ROW
    shared = planned("device", processes=4, share_rows=True)
    assert shared.gpu.of("rows on the GPU") == stored // 4
    assert shared.fits
    assert planned("device", processes=4).gpu.of("rows on the GPU") == stored
    split = planned("split", device_bytes="20GB", processes=4, share_rows=True, ram="512GB")
    assert split.gpu.of("rows on the GPU") == 20 * 10**9
    assert split.ram.of("rows in RAM") == stored - 4 * 20 * 10**9
    assert "one copy for 4 processes, with group=" in repr(split)
    whole = planned("split", device_bytes="79GB", processes=4, share_rows=True)
    assert (whole.gpu.of("rows on the GPU"), whole.ram.of("rows in RAM")) == (stored // 4, 0)


def test_sharing_is_advised_to_processes_whose_gpus_hold_the_rows_together_alone():
    assert (
        planned("device", processes=4).ways_out[0].startswith("share_rows=True, as by memload.to_device(..., group=)")
    )
    short = planned("device", processes=2, share_rows=True, ram="300GB")
    assert re.match('tier="split", device_bytes="77.[67] GB": 58% of the rows on 2 GPUs, ', short.ways_out[0])
    assert not [way for way in planned("device").ways_out if "share_rows" in way]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tier": "ram", "processes": 2}, 'give tier="device" or "split", not \'ram\''),
        ({"processes": 2}, 'give tier="device" or "split", not None'),
        ({"tier": "device"}, "give their number on one machine, processes="),
    ],
)
def test_rows_are_shared_by_several_processes_on_gpus_alone(given, said):
    with pytest.raises(ValueError, match=said):
        memload.plan(SHAPE, 32, share_rows=True, **given)
    with pytest.raises(ValueError, match="share_rows= is for one data set"):
        memload.plan({"a": SHAPE, "b": SHAPE}, 32, share_rows=True, tier="device", processes=2)


def test_the_command_line_shares_rows(capsys):
    shape = ["--rows", "300000", "--field", "betas:float32:150,150,10", "--tier", "device", "--processes", "4"]
    machine = [text for name, size in MACHINE.items() for text in (f"--{name}", size)]
    assert main(["plan", *shape, *machine]) == 1
    assert "share_rows=True" in capsys.readouterr().out
    assert main(["plan", *shape, *machine, "--share-rows"]) == 0
    assert capsys.readouterr().err == ""


def test_a_drawing_compares_shared_rows_with_tiers_that_share_none(tmp_path, capsys):
    shape = ["--rows", "1000", "--field", "betas:float32:150", "--tier", "device", "--processes", "4", "--share-rows"]
    machine = [text for name, size in MACHINE.items() for text in (f"--{name}", size)]
    beside = ["--beside", "mmap", "--plot", str(tmp_path / "plan.png")]
    assert main(["plan", *shape, *machine, *beside]) == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "plan.png").exists()
