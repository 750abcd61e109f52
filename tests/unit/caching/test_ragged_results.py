"""Results whose rows differ in length are stored as ragged fields: of maps, and of functions of batches."""

import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import memload
from memload.caching import computed
from memload.caching.forms import Form, Forms, gathered
from memload.columns import held_rows
from memload.columns.ragged_forms import as_ragged
from memload.writing import growing_set

N = 3000


@pytest.fixture
def ds():
    return memload.from_arrays(row=torch.arange(N), x=torch.rand(N, 4))


def tokens(sample):
    row = int(sample["row"])
    return {
        "tokens": torch.arange(row % 7),
        "points": np.full((row % 3, 2), row, dtype=np.float32),
        "edges": torch.full((2, row % 5), row, dtype=torch.int16),
        "x": sample["x"],
        "name": "n" * (row % 4),
        "row": row,
    }


def assert_rows(dataset, expected, rows=(0, 1, 6, 7, 513, N - 1)):
    for row in rows:
        mine, theirs = dataset[row], expected(row)
        assert list(mine) == list(theirs)
        for name, value in theirs.items():
            if isinstance(value, str):
                assert mine[name] == value
                continue
            value = torch.as_tensor(value)
            assert mine[name].dtype == value.dtype, name
            assert torch.equal(mine[name], value), (row, name)


@pytest.mark.parametrize("how", ["ram", "auto", "stored", "direct", "hybrid", "loaded", "chosen"])
def test_rows_that_differ_in_length_are_cached_in_every_place(ds, tmp_path, how):
    mapped = ds.map(tokens)
    options = {
        "direct": {"tier": "direct"},
        "hybrid": {"tier": "hybrid", "cache_bytes": "2MB"},
        "loaded": {"tier": "ram"},
        "chosen": {"tier": "auto"},
    }.get(how, {})
    cached = mapped.cache(how if how in ("ram", "auto") else tmp_path, **options)
    shapes = {name: field.shape for name, field in cached.fields.items()}
    assert shapes == {"tokens": (None,), "points": (None, 2), "edges": (2, None), "x": (4,), "name": (None,), "row": ()}
    assert_rows(cached, lambda row: mapped[row])
    loader = memload.FastLoader(cached, 64)
    assert loader.engine == "native"
    batch = next(iter(loader))
    assert torch.equal(batch["tokens"].values, torch.cat([torch.arange(row % 7) for row in range(64)]))
    assert batch["edges"].values.shape[0] == 2
    if how in ("auto", "chosen"):
        assert cached.tier_reason.startswith("ram: the transform makes ")


@pytest.mark.parametrize("form", ["tuple", "only"])
@pytest.mark.parametrize("where", ["ram", "stored"])
def test_tuples_and_single_values_that_differ_in_length_keep_their_layout(ds, tmp_path, form, where):
    fn = {
        "tuple": lambda pair: (pair[1][: int(pair[0]) % 5], pair[0]),
        "only": lambda pair: pair[1][: int(pair[0]) % 5],
    }
    mapped = ds.as_tuple().map(fn[form])
    cached = mapped.cache("ram" if where == "ram" else tmp_path)
    assert cached.layout == form
    one = cached[2999] if form == "only" else cached[2999][0]
    assert torch.equal(one, ds[2999]["x"][:4])


@pytest.mark.parametrize("form", ["padded", "jagged", ("padded", -100)])
@pytest.mark.parametrize("where", ["ram", "stored", "opened"])
def test_samples_that_tell_the_form_of_batches_keep_it(tmp_path, form, where):
    base = memload.from_arrays(
        tokens=memload.ragged([torch.arange(n % 6 + 1) for n in range(100)]), k=torch.arange(100)
    )

    def doubled(sample):
        sample["tokens"] = sample["tokens"] * 2
        return sample

    mapped = base.with_ragged(tokens=form).map(doubled)
    for _ in range(2 if where == "opened" else 1):
        cached = mapped.cache("ram" if where == "ram" else tmp_path)
    for mine, theirs in zip(memload.FastLoader(cached, 32), memload.FastLoader(mapped, 32), strict=True):
        assert type(mine["tokens"]) is type(theirs["tokens"])
        for one, other in zip(mine["tokens"], theirs["tokens"], strict=True):
            assert torch.equal(one, other)
    other = base.map(doubled).cache(tmp_path)
    assert isinstance(next(iter(memload.FastLoader(other, 4)))["tokens"], memload.Ragged)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("where", ["ram", "stored"])
def test_what_shows_late_has_the_rows_before_stored_again(ds, tmp_path, capsys, axis, where):
    def late(sample):
        row = int(sample["row"])
        shape = [3, 4]
        shape[axis] += row == 2432
        return {"y": torch.full(shape, row), "row": sample["row"], "text": f"{row}"}

    cached = ds.map(late).cache("ram" if where == "ram" else tmp_path, progress=False)
    assert cached.fields["y"].shape == ((None, 4) if axis == 0 else (3, None))
    assert_rows(cached, lambda row: late({"row": torch.tensor(row)}), [0, 1, 100, 2431, 2432, 2433, N - 1])
    if where == "stored":
        (entry,) = tmp_path.iterdir()
        assert memload.verify(entry) > 0
        grown = memload.write(entry, cached, append=True)  # files are numbered on
        assert len(grown) == 2 * N
        assert memload.verify(entry) > 0


def test_an_interrupted_run_goes_on_where_rows_begin_to_differ(ds, tmp_path, capsys):
    calls, stop = [], 0

    def late(sample):
        calls.append(1)
        row = int(sample["row"])
        if stop < row < N - 1:
            raise OSError("the machine is needed")
        return torch.full((4 + (row > 1000) * (row % 3),), row)

    for until, taken_up in [(900, False), (1500, True), (2200, True)]:
        calls.clear()
        stop = until
        with pytest.raises(RuntimeError, match="the machine is needed"):
            ds.map(late).cache(tmp_path, version="1", progress=True)
        said = capsys.readouterr().err
        assert "rows are complete and kept" in said
        assert ("resumed where it was interrupted, at row" in said) == taken_up
    calls.clear()
    stop = N
    cached = ds.map(late).cache(tmp_path, version="1")
    assert len(calls) < 1500
    for row in (0, 900, 1000, 1001, 1002, 1501, 2200, 2999):
        assert torch.equal(cached[row], late({"row": row}))
    assert cached.fields["data"].shape == (None,)
    (entry,) = tmp_path.iterdir()
    assert memload.verify(entry) > 0


def test_a_writer_that_is_stopped_while_it_writes_shards_again_loses_none(tmp_path, monkeypatch):
    rewritten, plan = growing_set.rewritten, {"of": "this"}

    def stopped(shard, *rest):
        made = rewritten(shard, *rest)
        if shard.file.endswith("2.safetensors"):
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(growing_set, "rewritten", lambda *args: stopped(*args) if stopping else rewritten(*args))
    stopping = True
    with pytest.raises(KeyboardInterrupt), memload.ShardWriter(tmp_path / "x", shard_bytes=160, resume=plan) as writer:
        writer.extend(a=torch.arange(200).view(100, 2))
        writer.let_differ({"a": 0})
    stopping = False
    with memload.ShardWriter(tmp_path / "x", shard_bytes=160, resume=plan, progress=False) as writer:
        assert writer.rows_there == 100
        writer.let_differ({"a": 0})
        writer.append(a=torch.arange(5))
    made = memload.open(tmp_path / "x")
    assert memload.verify(tmp_path / "x") > 0
    assert [row["a"].tolist() for row in (made[0], made[99], made[100])] == [[0, 1], [198, 199], [0, 1, 2, 3, 4]]
    with memload.ShardWriter(tmp_path / "x", append=True) as writer:
        writer.append(a=torch.arange(1))
    assert len(memload.open(tmp_path / "x")) == 102
    fixed = memload.write(tmp_path / "y", {"a": torch.zeros(3, 2)})
    assert len(fixed) == 3
    with (
        pytest.raises(ValueError, match="the existing rows have one shape"),
        memload.ShardWriter(tmp_path / "y", append=True) as writer,
    ):
        writer.let_differ({"a": 0})
    assert len(memload.open(tmp_path / "y")) == 3


@pytest.mark.parametrize("where", ["ram", "stored"])
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (
            torch.zeros(2, 9),
            r"row 2,432: field 'data' is float32 \(2, 9\), and float32 \(3, 4\) in the rows before; rows",
        ),
        (torch.zeros(3), r"row 2,432: field 'data' is float32 \(3,\), and float32 \(3, 4\) in the rows before"),
        (torch.zeros(3, 4).double(), r"row 2,432: field 'data' is float64 \(3, 4\).*return one dtype"),
        ("text", r"row 2,432: field 'data' is a text, and float32 \(3, 4\)"),
        (np.zeros((3, 4), np.float32), r"field 'data' is of several types \(Tensor, ndarray\)"),
    ],
)
def test_a_row_that_cannot_be_stored_is_named_and_what_is_complete_is_kept(ds, tmp_path, capsys, where, odd, message):
    def mixed(sample):
        return odd if sample["row"] == 2432 else torch.zeros(3, 4)

    with pytest.raises(ValueError, match=message):
        ds.map(mixed).cache("ram" if where == "ram" else tmp_path, version="1", progress=True)
    if where == "stored":
        assert "rows are complete and kept" in capsys.readouterr().err


def test_a_shape_that_differs_where_another_recording_begins_is_said_before_all_is_computed(ds):
    calls = []

    def of_recording(sample):
        calls.append(1)
        return torch.zeros(3, 4) if sample["row"] < 600 else torch.zeros(7, 5, 2)

    joined = ds.select(range(600)).concat(ds.select(range(600, 700)), ds.select(range(10)))
    with pytest.raises(ValueError, match=r"row 600: field 'data' is float32 \(7, 5, 2\), and float32 \(3, 4\)"):
        joined.map(of_recording).cache("ram", version="1")
    assert len(calls) < 10


def test_space_for_results_is_what_some_rows_take_on_average(tmp_path):
    many = memload.from_arrays(row=torch.arange(10**6))

    def growing(sample):
        return torch.zeros(int(sample["row"]), dtype=torch.int64)

    for where, error in [("ram", MemoryError), (tmp_path, memload.DiskSpaceError)]:
        with pytest.raises(error, match=r"take 4 TB and need 4.8 TB free"):
            many.map(growing).cache(where, version="1")
    kept = many.map(growing).cache(tmp_path, tier="auto", version="1")
    assert isinstance(kept, memload.MappedDataset)


def test_space_that_runs_short_meanwhile_ends_it_and_keeps_what_is_complete(ds, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(computed, "_CHECK_BYTES", 1 << 16)
    free = iter([10**9] + [1000] * 100)
    monkeypatch.setattr("memload.memory.guards.disk_free", lambda _: next(free))

    def growing(sample):
        return torch.zeros(1 + int(sample["row"]) % 50)

    with pytest.raises(memload.DiskSpaceError, match="the files take"):
        ds.map(growing).cache(tmp_path, version="1", progress=True)
    assert "rows are complete and kept" in capsys.readouterr().err
    monkeypatch.undo()
    assert len(ds.map(growing).cache(tmp_path, version="1")) == N


def test_plans_and_sizes_know_of_results_that_differ_in_length(ds):
    mapped = ds.map(tokens)
    cached = mapped.cache("ram")
    assert cached.nbytes == sum(field.nbytes for field in cached.fields.values())
    assert cached.fields["tokens"].nbytes == 8 * sum(row % 7 for row in range(N))
    planned = memload.plan(mapped, batch_size=64, tier="auto")
    assert str(planned)


def test_rows_in_blocks_are_joined_as_they_came(monkeypatch):
    monkeypatch.setattr(held_rows, "_BLOCK_BYTES", 64)
    for axis in (0, 1):
        rows = [torch.rand(n % 5, 3) if axis == 0 else torch.rand(3, n % 5) for n in range(50)]
        held = held_rows.DifferingRows(axis)
        for at in range(0, 50, 5):
            held.put(at, gathered(rows[at : at + 5], axis))
        made = held.finish()
        assert made.axis == axis
        for one, other in zip(made.rows(), rows, strict=True):
            assert torch.equal(one, other)


def test_forms_are_those_that_all_rows_have():
    def form(*shape, dtype=torch.float32):
        return Form(dtype, shape)

    assert form(3, 4).common(form(3, 4)) == form(3, 4)
    assert form(3, 4).common(form(2, 4)) == form(None, 4)
    assert form(3, 4).common(form(3, 5)) == form(3, None)
    assert form(None, 4).common(form(2, 4)) == form(2, 4).common(form(None, 4)) == form(None, 4)
    for one, other in [
        (form(3, 4), form(2, 5)),
        (form(None, 4), form(2, 5)),
        (form(3, 4, 5), form(3, 4, 6)),
        (form(3, 0), form(2, 0)),
        (form(3), form(3, 1)),
        (form(3), form(3, dtype=torch.float64)),
        (Form(None, (None,)), form(None, dtype=torch.uint8)),
    ]:
        assert one.common(other) is None
        assert other.common(one) is None
    forms = Forms()
    assert forms.take({"a": torch.zeros(2, 3)}, 0) == {}
    assert forms.take({"a": as_ragged(torch.zeros(2, 3), 0)}, 2) == {"a": 0}
    assert forms.take({"a": torch.zeros(2, 3)}, 4) == {}
    with pytest.raises(ValueError, match=r"row 6 has the fields \['b'\], expected \['a'\]"):
        forms.take({"b": torch.zeros(2, 3)}, 6)


def test_functions_in_worker_processes_give_rows_that_differ_in_length(ds, tmp_path):
    few = ds.select(range(50))
    cached = few.map(tokens, in_processes=True).cache(tmp_path)
    assert_rows(cached, lambda row: tokens(few[row]), [0, 1, 49])


def test_a_set_of_an_earlier_version_without_forms_is_still_known(ds, tmp_path):
    ds.map(tokens).cache(tmp_path)
    (entry,) = tmp_path.iterdir()
    found = json.loads((entry / "origin.json").read_text())
    assert set(found) == {"memload_origin", "key", "function", "layout"}


def differing(batch):
    return [torch.full((int(row) % 4, 2), int(row)) for row in batch["row"]]


RETURNED = {
    "list": differing,
    "arrays": lambda batch: [row.numpy() for row in differing(batch)],
    "Ragged": lambda batch: memload.Ragged(*memload.ragged(differing(batch))[:2]),
    "ragged": lambda batch: memload.ragged(differing(batch)),
    "nested": lambda batch: torch.nested.nested_tensor(differing(batch), layout=torch.jagged),
    "strided": lambda batch: torch.nested.nested_tensor(differing(batch)),
    "named": lambda batch: {"score": differing(batch)},
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("kind", RETURNED)
def test_scores_that_differ_in_length_come_as_ragged(ds, tmp_path, kind):
    few, chunk = ds.select(range(60)), 25
    made = memload.score(RETURNED[kind], few, chunk)
    made = made["score"] if kind == "named" else made
    assert isinstance(made, memload.Ragged)
    stored = memload.score(RETURNED[kind], few, chunk, path=tmp_path / "scores", version=kind)
    assert stored.fields["score"].shape == (None, 2)
    for row, one in enumerate(made.rows()):
        assert torch.equal(one, torch.full((row % 4, 2), row))
        assert torch.equal(stored[row]["score"], one)


def test_padded_scores_and_those_along_the_second_axis_are_ragged_too(ds):
    few = ds.select(range(20))
    padded = memload.score(lambda batch: memload.Padded(batch["x"], batch["row"] % 5), few, 6)
    assert [len(row) for row in padded.rows()] == [row % 5 for row in range(20)]
    wide = memload.score(lambda batch: [torch.zeros(2, int(row) % 3) for row in batch["row"]], few, 6)
    assert wide.axis == 1
    assert wide.values.shape == (2, sum(row % 3 for row in range(20)))
    part = memload.score(
        lambda batch: memload.Ragged(torch.arange(99), torch.arange(len(batch["row"]) + 1) + 5), few, 20
    )
    assert part.values.tolist() == [*range(5, 25)]


@pytest.mark.parametrize("where", ["ram", "stored"])
@pytest.mark.parametrize("axis", [0, 1])
def test_lists_of_rows_that_are_alike_in_a_chunk_may_differ_along_either_axis_in_others(tmp_path, axis, where):
    def rows_of(batch):
        return [torch.full((2, 3), n).narrow(axis, 0, 1 if n == 7 else 2) for n in batch["n"].tolist()]

    few = memload.from_arrays(n=torch.arange(9))  # chunks of 2: those before and behind are alike, the last is one row
    path = {} if where == "ram" else {"path": tmp_path / "s"}
    made = memload.score(rows_of, few, chunk=2, **path)
    rows = made.rows() if where == "ram" else [made[n]["score"] for n in range(9)]
    assert all(torch.equal(*pair) for pair in zip(rows, rows_of({"n": torch.arange(9)}), strict=True))
    never = memload.score(
        lambda batch: list(torch.ones(len(batch["n"]), 2, 3)), few, **({"path": tmp_path / "n"} if path else {})
    )
    assert isinstance(never, memload.Ragged) if where == "ram" else never.fields["score"].shape == (None, 3)
    assert len(never.rows()) == 9 if where == "ram" else torch.equal(never[8]["score"], torch.ones(2, 3))


def test_rows_of_one_length_along_the_second_axis_are_stored_beside_longer_ones(tmp_path):
    few = memload.from_arrays(n=torch.arange(600))
    mapped = few.map(lambda sample: torch.full((2, 3 if sample["n"] == 0 else 1), int(sample["n"])))
    cached = mapped.cache(tmp_path)
    assert all(torch.equal(cached[n], mapped[n]) for n in (0, 1, 300, 598, 599))


def test_scores_that_are_views_are_stored(tmp_path):
    def views(batch):
        return memload.Ragged(torch.stack([batch["n"]] * 2).T, torch.arange(len(batch["n"]) + 1))

    stored = memload.score(views, memload.from_arrays(n=torch.arange(60)), path=tmp_path / "s")
    assert stored[7]["score"].tolist() == [[7, 7]]


@pytest.mark.parametrize("where", ["ram", "stored"])
def test_arrays_that_cannot_be_stored_are_refused_with_their_row_and_field(ds, tmp_path, where):
    place = "ram" if where == "ram" else tmp_path
    masked = np.ma.masked_equal(np.arange(3), 1)
    with pytest.raises(TypeError, match="row 0: a mapped sample has 'a': a masked array, whose mask would be lost"):
        ds.map(lambda _: {"a": masked}).cache(place, version="1")
    with pytest.raises(TypeError, match="row 0: a mapped sample has 'a': dtype <U1 is text"):
        ds.map(lambda _: {"a": np.array(["a"])}).cache(place, version="1")
    with pytest.raises(ValueError, match=r"rows 0, 1,500, 2,999: field 'data' is of several types \(ndarray, Tensor\)"):
        ds.map(lambda sample: np.ones(3) if sample["row"] < 1000 else torch.ones(3).double()).cache(place, version="1")
    path = {} if where == "ram" else {"path": tmp_path / "s"}
    for made in (lambda n: np.ma.masked_equal(np.arange(n), 1), lambda n: [masked] * n):
        with pytest.raises(TypeError, match="rows 0 to 499: the function returned for 'score' a masked array"):
            memload.score(lambda batch: made(len(batch["row"])), ds, version="1" if path else None, **path)  # noqa: B023
    with pytest.raises(ValueError, match="'score' a list of tensors without dimensions: return one tensor"):
        memload.score(lambda batch: list(batch["row"]), ds, **path)


def test_scores_begin_to_differ_where_they_do_and_are_taken_up_there(ds, tmp_path, capsys):
    stop = 1700

    def late(batch):
        if int(batch["row"][0]) >= stop:
            raise OSError("the machine is needed")
        text = [f"{int(row)}" * (int(row) % 3) for row in batch["row"]]
        wide = torch.zeros(len(text), 3 + (int(batch["row"][0]) >= 1000))
        return {"wide": wide, "text": text}

    with pytest.raises(RuntimeError, match="the machine"):
        memload.score(late, ds, 100, path=tmp_path / "x", version="1")
    stop = N
    capsys.readouterr()
    made = memload.score(late, ds, 50, path=tmp_path / "x", version="1")
    assert "resumed where it was interrupted" in capsys.readouterr().err  # with another chunk, of another mean size
    assert made.fields["wide"].shape == (None,)
    assert [len(made[row]["wide"]) for row in (0, 999, 1000, 2999)] == [3, 3, 4, 4]
    assert made[2000]["text"] == "20002000"


def graphs_of(sizes):
    def graph(n):
        nodes = torch.arange(n)
        return Data(x=torch.full((n, 2), float(n)), edge_index=torch.stack([nodes, nodes.roll(-1)])[:, : n // 2])

    return memload.from_graphs([graph(n) for n in sizes])


SIZES = [n % 5 + 1 for n in range(40)]


def per_node(batch):
    return batch.x.sum(1) + batch.batch


def test_scores_for_each_node_and_edge_are_cut_at_the_graphs_where_that_is_said(tmp_path):
    graphs = graphs_of(SIZES)
    made = memload.score(per_node, graphs, 8, per="node")
    assert made.lengths.tolist() == SIZES
    explicit = memload.score(lambda batch: memload.Ragged(per_node(batch), batch.ptr), graphs, 8)
    assert torch.equal(explicit.values, made.values)
    edges = memload.score(
        lambda batch: batch.edge_index[0] - batch.ptr[batch.batch[batch.edge_index[0]]], graphs, 8, per="edge"
    )
    assert [row.tolist() for row in edges.rows()] == [[*range(n // 2)] for n in SIZES]
    both = memload.score(
        lambda batch: {"node": batch.x, "graph": batch.ptr.diff(), "edge": batch.edge_index[0]},
        graphs,
        8,
        per={"node": "node", "edge": "edge"},
        path=tmp_path / "teacher",
    )
    assert both.fields["node"].shape == (None, 2)
    assert both[3]["node"].tolist() == [[4.0, 4.0]] * 4
    assert [both[row]["graph"].item() for row in range(5)] == [1, 2, 3, 4, 5]
    plain = memload.score(lambda batch: batch.x, graphs.as_plain(), 8, collate_fn=memload.graph_collate, per="node")
    assert plain.lengths.tolist() == SIZES


def test_scores_for_each_node_that_are_not_said_to_be_are_refused_and_never_guessed(tmp_path):
    graphs = graphs_of(SIZES)
    with pytest.raises(
        ValueError, match=r"rows 0 to 7: .* shape \(21,\) .* 8 rows; for results of each node or edge give"
    ):
        memload.score(per_node, graphs, 8)
    ones = graphs_of([1, 2, 3, 1, 1, 1])
    for graphs_alone in (ones.select([0, 3]), ones.select([0, 3, 4, 1, 2])):
        with pytest.raises(ValueError, match=r"2 results .* the batch has 2 graphs and 2 nodes: give per="):
            memload.score(lambda batch: batch.ptr[1:], graphs_alone, 2)
        assert len(memload.score(lambda batch: batch.ptr[1:], graphs_alone, 2, per="graph")) == len(graphs_alone)
    assert memload.score(lambda batch: batch.ptr[1:], ones.select([1, 2, 3, 4]), 2).tolist() == [2, 5, 1, 2]


@pytest.mark.parametrize(
    ("fn", "options", "error", "message"),
    [
        (differing, {"per": "bond"}, ValueError, "per= must be one of 'row', 'graph', 'node', 'edge'"),
        (lambda batch: batch["x"], {"per": "node"}, ValueError, 'per="node" needs batches of graphs'),
        (lambda batch: differing(batch)[1:], {}, ValueError, "499 rows of different length for 'score'; .* 500 rows"),
        (
            lambda batch: [torch.zeros(2), torch.zeros(2, 2)] * 250,
            {},
            ValueError,
            r"number 1 is torch.float32 \(2, 2\)",
        ),
        (lambda batch: [torch.zeros(2, 3), torch.zeros(3, 2)] * 250, {}, ValueError, r"differ along the axes \[0, 1\]"),
        (lambda batch: memload.Ragged(torch.zeros(3), torch.tensor([0, 9])), {}, ValueError, "for 3 items: expected"),
        (lambda batch: [1.0] * 500, {}, TypeError, "'score': list; expected a tensor, a list of texts"),
    ],
)
def test_what_is_no_result_for_each_row_is_named(ds, fn, options, error, message):
    with pytest.raises(error, match=message):
        memload.score(fn, ds, **options)


@pytest.mark.parametrize("where", ["ram", "stored"])
def test_mapped_graphs_are_cached_as_graphs(tmp_path, where):
    graphs = graphs_of([3] * 20 + SIZES)

    def doubled(graph):
        graph.x = graph.x * 2
        graph.y = float(graph.num_nodes)
        graph.smiles = "C" * graph.num_nodes
        graph.weight = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(graph.num_nodes))
        return graph

    mapped = graphs.map(doubled)
    cached = mapped.cache("ram" if where == "ram" else tmp_path)
    assert type(cached) is memload.GraphDataset
    loader = memload.FastLoader(cached, 16, collate_fn=memload.graph_collate)
    assert loader.engine == "native"
    for mine, theirs in zip(loader, memload.FastLoader(mapped, 16, collate_fn=memload.graph_collate), strict=True):
        assert list(mine.to_dict()) == list(theirs.to_dict())
        for name, value in theirs.to_dict().items():
            assert (
                torch.equal(mine[name], value.to(mine[name].dtype)) if torch.is_tensor(value) else mine[name] == value
            )
    assert cached.fields["x"].shape == (None, 2)  # also where the first graphs have one size
    plain = graphs.map(lambda graph: {"nodes": graph.num_nodes, "x": graph.x}).cache(
        "ram" if where == "ram" else tmp_path
    )
    assert type(plain) is memload.Dataset
    assert plain.fields["x"].shape == (None, 2)
    again = mapped.cache("ram" if where == "ram" else tmp_path)
    assert type(again) is memload.GraphDataset


def test_graphs_that_cannot_be_stored_say_so(tmp_path):
    graphs = graphs_of(SIZES)

    def odd(graph):
        if graph.num_nodes == 3:
            graph.x = graph.x[:, :1]
        return graph

    with pytest.raises(
        ValueError, match=r"row 2: field 'x' is float32 \(3, 1\), and float32 \(n, 2\) in the rows before"
    ):
        graphs.map(odd).cache("ram")
    with pytest.raises(RuntimeError, match="raised TypeError: z is a list"):
        graphs.map(lambda graph: Data(x=graph.x, z=[1] if graph.num_nodes == 3 else 1)).cache("ram")
