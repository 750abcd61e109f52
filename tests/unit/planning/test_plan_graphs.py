"""memload.plan with graphs and a model of PyTorch Geometric: its activations are those of a real step."""

import copy

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import VGAE, GATConv, GATv2Conv, GCNConv, global_mean_pool

import memload
from memload.planning.gpu_account import GRAPH_LIBRARIES, OPTIMIZER_LIBRARIES

FEATURES, GRAPHS = 16, 300
ELSEWHERE = {"ram": "64GB", "gpu": "16GB", "disk": "1TB"}


def graph(number):
    """A ring with chords and a self loop at every fifth node; the graphs differ in size."""
    generator = torch.Generator().manual_seed(number)
    nodes = int(torch.randint(4, 40, (1,), generator=generator))
    here = torch.arange(nodes)
    chords = torch.randint(nodes, (2, 2 * nodes), generator=generator)
    edges = torch.cat([torch.stack([here, here.roll(-1)]), chords, here[::5].repeat(2, 1)], dim=1)
    return Data(x=torch.rand(nodes, FEATURES, generator=generator), edge_index=edges, y=torch.tensor([float(nodes)]))


class Stack(nn.Module):
    """Two layers, a norm, pooling, and one number for each graph."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.second = layer(FEATURES, 64), layer(64, 64)
        self.norm, self.drop, self.head = nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 1)

    def forward(self, batch):
        x = self.drop(self.norm(self.first(batch.x, batch.edge_index)).relu())
        x = self.second(x, batch.edge_index).relu()
        return self.head(global_mean_pool(x, batch.batch)).squeeze(1)


class Encoder(nn.Module):
    """The encoder of a VGAE: means and logarithms of deviations for each node."""

    def __init__(self):
        super().__init__()
        self.shared, self.mu, self.logstd = GCNConv(FEATURES, 64), GCNConv(64, 32), GCNConv(64, 32)

    def forward(self, x, edge_index):
        x = self.shared(x, edge_index).relu()
        return self.mu(x, edge_index), self.logstd(x, edge_index)


def regression(layer):
    model = Stack(layer)
    return model, lambda batch: nn.functional.mse_loss(model(batch), batch.y)


def autoencoder():
    model = VGAE(Encoder())

    def loss(batch):
        z = model.encode(batch.x, batch.edge_index)
        return model.recon_loss(z, batch.edge_index) + model.kl_loss() / batch.num_nodes

    return model, loss


MODELS = {
    "GCN": lambda: regression(GCNConv),
    "GAT": lambda: regression(GATConv),
    "GATv2": lambda: regression(GATv2Conv),
    "VGAE": autoencoder,
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def graphs():
    return memload.from_graphs([graph(number) for number in range(GRAPHS)])


def batch_of(graphs, rows):
    return memload.graph_collate([graphs[row] for row in rows])


def measured(model, loss, batch):
    """The most bytes of activations in a real step: gradients stay from step to step and do not count."""
    report = memload.probe(lambda: loss(batch).backward())
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    return report.peak - gradients


@pytest.mark.parametrize("name", MODELS)
def test_activations_of_a_given_batch_are_those_of_its_step(graphs, name):
    model, loss = MODELS[name]()
    batch = batch_of(graphs, range(64))
    plan = memload.plan(graphs, model=model, loss=loss, sample=batch, collate_fn=memload.graph_collate, **ELSEWHERE)
    assert plan.data.batch_rows == 64
    assert plan.gpu.of("activations") == pytest.approx(measured(model, loss, batch), rel=0.02)
    assert f"of a step with 64 graphs of {batch.num_nodes:,} nodes and {batch.num_edges:,} edges" in str(plan)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_without_a_sample_activations_are_those_of_the_largest_batch_of_some_epochs(graphs, name, shuffle):
    model, loss = MODELS[name]()
    common = {"shuffle": shuffle, "collate_fn": memload.graph_collate}
    plan = memload.plan(graphs, 20, model=model, loss=loss, **common, **ELSEWHERE)
    loader = memload.FastLoader(graphs, 20, generator=torch.Generator().manual_seed(1), **common)
    each = [measured(model, loss, batch) for _ in range(4 if shuffle else 1) for batch in loader]
    assert plan.gpu.of("activations") == pytest.approx(max(each), rel=0.1 if shuffle else 0.02)
    assert max(each) > 1.1 * sum(each) / len(each), "so that the mean batch would be told apart"
    assert f"the largest of {60 if shuffle else 15} in {'4 epochs' if shuffle else '1 epoch'}" in str(plan)


def test_the_sizes_of_batches_are_told_with_the_budget_that_makes_them_alike(graphs):
    model, loss = MODELS["GCN"]()
    common = {"model": model, "loss": loss, "collate_fn": memload.graph_collate}
    plan = memload.plan(graphs, 20, **common)
    batches = [batch_of(graphs, range(k, k + 20)) for k in range(0, 300, 20)]
    nodes, edges = ([getattr(one, f"num_{what}") for one in batches] for what in ("nodes", "edges"))
    told = f"{min(nodes):,} to {max(nodes):,} nodes and {min(edges):,} to {max(edges):,} edges"
    assert f"Batches of 20 graphs have {told}; the plan is for the largest." in str(plan)
    assert max(nodes) / sum(nodes) > max(edges) / sum(edges), "nodes differ more than edges"
    budget = round(sum(nodes) / 15)
    assert f"memload.BudgetBatchSampler(graphs.sizes().nodes, budget={budget})" in str(plan)
    given = memload.plan(graphs, sample=batches[0], **common)
    more = {"nodes": max(nodes) / nodes[0] - 1, "edges": max(edges) / edges[0] - 1}
    what = max(more, key=more.get)
    assert f"the largest has {more[what]:.0%} more {what}: without sample=" in str(given)
    whole = memload.plan(graphs, 300, **common)
    assert "BudgetBatchSampler" not in str(whole)


@pytest.mark.parametrize("name", MODELS)
def test_the_batches_of_a_budget_are_planned_by_the_largest_of_them(graphs, name):
    model, loss = MODELS[name]()
    sampler = memload.BudgetBatchSampler(graphs.sizes().edges, budget=1500)
    sampler.set_epoch(7)
    plan = memload.plan(
        graphs, model=model, loss=loss, batch_sampler=sampler, collate_fn=memload.graph_collate, **ELSEWHERE
    )
    assert sampler.epoch == 7
    each = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        each += [measured(model, loss, batch_of(graphs, rows)) for rows in sampler]
    assert plan.gpu.of("activations") == pytest.approx(max(each), rel=0.03)
    assert "Batches of the batch sampler have " in str(plan)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [16, 256])
def test_another_batch_size_than_that_of_the_sample_is_scaled_to_the_largest_batch_as_an_estimate(graphs, name, size):
    model, loss = MODELS[name]()
    sample = batch_of(graphs, range(0, 300, 5))
    plan = memload.plan(graphs, size, model=model, loss=loss, sample=sample, collate_fn=memload.graph_collate)
    assert f"an estimate: scaled to {size} of " in str(plan)
    assert "from a step with 60 graphs" in str(plan)
    assert "; the plan is for the largest." in str(plan)
    real = [batch_of(graphs, range(k, min(k + size, 300))) for k in range(0, 300, size)]
    assert plan.gpu.of("activations") == pytest.approx(max(measured(model, loss, one) for one in real), rel=0.1)


def test_of_samples_whose_dataset_is_a_shape_the_means_are_scaled(graphs):
    model, loss = MODELS["GCN"]()
    sample = batch_of(graphs, range(60))
    fields = {"x": ("float32", (None, 16)), "edge_index": ("int64", (2, None)), "y": ("float32", (1,))}
    shape = memload.DatasetShape(300, fields, {"x": (21, 40), "edge_index": (67, 127)})
    common = {"model": model, "loss": loss, "sample": sample, "collate_fn": memload.graph_collate}
    plan = memload.plan(shape, 120, **common)
    assert "an estimate: scaled to 120 from a step with 60 graphs" in str(plan)
    assert plan.gpu.of("activations") == pytest.approx(2 * measured(model, loss, sample), rel=0.1)


@pytest.mark.usefixtures("freed_memory_goes_back")
def test_a_model_on_meta_a_plain_batch_and_the_cpu_give_the_same_activations(graphs):
    model, loss = MODELS["GAT"]()
    batch = batch_of(graphs, range(32))
    plain = memload.graph_collate([graphs.as_plain()[row] for row in range(32)])
    common = {"loss": loss, "collate_fn": memload.graph_collate}
    wanted = memload.plan(graphs, 32, model=model, sample=batch, **common).gpu.of("activations")
    on_cpu = memload.plan(graphs, 32, model=model, sample=batch, device="cpu", ram="8GB", **common)
    assert on_cpu.ram.of("activations") == wanted
    assert memload.plan(graphs, 32, model=model, sample=plain, **common).gpu.of("activations") == wanted
    model.to("meta")
    assert memload.plan(graphs, 32, model=model, sample=batch, **common).gpu.of("activations") == wanted
    assert all(p.is_meta for p in model.parameters())


def test_libraries_of_graphs_count_once_with_those_of_optimizers(graphs):
    model, loss = MODELS["GCN"]()
    common = {"model": model, "loss": loss, "device": "cpu", "collate_fn": memload.graph_collate}
    for optimizer in (None, torch.optim.AdamW):
        there = memload.plan(graphs, 32, optimizer=optimizer, ram="8GB", **common)
        assert there.ram.of("libraries") == GRAPH_LIBRARIES
        assert memload.plan(graphs, 32, optimizer=optimizer, **common).ram.of("libraries") == 0, "imported here"
    plain = memload.plan(graphs.as_plain(), 32, optimizer=torch.optim.AdamW, ram="8GB", **common)
    assert plain.ram.of("libraries") == OPTIMIZER_LIBRARIES


def test_half_precision_takes_about_half(graphs):
    model, loss = MODELS["GCN"]()
    batch = batch_of(graphs, range(64))
    whole, half = (
        memload.plan(graphs, 64, model=model, loss=loss, sample=batch, precision=precision).gpu.of("activations")
        for precision in ("float32", "bf16-true")
    )
    assert 0.45 < half / whole < 0.75


def test_the_model_the_batch_and_random_numbers_are_as_before(graphs):
    model = Stack(lambda inputs, outputs: GCNConv(inputs, outputs, cached=True))
    batch = batch_of(graphs, range(32))
    before, own = copy.deepcopy(model.state_dict()), batch.x
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    state = torch.get_rng_state()
    for sample in (batch, None):
        memload.plan(graphs, 32, model=model, sample=sample, collate_fn=memload.graph_collate)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all((p.grad == 1).all() for p in model.parameters())
    assert model.first._cached_edge_index is None
    assert batch.x is own


def test_accumulated_batches_need_room_beside_their_gradients(graphs):
    model, loss = MODELS["GCN"]()
    batch = batch_of(graphs, range(64))
    plans = [memload.plan(graphs, model=model, loss=loss, sample=batch, accumulate=count) for count in (1, 4)]
    assert plans[1].gpu.of("activations") >= plans[0].gpu.of("activations")


def test_smaller_batches_that_fit_are_found_by_scaling(graphs):
    model, loss = MODELS["GAT"]()
    batch = batch_of(graphs, range(256))
    common = {"model": model, "loss": loss, "collate_fn": memload.graph_collate}
    whole = memload.plan(graphs, 256, sample=batch, **common).gpu.predicted
    ways = memload.plan(graphs, 256, sample=batch, gpu=whole - 4_000_000, **common).ways_out
    assert any("batch_size=128, 2 of them accumulated" in way for way in ways), ways


def test_a_loss_that_fails_is_a_value_error_that_says_what_to_give(graphs):
    model, _ = MODELS["GCN"]()
    batch = batch_of(graphs, range(8))

    def fails(batch):
        raise AssertionError("no such nodes")

    for given in ({"sample": batch}, {}):
        with pytest.raises(ValueError, match=r"fails on the CPU \(AssertionError: no such nodes\): give a loss="):
            memload.plan(graphs, 8, model=model, loss=fails, collate_fn=memload.graph_collate, **given)
    with pytest.raises(ValueError, match=r"without numbers \(AssertionError: no such nodes\)"):
        shape = memload.DatasetShape(10, {"x": ("float32", (4,))})
        memload.plan(shape, 2, model=nn.Linear(4, 1), loss=fails)


def test_a_model_that_does_not_take_graphs_leaves_activations_unknown(graphs):
    plan = memload.plan(graphs, 8, model=nn.Linear(4, 1), collate_fn=memload.graph_collate)
    assert "the model does not take the loader's batch" in str(plan)


def test_a_step_that_this_machine_has_no_memory_for_asks_for_a_smaller_sample(graphs, monkeypatch):
    model, loss = MODELS["GCN"]()
    monkeypatch.setattr("memload.planning.graph_steps.memory", lambda: type("", (), {"free": 100_000})())
    with pytest.raises(ValueError, match=r"100 graphs of .* takes more than the 100 kB that are free here: give a"):
        memload.plan(graphs, 100, model=model, loss=loss, collate_fn=memload.graph_collate)


def test_a_shape_of_graphs_asks_for_a_sample():
    shape = memload.DatasetShape(
        50, {"x": ("float32", (None, 16)), "edge_index": ("int64", (2, None))}, {"x": (9, 20), "edge_index": (20, 60)}
    )
    model, loss = MODELS["GCN"]()
    with pytest.raises(ValueError, match="give a batch of graphs as sample="):
        memload.plan(shape, 4, model=model, loss=loss, collate_fn=memload.graph_collate)


def test_a_batch_sampler_that_cannot_be_foreseen_needs_a_sample_which_is_not_scaled(graphs):
    model, loss = MODELS["GCN"]()

    class Own(torch.utils.data.Sampler):
        def __iter__(self):
            yield [1, 2]

    with pytest.raises(ValueError, match=r"batch_sampler= decides the graphs .* give the largest .* as sample="):
        memload.plan(graphs, model=model, loss=loss, batch_sampler=Own())
    batch = batch_of(graphs, range(20))
    for sampler in (Own(), [range(30), range(30, 90)]):
        plan = memload.plan(graphs, model=model, loss=loss, batch_sampler=sampler, sample=batch)
        assert plan.gpu.of("activations") == pytest.approx(measured(model, loss, batch), rel=0.02)
    assert "Batches of the batch sampler have 30 to 60 graphs" in str(plan)
    assert "the plan is for the sample, and the largest has " in str(plan)
