"""memload.plan: it predicts what the arithmetic of the parts says, and what does not fit is told with figures."""

import math

import numpy
import numpy as np
import pytest
import torch
from simulated import SimulatedInterface
from torch import nn

import memload
from memload.engine.tiers.loading import LoadPlan
from memload.engine.tiers.placing import needs_of
from memload.planning.account import Account, Line, rows_of
from memload.planning.gpu_account import FRAGMENTATION, Training
from memload.planning.model_bytes import activation_bytes
from memload.sizes import format_size

IMAGES = memload.DatasetShape(10_000, {"stim": ("uint8", (64, 64, 3)), "robs": ("float32", (10,))})
ROW = 64 * 64 * 3 + 40


def test_a_shape_reads_as_zeros_and_says_how_large_it_is():
    ds = IMAGES.zeros()
    assert (len(ds), ds.nbytes, IMAGES.nbytes) == (10_000, 10_000 * ROW, 10_000 * ROW)
    assert ds[9_999]["stim"].shape == (64, 64, 3)
    assert not any(ds[5]["robs"])


def test_a_shape_of_226_gigabytes_takes_the_memory_of_a_row():
    stimuli = memload.DatasetShape(417_000, {"stim": ("uint8", (425, 425, 3))})
    batch = next(iter(memload.FastLoader(stimuli.zeros(), batch_size=4, shuffle=True)))
    assert batch["stim"].shape == (4, 425, 425, 3)


def test_rows_that_differ_have_the_mean_and_the_greatest_length_that_were_stated():
    shape = memload.DatasetShape(
        5_000,
        {"x": ("float32", (None, 16)), "edges": ("int64", (2, None))},
        lengths={"x": (30, 120), "edges": (64, 70)},
    )
    fields = shape.zeros().fields
    assert fields["x"].column.longest(1) == 120
    assert fields["edges"].column.longest(1) == 70
    assert fields["x"].nbytes == pytest.approx(5_000 * 30 * 16 * 4, rel=0.01)
    assert fields["edges"].nbytes == pytest.approx(5_000 * 64 * 2 * 8, rel=0.01)
    assert shape.zeros()[4_999]["edges"].shape == (2, 70)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, {"x": ("uint8", ())}), "rows is the number of rows, at least 1"),
        ((1, {}), "at least one field"),
        ((1, {"x": "uint8"}), "field 'x': dtype and shape, such as .*; got 'uint8'"),
        ((1, {"x": ("uint8", 5.5)}), r"such as \(425, 425, 3\), .*; got 5.5"),
        ((1, {"x": ("uint8", "425,425")}), "shape of a row is of whole numbers"),
        ((1, {"x": ("uint8", (None,))}, {"x": 9}), "mean and the greatest length, such as .*; got 9"),
        ((1, {"x": ("uint8", (None,))}, {"x": ("9", 9)}), "a mean length from 0 to the greatest"),
        ((1, {"x": ("uint8", (3, -1))}), "shape of a row is of whole numbers"),
        ((1, {"x": ("uint8", (2, 2, None))}), "one of the first two None"),
        ((1, {"x": ("uint8", (None,))}), "lengths= gives mean and greatest length"),
        ((1, {"x": ("uint8", (None,))}, {"x": (9, 3)}), "a mean length from 0 to the greatest"),
        ((2**50, {"x": ("uint8", (2**20,))}), "multiplies to"),
    ],
)
def test_a_shape_that_nothing_can_have_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        memload.DatasetShape(*arguments)
    with pytest.raises(TypeError, match="fields is a mapping by name, such as"):
        memload.DatasetShape(1, [("x", "uint8")])


def test_slots_and_plan_are_what_the_loader_says():
    settings = {"shuffle": True, "depth": 4, "cast": {"stim": memload.Cast(torch.float32)}}
    plan = memload.plan(IMAGES, 32, ram="16GB", disk="1TB", **settings)
    loader = memload.FastLoader(IMAGES.zeros(), 32, **settings)
    assert plan.ram.of("loader") == loader.nbytes
    assert (plan.data.slots, plan.data.row_bytes) == (5, ROW)
    assert plan.data.batch_bytes == 32 * (64 * 64 * 3 * 4 + 40)
    assert plan.disk.predicted == IMAGES.nbytes


def test_casts_in_ram_count_as_they_are_held_and_batches_too():
    plan = memload.plan(IMAGES, 32, tier="ram", ram_dtype={"stim": torch.float32}, ram="1GB", disk="1GB")
    assert plan.ram.of("rows in RAM") == 10_000 * (64 * 64 * 3 * 4 + 40)
    assert plan.data.batch_bytes == 32 * (64 * 64 * 3 * 4 + 40)
    assert plan.data.stored_bytes == IMAGES.nbytes
    assert plan.sets == {"RAM": 1, "disk": 8}


def test_auto_is_what_the_matrix_of_tiers_says_of_the_machine():
    roomy, tight, tiny = (
        memload.plan(IMAGES, 32, tier="auto", ram=ram, disk="1TB") for ram in ("1GB", "300MB", "160MB")
    )
    assert (roomy.tier, tight.tier, tiny.tier) == (memload.Tier.MMAP, memload.Tier.HYBRID, memload.Tier.DIRECT)
    assert tight.ram.of("cache of rows") == pytest.approx(
        (300_000_000 - tight.ram.without("cache of rows")) / 2, rel=0.2
    )
    cast = memload.plan(IMAGES, 32, tier="auto", ram_dtype={"stim": "float32"}, ram="4GB", disk="1TB")
    assert cast.tier is memload.Tier.RAM
    assert f"Chosen: {cast.tier_reason}." in repr(cast)


def doubled(sample):
    return {"stim": sample["stim"].double()}


def noisy(sample):
    return {"stim": sample["stim"] + torch.rand(())}


def test_auto_plans_for_the_results_of_a_function_where_a_cache_would_keep_them():
    mapped, made = IMAGES.zeros().map(doubled), 10_000 * 64 * 64 * 3 * 8
    roomy, tight, full = (
        memload.plan(mapped, 32, tier="auto", ram=ram, disk=disk)
        for ram, disk in (("4GB", "1GB"), ("1GB", "2TB"), ("1GB", "1GB"))
    )
    assert (roomy.tier, tight.tier) == (memload.Tier.RAM, memload.Tier.MMAP)
    assert roomy.ram.of("rows in RAM") == tight.disk.of("rows") == tight.data.stored_bytes == made
    assert roomy.ram.of("transformed batches") == tight.ram.of("transformed batches") == 0
    assert (roomy.disk, tight.fits) == (None, True)
    assert "which fits neither RAM nor the disk, and runs for every batch" in full.tier_reason
    assert full.ram.of("transformed batches") == (full.data.slots + 1) * 32 * 64 * 64 * 3 * 8
    random = memload.plan(IMAGES.zeros().map(noisy), 32, tier="auto", ram="8GB", disk="2TB")
    assert random.ram.of("transformed batches") > 0


def test_a_dataset_is_planned_on_the_tier_on_which_it_was_opened(tmp_path):
    numpy.save(tmp_path / "x.npy", numpy.zeros((100, 1000), numpy.float32))
    mapped, cached = (
        memload.open(tmp_path / "x.npy", **tier) for tier in ({}, {"tier": "hybrid", "cache_bytes": "2MB"})
    )
    assert memload.plan(mapped, 8).tier is memload.Tier.MMAP
    assert memload.plan(cached, 8, ram="1GB").ram.of("cache of rows") == 2_000_000
    assert memload.plan(cached, 8).ram.of("cache of rows") == pytest.approx(2_000_000, rel=0.01)
    assert memload.plan(cached.map(lambda sample: sample["data"] + 1), 8).tier is memload.Tier.HYBRID
    loaded = memload.open(tmp_path / "x.npy", tier="ram", progress=False)
    assert memload.plan(loaded, 8).ram.of("rows in RAM") == 0  # they are part of what the process has
    there = memload.plan(loaded, 8, ram="1GB")
    assert there.ram.of("process") - memload.plan(mapped, 8, ram="1GB").ram.of("process") >= 400_000


def test_members_on_tiers_of_their_own_count_with_what_caches_still_take_and_reads_past_the_page_cache(tmp_path):
    numpy.save(tmp_path / "x.npy", numpy.zeros((300, 10_000), numpy.uint8))
    cold = memload.open(tmp_path / "x.npy", tier="hybrid", cache_bytes="4MB")
    hot = memload.open(tmp_path / "x.npy", tier="ram", progress=False)
    both = memload.concat([cold, hot])
    plan = memload.plan(both, 30)
    assert plan.ram.of("cache of rows") == pytest.approx(4_000_000, rel=0.01)
    assert plan.ram.of("page cache") == plan.ram.of("page tables") == 0
    assert plan.ram.of("read buffers") > 0
    for _ in memload.FastLoader(both, 30):
        pass
    filled = memload.plan(both, 30)  # 3 MB of rows are a part of the process now
    assert filled.ram.of("cache of rows") == pytest.approx(900_000, rel=0.1)
    assert memload.plan(both, 30, ram="1GB").ram.of("cache of rows") == 4_000_000


@pytest.mark.parametrize(("tiers", "through_cache"), [(("hybrid", "direct"), False), (("direct", "mmap"), True)])
def test_a_file_on_two_tiers_is_in_the_page_cache_if_one_of_them_maps_it(tmp_path, tiers, through_cache):
    numpy.save(tmp_path / "x.npy", numpy.zeros((300, 10_000), numpy.uint8))
    both = memload.concat([memload.open(tmp_path / "x.npy", tier=tier) for tier in tiers])
    in_cache = memload.plan(both, 30).ram.of("page cache")
    assert in_cache == ((tmp_path / "x.npy").stat().st_size if through_cache else 0)


def test_processes_have_loaders_of_their_own_and_one_copy_of_the_rows():
    one, four = (memload.plan(IMAGES, 32, tier="ram", ram="16GB", disk="1TB", processes=n) for n in (1, 4))
    assert four.ram.of("rows in RAM") == one.ram.of("rows in RAM")
    assert four.ram.of("loader") == 4 * one.ram.of("loader")
    assert four.ram.of("process") == 4 * one.ram.of("process")


def test_what_each_process_has_for_itself_counts_for_each(monkeypatch):
    common = {"ram": "16GB", "disk": "1TB", "gpu": "8GB"}
    one, four = (memload.plan(IMAGES, 32, tier="hybrid", cache_bytes="20MB", processes=n, **common) for n in (1, 4))
    assert (one.ram.of("cache of rows"), four.ram.of("cache of rows")) == (20_000_000, 80_000_000)
    assert "20 MB in each of 4 processes" in repr(four)
    one, four = (memload.plan(IMAGES, 32, tier="pinned", processes=n, **common) for n in (1, 4))
    assert four.ram.of("rows in RAM") == 4 * one.ram.of("rows in RAM") == 4 * IMAGES.nbytes
    one, four = (memload.plan(IMAGES, 32, tier="auto", ram="780MB", disk="1TB", processes=n, threads=2) for n in (1, 4))
    assert (one.tier, four.tier) == (memload.Tier.MMAP, memload.Tier.HYBRID)  # 3 more processes of 155 MB
    assert "in each of 4 processes holds" in four.tier_reason
    assert four.fits
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memload.plan(IMAGES, 32, ram="780MB", disk="1TB", tier="auto", threads=2) == four
    here, alone = memload.plan(IMAGES, 32), memload.plan(IMAGES, 32, processes=1)
    assert here.ram.of("process") == pytest.approx(alone.ram.of("process") + 3 * 155_000_000, abs=10_000_000)
    assert "what this process has now, and 3 more" in repr(here)
    assert here.stock.of("process") == here.ram.of("process")


def test_what_does_not_fit_once_for_each_process_says_what_cache_does():
    large = memload.DatasetShape(100_000, {"stim": ("uint8", (64, 64, 3))})
    plan = memload.plan(large, 32, tier="ram", ram_dtype={"stim": "float32"}, ram="4GB", disk="1TB", processes=4)
    (way,) = [way for way in plan.ways_out if way.startswith('tier="hybrid"')]
    assert "of the rows stay in RAM in each of 4 processes: RAM " in way


def test_whatever_is_read_natively_can_be_planned():
    tensors = torch.utils.data.TensorDataset(torch.zeros(100, 8), torch.zeros(100))
    assert memload.plan(tensors, 10).data.batch_bytes == 10 * 36
    doubled = IMAGES.zeros().map(lambda sample: {"stim": sample["stim"].double()})
    plan = memload.plan(doubled, 10, threads=2)
    assert plan.ram.of("transformed batches") == (plan.data.slots + 1) * 10 * 64 * 64 * 3 * 8
    a, b = (memload.DatasetShape(n, {"x": ("uint8", (n,))}).zeros() for n in (100, 200))
    joined = memload.concat({"a": a, "b": b})
    assert memload.plan(joined, 10, collate_fn=memload.group_collate).data.stored_bytes == joined.nbytes


def test_functions_of_no_rows_take_nothing():
    nothing = IMAGES.zeros().select([])
    for plan in (
        memload.plan(nothing.map(lambda sample: sample), 4),
        memload.plan(nothing, 4, batch_transform=lambda batch: batch["stim"] * 2),
    ):
        assert plan.data.made_in_all == 0


def test_the_page_cache_gives_way_and_is_not_counted():
    plan = memload.plan(IMAGES, 32, ram="16GB", disk="1TB")
    assert plan.ram.of("page cache") == IMAGES.nbytes
    assert plan.ram.predicted == plan.ram.of("loader") + plan.ram.of("page tables") + plan.ram.of("process")


def test_the_stock_loader_makes_workers_times_prefetch_batches_and_holds_one():
    plan = memload.plan(IMAGES, 32, num_workers=4, prefetch_factor=3, ram="16GB", disk="1TB")
    assert plan.stock.of("batches") == 13 * plan.data.batch_bytes
    assert plan.stock.of("worker processes") == 4 * 9_000_000


def test_on_a_gpu_batches_cross_uncast_and_both_sides_count_as_the_loader_says():
    common = {"cast": {"stim": memload.Cast(torch.float32)}, "depth": 2, "shuffle": True}
    near = memload.plan(IMAGES, 32, device="cuda", gpu="8GB", ram="16GB", disk="1TB", **common)
    far = memload.plan(IMAGES, 32, ram="16GB", disk="1TB", **common)
    loader = memload.FastLoader(IMAGES.zeros(), 32, device=SimulatedInterface(), **common)
    assert near.ram.of("loader") == loader.nbytes < far.ram.of("loader") / 3
    assert near.gpu.of("batches") == loader.device_nbytes
    assert near.data.batch_bytes == far.data.batch_bytes == 32 * (64 * 64 * 3 * 4 + 40)
    assert far.gpu is None
    assert memload.plan(IMAGES, 32, device="cpu", ram="16GB", disk="1TB", **common).gpu is None


def test_casts_that_move_pixels_count_as_what_they_make():
    crop = memload.Cast(torch.float32, channels=-1, layout="NCHW", augment=memload.Augment(crop=(32, 32)))
    plan = memload.plan(IMAGES, 32, cast={"stim": crop}, ram="16GB", disk="1TB", threads=2)
    assert plan.data.batch_bytes == 32 * (32 * 32 * 3 * 4 + 40)
    assert plan.ram.of("transformed batches") == 0  # the gather crops


def test_what_functions_make_of_a_batch_and_work_with_is_found_by_calling_them():
    def standardise(batch):
        x = batch["stim"].float()
        return {"x": (x - x.mean()) / x.std(), "stim": batch["stim"]}

    def refuses(batch):
        raise ValueError("a batch of two rows")

    batch = 64 * 64 * 64 * 3
    settings = {"options": memload.EngineOptions(threads=2, depth=1, transform_threads=2)}
    plan = memload.plan(IMAGES.zeros(), 64, batch_transform=standardise, **settings)
    assert plan.ram.of("transformed batches") == (plan.data.slots + 1) * batch * 4, "what is handed on takes no more"
    assert plan.ram.of("transforms at work") == 2 * 2 * batch * 4
    for function, made in ((lambda batch: batch["stim"].add_(1), 0), (refuses, plan.data.batch_bytes)):
        found = memload.plan(IMAGES.zeros(), 64, batch_transform=function, **settings)
        assert found.data.made_bytes == made
        assert found.ram.of("transforms at work") == 0


def training_account(models, optimizers=None, loss=None, sample=None, precision="float32", **more):
    training = Training(models, optimizers, loss, sample, precision, 1, offload=False, **more)
    return Account("GPU", training.lines(training.counted()))


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 3, 100), nn.ReLU(), nn.Linear(100, 10))


def loss_of(model):
    return lambda batch: nn.functional.mse_loss(model(batch["stim"].float()), batch["robs"])


@pytest.mark.parametrize(
    ("precision", "each", "optimizer", "moments"),
    [
        ("float32", 4, torch.optim.SGD, 0),
        ("bf16-true", 2, torch.optim.AdamW, 2),
        ("fp16-true", 2, torch.optim.RMSprop, 1),
        ("bf16-mixed", 4, torch.optim.AdamW, 2),
    ],
)
def test_models_count_by_precision_and_optimizers_by_what_they_keep(precision, each, optimizer, moments):
    model = perceptron()
    parameters = sum(p.numel() for p in model.parameters())
    account = training_account(model, optimizer, precision=precision)
    assert account.of("parameters") == account.of("gradients") == parameters * each
    assert account.of("optimizer states") == pytest.approx(parameters * each * moments, abs=100)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 500)

    def forward(self, x):
        return self.head(self.layers(self.words(x)))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.Flatten()
    )


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    ("make", "x"), [(convolutions, torch.rand(8, 3, 32, 32)), (Translator, torch.zeros(4, 32, dtype=torch.long))]
)
@pytest.mark.usefixtures("freed_memory_goes_back")
def test_activations_without_numbers_are_those_of_a_real_step(make, x, mixed):
    model = make()

    def loss(batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return model(batch).float().square().mean()

    found = activation_bytes(lambda: loss(x), model, on_cpu=True)
    precision = "bf16-mixed" if mixed else "float32"
    plain = lambda batch: model(batch).float().square().mean()  # noqa: E731
    account = training_account(model, torch.optim.SGD, plain, x.to("meta"), precision, on_cpu=True)
    assert account.of("activations") == pytest.approx(found.peak_with_gradients - found.gradients, rel=0.01)


def test_models_are_afterwards_what_they_were():
    model = convolutions()
    before = {name: (id(tensor), tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    x = torch.empty(2, 3, 8, 8, device="meta")
    training_account(model, torch.optim.Adam, lambda b: model(b).mean(), x, "bf16-mixed")
    with pytest.raises(ValueError, match="cannot be run on tensors without numbers"):
        training_account(model, None, lambda b: b.mean().item(), x, "bf16-true")
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert (id(tensor), tensor.tolist()) == (before[name][0], before[name][1].tolist())


def test_a_gpu_account_adds_up():
    model = perceptron()
    plan = memload.plan(
        IMAGES,
        32,
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        loss=loss_of(model),
        gpu="8GB",
        ram="16GB",
        disk="1TB",
    )
    gpu, weights = plan.gpu, sum(p.numel() for p in model.parameters()) * 4
    assert gpu.of("parameters") == gpu.of("gradients") == weights
    assert gpu.of("activations") + gpu.of("optimizer's step") >= weights  # Adam's step on a GPU takes all at once
    moving = sum(gpu.of(name) for name in ("batches", "activations", "optimizer's step"))
    assert gpu.of("fragmentation") == round(FRAGMENTATION * moving)
    assert gpu.predicted == sum(line.predicted for line in gpu.lines)
    assert plan.fits


def test_without_a_loss_activations_are_those_of_what_the_model_returns():
    model, common = perceptron(), {"gpu": "8GB", "ram": "16GB", "disk": "1TB"}
    told = memload.plan(IMAGES, 32, model=model, cast={"stim": memload.Cast(torch.float32)}, **common)
    stated = memload.plan(
        IMAGES,
        32,
        model=model,
        cast={"stim": memload.Cast(torch.float32)},
        loss=lambda batch: ((out := model(batch["stim"])).mean(), out),
        **common,
    )
    assert told.gpu.of("activations") == pytest.approx(stated.gpu.of("activations"), abs=100)
    assert told.gpu.of("activations") > 0
    assert "a criterion takes more: give loss=" in repr(told)
    assert told.gpu.unknown == ()


def test_what_a_step_takes_that_cannot_be_told_is_called_unknown():
    common = {"gpu": "8GB", "ram": "16GB", "disk": "1TB"}
    for model, words in [
        (nn.Linear(7, 3), "the model does not take the loader's batch (RuntimeError: "),
        ([perceptron(), perceptron()], "2 models train, so a step is not defined"),
        (perceptron().requires_grad_(False), "no model trains, so"),
    ]:
        plan = memload.plan(IMAGES, 32, model=model, **common)
        assert plan.gpu.unknown == ("activations",)
        assert f"activations unknown give loss=: {words}" in " ".join(repr(plan).split())
        assert "fits, without activations" in repr(plan)


class Foreign(torch.optim.Optimizer):
    """Keeps what it keeps beside `state`, as many that are not torch's own do."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.kept = {}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for k, p in enumerate(group["params"]):
                if k not in self.kept:
                    self.kept[k] = [torch.zeros_like(p), torch.zeros_like(p)]
                self.kept[k][0].mul_(0.9).add_(p.grad)
                p.sub_(self.kept[k][0], alpha=group["lr"])


class Anew(Foreign):
    """Makes what it keeps anew in every step."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for k, p in enumerate(group["params"]):
                self.kept[k] = [p.clone(), p.clone()]


class Closed(Foreign):
    """Needs a closure."""

    def step(self, closure):
        closure()
        super().step()


class Around(Foreign):
    """Goes around another optimizer."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr)
        self.other = torch.optim.Adam(self.param_groups)

    def step(self, closure=None):
        self.other.step()


def test_what_optimizers_from_elsewhere_keep_is_found_and_else_called_unknown():
    weights = sum(p.numel() for p in perceptron().parameters()) * 4
    common = {"gpu": "8GB", "ram": "16GB", "disk": "1TB"}
    for kind in (Foreign, Around, Anew):
        model = perceptron()
        made = kind(model.parameters())
        for given in (kind, made, lambda parameters, kind=kind: kind(parameters, lr=0.5)):
            plan = memload.plan(IMAGES, 32, model=model, optimizer=given, **common)
            assert plan.gpu.of("optimizer states") == pytest.approx(2 * weights, abs=100)
        assert made.kept == {}
        assert not made.state
    model = perceptron()
    closed = Closed(model.parameters())
    for given in (Closed, closed):
        plan = memload.plan(IMAGES, 32, model=model, optimizer=given, **common)
        assert "optimizer states" in plan.gpu.unknown
        assert "the state of Closed cannot be computed beforehand" in repr(plan)
    closed.step(lambda: [setattr(p, "grad", torch.zeros_like(p)) for p in model.parameters()])
    plan = memload.plan(IMAGES, 32, model=model, optimizer=closed, **common)
    assert (plan.gpu.of("optimizer states"), plan.gpu.unknown) == (2 * weights, ())
    for given, words in [
        (3, "optimizer is a torch optimizer, its class, or a function of parameters; got int"),
        (dict.fromkeys, "which is no torch.optim.Optimizer"),
        (lambda parameters, rate: 0, "cannot be made of parameters alone"),
    ]:
        with pytest.raises(TypeError, match=words):
            memload.plan(IMAGES, 32, model=model, optimizer=given, **common)


def test_several_models_have_optimizers_of_their_own_and_frozen_ones_no_gradients():
    with torch.device("meta"):
        teacher, student = perceptron().requires_grad_(False), nn.Linear(10, 10)
    account = training_account({"teacher": teacher, "student": student}, torch.optim.Adam, precision="bf16-mixed")
    assert account.of("gradients") == 440
    assert account.of("optimizer states") == pytest.approx(880, abs=20)
    both = training_account([nn.Linear(10, 10), student], [torch.optim.SGD, torch.optim.Adam])
    assert both.of("optimizer states") == pytest.approx(880, abs=20)


def test_offloaded_models_are_in_ram_and_two_of_their_layers_on_the_gpu():
    with torch.device("meta"):
        teacher = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(50))).requires_grad_(False)
        model = [teacher, perceptron()]
    common = {"model": model, "gpu": "8GB", "ram": "16GB", "disk": "1TB"}
    there, away = (memload.plan(IMAGES, 32, offload=offload, **common) for offload in (False, True))
    assert there.gpu.predicted - away.gpu.predicted == 48 * 4_000_000
    assert away.ram.of("offloaded models") == 50 * 4_000_000
    on_their_way = [plan.ram.of("weights on their way") for plan in (there, away)]
    assert on_their_way[0] - on_their_way[1] == 50 * 4_000_000


def test_what_does_not_fit_into_ram_is_refused_with_what_does():
    plan = memload.plan(IMAGES, 32, tier="ram", ram_dtype={"stim": torch.float32}, ram="500MB", disk="1TB")
    assert not plan.fits
    assert plan.ram.left < 0
    assert [way.partition(":")[0] for way in plan.ways_out] == [
        'tier="ram" as stored, cast while gathering',
        'tier="ram" as bfloat16',
        'tier="mmap", what the page cache holds gives way',
    ]
    assert f"does not fit: {format_size(-plan.ram.left)} too much" in repr(plan)
    assert "Refused. What fits:" in repr(plan)


def test_a_batch_too_large_for_the_gpu_is_cut_into_parts_that_fit():
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten())
    common = {"model": model, "loss": lambda b: model(b["stim"].float()).mean(), "ram": "16GB", "disk": "1TB"}
    small = memload.plan(IMAGES, 8, gpu="80GB", **common)
    plan = memload.plan(IMAGES, 64, gpu=small.gpu.predicted + 1_000_000, **common)
    assert plan.ways_out[0].startswith("batch_size=8, 8 of them accumulated: RAM")
    assert plan.ways_out[1].startswith('precision="bf16-mixed", batch_size=16, 4 of them accumulated')
    hopeless = memload.plan(IMAGES, 64, gpu="100MB", **common)
    assert hopeless.ways_out[0].startswith("nothing that can be changed here does: this needs GPU of")


def test_what_to_ask_for_is_a_tenth_more_in_whole_gibibytes():
    account = Account("RAM", (Line("loader", 2 * 2**30),), 8 * 2**30)
    plan = memload.plan(IMAGES, 32, ram="16GB", disk="1TB")
    assert plan.mem == f"--mem={math.ceil(plan.ram.predicted * 1.1 / 2**30)}G"
    assert account.left == 6 * 2**30


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "batch_size is a whole number from 1"),
        ({"tier": "attic"}, ValueError, "attic"),
        ({"device": "foo"}, ValueError, "device='foo' is no device of torch's"),
        ({"precision": "int4"}, ValueError, "precision is one of float32, bf16"),
        ({"ram_dtype": {"stim": torch.bfloat16}}, ValueError, "loaded into RAM"),
        ({"cache_bytes": "1GB"}, ValueError, 'for tier="hybrid"'),
        ({"tier": "auto", "ram_dtype": {"stim": "float32"}}, ValueError, "kept in RAM, and these are not"),
        ({"optimizer": torch.optim.SGD}, ValueError, "give model="),
        ({"tier": "ram", "ram_dtype": {"x": torch.bfloat16}}, KeyError, "names the field 'x'"),
        ({"ram": "plenty"}, ValueError, "not a size"),
        ({"threads": 2, "surprise": 3}, TypeError, "surprise"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        memload.plan(IMAGES, **{"batch_size": 4, "ram": "1GB", "disk": "1GB", **arguments})


def test_paths_and_what_nobody_reads_natively_are_refused_in_words():
    with pytest.raises(TypeError, match=r"give memload\.open\('x\.npy'\)"):
        memload.plan("x.npy", 4)
    with pytest.raises(TypeError, match="only datasets that the native engine reads can be planned"):
        memload.plan([1, 2, 3], 4)
    with pytest.raises(TypeError, match="only datasets that the native engine reads can be planned"):
        memload.plan(IMAGES, 4, ram="1GB", disk="1GB", collate_fn=lambda batch: batch[0], num_workers=2)


def overlapping(folder):
    """Views of one file whose rows share what is stored: by name, and the share of the file that they read."""
    np.save(folder / "x.npy", np.zeros((2000, 5000), np.uint8))
    ds = memload.open(folder / "x.npy")
    return {
        "rows": (ds, 1),
        "lags": (ds.with_lags(data=range(32)), 1),
        "windows": (ds.windows(window=32), 1),
        "repeats": (ds.select(np.arange(100).repeat(60)), 0.05),
    }


@pytest.mark.parametrize("name", ["rows", "lags", "windows", "repeats"])
def test_rows_that_share_what_is_stored_are_planned_as_they_are_loaded(name, tmp_path):
    ds, share = overlapping(tmp_path)[name]
    expected = share * 2000 * 5000
    plan = memload.plan(ds, 4, tier="ram", ram="1GB")
    assert plan.ram.of("rows in RAM") == expected
    assert LoadPlan.of(ds.fields, {}, compressed=False).nbytes - expected < 4 << 20  # in whole huge pages
    cast = memload.plan(ds, 4, tier="ram", ram_dtype={"data": "float32"}, ram="1GB")
    assert cast.ram.of("rows in RAM") == 4 * expected
    assert memload.plan(ds, 4, tier="auto", ram="1GB").tier is memload.Tier.MMAP
    assert memload.plan(ds, 4, tier="device", ram="1GB", gpu="1GB").gpu.of("rows on the GPU") == expected
    assert needs_of(ds.fields, {}).stored == expected


def frozen_model():
    with torch.device("meta"):
        return torch.nn.Linear(50_000, 34_000, bias=False).requires_grad_(False)  # 6.8 GB


def test_weights_on_their_way_to_a_gpu_pass_through_ram():
    rows = memload.DatasetShape(1_000, {"x": ("float32", (1_000,))})
    common = {"model": frozen_model(), "gpu": "16GB", "ram": "64GB", "disk": "1GB"}
    once, twice, mapped = (memload.plan(rows, 10, weights=way, **common) for way in ("ram", "state_dict", "mmap"))
    assert once.ram.predicted - mapped.ram.predicted == pytest.approx(6_800_000_000, rel=0.01)
    assert twice.ram.predicted - once.ram.predicted == 6_800_000_000
    assert mapped.ram.of("weights on their way") == 0
    assert once.gpu.predicted == mapped.gpu.predicted


def test_weights_that_do_not_fit_into_ram_are_mapped_instead():
    rows = memload.DatasetShape(1_000, {"x": ("float32", (1_000,))})
    plan = memload.plan(rows, 10, model=frozen_model(), gpu="16GB", ram="4GB", disk="1GB")
    assert not plan.fits
    (way,) = plan.ways_out
    assert "torch.load(path, mmap=True)" in way
    assert "safetensors" in way


def test_weights_that_are_in_this_process_are_counted_once():
    rows = memload.DatasetShape(1_000, {"x": ("float32", (1_000,))})
    model = torch.nn.Linear(1_000, 1_000)
    assert memload.plan(rows, 10, model=model, gpu="16GB").ram.of("weights on their way") == 0
    assert memload.plan(rows, 10, model=model, gpu="16GB", weights="state_dict").ram.of("weights on their way") > 0


def test_an_unknown_way_of_weights_is_refused():
    rows = memload.DatasetShape(1_000, {"x": ("float32", (1_000,))})
    with pytest.raises(ValueError, match="weights is one of ram, state_dict, mmap; got 'disk'"):
        memload.plan(rows, 10, weights="disk")


def test_pinned_batches_of_a_stock_loader_are_rounded_up_to_powers_of_two():
    rows = memload.DatasetShape(1_000, {"x": ("float32", (1_000,))})
    plain, pinned = (memload.plan(rows, 10, num_workers=2, pin_memory=pins, device="cuda") for pins in (False, True))
    assert plain.stock.of("pinned batches") == 0
    assert pinned.stock.of("pinned batches") == (2 * 2 + 1) * 65_536
    assert plain.ram.of("CUDA in RAM") == plain.stock.of("CUDA in RAM") == 117_000_000
    assert memload.plan(rows, 10).ram.of("CUDA in RAM") == 0


def test_an_account_whose_line_is_a_bound_says_at_most_and_that_it_may_not_fit():
    lines = Line("parameters", 100), Line("activations", 600, bound=True)
    assert next(iter(rows_of(Account("RAM", lines, 1_000))))[1::2] == ("at most 700 B", "fits")
    size, verdict = next(iter(rows_of(Account("RAM", lines, 500))))[1::2]
    assert (size, verdict) == ("at most 700 B", "may not fit: at most 200 B too much")
    assert [row[1] for row in rows_of(Account("RAM", lines))] == ["at most 700 B", "100 B", "at most 600 B"]
    assert next(iter(rows_of(Account("RAM", lines[:1], 50))))[1::2] == ("100 B", "does not fit: 50 B too much")
