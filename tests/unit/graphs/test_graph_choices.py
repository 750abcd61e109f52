"""Attributes that batches of graphs follow or leave out, sizes of graphs, and where loaders send other graphs."""

import functools
import pickle

import pytest
import torch
from graph_cases import assert_same_tensors, graph_lists
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as StockLoader
from torch.utils.data import Subset
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader

import memload


def collate(**chosen):
    return functools.partial(memload.graph_collate, **chosen)


@given(graph_lists(), st.data())
@settings(deadline=None, max_examples=40)
def test_batches_follow_and_leave_out_what_the_loader_of_pytorch_geometric_does(graphs, data):
    names = [name for name in graphs[0].keys() if not name.endswith("ptr")]  # noqa: SIM118 - a method of Data
    chosen = {
        "follow_batch": data.draw(st.lists(st.sampled_from([*names, "nothing"]), unique=True)),
        "exclude_keys": data.draw(st.lists(st.sampled_from([*names, "nothing"]), unique=True, max_size=2)),
    }
    if set(names) <= {*chosen["exclude_keys"], "num_nodes"}:
        chosen["exclude_keys"] = []
    expected = list(DataLoader(graphs, 2, **chosen))
    dataset = memload.from_graphs(graphs)
    loader = memload.FastLoader(dataset, 2, collate_fn=collate(**chosen))
    assert loader.engine == "native", loader.why
    stock = StockLoader(dataset, 2, collate_fn=collate(**chosen))
    for batches in (
        loader,
        stock,
        StockLoader(graphs, 2, collate_fn=collate(**chosen)),
        DataLoader(dataset, 2, **chosen),
    ):
        for found, wanted in zip(batches, expected, strict=True):
            assert_same_tensors(found.to_dict(), wanted.to_dict())
            assert list(found.to_dict()) == list(wanted.to_dict())
            assert_same_tensors(found._slice_dict, wanted._slice_dict)
            assert found.num_graphs == wanted.num_graphs


def test_a_function_that_wraps_graph_collate_is_another_function_and_is_called():
    @functools.wraps(memload.graph_collate)
    def first_only(samples):
        return memload.graph_collate(samples[:1])

    loader = memload.FastLoader(memload.from_graphs(pairs()), 3, collate_fn=first_only)
    assert loader.engine == "torch"
    assert [batch.num_graphs for batch in loader] == [1]


def pairs():
    edges = torch.tensor([[0, 1], [1, 0]])
    return [
        Data(x=torch.rand(n, 2), x_s=torch.rand(n + 1, 3), x_t=torch.rand(2 * n, 1), edge_index=edges, smiles="C" * n)
        for n in (2, 4, 3)
    ]


def test_several_attributes_are_followed_in_plain_batches_and_in_worker_processes_too():
    graphs, chosen = pairs(), {"follow_batch": ["x_s", "x_t", "smiles"], "exclude_keys": ["edge_index"]}
    (expected,) = DataLoader(graphs, 3, **chosen)
    assert expected.x_s_ptr.tolist() == [0, 3, 8, 12]
    dataset = memload.from_graphs(graphs)
    function = pickle.loads(pickle.dumps(collate(**chosen)))
    (native,) = memload.FastLoader(dataset, 3, collate_fn=function)
    assert_same_tensors(native.to_dict(), expected.to_dict())
    (worker,) = StockLoader(dataset, 3, collate_fn=function, num_workers=1)
    assert_same_tensors(worker.to_dict(), expected.to_dict())
    (plain,) = memload.FastLoader(dataset.as_plain(), 3, collate_fn=function)
    assert type(plain) is memload.GraphBatch
    assert torch.equal(plain.others["x_t_batch"], expected.x_t_batch)
    assert plain.edge_index is None
    joined = memload.graph_collate([dataset.as_plain()[k] for k in range(3)], **chosen)
    assert torch.equal(joined.others["x_s_ptr"], expected.x_s_ptr)


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        ({"follow_batch": "x_s"}, TypeError, r"follow_batch is a list of names .* follow_batch=\['x'\]; got 'x_s'"),
        ({"exclude_keys": [3]}, TypeError, r"exclude_keys is a list of names of attributes; got \(3,\)"),
        ({"follow_batch": 3}, TypeError, "follow_batch is a list of names"),
        ({"follow": ["x"]}, TypeError, "follow"),
    ],
)
def test_choices_that_are_none_are_refused(chosen, error, message):
    dataset = memload.from_graphs(pairs())
    with pytest.raises(error, match=message):
        _ = memload.FastLoader(dataset, 2, collate_fn=collate(**chosen)).engine


def test_a_followed_attribute_whose_name_is_taken_is_refused():
    dataset = memload.from_graphs([Data(x=torch.zeros(2, 1), a=torch.zeros(2), a_ptr=torch.zeros(1)) for _ in range(2)])
    with pytest.raises(ValueError, match="the graphs have an attribute 'a_ptr' already"):
        _ = memload.FastLoader(dataset, 2, collate_fn=collate(follow_batch=["a"])).engine


@given(graph_lists(), st.data())
@settings(deadline=None, max_examples=30)
def test_sizes_are_those_of_the_graphs_and_nothing_is_read_for_them(graphs, data):
    rows = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=9))
    dataset = memload.from_graphs(graphs).select(rows)
    if not any(name in ("x", "pos", "num_nodes") or "node" in name or name == "feat" for name in graphs[0].to_dict()):
        with pytest.raises(ValueError, match="number of nodes of a graph is unknown"):
            dataset.sizes()
        return
    sizes = dataset.sizes()
    assert sizes.nodes.dtype == sizes.edges.dtype == torch.int64
    assert sizes.nodes.tolist() == [graphs[row].num_nodes for row in rows]
    assert sizes.edges.tolist() == [graphs[row].num_edges for row in rows]


def test_sizes_fill_batches_and_are_there_for_every_kind_of_storage(tmp_path):
    def graph(n):
        return Data(x=torch.rand(n, 2), edge_index=torch.zeros(2, 2 * n, dtype=torch.int64))

    graphs = [graph(n) for n in (3, 9, 4, 4, 1, 7, 2)]
    InMemoryDataset.save(graphs, str(tmp_path / "data.pt"))
    for dataset in (
        memload.from_graphs(graphs),
        memload.open_graphs(tmp_path / "data.pt"),
        memload.write_graphs(tmp_path / "set", graphs, codec="zstd", progress=False),
    ):
        nodes, edges = dataset.sizes()
        assert nodes.tolist() == [3, 9, 4, 4, 1, 7, 2]
        assert torch.equal(edges, 2 * nodes)
        sampler = memload.BudgetBatchSampler(nodes, 10, shuffle=False)
        loader = memload.FastLoader(dataset, batch_sampler=sampler, collate_fn=memload.graph_collate)
        assert [batch.num_nodes for batch in loader] == [3, 9, 9, 9]
    counted = [Data(num_nodes=n, edge_attr=torch.zeros(5 * (n % 2))) for n in (3, 4)]
    assert torch.stack(memload.from_graphs(counted).sizes()).tolist() == [[3, 4], [5, 0]]
    one_shape = memload.GraphDataset(memload.from_arrays(x=torch.rand(4, 5, 2), y=torch.rand(4)).fields)
    assert torch.stack(one_shape.sizes()).tolist() == [[5, 5, 5, 5], [0, 0, 0, 0]]


class Made(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__(None, transform=self.drawing)
        self._data, self.slices = self.collate(graphs)

    def drawing(self, graph):
        torch.rand(1)
        return graph


def test_loaders_of_other_graphs_say_what_to_use():
    graphs = pairs()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    for dataset in (graphs, (*graphs,), Made(graphs), Subset(Made(graphs), [0, 1]), Made(graphs)[:2]):
        loader = memload.FastLoader(dataset, 2, collate_fn=Batch.from_data_list)
        assert loader.engine == "torch"
        assert "has graphs of PyTorch Geometric" in loader.why
        assert "memload.from_graphs(dataset)" in loader.why
        assert torch.equal(torch.get_rng_state(), state)
        assert next(iter(loader)).num_graphs == 2
        torch.set_rng_state(state)
    for other in ([HeteroData()], [1, 2]):
        assert "memload reads natively" in memload.FastLoader(other, 2, collate_fn=list).why
    assert len(memload.from_graphs(Made(graphs))) == 3
