"""Batches of graphs are those of PyTorch Geometric's own loader, field by field, and so are the samples."""

import json
import pickle

import pytest
import torch
from graph_cases import VALUES, assert_same_batch, assert_same_graph, assert_same_tensors, graph_lists
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import run
from same_rows import OneByOne
from torch.utils.data import DataLoader as StockLoader
from torch.utils.data import StackDataset, Subset
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader

import memload
from memload.cli.main import main


def as_stored(graph):
    """A graph as it is given back: its numbers as tensors."""
    found = Data()
    for name, value in graph.stores[0].items():
        found[name] = torch.tensor(value) if isinstance(value, int | float) and name != "num_nodes" else value
    return found


def native(dataset, **arguments):
    loader = memload.FastLoader(dataset, collate_fn=memload.graph_collate, **arguments)
    assert loader.engine == "native", loader.why
    return loader


@given(graph_lists(), st.integers(1, 4), st.booleans())
@settings(deadline=None, max_examples=40)
def test_batches_are_those_of_the_loader_of_pytorch_geometric(graphs, batch_size, shuffle):
    torch.default_generator.manual_seed(1)
    expected = list(DataLoader(graphs, batch_size, shuffle))
    torch.default_generator.manual_seed(1)
    found = list(native(memload.from_graphs(graphs), batch_size=batch_size, shuffle=shuffle))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same_batch(ours, theirs)


@given(graph_lists(), st.data())
@settings(deadline=None, max_examples=20)
def test_samples_are_the_graphs_and_rows_can_be_selected_and_repeated(graphs, data):
    rows = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=9))
    dataset = memload.from_graphs(graphs)
    for chosen in (dataset.select(rows), Subset(dataset, rows), dataset.concat(dataset).select(rows)):
        for row, wanted in enumerate(rows):
            assert_same_graph(chosen[row], as_stored(graphs[wanted]))
        (batch,) = native(chosen, batch_size=len(rows))
        assert_same_batch(batch, Batch.from_data_list([graphs[row] for row in rows]))


@given(graph_lists(), st.data())
@settings(deadline=None, max_examples=15)
def test_a_file_of_an_in_memory_dataset_is_read_in_place(tmp_path_factory, graphs, data):
    graphs = [*graphs, *graphs[:1]]  # a single graph is stored in another form
    path = tmp_path_factory.mktemp("pyg") / "data.pt"
    InMemoryDataset.save(graphs, str(path))

    class Saved(InMemoryDataset):
        def __init__(self):
            super().__init__(None)
            self.load(str(path))

    theirs, ours = Saved(), memload.open_graphs(path)
    if data.draw(st.booleans()):
        rows = data.draw(st.permutations(range(len(graphs))))
        theirs, ours = theirs.index_select(rows), ours.select(rows)
    assert_same_graph(ours[1], theirs[1])
    for found, expected in zip(native(ours, batch_size=3), DataLoader(theirs, 3), strict=True):
        assert_same_batch(found, expected)


@given(graph_lists())
@settings(deadline=None, max_examples=8)
def test_graphs_written_as_shards_are_the_same_graphs(tmp_path_factory, graphs):
    folder = tmp_path_factory.mktemp("shards")
    written = memload.write_graphs(folder / "a", iter(graphs))
    again = memload.write_graphs(folder / "a", graphs, append=True)
    converted = GraphsOf(memload.write(folder / "b", memload.from_graphs(graphs), shard_bytes=64))
    assert len(again) == 2 * len(graphs)
    for dataset in (written, again, converted):
        (batch,) = native(dataset, batch_size=len(dataset))
        assert_same_batch(batch, Batch.from_data_list(graphs * (len(dataset) // len(graphs))))


def GraphsOf(dataset):  # noqa: N802 - as the class that it makes
    return memload.GraphDataset(dataset.fields)


@given(graph_lists())
@settings(deadline=None, max_examples=15)
def test_plain_batches_have_the_same_tensors_on_either_engine(graphs):
    plain = memload.from_graphs(graphs).as_plain()
    expected = Batch.from_data_list(graphs).to_dict()
    for name in ("num_nodes", "_num_nodes"):
        expected.pop(name, None)
    stock = StockLoader(plain, len(graphs), collate_fn=memload.graph_collate)
    for loader in (native(plain, batch_size=len(graphs)), stock):
        (batch,) = loader
        assert type(batch) is memload.GraphBatch
        assert_same_tensors(batch.attributes, expected)


@given(graph_lists())
@settings(deadline=None, max_examples=15)
def test_stock_loaders_get_the_same_batches(graphs):
    dataset = memload.from_graphs(graphs)
    (expected,) = DataLoader(graphs, len(graphs))
    assert_same_batch(next(iter(DataLoader(dataset, len(graphs)))), expected)
    (batch,) = StockLoader(dataset, len(graphs), collate_fn=memload.graph_collate)
    assert_same_batch(batch, expected)
    assert dataset.stats().batches == 2  # gathered as a whole, for both


def rings(sizes, **more):
    def ring(n):
        nodes = torch.arange(n)
        return Data(x=torch.rand(n, 3), edge_index=torch.stack([nodes, nodes.roll(-1)]), **more)

    return [ring(n) for n in sizes]


def test_graphs_stay_graphs_on_every_tier(tmp_path):
    rings = [Data(x=torch.rand(n, 3), edge_index=torch.arange(2 * n).reshape(2, n) % n) for n in (2, 5, 1, 7)]
    memload.write_graphs(tmp_path / "set", memload.from_graphs(rings), progress=False)
    mapped = memload.open_graphs(tmp_path / "set")
    expected = next(iter(memload.FastLoader(mapped, batch_size=4, collate_fn=memload.graph_collate)))
    for tier, options in {"mmap": {}, "direct": {}, "ram": {}, "hybrid": {"cache_bytes": "2MB"}, "auto": {}}.items():
        there = mapped.with_tier(tier, **options)
        assert isinstance(there, memload.GraphDataset)
        assert there.tier == ("mmap" if tier == "auto" else tier)
        batch = next(iter(memload.FastLoader(there, batch_size=4, collate_fn=memload.graph_collate)))
        assert all(torch.equal(batch[name], expected[name]) for name in ("x", "edge_index", "batch", "ptr"))
    assert there.tier_reason.startswith("mmap: ")
    with pytest.raises(ValueError, match="it cannot be cast in RAM; leave it out"):
        mapped.with_tier("ram", ram_dtype={"x": torch.bfloat16})


def test_texts_of_graphs_are_lists_of_str(tmp_path):
    graphs = rings([2, 3], smiles="C1=CC=CN=C1é")
    graphs[1].smiles = ""
    InMemoryDataset.save(graphs, str(tmp_path / "data.pt"))
    for dataset in (
        memload.from_graphs(graphs),
        memload.open_graphs(tmp_path / "data.pt"),
        memload.write_graphs(tmp_path / "shards", graphs),
    ):
        assert dataset[0].smiles == graphs[0].smiles
        (batch,) = native(dataset, batch_size=2)
        assert_same_batch(batch, Batch.from_data_list(graphs))


def test_batches_are_filled_by_nodes():
    graphs = rings([3, 9, 4, 4, 1, 7, 2])
    dataset = memload.from_graphs(graphs)
    sampler = memload.BudgetBatchSampler([graph.num_nodes for graph in graphs], 10, shuffle=False)
    loader = native(dataset, batch_sampler=sampler)
    assert [batch.num_nodes for batch in loader] == [3, 9, 9, 9]
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    again = native(dataset, batch_sampler=sampler)
    again.load_state_dict(state)
    for found, expected in zip(again, batches, strict=True):
        assert_same_batch(found, expected)


def test_attributes_are_cast_on_the_way():
    graphs = rings([3, 2])
    expected = Batch.from_data_list(graphs)
    expected.x = expected.x.bfloat16()
    dataset, how = memload.from_graphs(graphs), {"cast": {"x": memload.Cast(torch.bfloat16)}}
    for each in (memload.FastLoader, Unknown):
        (batch,) = each(dataset, 2, collate_fn=memload.graph_collate, **how)
        assert_same_tensors(batch.to_dict(), expected.to_dict())
        (plain,) = each(dataset.as_plain(), 2, collate_fn=memload.graph_collate, **how)
        assert_same_tensors(plain.attributes, expected.to_dict())
    with pytest.raises(KeyError, match="cast= names the field 'z'; batches have 'x', 'edge_index', 'batch', 'ptr'"):
        list(Unknown(dataset, 2, collate_fn=memload.graph_collate, cast={"z": memload.Cast(torch.float64)}))


class Unknown(memload.FastLoader):
    """Reads through the stock machinery."""

    def __init__(self, dataset, *args, **how):
        super().__init__(OneByOne(dataset), *args, **how)
        assert self.engine == "torch"


@pytest.mark.parametrize(
    "more",
    [
        {"feat": torch.zeros(2, 3)},
        {"n_id": torch.zeros(2)},
        {"y": 1},
        {"y": 1.5, "node_type": torch.zeros(2)},
    ],
)
def test_batch_and_ptr_are_there_where_pytorch_geometric_adds_them(more):
    graphs = [Data(**more), Data(**more)]
    (batch,) = native(memload.from_graphs(graphs), batch_size=2)
    assert_same_batch(batch, Batch.from_data_list(graphs))


def test_functions_of_batches_run_behind_the_gather():
    loader = native(memload.from_graphs(rings([3, 2])), batch_size=2, batch_transform=lambda batch: batch.num_nodes)
    assert list(loader) == [5]


def test_graphs_joined_by_name_are_graphs_that_know_where_they_are_from():
    a, b = rings([3, 2, 4]), rings([5, 1])
    named = memload.concat({"a": memload.from_graphs(a), "b": memload.from_graphs(b)})
    assert isinstance(named, memload.GraphDataset)
    assert named.names == ("a", "b")
    assert named.rows_by_name() == {"a": range(3), "b": range(3, 5)}
    graphs = [graph.clone() for graph in (*a, *b)]
    for number, graph in zip([0, 0, 0, 1, 1], graphs, strict=True):
        graph.dataset_idx = number
    assert isinstance(named[3].dataset_idx, int)
    assert named[3].dataset_idx == 1
    for ds in (named, pickle.loads(pickle.dumps(named)), named.select([0, 1, 2, 3, 4])):
        loader = memload.FastLoader(ds, 2, collate_fn=memload.graph_collate)
        assert loader.engine == "native"
        for batch, expected in zip(loader, DataLoader(graphs, 2), strict=True):
            assert_same_batch(batch, expected)
        stock = StockLoader(ds, 2, collate_fn=memload.graph_collate)
        assert torch.equal(list(stock)[1].dataset_idx, torch.tensor([0, 1]))
    plain = list(memload.FastLoader(named.as_plain(), 5, collate_fn=memload.graph_collate))
    assert plain[0].others["dataset_idx"].tolist() == [0, 0, 0, 1, 1]
    listed = named.__getitems__([4, 0])
    assert [graph.dataset_idx for graph in listed] == [1, 0]
    other = memload.from_graphs([Data(x=torch.rand(2, 9))])
    with pytest.raises(ValueError, match="the graphs of 'a' and the rows of the other datasets differ in attributes"):
        memload.concat({"a": memload.from_graphs(a), "b": other})
    with pytest.raises(ValueError, match=r"or join ds\.as_plain"):
        memload.concat({"a": memload.from_graphs(a), "b": memload.from_graphs(b).as_plain()})


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([2, -1, 3], "graph 1 .*has a num_nodes of -1; expected 0 or more"),
        ([2, 2**55, 3], "graph 1 of a batch has a num_nodes of 36,028,797,018,963,968: the numbers .* is free"),
        ([2, 2**62, 2**62], "graph 1 alone 4,611,686,018,427,387,904|graph 1 of a batch has a num_nodes of 4,611"),
    ],
)
def test_numbers_of_nodes_that_cannot_be_are_refused_by_an_error_of_ours(counts, message):
    ds = memload.from_arrays(num_nodes=torch.tensor(counts), y=torch.arange(3.0))
    with pytest.raises(memload.FormatError, match=message):
        list(memload.FastLoader(ds, 3, collate_fn=memload.graph_collate))
    with pytest.raises(memload.FormatError, match=message):
        memload.graph_collate([ds[k] for k in range(3)])


@pytest.mark.parametrize("counts", [[2, -1, 3], [2, 2**55, 3], [2, 2**62, 2**62]])
@pytest.mark.parametrize("kind", ["shards", "data.pt"])
def test_impossible_numbers_of_nodes_raise_an_error_that_names_the_file(tmp_path, counts, kind):
    path = tmp_path / kind
    if kind == "shards":
        memload.write(path, {"num_nodes": torch.tensor(counts), "y": torch.arange(3.0)}, progress=False)
    else:
        saved(path, ({"y": torch.arange(3.0), "_num_nodes": counts}, {"y": torch.arange(4)}))
    for ds in (memload.open_graphs(path), memload.open_graphs(path).as_plain()):
        with pytest.raises(memload.FormatError, match=f"{path}.*: .*graph 1 "):
            list(memload.FastLoader(ds, 3, collate_fn=memload.graph_collate))
    with pytest.raises(memload.FormatError, match=f"{path}.*: graph 1 of a batch "):
        memload.graph_collate(memload.open_graphs(path).__getitems__([0, 1, 2]))


def test_files_of_what_cannot_be_graphs_are_refused_and_named(tmp_path):
    memload.write(tmp_path / "set", {"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, progress=False)
    with pytest.raises(memload.FormatError, match=f"{tmp_path / 'set'}: the number of nodes of a graph is unknown"):
        memload.open_graphs(tmp_path / "set")


def test_a_batch_that_is_kept_is_not_written_over():
    graphs = rings(range(1, 60))
    kept = list(native(memload.from_graphs(graphs), batch_size=4))
    for found, expected in zip(kept, DataLoader(graphs, 4), strict=True):
        assert_same_batch(found, expected)


def test_a_graph_dataset_travels_to_other_processes(tmp_path):
    graphs = rings([3, 2])
    for dataset in (memload.from_graphs(graphs), memload.write_graphs(tmp_path / "shards", graphs)):
        again = pickle.loads(pickle.dumps(dataset))
        assert type(again) is memload.GraphDataset
        assert_same_graph(again[1], graphs[1])
    for batch in DataLoader(dataset, 2, num_workers=1):
        assert_same_batch(batch, Batch.from_data_list(graphs))


def test_rows_of_a_stock_batch_that_were_looked_at_are_collated_as_they_are():
    graphs = rings([3, 2])
    rows = memload.from_graphs(graphs).__getitems__([1, 0])
    rows[0].x.zero_()
    assert len(rows) == 2
    assert not memload.graph_collate(rows).x[:2].any()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda ds: memload.FastLoader(ds, 2), "give collate_fn=memload.graph_collate"),
        (lambda ds: memload.FastLoader(ds.map(len), 2, collate_fn=memload.graph_collate), "give batch_transform="),
        (lambda ds: memload.FastLoader(StackDataset(ds, ds), 2), "has graphs"),
        (lambda ds: memload.FastLoader(ds.only("x"), 2, collate_fn=memload.graph_collate), "joins graphs: give"),
        (
            lambda ds: memload.FastLoader(ds.as_plain().as_tuple(), 2, collate_fn=memload.graph_collate),
            "joins graphs: give",
        ),
    ],
)
def test_what_is_no_batch_of_graphs_is_left_to_the_stock_machinery(make, why):
    loader = make(memload.from_graphs(rings([3, 2])))
    assert loader.engine == "torch"
    assert why in loader.why


def test_graphs_without_a_collate_function_say_which_one_to_give():
    loader = memload.FastLoader(Subset(memload.from_graphs(rings([3, 2])), [1, 0]), 2)
    with pytest.raises(TypeError, match=r"give collate_fn=memload\.graph_collate"):
        next(iter(loader))
    own = memload.FastLoader(loader.dataset, 2, collate_fn=Batch.from_data_list)
    assert "lists of graphs" in own.why
    assert next(iter(own)).num_nodes == 5


def test_other_attributes_without_graphs_are_no_graphs():
    plain = memload.from_arrays(edge_index=torch.zeros(3, 2, dtype=torch.int64))
    loader = memload.FastLoader(plain, 2, collate_fn=memload.graph_collate)
    assert "number of nodes of a graph is unknown" in loader.why
    with pytest.raises(TypeError, match="or dicts of tensors; got list"):
        memload.graph_collate([[1]])


def test_a_cast_of_numbers_of_nodes_is_refused_when_the_loader_is_made():
    graphs = memload.from_graphs(rings([3, 2]))
    cast = {"edge_index": memload.Cast(torch.float32)}
    with pytest.raises(ValueError, match=r"'edge_index' holds numbers of nodes.*batch_transform="):
        memload.FastLoader(graphs, 2, collate_fn=memload.graph_collate, cast=cast)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"y": torch.zeros(2)}, "graph 1 of the batch: lacks x, which graph 0 has"),
        ({"x": torch.zeros(2, 1), "y": 1.0, "z": 1}, "graph 1 of the batch: has z, which graph 0 lacks"),
        ({"x": torch.zeros(2, 1), "y": "text"}, "graph 1 of the batch: y is a text; in graph 0 it is one float32"),
    ],
)
def test_dicts_of_which_one_is_unlike_the_first_are_refused_rather_than_joined_without_it(second, message):
    with pytest.raises(ValueError, match=message):
        memload.graph_collate([{"x": torch.zeros(3, 1), "y": 0.0}, second])


def test_rows_of_one_shape_are_attributes_too():
    x, index, face = torch.rand(4, 5, 2), torch.randint(5, (4, 2, 7)), torch.randint(5, (4, 3))
    dataset = memload.GraphDataset(memload.from_arrays(x=x, edge_index=index, y=torch.rand(4), root_index=face).fields)
    graphs = [Data(x=x[k], edge_index=index[k], root_index=face[k], y=dataset[k].y) for k in range(4)]
    for loader in (native(dataset, batch_size=4), StockLoader(dataset, 4, collate_fn=memload.graph_collate)):
        (batch,) = loader
        assert_same_batch(batch, Batch.from_data_list(graphs))


class OwnRules(Data):
    def __inc__(self, key, value, *args):
        return 7


@pytest.mark.parametrize("opens", [memload.open, memload.open_graphs])
@pytest.mark.parametrize("saves", ["now", "by older releases"])
def test_a_file_of_graphs_that_are_joined_by_other_rules_is_refused_though_it_is_trusted(tmp_path, saves, opens):
    path = tmp_path / "data.pt"
    graphs = [OwnRules(x=torch.zeros(3, 2), foo=torch.tensor([1])) for _ in range(4)]
    if saves == "now":
        InMemoryDataset.save(graphs, path)
    else:
        torch.save(InMemoryDataset.collate(graphs), path)
    with pytest.raises(memload.FormatError, match=r"data\.pt: its graphs are of the class OwnRules, .* __inc__"):
        opens(path, trust=True)


@pytest.mark.parametrize(
    ("graphs", "error", "message"),
    [
        ([], ValueError, "there are no graphs"),
        ([{"x": torch.zeros(3)}], TypeError, "graph 0 is a dict; expected torch_geometric.data.Data"),
        ([HeteroData()], TypeError, "graph 0 is a HeteroData"),
        ([OwnRules(x=torch.zeros(3))], TypeError, "graph 0 is a OwnRules, which overrides __inc__"),
        ([Data()], ValueError, "graph 0 has no attributes"),
        ([Data(edge_index=torch.zeros(2, 1).long())], ValueError, "graph 0: the number of nodes of a graph is unknown"),
        ([Data(x=torch.zeros(1), adj=torch.zeros(2, 2).to_sparse())], TypeError, "adj is a Tensor that is sparse"),
        (
            [Data(x=torch.zeros(1), z=[1])],
            TypeError,
            "graph 0: z is a list; expected a plain tensor, a number or",
        ),
        ([Data(x=torch.zeros(1), batch=torch.zeros(1))], ValueError, "graph 0: the attribute 'batch' has the name of"),
        (
            [Data(x=torch.zeros(1), root_index=torch.zeros(1))],
            ValueError,
            "'root_index' is torch.float32, but its",
        ),
        ([Data(x=torch.zeros(1), a_index=torch.zeros(1, 1, 1).long())], ValueError, "numbers of nodes: expected"),
        (
            [Data(x=torch.zeros(3, 0))],
            ValueError,
            r"graph 0: the attribute 'x' has the shape \(None, 0\), and so no elem",
        ),
        ([Data(num_nodes=torch.zeros(2))], ValueError, "num_nodes is one int for each graph"),
        ([*rings([2]), Data(x=torch.zeros(1, 3))], ValueError, "graph 1: lacks edge_index, which graph 0 has"),
        ([*rings([2]), *rings([2], y=1)], ValueError, "graph 1: has y, which graph 0 lacks"),
        (
            [Data(x=torch.zeros(1, 3)), Data(x=torch.zeros(1, 4))],
            ValueError,
            r"graph 1: x is float32 \(n, 4\); in graph 0 it is float32 \(n, 3\)",
        ),
        ([Data(x=torch.zeros(1), y=1), Data(x=torch.zeros(1), y=1.0)], ValueError, "y is one float32; in graph 0"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_named(graphs, error, message, tmp_path):
    for store in (memload.from_graphs, lambda graphs: memload.write_graphs(tmp_path / "shards", graphs)):
        with pytest.raises(error, match=message):
            store(graphs)
    assert not (tmp_path / "shards").exists()


def saved(path, value):
    torch.save(value, path)
    return path


X = {"x": torch.zeros(3, 2)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3), r"expected \(data, slices\).*found Tensor torch.float32 \(3,\); .*write_graphs\("),
        ((1, 2, 3, 4), r"expected \(data, slices\).*found a tuple"),
        ((torch.zeros(1), {}), "found a tuple of Tensor"),
        ((X, None), "has a single graph"),
        (({"a": X}, {"a": {"x": torch.arange(2)}}), "several kinds of nodes"),
        ((X, {}), "its graphs have no attributes"),
        ((X, {"x": [0, 3]}), "the slices of 'x' are a list; expected int64"),
        ((X, {"x": torch.tensor([0, 4])}), "'x': .*offset 1 is 4, which lies beyond the 3 items"),
        ((X, {"x": torch.tensor([0, 2, 1])}), "offset 2 is 1, which is less than the one before"),
        (({"x": {}}, {"x": torch.arange(2)}), "the attribute 'x' is a dict, not a plain tensor"),
        (({"x": torch.eye(3).to_sparse()}, {"x": torch.arange(2)}), "the attribute 'x' is Tensor"),
        (({"x": torch.zeros(1, 1).expand(1 << 50, 9)}, {"x": torch.arange(2)}), "the attribute 'x' is Tensor"),
        (({"x": torch.zeros(3, dtype=torch.complex128)}, {"x": torch.arange(4)}), "complex128 cannot be stored"),
        (
            ({**X, "y": torch.zeros(3)}, {"x": torch.arange(4), "y": torch.arange(3)}),
            "same number of rows, got x: 3, y: 2",
        ),
        (({**X, "_num_nodes": ["a"]}, {"x": torch.arange(2)}), "its numbers of nodes are damaged"),
    ],
)
def test_files_that_hold_no_graphs_are_refused_and_named(value, message, tmp_path):
    with pytest.raises(memload.FormatError, match=message):
        memload.open_graphs(saved(tmp_path / "data.pt", value))


@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view])
def test_attributes_whose_bytes_do_not_show_their_values_are_refused(lazy, tmp_path):
    values = {"x": lazy(torch.rand(4, 2, dtype=torch.complex64))}
    torch.save((values, {"x": torch.tensor([0, 1, 4])}, Data), tmp_path / "a.pt")
    with pytest.raises(memload.FormatError, match="'x' is a lazily conjugated tensor"):
        memload.open_graphs(tmp_path / "a.pt")


@pytest.mark.parametrize("opens", [memload.open, memload.open_graphs])
def test_a_list_of_graphs_says_how_to_write_them_as_a_set(opens, tmp_path):
    with pytest.raises(memload.FormatError, match=r"list\.pt: a list of PyTorch Geom.*write_graphs\(directory, "):
        opens(saved(tmp_path / "list.pt", rings([3, 2])))


def test_a_file_of_graphs_is_opened_and_converted_as_any_other(tmp_path):
    graphs = rings([3, 2])
    InMemoryDataset.save(graphs, str(tmp_path / "data.pt"))
    plain = memload.open(tmp_path / "data.pt")
    assert type(plain) is memload.Dataset
    assert plain[1]["x"].equal(graphs[1].x)
    main(["write", str(tmp_path / "data.pt"), str(tmp_path / "shards"), "--quiet"])
    assert_same_graph(memload.open_graphs(tmp_path / "shards")[0], graphs[0])
    assert memload.open(tmp_path / "data.pt", key="0/x")[0]["0/x"].equal(graphs[0].x[0])  # its tensors, one by one


@pytest.mark.parametrize("second", [[0, 2, 4], [0, 4], [2, 0, 1, 0]])
def test_a_pair_of_dicts_is_plain_tensors_whatever_its_numbers_look_like(tmp_path, second):
    pair = {"y": torch.tensor([3.0, 4, 5, 6])}, {"y": torch.tensor(second)}
    torch.save(pair, tmp_path / "data.pt")
    assert memload.open(tmp_path / "data.pt", key="1/y")[1]["1/y"] == second[1]
    if len(second) == 4:
        assert list(memload.open(tmp_path / "data.pt").fields) == ["0/y", "1/y"]
    else:
        with pytest.raises(ValueError, match=r"same number of rows, got 0/y: 4, 1/y: \d"):
            memload.open(tmp_path / "data.pt")


def test_a_file_of_data_and_slices_says_itself_that_it_holds_graphs(tmp_path):
    graphs = rings([3, 2])
    torch.save(InMemoryDataset.collate(graphs), tmp_path / "old.pt")
    assert memload.open(tmp_path / "old.pt")[1]["x"].equal(graphs[1].x)


def test_without_pytorch_geometric_plain_graphs_are_read_and_the_error_says_what_to_install(tmp_path):
    memload.write_graphs(tmp_path / "shards", rings([3, 2]))
    program = f"""
import sys
sys.modules["torch_geometric"] = None
import memload
graphs = memload.open_graphs({str(tmp_path / "shards")!r})
(batch,) = memload.FastLoader(graphs.as_plain(), 2, collate_fn=memload.graph_collate)
assert batch.ptr.tolist() == [0, 3, 5]
try:
    graphs[0]
except ImportError as error:
    print(error)
"""
    done = run(program)
    assert done.status == 0, done.err
    assert 'pip install "memload[graphs]"' in done.out[0]


ODD = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.lists(st.text(max_size=3), max_size=4),
    st.builds(
        lambda shape, name: VALUES[name](*shape),
        st.lists(st.integers(0, 4), min_size=1, max_size=3),
        st.sampled_from([*VALUES]),
    ),
    st.builds(lambda numbers: torch.tensor(numbers, dtype=torch.int64), st.lists(st.integers(-2, 6), max_size=5)),
    st.builds(lambda ends: torch.tensor(sorted(ends)), st.lists(st.integers(0, 4), min_size=1, max_size=4)),
)
ATTRIBUTES = st.dictionaries(st.sampled_from(["x", "edge_index", "y", "face", "batch", "_num_nodes", "num_nodes"]), ODD)


@given(st.tuples(ATTRIBUTES | ODD, ATTRIBUTES | ODD))
@settings(deadline=None, max_examples=60)
def test_whatever_a_file_holds_is_read_or_refused_by_an_error_of_ours(tmp_path_factory, value):
    path = saved(tmp_path_factory.mktemp("odd") / "data.pt", value)
    try:
        dataset = memload.open_graphs(path)
    except ValueError:
        return
    x = dataset.fields.get("x")
    has_nodes = len(dataset) and x is not None and not getattr(x, "text", False)
    for batch in native(dataset.as_plain(), batch_size=2) if has_nodes else ():
        assert len(batch.ptr) <= 3


def test_graphs_whose_x_is_text_are_read_and_their_batches_are_refused_with_the_reason(tmp_path):
    dataset = memload.open_graphs(saved(tmp_path / "data.pt", ({"x": [""]}, {"x": None})))
    loader = memload.FastLoader(dataset.as_plain(), collate_fn=memload.graph_collate)
    assert "the number of nodes of a graph is unknown" in loader.why
    with pytest.raises(ValueError, match="the number of nodes of a graph is unknown"):
        next(iter(loader))


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_damaged_files_are_read_or_refused_by_an_error_of_ours(tmp_path_factory, changes):
    path = tmp_path_factory.mktemp("damaged") / "data.pt"
    InMemoryDataset.save(rings([3, 2, 4]), str(path))
    raw = bytearray(path.read_bytes())
    for place, value in changes:
        raw[min(int(place * len(raw)), len(raw) - 1)] = value
    path.write_bytes(raw)
    try:
        dataset = memload.open_graphs(path)
        list(native(dataset, batch_size=2))
    except (memload.MemloadError, ValueError):
        pass
