"""Casts that the loader does while it gathers: the same bits as torch's own operations afterwards."""

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate

import memload
from memload.engine.passes import EngineOptions

FROM = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip
TO = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def values(dtype, n=64):
    if dtype == torch.bool:
        return torch.arange(n * 100).reshape(n, 100) % 3 == 0
    if dtype.is_floating_point:
        return (torch.randn(n, 100, generator=torch.Generator().manual_seed(0)) * 300).to(dtype)
    info = torch.iinfo(dtype)
    low, high = max(info.min, -(2**62)), min(info.max, 2**62)
    return torch.randint(low, high, (n, 100), generator=torch.Generator().manual_seed(0)).to(dtype)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("target", TO, ids=str)
@pytest.mark.parametrize("dtype", FROM, ids=str)
@pytest.mark.parametrize("norm_removed", [False, True])
def test_a_cast_in_the_loader_equals_torch_afterwards(dtype, target, norm_removed):
    x = values(dtype)
    cast = memload.Cast(target, norm_removed=norm_removed)
    loader = memload.FastLoader(memload.from_arrays(x=x, y=x), batch_size=9, cast={"x": cast})
    assert loader.engine == "native"
    batches = list(loader)
    assert same(torch.cat([b["x"] for b in batches]), cast.apply(x))
    assert torch.equal(torch.cat([b["y"] for b in batches]), x)


@pytest.mark.parametrize("isa", memload._core.isas())
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("target", TO[:3], ids=str)
def test_every_instruction_set_and_store_gives_the_same_batches(isa, streaming, target):
    # Rows of odd length: pieces and rows begin at every alignment.
    x = torch.arange(256, dtype=torch.uint8).repeat(40).reshape(-1, 1) + torch.zeros(1, 331, dtype=torch.uint8)
    options = EngineOptions(threads=3, depth=3, isa=isa, streaming=streaming)
    cast = memload.Cast(target, norm_removed=True)
    loader = memload.FastLoader(memload.from_arrays(x=x, raw=x), batch_size=1000, cast={"x": cast}, options=options)
    assert loader.engine == "native"
    batches = [{k: v.clone() for k, v in b.items()} for b in loader]
    assert same(torch.cat([b["x"] for b in batches]), cast.apply(x))
    assert torch.equal(torch.cat([b["raw"] for b in batches]), x)
    assert loader.stats().streaming == streaming


class Frames(Dataset):
    """A dataset of a user's own, whose samples are dicts."""

    def __init__(self, **fields):
        self.fields = fields

    def __len__(self):
        return len(next(iter(self.fields.values())))

    def __getitem__(self, i):
        return {name: field[i] for name, field in self.fields.items()}


def recording(stim_dtype=torch.uint8, behavior=True):
    g = torch.Generator().manual_seed(2)
    fields = {
        "stim": torch.randint(0, 256, (50, 4, 6), generator=g).to(stim_dtype),
        "robs": torch.randn(50, 3, generator=g, dtype=torch.float64),
        "trial": torch.arange(50),
    }
    return {**fields, "behavior": torch.arange(100).reshape(50, 2)} if behavior else fields


@pytest.mark.parametrize("float16", [False, True])
@pytest.mark.parametrize("norm_removed", [False, True])
@pytest.mark.parametrize("stim_dtype", [torch.uint8, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("behavior", [False, True])
def test_float32view_is_native_over_a_memload_dataset_and_equal_to_stock(float16, norm_removed, stim_dtype, behavior):
    fields = recording(stim_dtype, behavior)
    stock = DataLoader(memload.Float32View(Frames(**fields), norm_removed, float16), batch_size=8)
    view = memload.Float32View(memload.from_arrays(**fields), norm_removed, float16)
    loader = memload.FastLoader(view, batch_size=8)
    assert loader.engine == "native", loader.why
    for a, b in zip(stock, loader, strict=True):
        assert list(a) == list(b)
        assert all(same(a[k], b[k]) for k in a)
    parts = ConcatDataset([view, Subset(view, [3, 1])])
    assert memload.FastLoader(parts).engine == "native"
    assert same(memload.FastLoader(parts, batch_size=52).__iter__().__next__()["stim"][-1], view[1]["stim"])


def test_a_view_over_somebody_elses_dataset_runs_on_stock_machinery():
    loader = memload.FastLoader(memload.Float32View(Frames(**recording()), True), batch_size=8)
    assert loader.engine == "torch"
    assert next(iter(loader))["stim"].dtype == torch.float32


def test_casts_work_on_the_stock_engine_and_by_position():
    cast = memload.Cast(torch.bfloat16, norm_removed=True)
    x = values(torch.uint8)
    stock = memload.FastLoader(Frames(stim=x), batch_size=64, cast={"stim": cast})
    assert stock.engine == "torch"
    assert same(next(iter(stock))["stim"], cast.apply(x))
    assert len(iter(stock)) == 1
    native = memload.FastLoader(TensorDataset(x, x), batch_size=64, cast={1: cast})
    assert native.engine == "native"
    raw, done = next(iter(native))
    assert torch.equal(raw, x)
    assert same(done, cast.apply(x))
    (only,) = memload.FastLoader(memload.from_arrays(a=x, stim=x).only("stim"), batch_size=64, cast={"stim": cast})
    assert same(only, cast.apply(x))


def test_a_cast_of_a_field_that_is_not_there_or_is_cast_already_is_refused():
    cast = memload.Cast(torch.float32)
    ds = memload.from_arrays(stim=values(torch.uint8))
    with pytest.raises(KeyError, match=r"'image'.*'stim'"):
        memload.FastLoader(ds, cast={"image": cast})
    with pytest.raises(ValueError, match="cast by the dataset already"):
        memload.FastLoader(memload.Float32View(ds, True), cast={"stim": cast})


def test_casts_on_the_stock_engine_find_fields_in_every_kind_of_batch():
    cast = memload.Cast(torch.float32, norm_removed=True)
    x = values(torch.uint8)
    ds = memload.from_arrays(stim=x, ident=torch.arange(64))
    own = {"batch_size": 64, "collate_fn": lambda samples: default_collate(samples)}
    for shaped, pick in (
        (ds, lambda batch: batch["stim"]),
        (ds.as_tuple("ident", "stim"), lambda batch: batch[1]),
        (ds.only("stim"), lambda batch: batch),
    ):
        loader = memload.FastLoader(shaped, cast={"stim": cast}, **own)
        assert loader.engine == "torch"
        assert same(pick(next(iter(loader))), cast.apply(x))
    with pytest.raises(KeyError, match=r"'image'.*'stim'"):
        next(iter(memload.FastLoader(Frames(stim=x), cast={"image": cast})))


def test_a_cast_of_batches_without_fields_is_refused_and_changes_nothing():
    loader = memload.FastLoader(list(values(torch.uint8)), batch_size=4, cast={0: memload.Cast(torch.float32)})
    with pytest.raises(TypeError, match="batches with fields"):
        next(iter(loader))


def test_a_view_of_a_view_runs_on_stock_machinery():
    view = memload.Float32View(memload.Float32View(memload.from_arrays(**recording()), True), True, float16=True)
    loader = memload.FastLoader(view, batch_size=8)
    assert loader.engine == "torch"
    for a, b in zip(DataLoader(view, batch_size=8), loader, strict=True):
        assert all(same(a[k], b[k]) for k in a)
