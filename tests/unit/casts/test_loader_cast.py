"""Casts that the loader does while it gathers: the same bits as torch's own operations afterwards."""

import numpy as np
import pytest
import torch
from same_rows import OneByOne
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate

import memload
from memload.cli.main import main
from memload.device.casting import cast_on_device
from memload.device.gathering import expand_windows, gather_rows
from memload.engine.request import EngineOptions

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


HALF = memload.Cast(torch.float16)
SPELLED = [HALF, torch.float16, "float16", "torch.float16", "fp16", "f2", np.float16, np.dtype("float16")]


def casts_of(given, tmp_path):
    """What each place of the public face that takes a cast makes of x when it is spelled so."""
    x = values(torch.uint8)
    ds = memload.from_arrays(x=x)
    yield from (next(iter(memload.FastLoader(one, 64, cast={"x": given})))["x"] for one in (ds, Frames(x=x)))
    yield ds.with_tier("ram", ram_dtype={"x": given}, progress=False).fields["x"].gather(range(64))
    yield memload.write(tmp_path / "set", ds, cast={"x": given}, progress=False).fields["x"].gather(range(64))
    yield memload.score(lambda batch: batch["x"], ds, cast={"x": given}, progress=False)
    yield cast_on_device(x, given)
    yield gather_rows(x, torch.arange(64), given)
    yield expand_windows(x, torch.arange(64), torch.tensor([0]), given)[:, 0]


@pytest.mark.parametrize("given", SPELLED, ids=str)
def test_a_dtype_in_any_spelling_is_the_plain_cast_to_it_wherever_casts_are_taken(given, tmp_path):
    x = values(torch.uint8)
    for done in casts_of(given, tmp_path):
        assert same(done, HALF.apply(x))
    if given is not HALF:
        assert memload.Cast(given) == HALF
        assert same(memload.cast_stim(x, True, given), memload.cast_stim(x, True, torch.float16))
    shape = memload.DatasetShape(100, {"x": ("uint8", (50,))})
    for option in ({"cast": {"x": given}}, {"tier": "ram", "ram_dtype": {"x": given}}):
        told = [repr(memload.plan(shape, 8, ram="4GB", disk="9GB", **one)) for one in (option, as_rule(option))]
        assert told[0] == told[1]


def test_names_that_torch_and_numpy_mean_differently_are_torchs_behind_torch_and_refused_without():
    assert memload.Cast("torch.float") == memload.Cast(torch.float32) == memload.Cast("fp32")
    assert memload.Cast("double") == memload.Cast(float) == memload.Cast(torch.float64)
    with pytest.raises(TypeError, match='"float" is float32 in torch, and float64 in numpy: give one of these names'):
        memload.DatasetShape(100, {"x": ("float", (50,))})
    with pytest.raises(TypeError, match="float64"):
        memload.Cast("float")


def as_rule(option):
    return {name: {"x": HALF} if isinstance(value, dict) else value for name, value in option.items()}


def test_results_are_known_again_where_their_cast_is_spelled_otherwise(tmp_path):
    ds, calls = memload.from_arrays(x=values(torch.uint8)), []
    for given in (HALF, torch.float16, "fp16"):
        memload.score(
            lambda batch: calls.append(1) or batch["x"].sum(1), ds, 64, path=tmp_path / "s", version="1",
            cast={"x": given}, progress=False,
        )  # fmt: skip
    assert len(calls) == 1


def test_a_loader_that_is_made_with_the_attributes_of_another_casts_once():
    ds = memload.from_arrays(x=values(torch.uint8))
    one = memload.FastLoader(ds, 64, cast={"x": torch.float16})
    again = memload.FastLoader(ds, 64, cast={"x": "float16"}, collate_fn=one.collate_fn)
    assert again.engine == "native"
    assert same(next(iter(again))["x"], next(iter(one))["x"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--rows", "9", "--field", "x:uint8:4", "--cast", "x=int8"], "--cast: a cast is to one of"),
        (["plan", "--rows", "9", "--field", "x:uint8:4", "--ram-dtype", "x=bf16,often"], "--ram-dtype: expected DTYPE"),
        (["write", "x.npy", "set", "--cast", "flaot16"], "--cast: a cast is to one of"),
    ],
)
def test_the_commands_name_the_option_whose_dtype_is_none(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((4, 2), np.float32))
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_what_loading_refuses_to_cast_planning_refuses_too():
    ragged = memload.from_arrays(x=memload.ragged([torch.zeros(2), torch.zeros(3)]))
    images, crop = memload.from_arrays(x=torch.zeros(4, 5, 5)), memload.Cast("f4", augment=memload.Augment((2, 2)))
    for ds, cast, words in ((ragged, torch.float16, "cannot be cast in RAM"), (images, crop, "the loader's")):
        with pytest.raises(ValueError, match=words):
            ds.with_tier("ram", ram_dtype={"x": cast})
        with pytest.raises(ValueError, match=words):
            memload.plan(ds, 1, tier="ram", ram_dtype={"x": cast})


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


@pytest.mark.parametrize("own", [False, True], ids=["memload", "a class of the user's"])
def test_a_row_without_a_batch_is_cut_by_one_draw(own):
    x = torch.arange(4 * 6 * 10 * 10, dtype=torch.float32).reshape(4, 6, 10, 10, 1)  # videos of six frames
    ds = TensorDataset(x) if own else memload.from_arrays(x=x)
    cast = {0 if own else "x": memload.Cast(torch.float32, channels=-1, augment=memload.Augment(crop=(3, 3), flip=0.5))}
    for row, given in enumerate(memload.FastLoader(ds, batch_size=None, cast=cast)):
        frames = given[0] if own else given["x"]
        cut = frames - torch.arange(6).reshape(6, 1, 1, 1) * 100 - row * 600
        assert frames.shape == (6, 3, 3, 1)
        assert torch.equal(cut, cut[:1].expand(6, 3, 3, 1)), "all frames of a video are cut alike"


@pytest.mark.parametrize("loaded", [lambda ds: ds.map(lambda sample: sample), lambda ds: OneByOne(ds)])
@pytest.mark.parametrize("wrong", [{"layout": "NCHW", "channels": -1}, {"mean": (1.0, 2.0, 3.0, 4.0), "channels": -3}])
def test_rows_are_not_taken_for_an_axis_of_an_image(loaded, wrong):
    ds = memload.from_arrays(m=torch.zeros(8, 6, 5))
    with pytest.raises(ValueError, match=r"the field 'm': .*rows of the shape \(6, 5\)"):
        list(memload.FastLoader(loaded(ds), batch_size=4, cast={"m": memload.Cast(torch.float32, **wrong)}))


def test_a_cast_of_a_field_that_is_no_tensor_names_the_field():
    ds = memload.from_arrays(m=torch.zeros(8, 2)).map(lambda sample: {"m": {"inner": sample["m"]}})
    with pytest.raises(TypeError, match=r"the field 'm': cast= is for tensors, and the batch has a dict there"):
        list(memload.FastLoader(ds, batch_size=4, cast={"m": torch.float32}))
