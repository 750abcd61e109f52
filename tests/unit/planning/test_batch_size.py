"""The batch size that is computed: the peak is foretold, what was chosen runs, and nothing is left of the looking."""

import contextlib
import functools
import platform
import random

import numpy as np
import pytest
import torch
from memory_models import BY_ROWS, GraphNet, Transformer, convolutional, graph_batch
from simulated import SimulatedInterface
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_geometric.data import Data

import memload
from memload.memory import budget
from memload.planning.allocations import Allocations
from memload.planning.batch_size import largest
from memload.planning.loader_slots import slots_of
from memload.planning.measuring import measured, without_memory
from memload.planning.model_bytes import activation_bytes, model_bytes
from memload.planning.steps import losses_of
from memload.planning.variants import kind_of

pytestmark = pytest.mark.usefixtures("one_thread")


def step(model, batch, optimizer=None, precision=None):
    """A training step as a loop would write it."""
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        out = model(**batch) if isinstance(batch, dict) else model(batch)
        loss = out.mean()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "run", "precision"),
    [
        *((name, measured, None) for name in BY_ROWS),
        ("transformer", measured, torch.bfloat16),
        ("convolutional", without_memory, None),
        ("transformer", without_memory, torch.bfloat16),
    ],
)
def test_the_peak_of_a_large_batch_is_foretold_from_five_rows(name, precision, run):
    make, sample, rows = BY_ROWS[name]
    model, kind = make(), kind_of(sample)
    losses = losses_of([model], None, [], precision, "cpu")
    found = run(kind, losses, [model], on_cpu=True)
    batch = kind.resized(rows)
    real = activation_bytes(lambda: losses[0](batch), model, on_cpu=True)
    assert found.activations.at(rows) == pytest.approx(real.peak, rel=0.02)
    assert found.step.at(rows) == pytest.approx(real.peak_with_gradients, rel=0.02)
    assert found.gradients == real.gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name"),
    [*(("measured", name) for name in BY_ROWS), ("static", "large embedding"), ("trial", "convolutional")],
)
def test_the_chosen_batch_runs_in_the_memory_there_is_and_a_larger_one_does_not(name, mode):
    make, sample, rows = BY_ROWS[name]
    model, kind = make(), kind_of(sample)
    optimizer = torch.optim.Adam(model.parameters())
    own = memload.compute_batch_size(model, sample, optimizer=optimizer, min_batch_size=rows, max_batch_size=rows)
    total = own.used + own.used // 20
    found = memload.compute_batch_size(
        model, sample, optimizer=optimizer, mode=mode, limit=total, target_utilization=1.0, min_batch_size=rows // 2
    )
    assert found.used <= total
    weights = found.static.params + found.static.embeddings + found.static.buffers
    step(model, kind.resized(2), optimizer)  # from now on the optimizer's state is there
    room = total - weights - found.static.optimizer
    with Allocations(limit=room) as seen:
        step(model, kind.resized(found.batch_size), optimizer)
    assert seen.peak > 0.9 * room
    with pytest.raises(torch.OutOfMemoryError), Allocations(limit=room):
        step(model, kind.resized(found.batch_size + max(2, found.batch_size // 20)), optimizer)


def test_graphs_get_a_budget_per_node_and_edge_that_no_batch_of_the_sampler_exceeds():
    model, generator = GraphNet(), np.random.default_rng(0)
    found = memload.compute_batch_size(model, graph_batch([5, 9], [20, 31]), limit="2MB", target_utilization=1.0)
    assert found.units == ("graphs", "nodes", "edges")
    nodes, edges = generator.integers(3, 60, 300), generator.integers(1, 400, 300)
    costs = found.costs(nodes=nodes, edges=edges)
    sampler = memload.BudgetBatchSampler(costs, found.cost_budget, seed=1)
    weights = found.static.total - found.static.gradients
    fullest = 0.0
    for rows in sampler:
        with Allocations() as seen:
            model(graph_batch(nodes[rows].tolist(), edges[rows].tolist())).mean().backward()
        model.zero_grad()
        fullest = max(fullest, (seen.peak + weights) / found.total)
    assert 0.9 < fullest <= 1.0


def test_a_sample_of_few_graphs_says_how_sure_it_is_and_a_loader_knows_the_sizes_of_all():
    draws = np.random.default_rng(0)
    nodes = draws.integers(3, 200, 400)
    edges = 3 * nodes
    model, limit = GraphNet(), {"limit": "30MB", "target_utilization": 1.0}
    graphs = [Data(x=torch.rand(n, 9), edge_index=torch.zeros(2, 3 * n, dtype=torch.int64)) for n in nodes.tolist()]
    data = memload.from_graphs(graphs).as_plain()
    loader = memload.FastLoader(data, 8, collate_fn=memload.graph_collate)
    samples = [graph_batch(nodes[k : k + 8].tolist(), edges[k : k + 8].tolist()) for k in range(0, 192, 8)]
    known = [memload.compute_batch_size(model, sample, loader=loader, **limit) for sample in samples[:4]]
    assert max(one.batch_size for one in known) < 1.05 * min(one.batch_size for one in known)
    assert all(one.between is None for one in known)
    guesses = [memload.compute_batch_size(model, sample, **limit) for sample in samples]
    sizes = [one.batch_size for one in guesses]
    assert max(sizes) > 1.5 * min(sizes), "eight graphs tell little"
    every = graph_batch(nodes.tolist(), edges.tolist())
    all_graphs = sum(memload.compute_batch_size(model, every, **limit).between) // 2
    assert sum(one.between[0] <= all_graphs <= one.between[1] for one in guesses) >= 0.85 * len(guesses)
    assert all(one.batch_size == one.between[0] for one in guesses), "a sample of small graphs does no harm"
    assert "give loader=, whose dataset has the sizes of all" in repr(guesses[0])
    assert "BudgetBatchSampler(budget.costs(nodes=..., edges=...), budget.cost_budget)" in repr(known[0])
    most = known[0].batch_size
    peaks = []
    for _ in range(30):
        rows = draws.choice(400, min(most, 400), replace=most > 400)
        batch = graph_batch(nodes[rows].tolist(), edges[rows].tolist())
        peaks.append(memload.probe(lambda batch=batch: model(batch).mean().backward()).peak)
        model.zero_grad()
    room = 30e6 - known[0].static.params - known[0].loader
    assert 0.8 * room < max(peaks) <= room


def test_graphs_of_pytorch_geometric_are_counted_alike():
    from torch_geometric.data import Batch, Data

    plain = graph_batch([5, 9], [20, 31])
    graphs = [
        Data(x=plain.x[:5], edge_index=plain.edge_index[:, :20], edge_attr=plain.edge_attr[:20], y=plain.y[:1]),
        Data(x=plain.x[5:], edge_index=plain.edge_index[:, 20:] - 5, edge_attr=plain.edge_attr[20:], y=plain.y[1:]),
    ]
    model = GraphNet()
    theirs = memload.compute_batch_size(model, Batch.from_data_list(graphs), limit="2MB")
    assert theirs == memload.compute_batch_size(model, plain, limit="2MB")


class OfTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 64), nn.Linear(64, 4)

    def forward(self, tokens):
        rows = torch.repeat_interleave(torch.arange(len(tokens.lengths)), tokens.lengths)
        words = self.table(tokens.values).tanh()
        return self.head(torch.zeros(len(tokens.lengths), 64).index_add(0, rows, words))


def test_ragged_rows_get_a_budget_per_item():
    model = OfTokens()
    sample = memload.Ragged(torch.arange(12), torch.tensor([0, 2, 12]))
    found = memload.compute_batch_size(model, sample, limit="1MB", target_utilization=1.0)
    lengths = np.random.default_rng(0).integers(0, 90, 400)
    sampler = memload.BudgetBatchSampler(found.costs(items=lengths), found.cost_budget)
    weights, fullest = found.static.total - found.static.gradients, 0.0
    for rows in sampler:
        offsets = torch.from_numpy(np.concatenate([[0], lengths[rows].cumsum()]))
        with Allocations() as seen:
            batch = memload.Ragged(torch.zeros(int(offsets[-1]), dtype=torch.int64), offsets)
            model(batch).mean().backward()
        model.zero_grad()
        fullest = max(fullest, (seen.peak + batch.offsets.nbytes + weights) / found.total)
    assert 0.9 < fullest <= 1.0


def test_nothing_is_left_of_the_looking():
    model = nn.Sequential(convolutional(), nn.Dropout(0.5))
    model.own = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, torch.rand(2, 3, 16, 16), optimizer)
    step(model, torch.rand(2, 3, 16, 16))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    held = [(g, g.clone()) for g in gradients]
    momenta = [(own["momentum_buffer"], own["momentum_buffer"].clone()) for own in optimizer.state.values()]
    told = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), model.own.get_state())  # noqa: NPY002

    def loss(batch):
        torch.rand(1, generator=model.own)
        random.random()
        np.random.rand()  # noqa: NPY002
        return model(batch).mean()

    for mode in ("measured", "static", "trial"):
        memload.compute_batch_size(
            model, torch.rand(2, 3, 16, 16, generator=model.own), mode=mode, loss=loss, optimizer=optimizer, limit="3MB"
        )
        model.own.set_state(told[3])
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is g and torch.equal(g, was) for p, (g, was) in zip(model.parameters(), held, strict=True))
    assert all(
        own["momentum_buffer"] is kept and torch.equal(kept, was)
        for own, (kept, was) in zip(optimizer.state.values(), momenta, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), told[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == told[1:3]  # noqa: NPY002


def test_a_teacher_several_models_and_several_optimizers_are_all_counted():
    generator, critic, teacher = nn.Linear(8, 64), nn.Linear(64, 1), nn.Linear(8, 64).requires_grad_(False)
    optimizers = [torch.optim.Adam(generator.parameters()), torch.optim.SGD(critic.parameters(), lr=0.1)]
    losses = [
        lambda x: critic(generator(x).detach()).mean(),
        lambda x: critic(generator(x)).mean() + (generator(x) - teacher(x)).square().mean(),
    ]
    found = memload.compute_batch_size(
        {"generator": generator, "critic": critic},
        torch.rand(4, 8),
        loss=losses,
        optimizer=optimizers,
        teacher=teacher,
        limit="1MB",
    )
    weights = 4 * (8 * 64 + 64)
    assert (found.static.teacher, found.static.optimizer) == (weights, 2 * weights + 8)
    assert found.static.params == found.static.gradients == weights + 4 * 65
    with pytest.raises(TypeError, match="with 2 models a step is not defined: give loss="):
        memload.compute_batch_size([generator, critic], torch.rand(4, 8))


def test_checkpointing_saves_less_for_the_backward_pass():
    plain, again = (
        memload.compute_batch_size(Transformer(again=k), torch.randint(100, (2, 24)), limit="20MB", max_batch_size=16)
        for k in (False, True)
    )
    assert again.saved < plain.saved / 2
    assert again.used < plain.used
    assert plain.saved < plain.activation


class Uneven(nn.Module):
    """Steps with an odd number of rows have one operation more."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        x = self.first(x).tanh()
        return self.second(x * 1 if len(x) % 2 else x)


def test_a_varying_order_of_allocations_is_reported_and_the_peak_is_not_underestimated():
    model = Uneven()
    found = memload.compute_batch_size(model, torch.rand(2, 64), limit="2MB", target_utilization=1.0)
    assert not found.exact
    with Allocations(limit=found.total - found.static.params):
        step(model, torch.rand(found.batch_size, 64))
    assert found.batch_size > 200


def test_all_parts_of_a_batch_get_as_many_rows():
    padded = memload.Padded(torch.rand(2, 3, 4), torch.tensor([3, 1]))
    sample = {"x": torch.arange(2), "more": [padded, (["a", "b"], 7)], "scale": torch.tensor(0.5)}
    batch = kind_of(sample).resized(5)
    assert batch["x"].tolist() == [0, 1, 0, 1, 0]
    assert batch["more"][0].lengths.tolist() == [3, 1, 3, 1, 3]
    assert batch["more"][1] == (["a", "b", "a", "b", "a"], 7)
    assert batch["scale"] is sample["scale"]


def test_accumulation_keeps_gradients_beside_all_activations():
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
    once, often = (memload.compute_batch_size(model, torch.rand(1, 64), limit="2MB", accumulate=k) for k in (1, 4))
    assert often.batch_size < once.batch_size
    assert often.used <= 0.9 * often.total
    tried = memload.compute_batch_size(model, torch.rand(1, 64), limit="2MB", accumulate=4, mode="trial")
    assert tried.batch_size == pytest.approx(often.batch_size, rel=0.02)


def test_the_slots_of_a_loader_take_their_part():
    model, ds = nn.Linear(1000, 8), memload.from_arrays(x=torch.zeros(400, 1000)).only("x")
    loader = memload.FastLoader(ds, 16, depth=3)
    with_slots = memload.compute_batch_size(model, torch.rand(1, 1000), limit="5MB", loader=loader)
    assert with_slots.loader == pytest.approx(loader.nbytes / 16 * with_slots.batch_size, rel=0.05)
    alone = memload.compute_batch_size(model, torch.rand(1, 1000), limit="5MB")
    assert 2 < alone.batch_size / with_slots.batch_size < 6


def test_slots_are_those_of_a_loader_with_the_batch_size_that_is_planned():
    model, ds = nn.Linear(1000, 8), memload.from_arrays(x=torch.zeros(4096, 1000)).only("x")
    small = memload.FastLoader(ds, 16)  # whose slots are more, since they are small
    found = memload.compute_batch_size(model, torch.rand(1, 1000), limit="50MB", loader=small)
    assert found.loader == memload.FastLoader(ds, found.batch_size).nbytes
    assert found.loader < 0.6 * small.nbytes / 16 * found.batch_size


@pytest.mark.parametrize(("transform", "buffers"), [(None, None), (None, 2), (lambda batch: (batch["x"] + 1,), 2)])
def test_memory_of_a_device_is_that_of_a_loader_with_the_batch_size_that_is_planned(transform, buffers):
    ds = memload.from_arrays(x=torch.zeros(1 << 16, 1000, dtype=torch.uint8))

    def loader(size):
        made = memload.FastLoader(
            ds, size, device=SimulatedInterface(), static_buffers=buffers, batch_transform=transform
        )
        next(iter(made))  # the size of what a function makes is known from then on
        return made

    small = loader(16)  # of which more are being copied, since they are small
    stated, counts_batch = slots_of(small, torch.device("cuda"), 1000)
    assert counts_batch
    for size in (16, 256, 1 << 15):
        assert stated(size) == loader(size).device_nbytes
    assert stated(1 << 15) < 0.9 * small.device_nbytes / 16 * (1 << 15)
    twice = 1 << 17  # rows: more than there are
    assert stated(twice) == 2 * stated(1 << 16)


@pytest.mark.parametrize(("workers", "batches", "processes"), [(0, 3, 0), (2, 2 * 3 + 1 + 2 * 2, 2)])
def test_what_torchs_own_loader_makes_ahead_takes_its_part(workers, batches, processes):
    model, rows = nn.Linear(1000, 8), TensorDataset(torch.zeros(64, 1000))
    loader = DataLoader(rows, 16, num_workers=workers, prefetch_factor=3 if workers else None)
    for one in (loader, memload.FastLoader([1, 2], 16, num_workers=workers, prefetch_factor=loader.prefetch_factor)):
        found = memload.compute_batch_size(model, torch.rand(1, 1000), limit="50MB", loader=one)
        assert found.loader == batches * 4000 * found.batch_size + processes * 9_000_000
        assert found.used <= 0.9 * found.total
    elsewhere = memload.compute_batch_size(
        model, torch.rand(1, 1000), "cuda", mode="static", limit="1GB", loader=loader
    )
    assert elsewhere.loader == 0


def test_parameters_that_only_an_optimizer_has_count_with_what_it_keeps_of_them():
    model, other = nn.Linear(1000, 8), nn.Linear(100, 100)
    both = torch.optim.Adam([*model.parameters(), *other.parameters()])
    found, alone = (
        memload.compute_batch_size(model, torch.rand(1, 1000), limit="5MB", optimizer=optimizer).static
        for optimizer in (both, torch.optim.Adam(model.parameters()))
    )
    assert found.params - alone.params == 40_400
    assert found.optimizer - alone.optimizer == pytest.approx(80_800, abs=20)


def test_a_gpu_can_be_planned_for_without_one():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU to ask")
    with torch.device("meta"):
        model, sample = Transformer(), torch.zeros(1, 24, dtype=torch.int64)
    found = memload.compute_batch_size(model, sample, "cuda", mode="static", limit="8GB", max_batch_size=512)
    assert (found.static.context, found.batch_size) == (512 << 20, 512)
    with pytest.raises(ValueError, match='no GPU here to ask for its memory: give limit=, such as "24GB"'):
        memload.compute_batch_size(model, sample, "cuda", mode="static")
    with pytest.raises(ValueError, match='no values to run a step with: give mode="static"'):
        memload.compute_batch_size(model, sample, mode="trial", limit="1GB")


def test_what_does_not_fit_is_refused_with_figures_and_what_helps():
    model = nn.Linear(1000, 1000)
    with pytest.raises(
        MemoryError, match=r"a batch of 2 does not fit into 4\.5 MB \(90% of 5 MB\): 4 MB are taken"
    ) as told:
        memload.compute_batch_size(model, torch.rand(1, 1000), limit="5MB", min_batch_size=2)
    assert "memload.fit" in str(told.value)
    steps = []  # none is made where not even gradients have room: it would end the process
    with pytest.raises(MemoryError, match="beside 4 MB for gradients and activations"):
        memload.compute_batch_size(model, torch.rand(1, 1000), limit="5MB", loss=steps.append)
    assert not steps
    with pytest.raises(MemoryError, match="a batch of 1 does not fit"):
        memload.compute_batch_size(model, torch.rand(1, 1000), limit="5MB", mode="trial")


def test_a_step_that_looks_at_values_says_which_mode_to_give():
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match='Give mode="measured", which runs it for real'):
        memload.compute_batch_size(
            model, torch.rand(2, 4), loss=lambda x: model(x).mean() * (1 if x.sum() > 0 else 2), mode="static"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "guess"}, 'mode must be "static", "measured" or "trial", got \'guess\''),
        ({"target_utilization": 1.5}, "above 0 and up to 1; got 1.5"),
        ({"min_batch_size": 0}, "min_batch_size must be an integer from 1 on, got 0"),
        ({"min_batch_size": 9, "max_batch_size": 8}, "min_batch_size is 9, above max_batch_size, 8"),
        ({"precision": "int8"}, "precision is one of float32, bf16-mixed, fp16-mixed; got 'int8'"),
        ({"precision": "bf16-true"}, r"got 'bf16-true'; .* a model that was converted: model\.to\(torch\.bfloat16\)"),
        ({"accumulate": 0}, "at least 1, got 0"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        memload.compute_batch_size(nn.Linear(4, 4), torch.rand(2, 4), **arguments)


def test_a_sample_that_is_no_batch_is_named():
    with pytest.raises(TypeError, match="found no tensor with an axis in str"):
        memload.compute_batch_size(nn.Linear(4, 4), "a batch")
    with pytest.raises(ValueError, match="the sample has no rows"):
        memload.compute_batch_size(nn.Linear(4, 4), torch.zeros(0, 4))


@pytest.mark.parametrize("mode", ["measured", "static", "trial"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_a_sample_that_is_not_as_the_model_gets_it_is_told_with_the_cast_that_is_missing(mode, dtype):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    images = torch.zeros(4, 3, 8, 8, dtype=dtype)
    wanted = r"is (uint8|float64), the weights are float32.*cast=\{\"image\": memload.Cast\(torch.float32\)\}"
    with pytest.raises(ValueError, match=wanted):
        memload.compute_batch_size(net, {"image": images}, limit="100MB", mode=mode)
    with pytest.raises(ValueError, match="the batch is"):
        memload.fit(net, images, "1GB", effective_batch=8, mode="static" if mode == "static" else "measured")
    casting = memload.compute_batch_size(
        net, images, limit="1MB", mode=mode, loss=lambda batch: net(batch.float()).mean()
    )
    assert casting.batch_size > 1


def test_an_error_of_a_step_that_is_not_of_dtypes_stays_what_it_is():
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="shape"):
        memload.compute_batch_size(
            nn.Linear(5, 5), images, limit="100MB", loss=lambda batch: batch.float().reshape(5, 5).mean()
        )


def test_plan_names_the_cast_that_is_missing_and_takes_it():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    ds = memload.from_arrays(image=torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    without = memload.plan(ds, 2, model=net)
    assert without.gpu.unknown == ("activations",)
    assert "'image' of the batch is uint8, the weights are float32" in repr(without)
    cast = memload.plan(ds, 2, model=net, cast={"image": memload.Cast(torch.float32)})
    assert cast.gpu.unknown == ()
    assert cast.gpu.of("activations") > 2 * 3 * 64 * 4


def test_other_errors_of_a_step_are_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        memload.compute_batch_size(nn.Linear(4, 4), torch.rand(2, 5), mode="trial", limit="1GB")


def test_bisection_finds_the_last_that_fits():
    for most in (1, 7, 64):
        for last in range(most + 1):
            assert largest(lambda size, last=last: size <= last, 1, most) == last


def test_a_budget_says_on_few_lines_where_the_memory_goes():
    model = nn.Linear(1000, 1000)
    found = memload.compute_batch_size(model, torch.rand(1, 1000), limit="20MB", max_batch_size=100)
    lines = repr(found).splitlines()
    assert lines[0] == "MemoryBudget: batch size 100 (measured)"
    assert lines[2] == "  static: params 4 MB, gradients 4 MB"
    assert len(lines) == 4
    with pytest.raises(TypeError, match="all rows take the same here: use batch_size, 100"):
        found.costs()


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (
            (torch.rand(4, 8), torch.rand(4, 8)),
            "the first of the 2 parts of a batch, .* 'other': give loss=, a fun",
        ),
        ({"x": torch.rand(4, 8), "y": torch.rand(4)}, "was given the fields x of a batch, .* 'other': give loss="),
    ],
)
def test_a_batch_that_the_model_does_not_take_is_told_with_what_to_give(sample, words):
    class Two(nn.Linear):
        def forward(self, x, other):
            return super().forward(x + other)

    with pytest.raises(TypeError, match=words):
        memload.compute_batch_size(Two(8, 8), sample, "cpu")


ADAM = torch.optim.Adam


@pytest.mark.parametrize(
    "given", [ADAM, functools.partial(ADAM, lr=0.1), lambda parameters: ADAM(parameters), [ADAM], {"one": ADAM}]
)
@pytest.mark.parametrize("mode", ["static", "trial"])
def test_an_optimizer_is_taken_as_its_class_or_a_function_of_parameters_as_by_plan(given, mode):
    model, sample = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8).requires_grad_(False)), torch.rand(2, 64)
    settings = {"limit": "100MB", "mode": mode, "max_batch_size": 64}
    own = memload.compute_batch_size(model, sample, optimizer=ADAM(model[0].parameters()), **settings)
    found = memload.compute_batch_size(model, sample, optimizer=given, **settings)
    assert (found.static, found.batch_size) == (own.static, own.batch_size)
    planned = memload.plan(
        memload.from_arrays(x=np.zeros((8, 64), np.float32)), 4, model=model, optimizer=given, gpu="1GB"
    )
    assert {line.name: line.predicted for line in planned.gpu.lines}["optimizer states"] == found.static.optimizer


def test_as_many_optimizer_classes_as_models_get_the_parameters_of_one_model_each():
    models = [nn.Linear(64, 64), nn.Linear(8, 8)]
    adam = [ADAM(models[0].parameters()), torch.optim.SGD(models[1].parameters())]
    found = model_bytes(models, [ADAM, torch.optim.SGD])
    assert found == model_bytes(models, adam)
    assert model_bytes(models, ADAM).optimizer > found.optimizer


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "optimizer is a torch optimizer, its class, or a function of parameters; got int"),
        (lambda parameters: len(parameters), "made a int, which is no torch.optim.Optimizer"),
        (
            lambda parameters, lr: ADAM(parameters, lr=lr),
            r"cannot be made of parameters alone .*: give an instance, or",
        ),
    ],
)
def test_what_makes_no_optimizer_is_refused_with_what_to_give(given, words):
    with pytest.raises(TypeError, match=words):
        memload.compute_batch_size(nn.Linear(8, 8), torch.rand(2, 8), optimizer=given)


def test_memory_that_the_measuring_itself_took_is_not_promised(monkeypatch):
    left = iter(budget.Memory(2 * 10**9, free) for free in (10**9, 8 * 10**8))
    monkeypatch.setattr(budget, "memory", lambda: next(left))
    found = memload.compute_batch_size(nn.Linear(1000, 10), torch.rand(2, 1000), max_batch_size=10)
    assert found.total == 8 * 10**8 + found.static.params


def test_a_sample_that_contains_graphs_beside_other_parts_is_refused():
    graphs = memload.GraphBatch.of({"x": torch.rand(6, 4), "edge_index": torch.zeros(2, 8, dtype=torch.int64)})
    model = torch.nn.Linear(4, 1)
    with pytest.raises(TypeError, match=r"contains graphs.*Give the batch of graphs alone"):
        memload.compute_batch_size(model, [graphs, graphs], loss=lambda batch: model(batch[0].x).mean(), limit="1GB")


def test_steps_on_the_free_memory_of_a_cpu_count_twice_unless_the_heap_gives_memory_back(monkeypatch):
    found = functools.partial(
        memload.compute_batch_size, torch.nn.Linear(1000, 1000), torch.rand(4, 1000), max_batch_size=100, mode="static"
    )
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    kept = found()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")
    given_back = found()
    assert found(limit="1GB").heap == given_back.heap == 1
    if platform.libc_ver()[0] == "glibc":
        assert kept.heap == 2
        assert kept.per_sample == 2 * given_back.per_sample
        assert "MALLOC_MMAP_THRESHOLD_=262144" in str(kept)


@pytest.mark.parametrize("mode", ["measured", "static", "trial"])
def test_a_bar_counts_operations_while_steps_run(mode, monkeypatch):
    class Shown:
        counted = 0

        def update(self, n):
            self.counted += n

    shown, asked = Shown(), []

    def bar(*arguments, **more):
        asked.append((*arguments, more["unit"]))
        return contextlib.nullcontext(shown)

    monkeypatch.setattr("memload.planning.batch_size.bar", bar)
    memload.compute_batch_size(
        nn.Linear(4, 4), torch.rand(2, 4), mode=mode, limit="1MB", max_batch_size=64, progress=True
    )
    assert asked == [("batch size", None, True, " operations")]
    assert shown.counted > 4 * 3  # steps, with a product of matrices forward and two backward at least
