"""Parts of a sample: what they have, and that a step which does not fit is foreseen by them and not run."""

import subprocess
import sys

import hypothesis.strategies as st
import pytest
import torch
from cgroups import limited, why_not
from hypothesis import given, settings
from memory_models import GraphNet, graph_batch
from torch import nn
from torch_geometric.data import Batch, Data

import memload
from memload.planning import measuring
from memload.planning.batch_parts import FirstGraphs, parts_of_kind
from memload.planning.curves import Curve
from memload.planning.measuring import measured
from memload.planning.model_bytes import activation_bytes
from memload.planning.steps import losses_of
from memload.planning.variants import kind_of

SIZES = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=8)


class Watched(nn.Module):
    """Notes the nodes of the batches that it gets."""

    def __init__(self):
        super().__init__()
        self.net, self.seen = GraphNet(), []

    def forward(self, batch):
        self.seen.append(len(batch.x))
        return self.net(batch)


def ran(model, sample, **more):
    """The bytes of steps with a sample."""
    return measured(kind_of(sample), losses_of([model], None, [], None, "cpu"), [model], **more)


@given(SIZES, st.integers(1, 8), st.floats(0.05, 1))
@settings(max_examples=60, deadline=None)
def test_the_first_graphs_keep_their_share_of_nodes_and_edges_and_are_a_batch(sizes, graphs, share):
    nodes, edges = zip(*sizes, strict=True)
    graphs = min(graphs, len(nodes))
    whole = graph_batch(nodes, edges)
    part = FirstGraphs(kind_of(whole), graphs, share).batches
    batch, of_nodes = part.sample, [max(1, int(n * share)) for n in nodes[:graphs]]
    assert part.counts == kind_of(batch).counts
    assert batch.ptr.diff().tolist() == pytest.approx(of_nodes, abs=1)  # float32 in torch, float64 here
    assert len(batch.x) == len(batch.batch) == int(batch.ptr[-1])
    assert torch.equal(batch.batch, torch.repeat_interleave(torch.arange(graphs), batch.ptr.diff()))
    assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
    assert batch.edge_index.shape[1] == pytest.approx(share * sum(edges[:graphs]), abs=1)
    assert len(batch.edge_attr) == batch.edge_index.shape[1]
    assert torch.equal(batch.x[batch.ptr[:-1]], whole.x[whole.ptr[:graphs]])
    if share == 1:
        assert torch.equal(batch.edge_index, whole.edge_index[:, : sum(edges[:graphs])])
        assert torch.equal(batch.x, whole.x[: sum(nodes[:graphs])])


def test_each_part_is_some_four_times_as_large_and_the_sample_comes_last():
    sample = graph_batch([100] * 200, [300] * 200)
    parts = list(parts_of_kind(kind_of(sample)))
    assert [part.counts for part in parts] == [
        (10, 1_000, 3_000),
        (40, 4_000, 12_000),
        (163, 16_300, 48_900),
        (200, 20_000, 60_000),
    ]
    assert parts[-1].sample is sample
    assert [part.counts[0] for part in parts_of_kind(kind_of(graph_batch([5, 9], [20, 31])))] == [2]


def test_of_graphs_that_are_large_by_themselves_shares_are_taken():
    dense = list(parts_of_kind(kind_of(graph_batch([500] * 3, [80_000] * 3))))
    assert [part.counts[0] for part in dense] == [2, 2, 2, 3]
    assert dense[0].counts[2] <= 8 * 1024 + 2
    (single, *_), *_, whole = [part.counts for part in parts_of_kind(kind_of(graph_batch([5000], [9000])))]
    assert (single, whole) == (1, (1, 5000, 9000))


def test_a_graph_of_pytorch_geometric_without_a_batch_is_cut_and_labels_go_with_their_edges():
    data = Data(x=torch.rand(4000, 3), edge_index=torch.randint(4000, (2, 9000)))
    data.edge_label_index, data.edge_label = torch.randint(4000, (2, 800)), torch.rand(800)
    first = next(parts_of_kind(kind_of(data))).sample
    assert first.num_nodes == len(first.x) == 1024
    assert len(first.edge_label) == first.edge_label_index.shape[1] == pytest.approx(800 * 0.256, abs=1)
    assert int(first.edge_label_index.max()) < 1024
    joined = Batch.from_data_list([Data(x=torch.rand(900, 3), edge_index=torch.randint(900, (2, 90)))] * 3)
    part = next(parts_of_kind(kind_of(joined))).sample
    assert part.num_graphs == 2
    assert part.num_nodes == len(part.batch) == int(part.ptr[-1])


def test_graphs_without_nodes_stay_so():
    whole = graph_batch([3000, 3000], [4000, 4000])._replace(ptr=torch.tensor([0, 0, 3000, 3000, 6000, 6000]))
    first = next(parts_of_kind(kind_of(whole)))
    assert first.counts == (2, 1024, first.counts[2])
    assert first.sample.ptr.tolist() == [0, 0, 1024]
    assert FirstGraphs(kind_of(whole), 5, 1.0).batches.counts == (5, 6000, 8000)


def test_ragged_rows_are_cut_to_the_first():
    rows = memload.Ragged(torch.rand(9000, 4), torch.arange(0, 9001, 90))
    parts = list(parts_of_kind(kind_of((rows, torch.arange(100)))))
    assert [part.counts for part in parts] == [(11, 990), (45, 4050), (100, 9000)]
    assert torch.equal(parts[0].sample[0].values, rows.values[:990])
    assert torch.equal(parts[0].sample[1], torch.arange(11))


def test_rows_that_are_alike_and_tensors_without_values_are_not_cut():
    for sample in (torch.rand(10_000, 2), graph_batch([5000] * 2, [9000] * 2)):
        kind = kind_of(sample if isinstance(sample, torch.Tensor) else sample._replace(edge_index=None))
        assert list(parts_of_kind(kind)) == [kind]


def test_what_a_part_takes_foretells_the_whole(monkeypatch):
    model, sample = Watched(), graph_batch([40] * 300, [130] * 300)
    real = activation_bytes(lambda: model(sample).mean(), model).peak_with_gradients
    model.seen.clear()
    monkeypatch.setattr(measuring, "free_where", lambda _: real)  # twice the sample does not fit
    found = ran(model, sample)
    assert 1_000 < max(model.seen) < 12_000
    assert found.step.at(300, 12_000, 39_000) == pytest.approx(real, rel=0.02)
    assert found.peak_of_variants(kind_of(sample), 1.0) > real


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_no_step_takes_more_than_the_room(times):
    model, sample = Watched(), graph_batch([40] * 300, [130] * 300)
    by_all = ran(model, sample)
    room = by_all.step.at(450, 18_000, 58_500)
    model.seen.clear()
    ran(model, sample, room=room, times=times)
    peaks = [by_all.step.in_heap(times, nodes / 40, nodes, 3.25 * nodes) for nodes in model.seen]
    assert max(model.seen) > 4_000
    assert max(peaks) <= room


def test_steps_that_fail_with_few_graphs_are_run_with_more():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = GraphNet()

        def forward(self, batch):
            out = self.net(batch)
            if len(out) < 10:
                raise ValueError("too few graphs for a norm")
            return out

    found = ran(Normed(), graph_batch([900] * 12, [900] * 12))
    assert isinstance(found.step, Curve)
    with pytest.raises(ValueError, match="too few graphs"):
        ran(Normed(), graph_batch([900] * 3, [900] * 3))


def test_graphs_of_which_not_even_one_fits_are_an_error_that_says_so(monkeypatch):
    sample = graph_batch([5000], [9000])
    with pytest.raises(MemoryError, match="a batch of 1 graph does not fit into 900 kB"):
        memload.compute_batch_size(GraphNet(), sample, limit="1MB")
    monkeypatch.setattr(measuring, "free_where", lambda _: 100_000)
    with pytest.raises(MemoryError, match=r"1 graphs, 1,024 nodes, .* takes more than is free"):
        memload.compute_batch_size(GraphNet(), sample, limit="10MB")


UNDER_A_LIMIT = """
import torch, memload
from memory_models import GraphNet, graph_batch
torch.set_num_threads(1)
nodes, edges = %s
try:
    print(memload.compute_batch_size(GraphNet(), graph_batch(nodes, edges)).batch_size)
except MemoryError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(
    ("sample", "answer"),
    [("[100] * 4_000, [300] * 4_000", ""), ("[1_000_000], [3_000_000]", "a batch of 1 graph does not fit into")],
)
def test_a_sample_that_is_too_large_for_the_control_group_is_not_run(sample, answer):
    with limited(600_000_000, "-graphs") as procs:
        done = subprocess.run(
            ["sh", "-c", 'echo $$ > "$0" && exec "$@"', procs, sys.executable, "-c", UNDER_A_LIMIT % f"({sample})"],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout if answer else 100 < int(done.stdout) < 4_000
