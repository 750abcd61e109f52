"""Files with a list of graphs are converted graph by graph, in memory that does not grow with the file."""

import random

import pytest
import torch
from graph_cases import assert_same_batch, assert_same_graph, graph_lists
from hypothesis import given, settings
from programs import run
from torch_geometric.data import Batch, Data, HeteroData

import memload
from memload.formats.torch_records import TorchRecords


def saved(path, value, **how):
    torch.save(value, path, **how)
    return path


def rings(sizes, **more):
    def ring(n):
        nodes = torch.arange(n)
        return Data(x=torch.rand(n, 3), edge_index=torch.stack([nodes, nodes.roll(-1)]), **more)

    return [ring(n) for n in sizes]


def assert_same(dataset, graphs):
    assert len(dataset) == len(graphs)
    loader = memload.FastLoader(dataset, len(graphs), collate_fn=memload.graph_collate)
    assert_same_batch(next(iter(loader)), Batch.from_data_list(graphs))


@given(graph_lists())
@settings(deadline=None, max_examples=15)
def test_graphs_of_a_file_are_those_of_the_list(tmp_path_factory, graphs):
    folder = tmp_path_factory.mktemp("list")
    path = saved(folder / "list.pt", graphs)
    assert_same(memload.from_graphs(path), graphs)
    assert_same(memload.write_graphs(folder / "set", str(path), progress=False), graphs)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_protocols_and_any_number_of_graphs_are_read(tmp_path, protocol):
    for count in (1, 2, 3 if protocol > 2 else 1001):
        graphs = rings([n % 3 + 1 for n in range(count)], name="ring")
        path = saved(tmp_path / "list.pt", graphs, pickle_protocol=protocol)
        assert_same(memload.from_graphs(path), graphs)


def test_tensors_that_graphs_share_and_views_of_larger_ones_are_read(tmp_path):
    whole, edges = torch.rand(100, 6), torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(x=whole[n : n + 2, ::2], edge_index=edges, w=whole.T[1:3, n : n + 1]) for n in range(50)]
    graphs.append(graphs[3])
    graphs.append(
        Data(x=torch.nn.Parameter(torch.rand(2, 3)).detach(), edge_index=edges.T.contiguous().T, w=whole[:0, :1])
    )
    assert_same(memload.from_graphs(saved(tmp_path / "list.pt", graphs)), graphs)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.bfloat16, torch.float16, torch.complex64, torch.uint16]
)
def test_all_dtypes_are_read(tmp_path, dtype):
    graphs = [Data(x=torch.ones(n, 2), z=torch.arange(n).to(dtype)) for n in (2, 3)]
    path = saved(tmp_path / "list.pt", graphs)
    for graph, expected in zip(memload.from_graphs(path), graphs, strict=True):
        assert_same_graph(graph, expected)


def test_tensors_that_are_lazily_conjugated_or_negated_are_read_with_their_values(tmp_path):
    numbers, others = torch.rand(6, 2, dtype=torch.complex64), torch.rand(6, 2, dtype=torch.complex64)
    graphs = [Data(x=numbers[n : n + 2].conj(), y=others[n : n + 2].conj().imag) for n in range(5)]
    assert graphs[0].x.is_conj()
    assert graphs[0].y.is_neg()
    path = saved(tmp_path / "list.pt", graphs)
    for graph, expected in zip(memload.from_graphs(path), graphs, strict=True):
        assert_same_graph(graph, expected)
    for graph, expected in zip(memload.write_graphs(tmp_path / "set", path, progress=False), graphs, strict=True):
        assert_same_graph(graph, expected)


class Own(Data):
    pass


class Harm:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([*rings([2]), Harm()], "holds (builtins|__builtin__).print, whose unpickling may run any code; .* trust=True"),
        ([Own(x=torch.zeros(2, 1))], "holds .*test_graph_lists.Own, whose unpickling may run"),
        ((*rings([2]),), "has no list of graphs"),
        ({"x": torch.zeros(3)}, "has no list of graphs"),
        ([Data(x=torch.zeros(2), a=torch.eye(2).to_sparse())], "has tensors that are not dense"),
    ],
)
def test_what_is_no_list_of_plain_graphs_is_refused_and_nothing_of_it_is_run(tmp_path, capsys, value, message):
    path = saved(tmp_path / "list.pt", value)
    for call in (memload.from_graphs, lambda path: memload.write_graphs(tmp_path / "set", path)):
        with pytest.raises(memload.FormatError, match=message):
            call(path)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "set").exists()


def test_classes_that_are_trusted_or_allowed_are_read(tmp_path):
    path = saved(tmp_path / "list.pt", [Own(x=torch.ones(2, 1))] * 2)
    assert len(memload.from_graphs(path, trust=True)) == 2
    with torch.serialization.safe_globals([Own]):
        assert len(memload.write_graphs(tmp_path / "set", path)) == 2


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([HeteroData()], TypeError, "graph 0 is a HeteroData"),
        ([*rings([2]), Data(x=torch.zeros(2, 4))], ValueError, "graph 1: lacks edge_index"),
        ([Data(x=torch.zeros(2), z=[1])], TypeError, "graph 0: z is a list"),
        ([{"x": 1}], TypeError, "graph 0 is a dict"),
    ],
)
def test_graphs_that_cannot_be_stored_are_named_as_those_of_a_list(tmp_path, value, error, message):
    with pytest.raises(error, match=message):
        memload.from_graphs(saved(tmp_path / "list.pt", value))


def test_damaged_files_are_errors_that_name_them_wherever_the_damage_is(tmp_path):
    graphs = rings([2, 3, 1], y=1.5)
    whole, path = saved(tmp_path / "list.pt", graphs).read_bytes(), tmp_path / "damaged.pt"
    draw, unnamed = random.Random(7), []
    for _ in range(150):
        data = bytearray(whole)
        if draw.random() < 0.3:
            del data[draw.randrange(len(data)) :]
        else:
            data[draw.randrange(min(2000, len(data)))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            made = memload.from_graphs(path)
        except memload.FormatError as error:
            unnamed += [] if str(path) in str(error) else [error]
        except (TypeError, ValueError) as error:  # of a graph that is none, or not like the first
            unnamed += [] if str(error).startswith("graph ") or "no graphs" in str(error) else [error]
        else:
            assert len(made) <= 3
    assert unnamed == []
    path.write_bytes(b"")
    with pytest.raises(memload.FormatError, match="it has no directory of records"):
        memload.from_graphs(path)
    with pytest.raises(FileNotFoundError):
        memload.from_graphs(tmp_path / "missing.pt")


def test_a_record_that_is_too_short_is_an_error(tmp_path):
    records = TorchRecords(saved(tmp_path / "list.pt", rings([2])))
    with pytest.raises(memload.FormatError, match="the record data/0 has 24 bytes, 32 are expected"):
        records.read("0", 8, 24)
    with pytest.raises(memload.FormatError, match="refers to the record data/99, which is not there"):
        records.read("99", 0, 1)
    records.close()


CONVERTS = """
import warnings
from pathlib import Path

warnings.simplefilter("ignore")  # of what PyTorch Geometric imports
import torch_geometric.data
import memload


def of(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def peak(call):
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    before = of("VmRSS")
    made = call()
    return len(made), of("VmHWM") - before


memload.write_graphs({set!r} + "0", {warm!r})
print(*peak(lambda: memload.write_graphs({set!r}, {path!r})))
"""


def test_memory_for_a_list_does_not_grow_with_its_file(tmp_path):
    count = 300
    graphs = [Data(x=torch.zeros(4_000 + n % 7, 25), n=n) for n in range(count)]
    path, warm = saved(tmp_path / "list.pt", graphs), saved(tmp_path / "warm.pt", graphs[:60])
    del graphs
    size = path.stat().st_size
    assert size > 120_000_000
    ended = run(CONVERTS.format(set=str(tmp_path / "set"), warm=str(warm), path=str(path)))
    assert ended.status == 0, ended.err
    written, most = map(int, ended.out[0].split())
    assert written == count
    assert most < 0.75 * size  # loaded whole it takes the size of the file, and what Python keeps for each tensor
    for file in (path, *tmp_path.rglob("*.safetensors")):
        file.unlink()


@pytest.mark.parametrize("end", [-1, 2])
def test_an_edge_that_ends_at_no_node_of_its_graph_is_refused_by_the_graphs_number(end, tmp_path):
    edges = [torch.tensor([[0, 1], [1, 0]]), torch.empty(2, 0, dtype=torch.int64), torch.tensor([[0], [end]])]
    graphs = [Data(x=torch.rand(2, 3), edge_index=ends) for ends in edges]
    said = f"graph 2: an edge of edge_index ends at node {end}, and by x the graph has 2 nodes, counted from 0"
    with pytest.raises(ValueError, match=said):
        memload.from_graphs(graphs)
    with pytest.raises(ValueError, match=said):
        memload.write_graphs(tmp_path / "graphs", iter(graphs))
    assert not (tmp_path / "graphs").exists()
    for graph in graphs:
        graph.num_nodes = 3
        graph.edge_index = graph.edge_index.abs()
    assert len(memload.from_graphs(graphs)) == 3
