"""Images that the gather crops, resizes, mirrors and lays out, against the definition with its draws."""

import dataclasses
import threading

import numpy as np
import pytest
import torch
import xxhash
from disks import can_be_read_directly, evict
from hypothesis import given, settings
from hypothesis import strategies as st

import memload
from memload import Augment, Cast, EngineOptions, _core
from memload.engine.transforms.seeding import PassSeed

DTYPES = [torch.uint8, torch.int16, torch.float16, torch.float32, torch.float64]


def stored(dtype, shape, seed=0):
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    x = torch.from_numpy(bits).view(dtype).reshape(shape)
    return x.nan_to_num(0.5, 2.0, -2.0) if dtype.is_floating_point else x


def same(got, expected):
    return got.dtype == expected.dtype and got.shape == expected.shape and torch.equal(got, expected)


def drawn_by_the_library(augment, seeds, height, width):
    """The draws as memload has made them from the first version on, by xxhash and Python's own numbers."""
    high, wide = augment.size(height, width)
    draws = []
    for seed in seeds:
        bits = xxhash.xxh3_128_intdigest(b"augment" + augment.stream.to_bytes(8, "little"), seed=seed)
        top, left, flip = (bits >> shift & 2**32 - 1 for shift in (0, 32, 64))
        flipped = int(flip < augment.flip * 2**32)
        draws.append((top * (height - high + 1) >> 32, left * (width - wide + 1) >> 32, flipped))
    return draws


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_draws_are_those_of_xxhash(data):
    height, width = (data.draw(st.integers(1, 5000)) for _ in range(2))
    crop = data.draw(st.none() | st.tuples(st.integers(1, height), st.integers(1, width)))
    augment = Augment(crop, data.draw(st.floats(0, 1)), data.draw(st.integers(0, 2**63 - 1)))
    seeds = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=5))
    assert [tuple(draw) for draw in augment.draws(seeds, height, width).tolist()] == drawn_by_the_library(
        augment, seeds, height, width
    )


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_gathered_batch_is_the_definition_with_the_seeds_of_its_rows(data):
    height, width, depth = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 150)), data.draw(st.integers(1, 10))
    channels = data.draw(st.sampled_from([None, -1, -1, -1, -3]))
    layout = data.draw(st.sampled_from([None, "NCHW", "channels_last"])) if channels == -1 else None
    crop = data.draw(st.none() | st.tuples(st.integers(1, height), st.integers(1, width)))
    augment = data.draw(st.sampled_from([None, Augment(crop, data.draw(st.sampled_from([0.0, 0.5, 1.0])))]))
    each = tuple(float(c) for c in range(depth)) if channels else 0.5
    constants = data.draw(st.sampled_from([{}, {"scale": 1 / 255, "mean": each, "std": 0.3}]))
    rule = Cast(
        data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64])),
        channels=channels,
        layout=layout,
        augment=augment,
        **constants,
    )
    frames = data.draw(st.sampled_from([(), (2,)]))
    image = {None: (height, width), -1: (height, width, depth), -3: (depth, height, width)}[channels]
    x = stored(data.draw(st.sampled_from(DTYPES)), (5, *frames, *image))
    options = EngineOptions(
        isa=data.draw(st.sampled_from(_core.isas())),
        threads=data.draw(st.integers(1, 3)),
        streaming=data.draw(st.booleans()),
    )
    check_a_gathered_batch(x, rule, options)


def check_a_gathered_batch(x, rule, options):
    rows = [3, 0, 4, 1, 3]
    loader = memload.FastLoader(
        memload.from_arrays(x=x), batch_sampler=[rows], cast={"x": rule}, options=options, generator=generator()
    )
    (batch,) = loader
    assert same(batch["x"], rule.apply(x[rows], seeds_of(rows)))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_gathered_batch_of_resized_images_is_the_definition(data):
    height, width, depth = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 150)), data.draw(st.integers(1, 5))
    channels = data.draw(st.sampled_from([None, -1, -1, -3]))
    layout = data.draw(st.sampled_from([None, "NCHW", "channels_last"])) if channels == -1 else None
    part = data.draw(
        st.sampled_from([{"scale": (0.08, 1)}, {"fit": "stretch"}, {"fit": "crop"}, {"fit": "pad", "pad_value": 1}])
    )
    dtype = data.draw(st.sampled_from(DTYPES))
    augment = Augment(
        flip=data.draw(st.sampled_from([0.0, 0.5])),
        resize=(data.draw(st.integers(1, 80)), data.draw(st.integers(1, 80))),
        interpolation="nearest" if dtype == torch.float64 else data.draw(st.sampled_from(["bilinear", "nearest"])),
        antialias=data.draw(st.booleans()),
        **part,
    )
    each = tuple(float(c) for c in range(depth)) if channels else 0.5
    constants = data.draw(st.sampled_from([{}, {"scale": 1 / 255, "mean": each, "std": 0.3}]))
    target = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    rule = Cast(target, channels=channels, layout=layout, augment=augment, **constants)
    frames = data.draw(st.sampled_from([(), (2,)]))
    image = {None: (height, width), -1: (height, width, depth), -3: (depth, height, width)}[channels]
    options = EngineOptions(
        isa=data.draw(st.sampled_from(_core.isas())),
        threads=data.draw(st.integers(1, 3)),
        streaming=data.draw(st.booleans()),
    )
    check_a_gathered_batch(stored(dtype, (5, *frames, *image)), rule, options)


def generator():
    return torch.Generator().manual_seed(3)


def seeds_of(rows):
    """The seeds of rows in a pass of a loader with such a generator, from which it draws its base seed first."""
    base = int(torch.empty((), dtype=torch.int64).random_(generator=generator()).item())
    seed = PassSeed(base)
    return [seed.of_row(row) for row in rows]


def photos(rows=40, height=20, width=24):
    return stored(torch.uint8, (rows, height, width, 3))


RULE = Cast(torch.float32, channels=-1, layout="NCHW", augment=Augment((15, 17), 0.5), mean=(1.0, 2.0, 3.0))
RESIZED = dataclasses.replace(RULE, augment=Augment(resize=(15, 17), scale=(0.08, 1), flip=0.5))


@pytest.mark.parametrize("rule", [RULE, RESIZED], ids=["cropped", "resized"])
def test_images_need_no_threads_of_transforms_and_take_the_memory_of_a_cast(rule):
    loader = memload.FastLoader(memload.from_arrays(x=photos()), 8, cast={"x": rule}, num_workers=2)
    cast = Cast(torch.float32, channels=-1, layout="channels_last", mean=(1.0, 2.0, 3.0))
    of_its_size = memload.FastLoader(memload.from_arrays(x=photos(40, 15, 17)), 8, cast={"x": cast}, num_workers=2)
    of_threads = loader.nbytes - of_its_size.nbytes  # what each of them, and the consumer, resizes in
    assert of_threads == 0 if rule is RULE else 0 < of_threads < 3 * 20_000
    assert of_threads % 3 == 0
    next(batches := iter(loader))
    names = {thread.name for thread in threading.enumerate()}
    batches.close()
    assert not any(name.startswith("memload transform") for name in names)


@pytest.mark.parametrize("rule", [RULE, RESIZED], ids=["cropped", "resized"])
def test_the_seed_of_each_epoch_reaches_the_gather(rule):
    ds, sampler = memload.from_arrays(x=photos()), list(range(40))
    loader = memload.FastLoader(
        ds, 8, sampler=sampler, cast={"x": rule}, num_workers=1, persistent_workers=True, generator=generator()
    )
    base = int(torch.empty((), dtype=torch.int64).random_(generator=generator()).item())
    for epoch in range(2):
        got = torch.cat([batch["x"] for batch in loader])
        seeds = [PassSeed(base, epoch).of_row(row) for row in sampler]
        assert same(got, rule.apply(photos(), seeds))


def test_behind_a_function_of_batches_the_draws_are_the_same():
    ds = memload.from_arrays(x=photos())
    one, other = (
        list(memload.FastLoader(ds, 8, cast={"x": RULE}, generator=generator(), batch_transform=transform))
        for transform in (None, lambda batch: batch)
    )
    assert all(same(a["x"], b["x"]) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("augment", [Augment((5, 6), 0.5), Augment(resize=(5, 6), scale=(0.1, 1), flip=0.5)], ids=str)
def test_windows_have_the_draw_of_their_row(augment):
    rule = Cast(torch.bfloat16, channels=-1, augment=augment, norm_removed=True)
    frames = stored(torch.uint8, (30, 12, 14, 3))
    ds = memload.from_arrays(x=frames).windows("x", window=4)
    (batch,) = memload.FastLoader(ds, batch_sampler=[[5, 0, 9]], cast={"x": rule}, generator=generator())
    whole = torch.stack([ds[row]["x"] for row in (5, 0, 9)])
    assert same(batch["x"], rule.apply(whole, seeds_of([5, 0, 9])))


@pytest.mark.parametrize("tier", ["direct", "hybrid"])
@pytest.mark.parametrize("augment", [Augment((33, 41), 0.5), Augment(resize=(33, 41), scale=(0.1, 1))], ids=str)
@pytest.mark.parametrize(
    "shape", [(300, 40, 50, 3), (6, 700, 800, 3), (5, 900, 1001, 3)], ids=["small", "large", "larger than a read"]
)
def test_rows_past_the_page_cache_are_made_alike(tmp_path, tier, shape, augment):
    x = stored(torch.uint8, shape)
    with memload.ShardWriter(tmp_path / "x", rows=len(x)) as writer:
        writer.extend(x=x)
    ds = memload.open(tmp_path / "x").with_tier(tier)
    rule = Cast(torch.float32, channels=-1, layout="NCHW", augment=augment)
    rows = list(range(len(x)))
    for _ in range(2):
        loader = memload.FastLoader(ds, 64, sampler=rows, cast={"x": rule}, generator=generator())
        got = torch.cat([batch["x"] for batch in loader])
        assert same(got, rule.apply(x, seeds_of(rows)))


@pytest.mark.parametrize("rows", [(12, 400, 500, 3), (6, 900, 1001, 3)], ids=["one read", "larger than a read"])
@pytest.mark.parametrize("augment", [Augment((33, 41), 0.5), Augment(resize=(33, 41), scale=(0.1, 1))], ids=str)
def test_cold_rows_that_are_read_directly_are_made_alike(tmp_path, rows, augment):
    x = stored(torch.uint8, rows)
    np.save(tmp_path / "x.npy", x.numpy())
    if not can_be_read_directly(tmp_path / "x.npy"):
        pytest.skip(f"{tmp_path} is on a file system without O_DIRECT")
    evict(tmp_path / "x.npy")
    ds, order = memload.open(tmp_path / "x.npy"), list(range(len(x)))
    rule = Cast(torch.float32, channels=-1, layout="NCHW", augment=augment)
    options = EngineOptions(direct=True)
    field = next(iter(ds.fields))
    loader = memload.FastLoader(ds, 4, sampler=order, cast={field: rule}, generator=generator(), options=options)
    got = torch.cat([batch[field] for batch in loader])
    assert same(got, rule.apply(x, seeds_of(order)))
