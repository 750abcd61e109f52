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
from memload.planning.allocations import HEAP, Timeline
from memload.planning.batch_size import peak_of
from memload.planning.batch_size_request import Target, Trained, setting_of
from memload.planning.curves import MAPPED, Each
from memload.planning.graph_steps import GraphStep
from memload.planning.heap import (
    HEAP_OF_VARYING,
    HOLES,
    Surplus,
    bound_of_step,
    heap_keeps_tensors,
    heap_threshold,
    peak_on_cpu,
)
from memload.planning.library_bytes import RECURRENT, LstmLayer
from memload.planning.loader_slots import last_batch_of
from memload.planning.measuring import measured
from memload.planning.model_bytes import activation_bytes
from memload.planning.steps import losses_of
from memload.planning.variants import kind_of
from memload.planning.weightless import Weightless
from memload.sizes import format_size

MB = 1_000_000
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")
ROW, TWO_ROWS = np.array([1, 1]), np.array([1, 2])


def each(*allocations, asked=None):
    """Allocations, (operation, bytes of a row, allocations before it was freed); `asked` are bytes of their blocks."""
    names, nbytes, freed = zip(*allocations, strict=True)
    asked = nbytes if asked is None else asked
    timeline = Timeline(names, np.array(nbytes), np.array(freed), np.zeros(len(names), dtype=bool), np.array(asked))
    return Each(*(np.stack([np.zeros(len(nbytes)), sizes], axis=1) for sizes in (nbytes, asked)), timeline)


def test_the_heap_keeps_its_highest_moment_while_larger_tensors_have_theirs():
    step = each(("small", 20 * MB, 1), ("large", 60 * MB, 2))
    assert step.kept(ROW, 2.0) == 2 * 20 * MB
    assert step.peak(ROW, 2.0) == 60 * MB + 40 * MB  # half of what is free has no room for the large one
    assert step.kept(TWO_ROWS, 2.0) == 0  # nothing is small any more
    assert step.peak(TWO_ROWS, 2.0) == replace(step, varies=True).peak(TWO_ROWS, 2.0) == 120 * MB


@pytest.mark.parametrize(
    ("times", "large", "used"), [(3.0, 4, 1), (3.0, 6, 2), (3.0, 12, 4), (2.0, 12, 2), (1.1, 12, 1), (1.1, 1, 0)]
)
def test_larger_tensors_use_half_of_what_the_heap_has_free_as_far_as_whole_ones_find_room(times, large, used):
    step = each(*[("small", 20 * MB, 6)] * 6, *[("large", 40 * MB, 6 + large)] * large)
    assert step.kept(ROW, times) == times * 120 * MB
    apart = times * 120 * MB + large * 40 * MB
    assert step.peak(ROW, times) == apart - used * 40 * MB
    assert replace(step, varies=True).peak(ROW, times) == apart


def test_a_full_batch_uses_what_a_short_one_left_in_the_heap():
    step = each(("large", 40 * MB, 1))
    assert step.peak(ROW, 2.0, kept=70 * MB) == 110 * MB
    assert step.peak(ROW, 2.0, kept=90 * MB) == 90 * MB


@pytest.mark.parametrize(
    ("alive", "made", "times"),
    [
        (2, 8, 4.0),  # all that a step makes, and no more
        (2, 40, 1 + HOLES / 2),
        (7, 70, 1 + HOLES / 7),
        (28, 280, HEAP),
        (1, 1, HEAP),
    ],
)
def test_the_bound_is_larger_where_a_step_makes_many_tensors_while_few_are_alive(alive, made, times):
    step = each(*[("one", 10 * MB, min(made, alive + n)) for n in range(made)])
    assert bound_of_step(step, ROW, HEAP) == times
    assert bound_of_step(step, 4 * ROW, HEAP) == HEAP  # nothing is small any more
    assert bound_of_step(None, ROW, HEAP) == HEAP
    assert peak_on_cpu(step.timeline, HEAP) == times * min(alive, made) * 10 * MB


def test_copies_inside_convolutions_do_not_make_the_bound_larger():
    copies = [("convolution, inside", 10 * MB, n + 2) for n in range(20)]
    assert bound_of_step(each(("one", 10 * MB, 21), *copies), ROW, HEAP) == HEAP


def test_blocks_are_fine_if_most_bytes_at_the_highest_moment_of_the_heap_are_in_small_ones():
    small, medium, large = [("small", MB)] * 150, ("medium", 30 * MB), ("large", 100 * MB)

    def is_fine(*kept):
        return each(*((*one, len(kept) + 1) for one in kept)).is_fine(ROW)

    assert is_fine(*small, large)  # the large one is not in the heap
    assert is_fine(*small, medium)
    assert not is_fine(*small, *[medium] * 6)
    assert not is_fine(medium)
    freed = [(*medium, 1 + n) for n in range(6)]  # each before the next one is made
    assert each(*freed, *((*one, 157) for one in small)).is_fine(ROW)


def test_batches_of_graphs_vary_in_size_and_those_of_rows_do_not():
    of_rows, of_graphs = torch.rand(2, 4), graph_batch(nodes=(5, 7), edges=(12, 9))
    for model, sample, varies in ((nn.Linear(4, 4), of_rows, False), (GraphNet(), of_graphs, True)):
        found = measured(kind_of(sample), losses_of([model], None, [], None, "cpu"), [model], on_cpu=True)
        assert found.step.each.varies is varies


@pytest.mark.parametrize(
    ("operation", "times"),
    [
        ("relu", 2),
        ("convolution, inside", 3),
        (f"{RECURRENT}.default", 2),
        (f"{RECURRENT}_backward.default, inside", 2),
    ],
)
def test_copies_inside_convolutions_have_a_surplus_of_their_own(operation, times):
    assert each((operation, 10 * MB, 2)).peak(ROW, 2.0) == times * 10 * MB


def test_the_heap_keeps_a_workspace_by_what_is_asked_for_and_not_by_what_is_written():
    step = each(("small", 10 * MB, 1), ("workspace", 15 * MB, 2), asked=(10 * MB, 30 * MB))
    assert step.kept(ROW, 2.0) == 2 * 15 * MB
    assert step.kept(TWO_ROWS, 2.0) == 2 * 20 * MB  # the workspace asks for 60 MB, of which 30 MB are written


@needs_onednn
def test_blocks_of_an_lstm_are_those_that_onednn_asks_for():
    model, sample = nn.LSTM(64, 64, batch_first=True), torch.rand(2, 64, 64)
    found = measured(kind_of(sample), losses_of([model], lambda x: model(x)[0].mean(), [], None, "cpu"), [model])
    step = found.step.each
    terms = found.step.terms((302,))
    written, asked = step.lines @ terms, step.asked @ terms
    of_layer = LstmLayer(64, 302, 64, 64, 4)
    larger = asked > written + MB
    assert asked[larger] == pytest.approx([of_layer.workspace] * 2, rel=0.02)  # whole pages
    assert (written[larger] < 0.6 * asked[larger]).all()
    assert of_layer.workspace > MAPPED > written.max()


def test_a_plan_counts_the_workspace_of_an_lstm_once_if_glibc_maps_it(monkeypatch):
    """Tensors without memory, of which plans are made, have a workspace of no bytes."""
    model, layer = nn.LSTM(64, 64, batch_first=True), LstmLayer(64, 302, 64, 64, 4)
    with Weightless([model], "float32") as light, light.tensors():
        run = light.running(lambda x: model(x)[0].mean(), torch.empty(302, 64, 64))
        step = activation_bytes(run, model, on_cpu=True).timeline
    workspaces = step.asked == layer.workspace
    assert step.nbytes[workspaces].tolist() == [layer.kept, layer.backward_blocks[0][0]]
    assert (step.asked >= step.nbytes).all()
    mapped = step.asked >= MAPPED
    assert (mapped == workspaces).all()
    assert peak_on_cpu(step, 2.0) <= step.highest(np.where(mapped, step.nbytes, 0)) + 2 * step.highest(
        np.where(mapped, 0, step.nbytes)
    )


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
        setting = setting_of(Trained(model), torch.rand(2, 1000), Target(), loader=loader)
        found = measured(setting.kind, setting.losses, setting.models, on_cpu=True)
        peaks.append([peak_of(setting, found)(size) for size in (9_000, 7_500)])
    (full, dividing), (without, the_same) = peaks
    assert dividing == the_same
    result = 6_000 * 4_000  # bytes of one result of the short batch, below 32 MB; a full one has 36 MB
    assert result < full - without < 4 * result


def test_a_plan_of_training_counts_small_tensors_twice_and_others_once_where_they_are_many(monkeypatch):
    found = each(("small", 100_000, 3), ("large", MB, 2)).timeline
    assert found.peak == MB + 100_000
    assert found.peak_in_heap(0) == found.peak_in_heap(262_144) == found.peak
    monkeypatch.setattr(allocations, "LEAST_IN_HEAP", 200_000)
    assert found.peak_in_heap(262_144) == MB + 200_000


def test_a_plan_for_the_cpu_knows_that_the_heap_keeps_the_steps_of_a_gru(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")

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
    setting = setting_of(Trained(model, loss), {"x": torch.rand(2, 50, 64)}, Target())
    found = measured(setting.kind, setting.losses, setting.models, on_cpu=True)
    plan = memload.plan(rows, 200, model=model, loss=loss, device="cpu", ram="16GB", tier="mmap")
    assert (setting.heap, setting.threshold) == (1.0, 262_144)
    in_plan = plan.ram.of("activations") + plan.ram.of("gradients")
    counted = found.step.in_heap(1.0, 200, threshold=setting.threshold)
    assert counted == pytest.approx(in_plan, rel=0.01)
    assert counted > 1.3 * found.step.at(200)


def activations_of(plan):
    """The bytes of activations and gradients, of which a plan counts the larger moment."""
    return plan.ram.of("activations") + plan.ram.of("gradients")


def test_a_plan_of_training_counts_the_heap_of_the_environment_it_is_made_in(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(4)))
    rows = memload.DatasetShape(10_000, {"x": ("float32", (1000,))})

    def planned(batch_size):
        return memload.plan(
            rows, batch_size, model=model, loss=lambda batch: model(batch["x"]).mean(), device="cpu", ram="16GB"
        )

    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")
    small, large = planned(2_000), planned(9_000)  # results of 8 MB and of 36 MB
    assert "stated for the mmap threshold" in str(small)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_")
    if not heap_keeps_tensors():
        pytest.skip("this C library's heap keeps no tensors")
    bound = planned(2_000)
    assert "a bound for what glibc keeps" in str(bound)
    assert f"at most {format_size(bound.ram.predicted)}" in str(bound)
    assert (bound.ram.is_bound, small.ram.is_bound) == (True, False)
    assert "at most" not in str(small)
    assert [line.name for line in bound.ram.lines if line.bound] == ["activations"]
    assert activations_of(planned(2_000)) == pytest.approx(2 * activations_of(small), rel=0.01)
    of_large = activations_of(large)
    assert of_large < activations_of(planned(9_000)) < 1.2 * of_large  # weights' gradients are in the heap
    of_ranks = memload.plan(rows, 10, model=model, device="cpu", ram="16GB", strategy="ddp", world_size=2)
    assert "over ranks is stated for MALLOC_MMAP_THRESHOLD_=262144" in str(of_ranks)


def test_a_batch_size_of_graphs_counts_more_of_the_heap_than_one_of_rows(monkeypatch):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    if not heap_keeps_tensors():
        pytest.skip("this C library's heap keeps no tensors")
    net = GraphNet()
    of_graphs = setting_of(
        Trained(net, lambda batch: net(batch).sum()), graph_batch(nodes=(5, 7), edges=(12, 9)), Target()
    )
    of_rows = setting_of(Trained(nn.Linear(4, 4)), torch.rand(2, 4), Target())
    assert (of_rows.heap, of_graphs.heap) == (HEAP, HEAP_OF_VARYING)


def test_a_plan_of_graphs_counts_what_the_heap_keeps():
    model, sample = GraphNet(), graph_batch(nodes=(5, 7), edges=(12, 9))

    def peak(heap, graphs=None):
        step = GraphStep([model], "float32", sample, graphs, False, None, Surplus(heap))
        return step.peak(lambda batch: model(batch).sum()).peak

    assert peak(HEAP) == 2 * peak(1.0)
    assert peak(HEAP, graphs=4) == pytest.approx(2 * peak(1.0, graphs=4))
