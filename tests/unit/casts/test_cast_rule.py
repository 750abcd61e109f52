"""A Cast with constants, layouts, crops and flips: what it means, and that native code does just that."""

import dataclasses
import functools
import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import SimulatedInterface
from torch.utils.data import DataLoader, TensorDataset

import memload
from memload import Augment, Cast, _core
from memload.casts.native import cast_tensor
from memload.casts.rule import exact_text
from memload.device.casting import cast_on_device
from memload.engine.request import EngineOptions

INPUTS = [
    torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.float32,
    torch.int32, torch.int64, torch.bfloat16, torch.float64,
]  # fmt: skip
TARGETS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
IMAGENET = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def values(dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 50).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(max(info.min, -(2**40)), min(info.max, 2**40) + 1, shape, generator=generator).to(dtype)


def steps(x):
    return [step for step, side in zip(x.stride(), x.shape, strict=True) if side > 1]


def same(a, b):
    """Equal in shape, strides and bits; the bits of a NaN are free."""
    assert (a.dtype, a.shape, steps(a)) == (b.dtype, b.shape, steps(b))
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
    if torch.equal(a.view(whole), b.view(whole)):
        return True
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def test_scale_and_offset_are_rounded_to_float32_each_and_then_once_to_the_target():
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    by_numpy = x.numpy().astype(np.float32) * np.float32(1 / 300) + np.float32(0.25)
    assert np.array_equal(Cast(torch.float32, scale=1 / 300, offset=0.25).apply(x).numpy(), by_numpy)
    got = Cast(torch.bfloat16, scale=1 / 300, offset=0.25).apply(x)
    assert torch.equal(got, torch.from_numpy(by_numpy).bfloat16())


def test_a_scale_is_the_scale_of_what_is_written(tmp_path):
    x = values(torch.int16, (7, 11))
    ds = memload.from_arrays(betas=x)
    memload.write(tmp_path / "set", ds, scale=1 / 300, cast="bfloat16")
    stored = next(iter(memload.FastLoader(memload.open(tmp_path / "set"), 7)))["betas"]
    loaded = next(iter(memload.FastLoader(ds, 7, cast={"betas": Cast(torch.bfloat16, scale=1 / 300)})))["betas"]
    assert same(stored, loaded)


def test_mean_and_std_follow_scale_and_offset_channel_by_channel():
    x = values(torch.uint8, (4, 6, 5, 3)).numpy()
    w = x.astype(np.float32) * np.float32(1 / 255)
    w = (w - np.array(IMAGENET["mean"], np.float32)) / np.array(IMAGENET["std"], np.float32)
    assert np.array_equal(Cast(torch.float32, channels=-1, **IMAGENET).apply(torch.from_numpy(x)).numpy(), w)
    planes = Cast(torch.float32, channels=-3, **IMAGENET).apply(torch.from_numpy(x).permute(0, 3, 1, 2))
    assert np.array_equal(planes.permute(0, 2, 3, 1).numpy(), w)


def test_a_negative_zero_stays_one_where_no_offset_is_asked_for():
    x = torch.tensor([-0.0, 0.0])
    assert torch.equal(torch.signbit(cast_tensor(x, Cast(torch.float16, scale=2.0))), torch.tensor([True, False]))


CONSTANTS = [
    ({"scale": 1 / 300}, (3, 5, 7)),
    ({"channels": -1, **IMAGENET}, (2, 9, 11, 3)),
    ({"channels": -3, **IMAGENET}, (2, 3, 20, 21)),
    ({"offset": 2.5, "std": 3.0}, (1003,)),
    ({"mean": tuple(range(50)), "channels": -2}, (2, 50, 13)),
]
PICTURES = [
    ({"channels": -1, "layout": "NCHW"}, (4, 9, 11, 3)),
    ({"channels": -1, "layout": "channels_last", **IMAGENET}, (4, 9, 11, 3)),
    ({"channels": -1, "augment": Augment((5, 6), 0.5)}, (4, 9, 11, 3)),
    ({"channels": -1, "augment": Augment((5, 6), 0.5), "layout": "NCHW", **IMAGENET}, (4, 9, 11, 3)),
    ({"channels": -1, "augment": Augment((5, 6), 0.5), "layout": "channels_last", **IMAGENET}, (4, 9, 11, 3)),
    ({"channels": -3, "augment": Augment((5, 6), 0.5), **IMAGENET}, (4, 2, 3, 9, 11)),
    ({"augment": Augment(None, 0.5), "norm_removed": True}, (4, 9, 11)),
]


@pytest.mark.parametrize("isa", _core.isas())
def test_native_code_has_the_bits_of_the_definition(isa):
    for (settings_, shape), dtype, target in itertools.product([*CONSTANTS, *PICTURES], INPUTS, TARGETS):
        rule, x = Cast(target, **settings_), values(dtype, shape)
        seeds = range(len(x)) if rule.augment else None
        assert same(cast_tensor(x, rule, seeds, isa=isa), rule.apply(x, seeds)), (rule, dtype)


@pytest.mark.parametrize("isa", _core.isas())
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float16], ids=str)
def test_all_values_of_the_narrow_types_have_the_bits_of_the_definition(isa, dtype):
    bits = torch.arange(2 ** (8 * dtype.itemsize), dtype=torch.int32)
    x = bits.to(torch.uint8) if dtype == torch.uint8 else bits.to(torch.uint16).view(dtype)
    for target in TARGETS[:3]:
        rule = Cast(target, scale=0.1, offset=-3.7, mean=1e-3, std=0.3)
        assert same(cast_tensor(x, rule, isa=isa), rule.apply(x))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_all_bytes_have_the_bits_of_the_definition_with_any_constants_of_three_channels(data):
    halves = st.integers(-600, 600).map(lambda k: k / 2)  # whose results are often ties
    number = halves | st.floats(-300, 300, width=32, allow_subnormal=False)
    mean, std = (data.draw(st.tuples(number, number, number)) for _ in range(2))
    rule = Cast(
        data.draw(st.sampled_from(TARGETS[:3])),
        scale=data.draw(st.sampled_from([None, 1 / 255, 2.0, -0.3])),
        mean=mean,
        std=tuple(deviation if abs(deviation) > 1e-6 else 1.0 for deviation in std),
        channels=data.draw(st.sampled_from([-1, -2])),
    )
    every = (
        torch.arange(256, dtype=torch.int16).to(torch.uint8).view(data.draw(st.sampled_from([torch.uint8, torch.int8])))
    )
    x = every.repeat(3, 1) if rule.channels == -2 else every.repeat_interleave(3).view(-1, 3)
    for isa in _core.isas():
        assert same(cast_tensor(x, rule, isa=isa), rule.apply(x)), isa


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape_channel_and_constants_have_the_bits_of_the_definition(data):
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    channels = data.draw(st.integers(-len(shape), -1))
    finite = st.floats(-1e3, 1e3, width=32).filter(lambda c: c == 0 or abs(c) > 1e-6)
    each = st.lists(finite, min_size=shape[channels], max_size=shape[channels])
    rule = Cast(
        data.draw(st.sampled_from(TARGETS)),
        scale=data.draw(st.none() | finite),
        mean=data.draw(st.none() | each),
        std=data.draw(st.none() | each.map(lambda given: [deviation or 1.0 for deviation in given])),
        channels=channels,
    )
    x = values(data.draw(st.sampled_from(INPUTS)), shape, seed=data.draw(st.integers(0, 9)))
    isa = data.draw(st.sampled_from(_core.isas()))
    assert same(cast_tensor(x, rule, isa=isa), rule.apply(x))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_image_is_cropped_flipped_and_laid_out_as_the_definition_has_it(data):
    height, width, depth = (data.draw(st.integers(1, 30)) for _ in range(3))
    crop = data.draw(st.none() | st.tuples(st.integers(1, height), st.integers(1, width)))
    channels = data.draw(st.sampled_from([None, -1, -3]))
    layout = data.draw(st.sampled_from([None, "NCHW", "channels_last"])) if channels == -1 else None
    rule = Cast(torch.float32, channels=channels, layout=layout, augment=Augment(crop, data.draw(st.floats(0, 1))))
    image = {None: (height, width), -1: (height, width, depth), -3: (depth, height, width)}[channels]
    x = values(data.draw(st.sampled_from(INPUTS)), (data.draw(st.integers(1, 4)), *image))
    seeds = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(x), max_size=len(x)))
    got = cast_tensor(x, rule, seeds)
    assert same(got, rule.apply(x, seeds))
    assert got.shape[1:] == rule.row_shape(image)


def test_crops_are_cut_anywhere_and_flips_come_as_often_as_asked():
    draws = Augment(crop=(2, 3), flip=0.25).draws(range(4000), height=4, width=3)
    assert np.bincount(draws[:, 0]).min() > 1200  # of three places, a third each
    assert (draws[:, 1] == 0).all()
    assert 850 < draws[:, 2].sum() < 1150
    assert Augment(flip=1.0).draws([3], 4, 4)[0, 2] == 1
    assert Augment(flip=0.0).draws([3], 4, 4)[0, 2] == 0


def test_equal_streams_share_the_draw_also_at_half_the_size():
    seeds = list(range(50))
    image = Augment(crop=(64, 64), flip=0.5).draws(seeds, 127, 127)
    mask = Augment(crop=(32, 32), flip=0.5).draws(seeds, 63, 63)
    assert np.abs(image[:, :2] - 2 * mask[:, :2]).max() <= 1
    assert np.array_equal(image[:, 2], mask[:, 2])
    assert not np.array_equal(image, Augment(crop=(64, 64), flip=0.5, stream=1).draws(seeds, 127, 127))


# In loaders.


def photos(rows=40):
    image = torch.arange(rows * 12 * 10 * 3, dtype=torch.int64).remainder(251).to(torch.uint8).view(rows, 12, 10, 3)
    mask = image.amax(-1).contiguous()
    return memload.from_arrays(image=image, mask=mask, label=torch.arange(rows))


AUGMENT = Augment(crop=(8, 6), flip=0.5)
CASTS = {
    "image": Cast(torch.bfloat16, channels=-1, layout="NCHW", augment=AUGMENT, mean=(1.0, 2.0, 3.0)),
    "mask": Cast(torch.float32, augment=AUGMENT),
}


def epochs(ds, count=1, **arguments):
    arguments = {"batch_size": 8, "shuffle": True, "cast": CASTS, **arguments}
    loader = memload.FastLoader(ds, generator=torch.Generator().manual_seed(1), **arguments)
    return loader, [{k: v.clone() for k, v in batch.items()} for _ in range(count) for batch in loader]


def equal(some, others):
    return len(some) == len(others) and all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
        for a, b in zip(some, others, strict=True)
    )


def test_image_and_mask_are_cut_alike_and_differently_in_each_epoch():
    ds = photos()
    loader, batches = epochs(ds, count=2)
    assert loader.engine == "native"
    assert batches[0]["image"].shape == (8, 3, 8, 6)
    image, mask = (torch.cat([batch[name] for batch in batches]) for name in ("image", "mask"))
    stored = Cast(torch.bfloat16).apply((image.float() + torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)).amax(1))
    assert torch.equal(stored.float().round(), mask.bfloat16().float().round())
    first = {int(k): m for batch in batches[:5] for k, m in zip(batch["label"], batch["mask"], strict=True)}
    second = {int(k): m for batch in batches[5:] for k, m in zip(batch["label"], batch["mask"], strict=True)}
    assert sum(torch.equal(first[k], second[k]) for k in first) < 20


@pytest.mark.parametrize("options", [EngineOptions(threads=3, depth=4, transform_threads=3), EngineOptions(threads=1)])
def test_draws_do_not_depend_on_threads(options):
    assert equal(epochs(photos())[1], epochs(photos(), options=options)[1])


@pytest.mark.parametrize("native", [True, False])
def test_a_pass_that_is_taken_up_goes_on_with_the_same_draws(native):
    arguments = {} if native else {"collate_fn": lambda samples: torch.utils.data.default_collate(samples)}
    loader, whole = epochs(photos(), **arguments)
    assert (loader.engine == "native") is native
    loader = memload.FastLoader(
        photos(), batch_size=8, shuffle=True, cast=CASTS, generator=torch.Generator().manual_seed(1), **arguments
    )
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    again = memload.FastLoader(
        photos(), batch_size=8, shuffle=True, cast=CASTS, generator=torch.Generator().manual_seed(9), **arguments
    )
    again.load_state_dict(state)
    assert equal(list(again), whole[2:])


def test_what_stays_in_its_place_is_the_same_on_both_engines_and_through_a_stock_loader():
    ds = photos()
    casts = {
        "image": Cast(torch.float16, channels=-1, layout="channels_last", **IMAGENET),
        "mask": Cast(torch.float32, scale=0.5),
    }
    native = memload.FastLoader(ds, 8, cast=casts)
    stock = memload.FastLoader(ds, 8, cast=casts, collate_fn=lambda s: torch.utils.data.default_collate(s))
    rebuilt = DataLoader(ds, 8, collate_fn=native.collate_fn)
    assert (native.engine, stock.engine) == ("native", "torch")
    for one, two, three in zip(native, stock, rebuilt, strict=True):
        assert all(same(one[key], two[key]) and same(one[key], three[key]) for key in casts)
        assert one["image"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("native", [True, False])
def test_batches_on_a_device_are_cut_as_those_on_the_cpu(native):
    device = SimulatedInterface(native=native)
    loader = memload.FastLoader(
        photos(), 8, shuffle=True, cast=CASTS, generator=torch.Generator().manual_seed(1), device=device
    )
    read = [{key: device.read(value) for key, value in batch.items()} for batch in loader]
    assert equal([{key: value() for key, value in batch.items()} for batch in read], epochs(photos())[1])


def test_a_stock_loader_with_the_collate_function_crops_too():
    loader = memload.FastLoader(photos(), 8, cast=CASTS)
    torch.manual_seed(0)
    batches = list(DataLoader(photos(), 8, collate_fn=loader.collate_fn))
    torch.manual_seed(0)
    assert equal(batches, list(DataLoader(photos(), 8, collate_fn=loader.collate_fn)))
    assert batches[0]["image"].shape == (8, 3, 8, 6)


def test_tensor_datasets_tuples_single_fields_and_mapped_samples_take_the_same_cast():
    ds, image = photos(), next(iter(memload.FastLoader(photos(), 40)))["image"]
    rule = Cast(torch.float32, channels=-1, layout="NCHW", **IMAGENET)
    expected = rule.apply(image)
    loaders = [
        memload.FastLoader(TensorDataset(image, torch.arange(40)), 40, cast={0: rule}),
        memload.FastLoader(ds.as_tuple("image", "label"), 40, cast={"image": rule}),
        memload.FastLoader(ds.only("image"), 40, cast={"image": rule}),
        memload.FastLoader(ds.map(lambda sample: sample), 40, cast={"image": rule}),
    ]
    for loader in loaders:
        assert loader.engine == "native"
        batch = next(iter(loader))
        got = batch if torch.is_tensor(batch) else batch[0] if isinstance(batch, list) else batch["image"]
        assert same(got, expected)


@pytest.mark.parametrize("channels", [-2, -1, -3])
def test_windows_of_frames_are_normalised_along_any_axis(channels):
    frames = values(torch.int16, (30, 4, 5))
    ds = memload.from_arrays(stim=frames, robs=torch.arange(30)).with_lags(stim=range(4), valid=range(3, 30))
    count = (4, 4, 5)[channels]
    rule = Cast(torch.float32, mean=tuple(range(count)), std=tuple(range(1, count + 1)), channels=channels)
    plain, cast = (next(iter(memload.FastLoader(ds, 9, cast=casts)))["stim"] for casts in ({}, {"stim": rule}))
    assert same(cast, rule.apply(plain))


def test_the_memory_of_images_that_are_cut_behind_the_gather_is_counted(tmp_path):
    ds = memload.write(tmp_path / "ds", {"mask": torch.zeros(40, 120, 100, dtype=torch.uint8)}, codec="zstd")
    options = EngineOptions(threads=1, depth=3, transform_threads=1)
    plain = memload.FastLoader(ds, 8, batch_transform=dict, options=options)
    cut = memload.FastLoader(ds, 8, batch_transform=dict, options=options, cast={"mask": CASTS["mask"]})
    assert cut.nbytes - plain.nbytes == (3 + 1 + 1) * 8 * (8 * 6 * 4)  # depth, thread and loop; rows; float32 pixels


def test_a_batch_transform_gets_what_was_cut():
    seen = []
    loader = memload.FastLoader(photos(), 8, cast=CASTS, batch_transform=lambda b: seen.append(b["mask"].shape) or b)
    assert len(list(loader)) == 5
    assert set(seen) == {(8, 8, 6)}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("isa", _core.isas())
def test_rows_of_odd_lengths_are_cast_with_constants_while_they_are_gathered(isa, streaming):
    x = values(torch.uint8, (301, 17, 7, 3))
    rule = Cast(torch.bfloat16, channels=-1, **IMAGENET)
    options = EngineOptions(threads=3, isa=isa, streaming=streaming)
    for source, cast in ((x, rule), (x.permute(0, 3, 1, 2).contiguous(), Cast(torch.float32, channels=-3, **IMAGENET))):
        loader = memload.FastLoader(memload.from_arrays(x=source), 100, cast={"x": cast}, options=options)
        assert same(torch.cat([batch["x"].clone() for batch in loader]), cast.apply(source))


def placed_settings(loader):
    """What a pass of the loader would be set to."""
    return loader.__memload_loader__().settings(loader.__memload_loader__().cast_source())


@functools.lru_cache(1)
def in_planes(channels):
    """Images of each dtype, and for each rule what it makes of them."""
    constants = {"mean": tuple(range(channels)), "std": tuple(range(1, channels + 1))}
    cases = []
    for dtype, target in itertools.product((torch.uint8, torch.int16, torch.float32, torch.float64), TARGETS[::2]):
        x = values(dtype, (40, 41, 33, channels))
        rules = [Cast(target, channels=-1, layout="NCHW", **one) for one in ({}, constants)]
        cases += [(x, rule, rule.apply(x)) for rule in rules]
    return cases


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("isa", _core.isas())
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_channels_become_planes_while_rows_are_gathered(isa, streaming, channels):
    options = EngineOptions(threads=3, isa=isa, streaming=streaming)
    for x, rule, expected in in_planes(channels):
        loader = memload.FastLoader(memload.from_arrays(x=x), 32, cast={"x": rule}, options=options)
        assert placed_settings(loader).transform_pipeline is None
        for batch, rows in zip(loader, expected.split(32), strict=True):
            assert same(batch["x"], rows)


def test_a_layout_costs_no_memory_and_no_threads():
    options = EngineOptions(threads=1, depth=3)
    stored, planes = (
        memload.FastLoader(
            photos(), 8, cast={"image": Cast(torch.float32, channels=-1, layout=layout)}, options=options
        )
        for layout in (None, "NCHW")
    )
    assert planes.nbytes == stored.nbytes
    assert placed_settings(planes).transform_threads == 0


def test_rows_of_several_images_and_windows_of_images_have_planes_each():
    x, rule = values(torch.uint8, (30, 4, 9, 11, 3)), Cast(torch.float32, channels=-1, layout="NCHW", **IMAGENET)
    several = memload.FastLoader(memload.from_arrays(x=x), 7, cast={"x": rule})
    movie = memload.from_arrays(x=x[:, 0], y=torch.arange(30)).with_lags(x=range(4), valid=range(3, 30))
    windows = memload.FastLoader(movie, 7, cast={"x": rule})
    expected = torch.stack([x[[k, k - 1, k - 2, k - 3], 0] for k in range(3, 30)])
    for loader, stored in ((several, x), (windows, expected)):
        assert placed_settings(loader).transform_pipeline is None
        assert same(torch.cat([batch["x"].clone() for batch in loader]), rule.apply(stored))


def test_images_that_lie_in_several_frames_are_laid_out_behind_the_gather():
    lines, rule = values(torch.uint8, (30, 11, 3)), Cast(torch.float32, channels=-1, layout="NCHW", **IMAGENET)
    ds = memload.from_arrays(x=lines, y=torch.arange(30)).with_lags(x=range(4), valid=range(3, 30))
    loader = memload.FastLoader(ds, 7, cast={"x": rule})
    assert placed_settings(loader).transform_pipeline is not None
    expected = torch.stack([lines[[k, k - 1, k - 2, k - 3]] for k in range(3, 30)])
    assert same(torch.cat([batch["x"].clone() for batch in loader]), rule.apply(expected))


def test_planes_are_made_by_a_stock_loader_with_the_collate_function_and_on_a_device():
    rule, stored = (
        Cast(torch.float16, channels=-1, layout="NCHW", **IMAGENET),
        next(iter(memload.FastLoader(photos(), 40))),
    )
    expected = rule.apply(stored["image"])
    loader = memload.FastLoader(photos(), 8, cast={"image": rule})
    assert same(torch.cat([b["image"] for b in DataLoader(photos(), 8, collate_fn=loader.collate_fn)]), expected)
    for native in (True, False):
        device = SimulatedInterface(native=native)
        batches = memload.FastLoader(photos(), 8, cast={"image": rule}, device=device)
        read = [device.read(batch["image"]) for batch in batches]
        assert torch.equal(torch.cat([one() for one in read]), expected)


def test_it_is_the_cast_of_what_lies_on_a_device():
    x = values(torch.uint8, (4, 9, 11, 3))
    for rule in (Cast(torch.bfloat16, norm_removed=True), *(Cast(torch.float32, **one) for one, _ in PICTURES[:4])):
        seeds = [1, 2, 3, 4] if rule.augment else None
        expected = rule.apply(x, seeds)
        out = torch.empty_like(expected)
        assert same(cast_on_device(x, rule, seeds=seeds), expected)
        assert cast_on_device(x, rule, out, seeds) is out
        assert same(out, expected)
    with pytest.raises(ValueError, match=r"its shape is \(1,\)"):
        cast_on_device(x, rule, torch.empty(1), seeds)


def test_constants_may_be_numbers_arrays_and_tensors():
    listed = Cast(torch.float32, scale=0.5, mean=(1.0, 2.0), std=4.0, channels=-1)
    assert listed == Cast(
        torch.float32, scale=np.float64(0.5), mean=torch.tensor([1.0, 2.0]), std=np.array(4.0), channels=-1
    )
    assert hash(listed) == hash(Cast(torch.float32, scale=0.5, mean=[1, 2], std=4, channels=-1))
    assert repr(Cast(torch.float32)) == "Cast(dtype=torch.float32, norm_removed=False)"
    assert repr(listed).endswith("norm_removed=False, scale=0.5, mean=(1.0, 2.0), std=4.0, channels=-1)")


def test_a_float32_view_and_a_cast_of_another_field_go_together():
    image = values(torch.uint8, (16, 9, 9, 3))
    view = memload.Float32View(memload.from_arrays(stim=image, image=image), norm_removed=True)
    loader = memload.FastLoader(view, 16, cast={"image": Cast(torch.bfloat16, channels=-1, layout="NCHW", **IMAGENET)})
    assert loader.engine == "native"
    batch = next(iter(loader))
    assert same(batch["stim"], Cast(torch.float32, norm_removed=True).apply(image))
    assert same(batch["image"], Cast(torch.bfloat16, channels=-1, layout="NCHW", **IMAGENET).apply(image))


@pytest.mark.parametrize("rule", [Cast(torch.float32, scale=2.0), Cast(torch.bfloat16, layout="NCHW", channels=-1)])
def test_lazily_negated_values_are_cast_with_their_sign(rule):
    stored = values(torch.float32, (2, 3, 4, 3))
    found = cast_tensor(torch._neg_view(stored), rule)
    assert torch.equal(found, rule.apply(-stored))
    assert torch.equal(rule.apply(torch._neg_view(stored)), found)


def test_samples_without_an_axis_are_cast_too():
    loader = memload.FastLoader(
        TensorDataset(torch.arange(3)), batch_size=None, cast={0: Cast(torch.float32, scale=0.5)}
    )
    assert [float(sample[0]) for sample in loader] == [0.0, 0.5, 1.0]


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mean": (1.0, 2.0)}, ValueError, "needs channels="),
        ({"mean": (1.0, 2.0), "std": (1.0,), "channels": -1}, ValueError, "for each channel"),
        ({"std": 0}, ValueError, "divided by"),
        ({"scale": float("nan")}, ValueError, "finite"),
        ({"scale": 1e-60}, ValueError, "that float32 holds"),
        ({"scale": "big"}, TypeError, "scale is a number"),
        ({"mean": [[1.0]], "channels": -1}, TypeError, "mean is a number"),
        ({"norm_removed": True, "scale": 2.0}, ValueError, "excludes scale="),
        ({"channels": 1}, ValueError, "counted from the end"),
        ({"channels": True}, TypeError, "axis"),
        ({"layout": "NHWC", "channels": -1}, ValueError, "'NCHW', 'channels_last'"),
        ({"layout": "NCHW"}, ValueError, "channels=-1"),
        ({"augment": (224, 224)}, TypeError, "memload.Augment"),
        ({"augment": Augment(), "channels": -2}, ValueError, "channels=-2"),
        ({"mean": [], "channels": -1}, ValueError, "no numbers"),
    ],
)
def test_a_cast_that_cannot_be_is_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        Cast(torch.float32, **arguments)


def with_one(value, place=12345, count=200_000):
    numbers = np.ones(count)
    numbers[place] = value
    return numbers


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"std": with_one(0)}, ValueError, r"got std\[12345\] = 0 \(of 200,000\): give 1 there .*by a mask"),
        ({"std": [0, 1, 0, 0]}, ValueError, r"std\[0\] = 0 \(of 4\); 2 more are 0"),
        ({"mean": with_one(np.nan)}, ValueError, r"finite number; got mean\[12345\] = nan \(of 200,000\): .*12345 out"),
        ({"std": with_one(1e-60, 7)}, ValueError, r"float32 holds.*; got std\[7\] = 1e-60 \(of 200,000\)"),
        ({"mean": [1.0, "a" * 9999]}, TypeError, r"mean is a number; got mean\[1\] = 'aaa"),
        ({"mean": np.ones(200_000), "std": np.ones(199_999)}, ValueError, "got 200,000 of mean and 199,999 of std"),
        ({"mean": np.ones((40, 50, 60))}, TypeError, r"the shape \(40, 50, 60\): .*mean\[mask\] with channels=-1"),
        ({"mean": ["a" * 9999] * 2000}, TypeError, r"mean\[0\]"),
    ],
)
def test_of_many_constants_the_first_bad_one_is_named_in_few_words(arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        Cast(torch.float32, channels=-1, **arguments)
    assert len(str(caught.value)) < 400


def test_many_constants_have_a_short_repr_that_tells_rules_apart_and_an_exact_text():
    mean = np.random.default_rng(0).normal(size=200_000)
    rule, same_rule = (Cast("f4", mean=mean, channels=-1) for _ in range(2))
    other = Cast("f4", mean=np.append(mean[:-1], np.nextafter(mean[-1], 9)), channels=-1)
    assert repr(rule).startswith("Cast(dtype=torch.float32, norm_removed=False, mean=<200,000 numbers, xxh3 ")
    assert len(repr(rule)) < 200
    assert rule == same_rule == pickle.loads(pickle.dumps(rule)) != other
    assert hash(rule) == hash(same_rule)
    assert repr(rule) == repr(same_rule) != repr(other)
    assert repr(rule.mean[-1]) in exact_text(rule)
    assert exact_text(rule) != exact_text(other)
    assert exact_text(Cast("f4", scale=0.5)) == repr(Cast("f4", scale=0.5))
    assert exact_text(None) == "None"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"crop": 3.5}, TypeError), ({"crop": (0, 2)}, ValueError), ({"flip": 1.5}, ValueError),
        ({"flip": "often"}, TypeError), ({"stream": -1}, ValueError), ({"stream": 0.5}, TypeError),
    ],
)  # fmt: skip
def test_an_augment_that_cannot_be_is_refused_at_once(arguments, error):
    with pytest.raises(error):
        Augment(**arguments)


@pytest.mark.parametrize("shape", [(9, 8, 3), (9, 8, 1), (2, 9, 8, 4)])
@pytest.mark.parametrize("augment", [Augment(flip=1.0), Augment((3, 3)), Augment(resize=16, scale=(0.5, 1.0))])
def test_images_of_which_no_channels_are_told_are_not_flipped_along_their_colours(shape, augment):
    ds = memload.from_arrays(image=torch.zeros(4, *shape, dtype=torch.uint8))
    said = r"field 'image': rows of the shape .* seem to be images \(H, W, C\), .* channels=-1"
    with pytest.raises(ValueError, match=said):
        memload.FastLoader(ds, 4, cast={"image": Cast(torch.float32, augment=augment)})
    told = Cast(torch.float32, channels=-1, augment=Augment(flip=1.0))
    assert next(iter(memload.FastLoader(ds, 4, cast={"image": told})))["image"].shape == (4, *shape)
    for narrow in ((3, 8, 4), (8, 4), (3, 3, 3)):  # (C, H, W), (H, W)
        few = memload.from_arrays(image=torch.zeros(4, *narrow, dtype=torch.uint8))
        plain = Cast(torch.float32, augment=Augment(flip=1.0))
        assert next(iter(memload.FastLoader(few, 4, cast={"image": plain})))["image"].shape == (4, *narrow)


def test_a_cast_that_does_not_fit_its_field_is_refused_when_the_loader_is_made():
    ds = photos()
    for rule, message in (
        (Cast(torch.float32, mean=(1.0, 2.0), channels=-1), "'image': mean= or std= has 2 numbers"),
        (Cast(torch.float32, channels=-1, augment=Augment((20, 20))), "a crop of 20 x 20 does not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            memload.FastLoader(ds, 8, cast={"image": rule})
    with pytest.raises(ValueError, match="no images"):
        memload.FastLoader(ds, 8, cast={"label": Cast(torch.float32, augment=AUGMENT)})
    with pytest.raises(TypeError, match="seeds"):
        CASTS["mask"].apply(torch.zeros(2, 12, 10))
    ragged = memload.from_arrays(x=memload.ragged([torch.zeros(3), torch.zeros(5)]))
    with pytest.raises(ValueError, match="differ in length"):
        memload.FastLoader(ragged, 2, cast={"x": Cast(torch.float32, augment=AUGMENT)})
    with pytest.raises(ValueError, match="batches by groups"):
        grouped = memload.concat({"a": ds, "b": ds})
        memload.FastLoader(grouped, 8, cast=CASTS, collate_fn=memload.group_collate)


def test_what_is_stored_takes_constants_by_channel_and_no_draws(tmp_path):
    ds, rule = photos(), Cast(torch.float32, channels=-1, **IMAGENET)
    memload.write(tmp_path / "set", ds, cast={"image": rule})
    stored, image = (next(iter(memload.FastLoader(one, 40)))["image"] for one in (memload.open(tmp_path / "set"), ds))
    assert same(stored, rule.apply(image))
    with pytest.raises(ValueError, match="work in a loader only"):
        memload.write(tmp_path / "other", ds, cast=CASTS)


@pytest.mark.parametrize("shape", [(0, 4, 1, 2, 2, True, True), (4, 4, 1, 2, 2, False, False)])
def test_native_code_refuses_images_that_cannot_be(shape):
    with pytest.raises(ValueError, match="no such images"):
        _core.augment_images(0, 0, 1, 1, np.zeros((1, 3), np.int64), shape, ("U8", "F32", False))


@pytest.mark.parametrize(("draws", "message"), [([[3, 0, 0]], "leaves its image"), ([[-1, 0, 0]], "of no image")])
def test_native_code_refuses_cuts_that_leave_their_image(draws, message):
    with pytest.raises(ValueError, match=message):
        _core.augment_images(0, 0, 1, 1, np.array(draws), (4, 4, 1, 2, 2, True, True), ("U8", "F32", False))


def test_rows_that_lie_on_a_device_are_cut_as_rows_of_files_are():
    near = memload.to_device(photos(), "cpu")
    assert equal(epochs(near)[1], epochs(photos())[1])


def test_each_field_of_a_cast_has_its_place_in_native_code():
    """A new field would be left out by native code without an error: docs/design/adding.md names the places."""
    fields = {field.name for field in dataclasses.fields(memload.Cast)}
    converted = {"dtype", "norm_removed"}
    computed = {"scale", "offset", "mean", "std", "channels"}  # by `native_arithmetic`
    places = {"layout", "augment"}  # of pixels
    assert fields == converted | computed | places


@pytest.mark.parametrize("seeds", [[], [1], [1, 2, 3, 4]], ids=len)
def test_other_numbers_of_seeds_than_of_rows_are_refused(seeds):
    x = torch.zeros(3, 8, 8, dtype=torch.uint8)
    rule = Cast(torch.float32, augment=Augment(flip=0.5))
    with pytest.raises(ValueError, match=f"got {len(seeds)} seeds for 3 rows"):
        rule.apply(x, seeds)
