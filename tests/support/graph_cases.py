"""Graphs as PyTorch Geometric has them, of all the kinds that occur, and what makes two batches of them the same."""

import torch
from hypothesis import strategies as st
from torch_geometric.data import Data

VALUES = {
    "float": lambda *shape: torch.randn(*shape),
    "double": lambda *shape: torch.randn(*shape, dtype=torch.float64),
    "half": lambda *shape: torch.randn(*shape).to(torch.bfloat16),
    "int": lambda *shape: torch.randint(-9, 9, shape),
    "small int": lambda *shape: torch.randint(0, 9, shape, dtype=torch.uint8),
    "bool": lambda *shape: torch.rand(*shape) < 0.5,
}
WANTED = {
    "x": st.none() | st.sampled_from([(), (1,), (5,), (2, 3)]),
    "edge_attr": st.none() | st.sampled_from([(), (4,)]),
    "y": st.sampled_from([None, "per graph", "several per graph", "per node", "0-dim", "int", "float", "bool"]),
    "pos": st.booleans(),
    "mask": st.booleans(),
    "edge_label_index": st.booleans(),
    "center_index": st.booleans(),
    "face": st.booleans(),
    "num_nodes": st.booleans(),
}


@st.composite
def graph_lists(draw, least=1, most=7):
    """Graphs that have the same attributes; at least one of them says how many nodes there are."""
    wanted = {name: draw(kinds) for name, kinds in WANTED.items()}
    if wanted["x"] is None and not wanted["pos"]:
        wanted["num_nodes"] = True
    kinds = {name: draw(st.sampled_from(sorted(VALUES))) for name in ("x", "edge_attr", "y")}
    small = draw(st.booleans())
    sizes = st.tuples(st.integers(0, 5), st.integers(0, 8), st.integers(0, 3))
    torch.default_generator.manual_seed(draw(st.integers(0, 99)))
    return [graph(wanted, kinds, *draw(sizes), small) for _ in range(draw(st.integers(least, most)))]


def graph(wanted, kinds, nodes, edges, extra, small=False):
    """One graph of so many nodes and edges; some of its nodes may have no edges."""
    edges = edges if nodes else 0
    found = Data()
    if wanted["x"] is not None:
        found.x = VALUES[kinds["x"]](nodes, *wanted["x"])
    index = torch.int32 if small else torch.int64
    found.edge_index = torch.randint(0, max(1, nodes), (2, edges), dtype=index)
    if wanted["edge_attr"] is not None:
        found.edge_attr = VALUES[kinds["edge_attr"]](edges, *wanted["edge_attr"])
    if wanted["y"] is not None:
        found.y = _target(wanted["y"], VALUES[kinds["y"]], nodes)
    if wanted["pos"]:
        found.pos = torch.rand(nodes, 3)
    if wanted["mask"]:
        found.train_mask = torch.rand(nodes) < 0.5
    if wanted["edge_label_index"]:
        found.edge_label_index = torch.randint(0, max(1, nodes), (2, extra if nodes else 0))
    if wanted["center_index"]:
        found.center_index = torch.randint(0, max(1, nodes), (1,))
    if wanted["face"]:
        found.face = torch.randint(0, max(1, nodes), (3, extra if nodes else 0))
    if wanted["num_nodes"]:
        found.num_nodes = nodes
    return found


def _target(kind, values, nodes):
    return {
        "per graph": lambda: values(1),
        "several per graph": lambda: values(1, 3),
        "per node": lambda: values(nodes),
        "0-dim": lambda: values(1)[0],
        "int": lambda: int(torch.randint(9, ())),
        "float": lambda: float(torch.rand(())),
        "bool": lambda: bool(torch.rand(()) < 0.5),
    }[kind]()


def assert_same_batch(found, expected):
    """Field by field, in the same order, with all that PyG keeps beside them."""
    assert type(found) is type(expected)
    assert_same_tensors(found.to_dict(), expected.to_dict())
    assert list(found.to_dict()) == list(expected.to_dict())
    assert_same_tensors(found._slice_dict, expected._slice_dict)
    assert_same_tensors(found._inc_dict, expected._inc_dict)
    assert found.num_graphs == expected.num_graphs
    if "ptr" in expected:  # otherwise there are no nodes to be counted
        assert found.num_nodes == expected.num_nodes
    assert set(vars(found.stores[0])) == set(vars(expected.stores[0]))
    assert vars(found.stores[0]).get("_num_nodes") == vars(expected.stores[0]).get("_num_nodes")
    for one, other in zip(found.to_data_list(), expected.to_data_list(), strict=True):
        assert_same_graph(one, other)


def assert_same_graph(found, expected):
    assert type(found) is type(expected)
    assert_same_tensors(found.to_dict(), expected.to_dict())


def assert_same_tensors(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            assert found[name].shape == value.shape, name
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name
            assert type(found[name]) is type(value), name
