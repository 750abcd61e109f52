"""Batches of graphs are those of PyTorch Geometric's own loader, field by field, and so are the samples."""

import pickle

import pytest
import torch
from graph_cases import assert_same_batch, assert_same_graph, graph_lists
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler, Subset
from torch.utils.data import DataLoader as StockLoader
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader

import memload


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
@settings(deadline=None, max_examples=200)
def test_batches_are_those_of_the_loader_of_pytorch_geometric(graphs, batch_size, shuffle):
    torch.manual_seed(1)
    expected = list(DataLoader(graphs, batch_size, shuffle))
    torch.manual_seed(1)
    found = list(native(memload.from_graphs(graphs), batch_size=batch_size, shuffle=shuffle))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same_batch(ours, theirs)


@given(graph_lists(), st.data())
@settings(deadline=None, max_examples=60)
def test_samples_are_the_graphs_and_rows_can_be_selected_and_repeated(graphs, data):
    rows = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=9))
    dataset = memload.from_graphs(graphs)
    for chosen in (dataset.select(rows), Subset(dataset, rows), dataset.concat(dataset).select(rows)):
        for row, wanted in enumerate(rows):
            assert_same_graph(chosen[row], as_stored(graphs[wanted]))
        (batch,) = native(chosen, batch_size=len(rows))
        assert_same_batch(batch, Batch.from_data_list([graphs[row] for row in rows]))


@given(graph_lists(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_file_of_an_in_memory_dataset_is_read_in_place(tmp_path_factory, graphs, selected):
    graphs = [*graphs, *graphs[:1]]  # a single graph is stored in another form
    path = tmp_path_factory.mktemp("pyg") / "data.pt"
    InMemoryDataset.save(graphs, str(path))

    class Saved(InMemoryDataset):
        def __init__(self):
            super().__init__(None)
            self.load(str(path))

    theirs, ours = Saved(), memload.open_graphs(path)
    if selected:
        rows = list(range(len(graphs)))[::-1]
        theirs, ours = theirs.index_select(rows), ours.select(rows)
    assert_same_graph(ours[1], theirs[1])
    for found, expected in zip(native(ours, batch_size=3), DataLoader(theirs, 3), strict=True):
        assert_same_batch(found, expected)
