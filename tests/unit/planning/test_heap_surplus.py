"""How much more glibc's heap takes than what is alive, measured by steps of the model at hand."""

import pytest
import torch
from memory_models import GraphNet, graph_batch
from torch import nn
from torch_geometric.data import Batch, Data

import memload
from memload.errors import ThreadLimitError
from memload.planning import heap_surplus
from memload.planning.allocations import HEAP
from memload.planning.heap import ALIVE, bound_of_curve, heap_keeps_tensors
from memload.planning.heap_surplus import (
    ALIVE_FINE,
    LEAST,
    SERIES,
    STEPS,
    growths,
    heap_times,
    series_of,
    times_of,
)
from memload.planning.measuring import measured
from memload.planning.steps import losses_of
from memload.planning.variants import kind_of

MB = 1_000_000


pytestmark = pytest.mark.usefixtures("one_thread")


def stack(width=32):
    """Layers whose steps take little but results."""
    return nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))))


def sum_of(found):
    """Return the sum of what a model gave: a tensor, or a tuple of one and its state."""
    return (found[0] if isinstance(found, tuple) else found).sum()


def given(model, sample, loss=None):
    """The arguments of `heap_times`."""
    kind, losses = kind_of(sample), losses_of([model], loss, [], None, "cpu")
    found = measured(kind, losses, [model], on_cpu=True)
    return kind, losses, [model], [], found.step, found.inputs


def bound(arguments):
    """What counts where steps show nothing."""
    return bound_of_curve(arguments[-2], arguments[0].counts, HEAP)


def together(arguments, *counts):
    """The bytes of a batch and its step."""
    return arguments[-2].at(*counts) + arguments[-1].at(*counts)


@pytest.mark.parametrize(
    ("taken", "times"),
    [(150 * MB, 1.5), (200 * MB, 2.0), (210 * MB, 2.1), (90 * MB, 1.1), (400 * MB, 4.0), (900 * MB, 5.0)],
)
def test_what_steps_took_lies_between_what_is_alive_and_the_bound(taken, times):
    assert times_of(taken, 100 * MB, 200 * MB) == pytest.approx(times)


@pytest.mark.parametrize(("model", "width"), [(stack(), 32), (nn.Linear(1000, 10), 1000)])
def test_steps_are_made_with_batches_that_take_no_more_than_is_allowed(model, width):
    sizes = []

    def loss(batch):
        sizes.append(len(batch))
        return model(batch).sum()

    arguments = given(model, torch.rand(4, width), loss)
    sizes.clear()
    for room, most in ((1 << 40, ALIVE), (100 * MB, 25 * MB)):
        times = heap_times(*arguments, room=room)
        if width == 1000:  # nearly all is the batch, so that steps are too small to tell
            assert (sizes, times) == ([], HEAP)
            continue
        (rows,) = set(sizes)
        assert len(sizes) == 1 + SERIES * STEPS
        assert 0.7 * most < together(arguments, rows) <= most
        sizes.clear()


@pytest.mark.parametrize(("model", "is_fine"), [(nn.GRU(32, 32, batch_first=True), True), (stack(), False)])
def test_steps_of_small_blocks_are_made_with_larger_batches(model, is_fine, monkeypatch):
    monkeypatch.setattr(heap_surplus, "ALIVE", 20 * MB)
    monkeypatch.setattr(heap_surplus, "ALIVE_FINE", 60 * MB)
    sizes = []

    def loss(batch):
        sizes.append(len(batch))
        return sum_of(model(batch))

    arguments = given(model, torch.rand(4, 100, 32), loss)
    sizes.clear()
    heap_times(*arguments, room=1 << 40)
    (rows,) = set(sizes)
    series, steps = (2, STEPS) if is_fine else (SERIES, STEPS)
    most = (60 if is_fine else 20) * MB
    assert len(sizes) == 1 + series * steps
    assert 0.7 * most < together(arguments, rows) <= most


@pytest.mark.parametrize(("model", "longer"), [(nn.GRU(32, 32, batch_first=True), 1.1), (stack(), 1.15)])
def test_longer_runs_count_less_where_blocks_are_small(model, longer, monkeypatch):
    def loss(batch):
        return sum_of(model(batch))

    monkeypatch.setattr(heap_surplus, "growths", lambda *_, **__: [7, 10])
    monkeypatch.setattr(heap_surplus, "times_of", lambda taken, *_: taken)
    assert heap_times(*given(model, torch.rand(4, 100, 32), loss), room=1 << 30) == pytest.approx(10 * longer)


@pytest.mark.parametrize(
    ("alive", "made"), [(ALIVE, (SERIES, STEPS)), (2 * ALIVE + 1, (2, 10)), (192 << 20, (2, 8)), (ALIVE_FINE, (2, 4))]
)
def test_the_larger_steps_are_the_fewer_are_made(alive, made):
    assert series_of(alive) == made


@pytest.mark.parametrize("in_heap", [True, False])
def test_steps_have_new_batches_where_those_of_the_loop_are_in_the_heap(in_heap):
    model, seen = stack(), []

    def loss(batch):
        seen.append(batch)
        return model(batch).sum()

    arguments = given(model, torch.rand(4, 32), loss)
    seen.clear()
    heap_times(*arguments, room=60 * MB, batches_in_heap=in_heap)
    assert len({batch.data_ptr() for batch in seen[1:]}) == (SERIES * STEPS if in_heap else 1)  # the first warms up
    assert all(torch.equal(batch, seen[0]) for batch in seen)


def test_a_thread_that_is_refused_leaves_the_bound(monkeypatch):
    def refused(threads):
        raise ThreadLimitError("no more threads")

    monkeypatch.setattr(heap_surplus, "started", refused)
    arguments = given(stack(), torch.rand(4, 32))
    assert heap_times(*arguments, room=1 << 40) == bound(arguments)


def test_models_gradients_and_random_numbers_are_as_before():
    model = nn.Sequential(stack(), nn.BatchNorm1d(32))
    arguments = given(model, torch.rand(4, 32))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, drawn = [one.clone() for one in model.state_dict().values()], torch.get_rng_state()
    heap_times(*arguments, room=1 << 40)
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert all(bool((p.grad == 1).all()) for p in model.parameters())
    assert torch.equal(drawn, torch.get_rng_state())


@pytest.mark.usefixtures("collector_is_off")  # what other tests left would give memory back meanwhile
def test_gradients_that_exist_before_a_step_are_not_among_what_it_takes():
    model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(30)))  # 4 MB of gradients each
    given = [torch.rand(2, 1000)], [lambda batch: model(batch).sum()], [model], None, (1, 3)
    (fresh,), (accumulating,) = growths(*given), growths(*given, accumulating=True)
    assert fresh > 110 * MB
    assert accumulating < 80 * MB
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("room", [1, 2 * LEAST])
def test_where_steps_would_be_too_small_to_tell_the_bound_counts(room):
    arguments = given(stack(), torch.rand(4, 32))
    assert heap_times(*arguments, room=room) == bound(arguments)


def test_a_step_that_runs_out_of_memory_leaves_the_bound():
    model, steps = stack(), []

    def loss(batch):
        steps.append(len(batch))
        if len(batch) > 5:
            raise MemoryError("no more")
        return model(batch).sum()

    arguments = given(model, torch.rand(4, 32), loss)
    assert heap_times(*arguments, room=1 << 40) == bound(arguments)
    assert max(steps) > 5


def test_steps_with_graphs_are_those_of_a_part_of_the_sample_that_are_small_enough():
    model, seen = GraphNet(), []

    def loss(batch):
        seen.append((len(batch.ptr) - 1, batch.x.shape[0], batch.edge_index.shape[1]))
        return model(batch).sum()

    nodes = (300,) * 100
    arguments = given(model, graph_batch(nodes=nodes, edges=tuple(3 * n for n in nodes)), loss)
    seen.clear()
    assert 1.1 <= heap_times(*arguments, room=100 * MB) <= 5
    assert len(set(seen)) > 1
    assert max(seen)[0] < len(nodes)
    assert all(together(arguments, *counts) <= 25 * MB for counts in seen)


def test_a_batch_size_counts_what_steps_of_the_model_show(monkeypatch):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if not heap_keeps_tensors():
        pytest.skip("this C library's heap keeps no tensors")
    measured_here = memload.compute_batch_size(stack(), torch.rand(4, 32), max_batch_size=1000)
    computed = memload.compute_batch_size(stack(), torch.rand(4, 32), max_batch_size=1000, mode="static")
    assert 1.05 < measured_here.heap <= 5
    assert computed.heap == pytest.approx(bound(given(stack(), torch.rand(4, 32))), rel=0.001)
    assert measured_here.activation != computed.activation


def test_steps_that_make_many_tensors_while_few_are_alive_show_that_holes_find_no_use():
    student, width = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)), 1024
    teacher = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 256))

    def loss(batch):
        with torch.no_grad():
            wanted = teacher(batch)
        return (student(batch) - wanted).square().mean()

    kind, losses = kind_of(torch.rand(4, 256)), losses_of([student], loss, [], None, "cpu")
    found = measured(kind, losses, [student], [teacher], on_cpu=True)
    shown = heap_times(kind, losses, [student], [teacher], found.step, found.inputs, room=1 << 40)
    assert 2.6 < shown < 5  # 3.2 to 3.9
    assert 2.6 < bound_of_curve(found.step, (4,), HEAP) < 5


def test_steps_may_set_attributes_of_their_batch_and_change_it_in_place():
    model, seen = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)), []

    def loss(batch):
        seen.append(bool((batch["y"] == 1).all()))
        batch["y"] -= 1
        batch["x"] = model[0](batch["x"])
        return (model[1](batch["x"])[:, 0] - batch["y"]).mean()

    given = {"x": torch.rand(8, 64), "y": torch.ones(8)}
    found = growths([given], [loss], [model], None, (2, 3), warms_up=True)
    assert len(found) == 2
    assert seen == [True] * 7
    assert given["x"].shape == (8, 64)


def test_a_given_batch_of_graphs_keeps_its_attributes_while_steps_set_others():
    sample = Batch.from_data_list([Data(x=torch.rand(6, 4), edge_index=torch.randint(6, (2, 12))) for _ in range(8)])
    layer = nn.Linear(4, 8)

    def loss(batch):
        batch.x = layer(batch.x)
        return batch.x.mean()

    measured(kind_of(sample), [loss], [layer])
    assert sample.x.shape == (48, 4)
