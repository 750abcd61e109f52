"""What the C library's heap keeps of freed tensors, of the steps of an epoch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from memory_models import GraphNet, graph_batch
from torch import nn
from torch.utils.data import DataLoader

import memload
from memload.planning import allocations
from memload.planning.allocations import Timeline
from memload.planning.batch_size import peak_of
from memload.planning.batch_size_request import setting_of
from memload.planning.curves import Each
from memload.planning.heap import heap_keeps_tensors, heap_threshold
from memload.planning.library_bytes import RECURRENT
from memload.planning.loader_slots import last_batch_of
from memload.planning.measuring import measured
from memload.planning.steps import losses_of
from memload.planning.variants import kind_of

MB = 1_000_000
ROW, TWO_ROWS = np.array([1, 1]), np.array([1, 2])


def each(*allocations):
    """Allocations, (operation, bytes of a row, allocations before it was freed)."""
    names, nbytes, freed = zip(*allocations, strict=True)
    timeline = Timeline(names, np.array(nbytes), np.array(freed), np.zeros(len(names), dtype=bool))
    return Each(np.stack([np.zeros(len(nbytes)), nbytes], axis=1), timeline)


def test_the_heap_keeps_its_highest_moment_while_larger_tensors_have_theirs():
    step = each(("small", 20 * MB, 1), ("large", 60 * MB, 2))
    assert step.kept(ROW, 2.0) == 2 * 20 * MB
    assert step.peak(ROW, 2.0) == 60 * MB + 20 * MB  # of the 40 MB that are free, half finds use
    assert replace(step, varies=True).peak(ROW, 2.0) == 60 * MB + 40 * MB
    assert step.kept(TWO_ROWS, 2.0) == 0  # nothing is small any more
    assert step.peak(TWO_ROWS, 2.0) == replace(step, varies=True).peak(TWO_ROWS, 2.0) == 120 * MB


def test_batches_of_graphs_vary_in_size_and_those_of_rows_do_not():
    of_rows, of_graphs = torch.rand(2, 4), graph_batch(nodes=(5, 7), edges=(12, 9))
    for model, sample, varies in ((nn.Linear(4, 4), of_rows, False), (GraphNet(), of_graphs, True)):
        found = measured(kind_of(sample), losses_of([model], None, [], None, "cpu"), [model], on_cpu=True)
        assert found.step.each.varies is varies


@pytest.mark.parametrize(
    ("operation", "times"), [("relu", 2), ("convolution, inside", 3), (f"{RECURRENT}.default", 1.5)]
)
def test_copies_inside_operations_and_recurrent_layers_have_surpluses_of_their_own(operation, times):
    assert each((operation, 10 * MB, 2)).peak(ROW, 2.0) == times * 10 * MB


@pytest.mark.parametrize(
    ("settings", "size", "rows"),
    [({}, 30, 10), ({}, 20, 0), ({}, 100, 0), ({}, 101, 0), ({"drop_last": True}, 30, 0)],
)
def test_an_epoch_ends_with_the_rows_that_fill_no_batch(settings, size, rows):
    ds = memload.from_arrays(x=torch.zeros(100, 4))
    for loader in (memload.FastLoader(ds, 16, **settings), DataLoader(ds, 16, **settings)):
        assert last_batch_of(loader, size) == rows


def test_no_last_batch_is_known_of_no_loader_and_of_batch_samplers():
    ds = memload.from_arrays(x=torch.zeros(100, 4))
    assert last_batch_of(None, 30) == last_batch_of(memload.FastLoader(ds, batch_sampler=[[0, 1]]), 30) == 0


def test_what_a_short_last_batch_leaves_in_the_heap_counts_beside_a_full_one(monkeypatch):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if not heap_keeps_tensors():
        pytest.skip("this C library's heap keeps no tensors")
    model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(4)))  # 4 KB of each row, four times
    peaks = []
    for drop_last in (False, True):
        loader = DataLoader(range(15_000), 16, drop_last=drop_last)
        setting = setting_of(model, torch.rand(2, 1000), loader=loader)
        found = measured(setting.kind, setting.losses, setting.models, on_cpu=True)
        peaks.append([peak_of(setting, found)(size) for size in (9_000, 7_500)])
    (full, dividing), (without, the_same) = peaks
    assert dividing == the_same
    result = 6_000 * 4_000  # bytes of one result of the short batch, below 32 MB; a full one has 36 MB
    assert result < full - without < 3 * result


def test_a_plan_of_training_counts_small_tensors_twice_and_others_once_where_they_are_many(monkeypatch):
    found = each(("small", 100_000, 3), ("large", MB, 2)).timeline
    assert found.peak == MB + 100_000
    assert found.peak_in_heap() == found.peak
    monkeypatch.setattr(allocations, "LEAST_IN_HEAP", 200_000)
    assert found.peak_in_heap() == MB + 200_000


def test_a_plan_for_the_cpu_knows_that_the_heap_keeps_the_steps_of_a_gru():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(64, 256, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0].mean()

    rows = memload.DatasetShape(1000, {"x": ("float32", (50, 64))})

    def activations(batch_size):
        model = Recurrent().to("meta")
        plan = memload.plan(
            rows, batch_size, model=model, loss=lambda batch: model(batch["x"]), device="cpu", ram="16GB", tier="mmap"
        )
        return next(line.predicted for line in plan.ram.lines if line.name == "activations")

    # 200 rows x 256 numbers are 205 kB, below the threshold; of 260 rows, they are above it.
    assert activations(200) > 1.3 * activations(260) * 200 / 260


@pytest.mark.parametrize(
    ("environment", "threshold"),
    [
        ({}, 0),
        ({"MALLOC_MMAP_THRESHOLD_": "262144"}, 262_144),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1:glibc.malloc.mmap_threshold=0x10000"}, 65_536),
        ({"MALLOC_MMAP_THRESHOLD_": str(64 << 20)}, 0),  # glibc refuses it
        ({"MALLOC_MMAP_THRESHOLD_": "large"}, 0),
    ],
)
def test_the_threshold_of_the_heap_is_the_one_of_the_environment(environment, threshold):
    assert heap_threshold(environment) == threshold


def test_a_batch_size_and_a_plan_count_small_tensors_by_one_account(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")
    model = nn.GRU(64, 256, batch_first=True)
    rows = memload.DatasetShape(1000, {"x": ("float32", (50, 64))})
    loss = lambda batch: model(batch["x"])[0].mean()  # noqa: E731
    setting = setting_of(model, {"x": torch.rand(2, 50, 64)}, loss=loss)
    found = measured(setting.kind, setting.losses, setting.models, on_cpu=True)
    plan = memload.plan(rows, 200, model=model, loss=loss, device="cpu", ram="16GB", tier="mmap")
    assert (setting.heap, setting.threshold) == (1.0, 262_144)
    in_plan = plan.ram.of("activations") + plan.ram.of("gradients")
    counted = found.step.in_heap(1.0, 200, threshold=setting.threshold)
    assert counted == pytest.approx(in_plan, rel=0.01)
    assert counted > 1.3 * found.step.at(200)
