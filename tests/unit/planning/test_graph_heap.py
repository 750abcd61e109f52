"""Plans of graphs on the CPU, which make steps with batches of the loader to see what glibc's heap takes."""

import time

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import memload
from memload.planning import graph_heap
from memload.planning.allocations import Timeline
from memload.planning.curves import Each
from memload.planning.graph_heap import SERIES, STEPS, surplus_of
from memload.planning.graph_spread import FIRST
from memload.planning.heap import HEAP_OF_VARYING, Surplus, heap_keeps_tensors

SIZE, WIDTH = 100, 256
MB = 1_000_000
BOUND = Surplus(HEAP_OF_VARYING)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def heap_as_it_is(monkeypatch):
    for name in ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    if not heap_keeps_tensors():
        pytest.skip("this C library's heap keeps no tensors")


def graph(nodes):
    return Data(x=torch.rand(nodes, 8), edge_index=torch.randint(nodes, (2, 2 * nodes)))


@pytest.fixture(scope="module")
def graphs():
    return memload.from_graphs([graph(10 + number % 97) for number in range(1500)])


class Net(nn.Module):
    """Messages along edges in `WIDTH` numbers for each node, and the nodes of the batches that it was given."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        self.seen, self.places = [], set()

    def forward(self, batch):
        self.seen.append(batch.num_nodes)
        self.places.add(batch.x.data_ptr())
        x = self.first(batch.x).relu()
        sources, targets = batch.edge_index
        x = self.second(torch.zeros_like(x).index_add(0, targets, x[sources])).relu()
        return self.head(x).mean()


def planned(graphs, net, **settings):
    common = {"batch_size": SIZE, "device": "cpu", "ram": "16GB", "collate_fn": memload.graph_collate}
    return memload.plan(graphs, model=net, **{"loss": net, **common, **settings})


def activations(plan):
    return next(line for line in plan.ram.lines if line.name == "activations")


def test_steps_are_made_with_the_first_batches_of_an_epoch_and_the_largest_of_the_plan(graphs):
    net = Net()
    plan = planned(graphs, net)
    loader = memload.FastLoader(graphs, SIZE, collate_fn=memload.graph_collate)
    nodes = [batch.num_nodes for batch in loader]
    series = [*nodes[:FIRST], max(nodes)]
    assert net.seen == [max(nodes), *series * SERIES]
    assert len(series) == STEPS
    assert len(net.places) <= 1 + len(series), "batches are read once, and lie outside of the heap"
    assert "times what is alive, as 20 steps took" in activations(plan).note
    assert "as 20 steps of the model took it here" in str(plan)
    assert "at most" not in str(plan.ram)
    assert not plan.ram.is_bound


@pytest.mark.usefixtures("collector_is_off")  # what other tests left would give memory back meanwhile
def test_what_steps_took_lies_between_what_is_alive_and_the_bound(graphs, monkeypatch):
    seen = activations(planned(graphs, Net())).predicted
    largest = memload.FastLoader(graphs, SIZE, collate_fn=memload.graph_collate)
    sample = max(largest, key=lambda batch: batch.num_nodes)
    given = planned(graphs, net := Net(), sample=sample)
    assert net.seen == [sample.num_nodes], "no other batch of the form of a given sample is known"
    assert given.ram.is_bound
    assert "a bound for what glibc keeps" in str(given)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")
    once = planned(graphs, net := Net())
    assert len(net.seen) == 1
    assert activations(given).predicted == pytest.approx(HEAP_OF_VARYING * activations(once).predicted, rel=0.01)
    assert 1.05 * activations(once).predicted < seen <= 5 * activations(once).predicted


def two_tensors(nbytes):
    each = np.array([nbytes] * 2)
    return Each.of_step(Timeline(("", ""), each, np.array([3, 3]), np.zeros(2, dtype=bool), each), varies=True)


@pytest.mark.parametrize("accumulating", [False, True])
def test_gradients_that_exist_need_room_beside_the_steps(accumulating, monkeypatch):
    monkeypatch.setattr(graph_heap, "free_to_take", lambda: 150 * MB)  # 100 MB of them for what the heap may keep
    model = nn.Linear(4000, 4000)  # gradients of 64 MB
    batches, loss = lambda: [torch.rand(2, 4000)], lambda batch: model(batch).sum()
    found = surplus_of(two_tensors(20 * MB), BOUND, 0, batches, loss, [model], accumulating=accumulating)
    assert found.is_bound is accumulating


@pytest.mark.usefixtures("collector_is_off")  # what other tests left would give memory back meanwhile
@pytest.mark.parametrize("held", [(200, 60), (60, 200)])
def test_the_series_that_takes_less_counts(held):
    model, made = nn.Linear(4, 4), []

    def loss(batch):
        block = np.ones(held[len(made) // STEPS] * MB, dtype=np.uint8)
        time.sleep(0.02)  # for the thread that reads the process's memory
        made.append(len(block))
        return model(batch).sum()

    step = two_tensors(20 * MB)
    found = surplus_of(step, BOUND, 0, lambda: [torch.rand(2, 4)], loss, [model], accumulating=False)
    assert len(made) == found.steps == SERIES * STEPS
    assert found.times == pytest.approx(60 / 40, abs=0.3)


@pytest.mark.parametrize("free", [0, 60 * MB])
def test_without_free_memory_for_steps_the_bound_counts(graphs, free, monkeypatch):
    monkeypatch.setattr(graph_heap, "free_to_take", lambda: free)
    plan = planned(graphs, net := Net())
    assert len(net.seen) == 1
    assert plan.ram.is_bound


def test_a_step_that_counts_by_the_bound_makes_the_plan_a_bound(monkeypatch):
    most_edges = Data(x=torch.rand(10, 8), edge_index=torch.randint(10, (2, 9_000)))
    graphs = memload.from_graphs(
        [graph(100) for _ in range(SIZE)] + [graph(60) for _ in range(SIZE - 1)] + [most_edges]
    )
    free = iter([0, 1 << 40])
    monkeypatch.setattr(graph_heap, "free_to_take", lambda: next(free))
    found = activations(planned(graphs, net := Net()))
    assert len(net.seen) == 2 + SERIES * STEPS, "the batches with most nodes and with most edges differ"
    assert found.bound is ("20 steps" not in found.note)


def test_steps_that_run_out_of_memory_leave_the_bound(graphs):
    net = Net()

    def loss(batch):
        if len(net.seen) > 4:
            raise MemoryError("no more")
        return net(batch)

    plan = planned(graphs, net, loss=loss)
    assert len(net.seen) == 5
    assert plan.ram.is_bound


def test_a_loss_may_set_attributes_of_its_batch_and_change_it_in_place(graphs):
    net = Net()

    def loss(batch):
        assert batch.x.shape[1] == 8
        assert batch.x.max() <= 1
        batch.x += 1
        taken = net(batch)
        batch.x = net.first(batch.x).relu()
        return net.head(batch.x).mean() + taken

    plan = planned(graphs, net, loss=loss)
    assert len(net.seen) == 1 + SERIES * STEPS
    assert not plan.ram.is_bound


def test_steps_that_would_take_too_long_leave_the_bound_and_the_plan_says_so(graphs, monkeypatch):
    monkeypatch.setattr(graph_heap, "SECONDS", 0.0)
    plan = planned(graphs, net := Net())
    assert len(net.seen) == 3
    assert plan.ram.is_bound
    assert "20 steps that show what it keeps would take longer than 0 seconds here" in str(plan)


def test_a_step_without_memory_says_what_to_do(graphs):
    def loss(batch):
        return torch.empty(1 << 50, dtype=torch.uint8)  # torch says it as a RuntimeError

    with pytest.raises(ValueError, match=r"takes more than .* free here: give a batch of fewer graphs as sample="):
        planned(graphs, Net(), loss=loss)


def test_a_loss_may_be_a_module_without_a_length(graphs):
    class Compiled(Net):
        def __len__(self):
            raise TypeError("Net does not support len()")

    assert "of the mean" not in activations(planned(graphs, Compiled(), batch_size=4)).note


def test_steps_whose_heap_is_small_leave_the_bound(graphs):
    plan = planned(graphs, net := Net(), batch_size=4)
    assert len(net.seen) == 1
    assert plan.ram.is_bound


def test_other_settings_that_fit_are_planned_by_the_same_steps(graphs):
    first = planned(graphs, net := Net(), shuffle=True)
    before, others = len(net.seen), first.ram.predicted - activations(first).predicted
    plan = planned(graphs, net := Net(), shuffle=True, ram=others + 30 * MB)  # less than what is alive
    assert any("batch_size=" in way for way in plan.ways_out), plan.ways_out
    assert before < len(net.seen) < before + SERIES * STEPS


def test_models_gradients_and_random_numbers_are_as_before(graphs):
    net = nn.Sequential(Net(), nn.Dropout())
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    before, drawn = [p.detach().clone() for p in net.parameters()], torch.get_rng_state()
    planned(graphs, net, shuffle=True)
    assert len(net[0].seen) == 1 + SERIES * STEPS
    assert all(map(torch.equal, before, net.parameters()))
    assert all(bool((p.grad == 1).all()) for p in net.parameters())
    assert torch.equal(drawn, torch.get_rng_state())
