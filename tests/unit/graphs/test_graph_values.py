"""Values beside graphs: what memload.zip adds belongs to whole graphs, or to nodes, and batches stay what they were."""

import pickle

import pytest
import torch
from graph_cases import assert_same_batch, assert_same_tensors
from torch.utils.data import DataLoader as StockLoader
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import memload

COUNT = 30


def ring(nodes):
    here = torch.arange(nodes)
    return Data(x=torch.rand(nodes, 3), edge_index=torch.stack([here, here.roll(-1)]), y=float(nodes))


@pytest.fixture
def rings():
    return [ring(2 + k % 5) for k in range(COUNT)]


@pytest.fixture
def values():
    return {
        "logits": torch.rand(COUNT, 2),
        "column": torch.rand(COUNT, 1),
        "features": torch.rand(COUNT, 2, 3, dtype=torch.float64),
        "score": torch.rand(COUNT),
    }


def with_values(rings, values):
    """The graphs as PyTorch Geometric's users would make them: a graph's own rows have a first axis of length 1."""
    made = [graph.clone() for graph in rings]
    for k, graph in enumerate(made):
        for name, rows in values.items():
            graph[name] = rows[k : k + 1] if rows.ndim > 1 else rows[k]
    return made


def loaders(dataset, size):
    yield memload.FastLoader(dataset, size, collate_fn=memload.graph_collate)
    yield memload.FastLoader(dataset, size, collate_fn=memload.graph_collate, batch_transform=lambda batch: batch)
    yield StockLoader(dataset, size, collate_fn=memload.graph_collate)  # by __getitems__
    yield StockLoader(dataset, size, collate_fn=lambda samples: memload.graph_collate([*samples]))  # sample by sample
    yield DataLoader(dataset, size)  # PyTorch Geometric's own


def assert_batches_are(dataset, expected, size=8):
    for number, loader in enumerate(loaders(dataset, size)):
        if not number:
            assert loader.engine == "native"
        for batch, own in zip(loader, DataLoader(expected, size), strict=True):
            assert_same_batch(batch, own)


def test_rows_beside_graphs_are_stacked_and_the_batch_is_what_it_was(rings, values):
    graphs = memload.from_graphs(rings)
    both = memload.zip(graphs=graphs, teacher=memload.from_arrays(values))
    assert type(both) is memload.GraphDataset
    batch = next(iter(memload.FastLoader(both, 16, collate_fn=memload.graph_collate)))
    assert {name: tuple(batch[name].shape) for name in values} == {
        "logits": (16, 2),
        "column": (16, 1),
        "features": (16, 2, 3),
        "score": (16,),
    }
    without = next(iter(memload.FastLoader(graphs, 16, collate_fn=memload.graph_collate)))
    assert type(batch) is type(without)
    assert_same_tensors({name: batch[name] for name in without.keys()}, without.to_dict())  # noqa: SIM118
    assert_batches_are(both, with_values(rings, values))
    assert both[7].logits.tolist() == values["logits"][7:8].tolist()


def test_they_stay_so_selected_joined_pickled_written_and_put_on_another_tier(rings, values, tmp_path):
    both = memload.zip(graphs=memload.from_graphs(rings), teacher=memload.from_arrays(values))
    in_order = with_values(rings, values)
    written = memload.GraphDataset(memload.write(tmp_path / "set", both).fields)
    assert_batches_are(written, in_order)
    assert_batches_are(memload.open_graphs(tmp_path / "set"), in_order)
    assert_batches_are(pickle.loads(pickle.dumps(both)), in_order)
    assert_batches_are(both.select([9, 3, 3, 29]), [in_order[k] for k in (9, 3, 3, 29)])
    assert_batches_are(both.concat(both), in_order * 2)
    assert_batches_are(memload.open_graphs(tmp_path / "set").with_tier("ram"), in_order)
    named = memload.concat({"a": both.select(range(4)), "b": both.select(range(4, COUNT))})
    for number, graph in enumerate(in_order):
        graph.dataset_idx = int(number >= 4)
    assert_batches_are(named, in_order)


def test_a_join_by_name_keeps_its_numbers_beside_values(rings, values):
    graphs = memload.from_graphs(rings)
    named = memload.concat({"a": graphs.select(range(4)), "b": graphs.select(range(4, COUNT))})
    both = memload.zip(graphs=named, teacher=memload.from_arrays(values))
    assert both.names == ("a", "b")
    assert both[5].dataset_idx == 1
    assert both.rows_by_name() == {"a": range(4), "b": range(4, COUNT)}


def test_windows_beside_graphs_are_stacked_cut_before_or_after(rings, values):
    graphs, teacher = memload.from_graphs(rings), memload.from_arrays(values)
    lagged = teacher.with_lags(logits=range(3), score=range(2))
    before = memload.zip(graphs=graphs.select(range(2, COUNT)), teacher=lagged)
    after = memload.zip(graphs=graphs, teacher=teacher).with_lags(logits=range(3), score=range(2))
    expected = with_values(rings, values)[2:]
    for k, graph in enumerate(expected, start=2):
        graph.logits = torch.stack([values["logits"][k - lag] for lag in range(3)])[None]
        graph.score = torch.stack([values["score"][k - lag] for lag in range(2)])[None]
    for ds in (before, after):
        assert_batches_are(ds, expected)
    numbers = graphs.with_lags(y=range(2))
    assert next(iter(memload.FastLoader(numbers, 4, collate_fn=memload.graph_collate))).y.shape == (4, 2)
    sized = memload.from_graphs([Data(num_nodes=3, y=1.0)] * 4)
    with pytest.raises(ValueError, match="'num_nodes' defines the nodes of graphs"):
        sized.with_lags(num_nodes=range(2))


def test_values_of_each_node_are_joined_as_nodes_are(rings):
    nodes = [torch.rand(graph.num_nodes, 2) for graph in rings]
    texts = [f"ring {k}" for k in range(COUNT)]
    both = memload.zip(
        graphs=memload.from_graphs(rings),
        teacher=memload.from_arrays(outputs=memload.ragged(nodes), name=texts),
    )
    expected = [graph.clone() for graph in rings]
    for graph, outputs, name in zip(expected, nodes, texts, strict=True):
        graph.outputs, graph.name = outputs, name
    assert_batches_are(both, expected)


def test_without_pytorch_geometric_they_are_stacked_too(rings, values):
    graphs, teacher = memload.from_graphs(rings), memload.from_arrays(values)
    expected = Batch.from_data_list(with_values(rings, values)[:8])
    for plain in (
        memload.zip(graphs=graphs, teacher=teacher).as_plain(),
        memload.zip(graphs=graphs.as_plain(), teacher=teacher),
    ):
        for loader in [*loaders(plain, 8)][:4]:
            batch = next(iter(loader))
            assert type(batch) is memload.GraphBatch
            assert_same_tensors(batch.attributes, expected.to_dict())


def test_a_teacher_of_graphs_gives_what_lies_beside_them(rings, tmp_path):
    graphs = memload.from_graphs(rings)

    def teacher(batch):
        sums = torch.zeros(batch.num_graphs, 3).index_add_(0, batch.batch, batch.x)
        return {"logits": sums[:, :2], "energy": sums[:, :1]}

    taught = memload.score(teacher, graphs, 7, path=tmp_path / "teacher", collate_fn=memload.graph_collate)
    both = memload.zip(graphs=graphs, teacher=taught)
    for batch in memload.FastLoader(both, 9, shuffle=True, collate_fn=memload.graph_collate):
        assert batch.logits.shape == (batch.num_graphs, 2)
        assert torch.allclose(batch.logits, teacher(batch)["logits"])
        assert batch.energy.shape == (batch.num_graphs, 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("class_index", r"adds numbers of nodes.*rename\(\{'class_index': \"row\"\}\)"),
        ("node_kind", None),  # x comes first
        ("x", r"both 'graphs' and 'more' bring a field 'x'; .*rename"),
        ("batch", "has the name of what batches have"),
        ("batch_id", "'batch_id' has \"batch\" in its name, .* rename it, as to 'group_id'"),
    ],
)
def test_names_that_would_change_how_graphs_are_joined_are_refused(rings, name, message):
    graphs, more = (
        memload.from_graphs(rings),
        memload.from_arrays({name: torch.zeros(COUNT, 2), "other": torch.ones(COUNT)}),
    )
    if message is None:
        assert_batches_are(
            memload.zip(graphs=graphs, more=more),
            with_values(rings, {name: torch.zeros(COUNT, 2), "other": torch.ones(COUNT)}),
        )
        return
    with pytest.raises(ValueError, match=message):
        memload.zip(graphs=graphs, more=more)


def test_a_field_that_would_count_the_nodes_is_refused(rings):
    featureless = memload.from_graphs(
        [Data(edge_index=graph.edge_index, node_x=torch.rand(graph.num_nodes)) for graph in rings]
    )
    with pytest.raises(ValueError, match="'pos' of 'more': by this name, it would say how many nodes"):
        memload.zip(graphs=featureless, more=memload.from_arrays(pos=torch.rand(COUNT, 3), other=torch.rand(COUNT)))


def test_attributes_of_graphs_are_renamed_where_that_changes_no_rule(rings):
    graphs = memload.from_graphs(rings)
    renamed = graphs.rename({"y": "energy"})
    expected = [Data(x=g.x, edge_index=g.edge_index, energy=g.y) for g in rings]
    assert_batches_are(renamed, expected)
    with pytest.raises(ValueError, match="the number of nodes of a graph is unknown"):
        graphs.rename({"x": "features"})
    with pytest.raises(ValueError, match="only one of 'edge_index' and 'edges' holds numbers of nodes"):
        graphs.rename({"edge_index": "edges"})
    with pytest.raises(KeyError, match="no field 'z'"):
        graphs.rename({"z": "y"})
