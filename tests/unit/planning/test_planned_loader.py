"""memload.plan of a loader: the plan of its dataset and its arguments."""

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler

import memload
from memload.planning.planned_loader import PlannedLoader

DS = memload.from_arrays(x=torch.zeros(1000, 100), y=torch.zeros(1000))
KINDS = {
    "plain": {"batch_size": 32},
    "one row": {},
    "shuffled, cast, deep": {
        "batch_size": 32,
        "shuffle": True,
        "cast": {"x": memload.Cast(torch.bfloat16)},
        "depth": 4,
        "drop_last": True,
    },
    "mapped, options": {
        "batch_size": 32,
        "options": memload.EngineOptions(depth=7),
        "batch_transform": lambda batch: {name: torch.cat([value, value]) for name, value in batch.items()},
    },
    "weighted": {"batch_size": 64, "sampler": WeightedRandomSampler(torch.ones(1000), 300)},
    "batch sampler": {"batch_sampler": BatchSampler(RandomSampler(DS), 48, drop_last=True)},
    "kept workers": {"batch_size": 32, "num_workers": 2, "prefetch_factor": 5, "persistent_workers": True},
    "workers": {"batch_size": 32, "num_workers": 2, "prefetch_factor": 5, "pin_memory": True, "shuffle": True},
}


CONTRARY = {"depth": ["options"], "options": ["depth"], "num_workers": ["prefetch_factor", "persistent_workers"]}


def texts(plan):
    """All that a plan states, but what this process holds, which differs from one moment to the next."""
    return (plan.data, plan.tier, plan.ram.lines[:1], plan.stock.lines[:-1], plan.gpu, plan.disk, plan.network)


@pytest.mark.filterwarnings("ignore:.*pin_memory")
@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_of_a_loader_is_that_of_its_dataset_and_its_arguments(kind):
    arguments = KINDS[kind]
    assert texts(memload.plan(memload.FastLoader(DS, **arguments), ram="64GB")) == texts(
        memload.plan(DS, **arguments, ram="64GB")
    )


@pytest.mark.parametrize("kind", ["plain", "one row", "weighted", "batch sampler", "workers"])
def test_stock_loaders_are_planned_too(kind):
    arguments = KINDS[kind]
    assert texts(memload.plan(DataLoader(DS, **arguments), ram="64GB")) == texts(
        memload.plan(DS, **arguments, ram="64GB")
    )


@pytest.mark.parametrize("given", [1, "cuda:1", torch.device("cuda", 1)])
def test_batches_for_a_device_are_planned_there(given):
    loader = memload.FastLoader(DS, 32, device="cpu")
    assert PlannedLoader.of(loader).device == "cpu"
    vars(loader)["device"] = given  # this machine may have no such device
    asked = memload.plan(loader, gpu="16GB")
    assert asked.data == memload.plan(DS, 32, device="cuda:1", gpu="16GB").data
    assert asked.data.device_bytes > 0
    assert memload.plan(memload.FastLoader(DS, 32, device="cpu"), device="cuda:0", gpu="16GB").data.device_bytes > 0


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("batch sampler", {"batch_size": 16}),
        ("batch sampler", {"batch_size": 16, "shuffle": True}),
        ("weighted", {"shuffle": True}),
        ("weighted", {"sampler": range(7)}),
        ("shuffled, cast, deep", {"cast": {"x": "float64"}, "depth": 3}),
        ("workers", {"batch_sampler": [[0, 1, 2], [3]]}),
        ("mapped, options", {"depth": 3}),
        ("shuffled, cast, deep", {"options": memload.EngineOptions(depth=5)}),
        ("kept workers", {"num_workers": 0}),
    ],
)
def test_arguments_of_the_plan_take_the_place_of_those_of_the_loader(kind, others):
    own = dict(KINDS[kind])
    if "sampler" in others or "shuffle" in others:
        own.pop("sampler", None)
        own.pop("batch_sampler", None)
    if "batch_sampler" in others:
        own = {name: value for name, value in own.items() if name not in ("batch_size", "shuffle")}
    for name in CONTRARY.get(next(iter(others)), ()):
        own.pop(name, None)
    if others.get("batch_size"):
        own.pop("batch_sampler", None)
    loader = memload.FastLoader(DS, **KINDS[kind])
    assert texts(memload.plan(loader, ram="64GB", **others)) == texts(memload.plan(DS, ram="64GB", **{**own, **others}))


def test_models_are_planned_with_a_loader():
    model = torch.nn.Linear(100, 1)
    loader = memload.FastLoader(DS, 32)
    told = memload.plan(
        loader, model=model, optimizer=torch.optim.AdamW, device="cpu", loss=lambda b: model(b["x"]).sum()
    )
    assert "model" in str(told)


def test_ragged_rows_keep_the_form_of_the_loader():
    ds = memload.from_arrays(x=memload.ragged([np.zeros(n, np.float32) for n in (1, 5, 9)]))
    padded = memload.plan(memload.FastLoader(ds, 3, ragged="padded"), ram="64GB")
    assert padded.data == memload.plan(ds.with_ragged("padded"), 3, ram="64GB").data
    assert padded.data.batch_bytes >= 3 * 9 * 4


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)


@pytest.mark.parametrize("data", [Stream(), [1, 2, 3]])
def test_a_loader_of_what_the_engine_cannot_read_is_refused(data):
    with pytest.raises(TypeError, match="only datasets that the native engine reads can be planned"):
        memload.plan(DataLoader(data))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("batchsize", "takes no batchsize=, nor does FastLoader, .*; batch_size= is one"),
        ("nmu_workers", "num_workers= is one"),
        ("zzz", "takes no zzz=, nor does FastLoader, whose arguments it takes, too$"),
    ],
)
def test_an_unknown_argument_is_named_beside_the_one_that_was_meant(name, said):
    with pytest.raises(TypeError, match=said):
        memload.plan(DS, 32, **{name: 3})
