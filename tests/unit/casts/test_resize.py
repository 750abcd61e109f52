"""Augment(resize=): which part of an image is taken, what its pixels become, and that native code does just that."""

import dataclasses
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import SimulatedInterface

import memload
from memload import Augment, Cast, _core
from memload.casts.native import cast_tensor
from memload.casts.resize import weights_of
from memload.device.casting import cast_on_device
from memload.engine.readers import resolve
from memload.engine.request import EngineOptions

PART = {"scale": (0.08, 1), "flip": 0.5}
METHODS = [
    PART, {**PART, "antialias": False}, {**PART, "interpolation": "nearest"}, {"fit": "stretch", "flip": 0.5},
    {"fit": "crop"}, {"fit": "pad", "pad_value": 7, "flip": 0.5}, {"fit": "pad", "interpolation": "nearest"},
]  # fmt: skip
BILINEAR = [
    torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.float32,
]  # fmt: skip
FORMS = [
    ({"channels": -1, "layout": "NCHW", "mean": (1.0, 2.0, 3.0), "std": (3.0, 0.7, 1.0)}, (4, 23, 31, 3)),
    ({"channels": -1, "layout": "channels_last", "scale": 1 / 255}, (4, 23, 31, 4)),
    ({"channels": -1}, (4, 23, 31, 2)),
    ({"channels": -3, "mean": (1.0, 2.0, 3.0, 4.0, 5.0)}, (4, 2, 5, 23, 31)),
    ({"norm_removed": True}, (4, 23, 31)),
]


def images(dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 50).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(max(info.min, -(2**40)), min(info.max, 2**40) + 1, shape, generator=generator).to(dtype)


def by_torch(part, size, antialias=True):
    """(H, W) by torch's own kernel."""
    resized = torch.nn.functional.interpolate(part[None, None], size, mode="bilinear", antialias=antialias)
    return resized[0, 0]


# What is done.


@pytest.mark.parametrize("isa", _core.isas())
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_native_code_has_the_bits_of_the_definition(isa, method):
    nearest = method.get("interpolation") == "nearest"
    dtypes = [*BILINEAR, torch.int32, torch.int64, torch.float64] if nearest else BILINEAR
    for (form, shape), dtype, size in itertools.product(FORMS, dtypes, [(16, 9), (30, 40)]):
        target = torch.bfloat16 if dtype == torch.int8 else torch.float64 if dtype == torch.uint16 else torch.float32
        rule, x = Cast(target, augment=Augment(resize=size, **method), **form), images(dtype, shape)
        native, defined = cast_tensor(x, rule, range(4), isa=isa), rule.apply(x, range(4))
        assert native.stride() == defined.stride()
        assert native.dtype == target
        assert torch.equal(native, defined), (rule, dtype)
        assert native.shape == (4, *rule.row_shape(shape[1:]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sizes_have_the_bits_of_the_definition(data):
    height, width, high, wide = (data.draw(st.integers(1, 70)) for _ in range(4))
    channels = data.draw(st.integers(1, 5))
    method = data.draw(st.sampled_from(METHODS))
    dtype = data.draw(st.sampled_from([torch.uint8, torch.float32]))
    rule = Cast(torch.float32, channels=-1, layout="NCHW", augment=Augment(resize=(high, wide), **method))
    x = images(dtype, (2, height, width, channels))
    assert torch.equal(cast_tensor(x, rule, [3, 4]), rule.apply(x, [3, 4]))


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(224, 224), (17, 300), (300, 17), (1, 1), (100, 141)])
def test_uint8_pixels_are_at_most_one_from_those_of_torch(antialias, size):
    x = images(torch.uint8, (1, 100, 141))
    augment = Augment(resize=size, antialias=antialias)
    got = Cast(torch.float32, augment=augment).apply(x, [0])[0]
    assert (got - by_torch(x[0], size, antialias).float()).abs().max() <= 1
    assert (got - by_torch(x[0].double(), size, antialias)).abs().max() <= 1.05  # each of two roundings by 1/2


def test_drawn_parts_are_at_most_one_from_those_of_torchvision():
    from vision import v2

    x, augment = images(torch.uint8, (20, 3, 90, 120)), Augment(resize=(64, 48), scale=(0.08, 1))
    drawn = augment.draws(range(20), 90, 120)
    got = Cast(torch.float32, channels=-3, augment=augment).apply(x, range(20))
    for image, made, (top, left, _, high, wide) in zip(x, got, drawn.tolist(), strict=True):
        theirs = v2.functional.resized_crop(image, top, left, high, wide, [64, 48], antialias=True)
        assert (made - theirs.float()).abs().max() <= 1


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("dtype", BILINEAR[1:], ids=str)
def test_other_dtypes_become_float32_without_a_rounding_in_between(dtype, antialias):
    x = images(dtype, (1, 60, 50))
    got = Cast(torch.float32, augment=Augment(resize=(33, 70), antialias=antialias)).apply(x, [0])[0]
    exact = by_torch(x[0].double(), (33, 70), antialias)
    assert torch.allclose(got.double(), exact, rtol=1e-5, atol=1e-5 * float(x.double().abs().max()))


def test_a_pixel_that_is_not_finite_stays_with_the_pixels_that_are_made_of_it():
    x = torch.zeros(1, 40, 40)
    x[0, 20, 20] = math.inf
    rule = Cast(torch.float32, augment=Augment(resize=(20, 20)))
    for made in (rule.apply(x, [0])[0], cast_tensor(x, rule, [0])[0]):
        assert (made == math.inf).sum() == 4
        assert (made == 0).sum() == 396


@pytest.mark.parametrize("size", [(50, 60), (13, 7), (200, 100)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.uint16, torch.float64], ids=str)
def test_nearest_takes_the_pixel_under_the_centre_as_torch_does(size, dtype):
    x = images(dtype, (1, 50, 60)) % 1000 if dtype != torch.uint16 else images(dtype, (1, 50, 60))
    got = Cast(torch.float64, augment=Augment(resize=size, interpolation="nearest")).apply(x, [0])[0]
    assert torch.equal(got, torch.nn.functional.interpolate(x[None].double(), size, mode="nearest-exact")[0, 0])


def test_an_image_of_its_own_size_stays_as_it_is():
    x = images(torch.uint8, (1, 30, 40))
    for interpolation in ("bilinear", "nearest"):
        rule = Cast(torch.float32, augment=Augment(resize=(30, 40), interpolation=interpolation))
        assert torch.equal(rule.apply(x, [0])[0], x[0].float())


def test_pad_keeps_the_proportions_and_crop_takes_the_middle():
    x = images(torch.uint8, (1, 40, 100))
    padded = Cast(torch.float32, augment=Augment(resize=(51, 50), fit="pad", pad_value=9)).apply(x, [0])[0]
    assert (padded[:15] == 9).all()
    assert (padded[35:] == 9).all()
    assert (padded[15:35] - by_torch(x[0], (20, 50)).float()).abs().max() <= 1
    cropped = Cast(torch.float32, augment=Augment(resize=20, fit="crop")).apply(x, [0])[0]
    assert (cropped - by_torch(x[0, :, 30:70].contiguous(), (20, 20)).float()).abs().max() <= 1
    high = Augment(resize=(10, 40), fit="crop").draws([0], 40, 20)
    assert high.tolist() == [[17, 0, 0, 5, 20]]


def test_padding_is_that_of_images_which_are_written(tmp_path):
    from PIL import Image

    mask = images(torch.uint8, (37, 90)).numpy()
    for name in ("photos", "masks"):
        (tmp_path / name).mkdir()
    Image.fromarray(np.stack([mask] * 3, -1)).save(tmp_path / "photos/a.png")
    Image.fromarray(mask).save(tmp_path / "masks/a.png")
    memload.write_images(
        tmp_path / "set", tmp_path / "photos", tmp_path / "masks", size=(45, 64), fit="pad", mask_pad_value=200
    )
    written = memload.open(tmp_path / "set")[0]["mask"]
    augment = Augment(resize=(45, 64), fit="pad", pad_value=200, interpolation="nearest")
    assert torch.equal(
        Cast(torch.float32, augment=augment).apply(torch.from_numpy(mask)[None], [0])[0], written.float()
    )


def test_a_flip_mirrors_the_result_with_its_border():
    x = images(torch.uint8, (1, 40, 21))
    settings = {"resize": (30, 20), "fit": "pad", "pad_value": 5}
    plain, flipped = (
        cast_tensor(x, Cast(torch.float32, augment=Augment(flip=flip, **settings)), [0]) for flip in (0, 1)
    )
    assert torch.equal(plain.flip(-1), flipped)
    assert not torch.equal(plain, flipped)


def test_weights_are_those_of_the_triangle():
    weights = weights_of(4, 2, antialias=True)
    assert weights.first.tolist() == [0, 1]
    assert np.allclose(weights.weights, np.array([[3, 3, 1], [1, 3, 3]]) / 7)
    assert np.array_equal(weights_of(4, 2, antialias=False).weights, [[0.5, 0.5], [0.5, 0.5]])


# What is drawn.


def test_the_draws_of_a_row_are_these_and_stay_so():
    augment = Augment(resize=(224, 224), **PART)
    assert augment.draws([0, 1, 2**64 - 1], 480, 640).tolist() == DRAWS
    assert Augment(resize=4, fit="crop", flip=0.5).draws([0, 1], 480, 640).tolist() == [[0, 80, 1, 480, 480]] * 2


DRAWS = [[128, 100, 1, 298, 344], [11, 126, 1, 185, 155], [21, 29, 0, 414, 458]]


def drawn_in_python(augment, seeds, height, width):
    """The draws as memload has made them from the first version on, by xxhash and numpy."""

    def bits(key, seed):
        drawn = xxhash.xxh3_128_intdigest(key + augment.stream.to_bytes(8, "little"), seed=seed)
        return [drawn >> 32 * k & 2**32 - 1 for k in range(3)]

    def ratio_of(number):
        ratio, root = np.float64(low), np.float64(high / low)
        for k in range(31, -1, -1):
            root = np.sqrt(root)
            ratio = ratio * root if number >> k & 1 else ratio
        return ratio

    def sides_of(seed):
        wide = width / height
        for attempt in range(10):
            first, second, _ = bits(b"resize" + bytes([attempt]), seed)
            area = least + (most - least) * (first / 2.0**32)
            ratio = ratio_of(second)
            sides = np.sqrt(np.array([area * wide / ratio, area * ratio / wide]))
            if (sides <= 1).all():
                return np.clip(np.floor(sides * (height, width) + 0.5).astype(int), 1, (height, width)).tolist()
        if wide < low:
            return [min(height, max(1, math.floor(width / low + 0.5))), width]
        return [height, min(width, max(1, math.floor(height * high + 0.5))) if wide > high else width]

    (least, most), (low, high) = augment.scale, augment.ratio or (3 / 4, 4 / 3)
    draws = []
    for seed in seeds:
        top, left, flip = bits(b"augment", seed)
        sides = sides_of(seed)
        places = [
            number * (side - part + 1) >> 32
            for number, side, part in zip((top, left), (height, width), sides, strict=True)
        ]
        draws.append([*places, int(flip < augment.flip * 2**32), *sides])
    return draws


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_native_draws_are_those_of_python(data):
    height, width = (data.draw(st.integers(1, 5000)) for _ in range(2))
    scale, ratio = (
        tuple(sorted(data.draw(st.floats(*limits)) for _ in range(2))) for limits in ((0.01, 1), (0.02, 50))
    )
    augment = Augment(
        flip=data.draw(st.floats(0, 1)), stream=data.draw(st.integers(0, 2**63 - 1)), resize=8, scale=scale, ratio=ratio
    )
    seeds = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=5))
    assert augment.draws(seeds, height, width).tolist() == drawn_in_python(augment, seeds, height, width)


def test_many_native_draws_are_those_of_python():
    augment, seeds = Augment(resize=8, **PART), np.random.default_rng(0).integers(0, 2**63, 3000).tolist()
    assert augment.draws(seeds, 480, 640).tolist() == drawn_in_python(augment, seeds, 480, 640)


def test_parts_have_uniform_area_and_logarithm_of_proportions_and_lie_in_the_image():
    top, left, flipped, high, wide = Augment(resize=8, scale=(0.1, 0.4), flip=0.25).draws(range(4000), 900, 900).T
    area, ratio = high * wide / 900**2, wide / high
    assert 0.099 < area.min() < 0.103
    assert 0.39 < area.max() < 0.401
    assert abs(area.mean() - 0.25) < 0.006
    assert abs(np.quantile(area, 0.25) - 0.175) < 0.01
    assert abs(np.log(ratio).mean()) < 0.012
    assert abs(np.quantile(np.log(ratio), 0.25) - np.log(3 / 4) / 2) < 0.02
    assert ratio.min() > 0.745
    assert ratio.max() < 1.34
    assert min(top.min(), left.min()) >= 0
    assert max((top + high).max(), (left + wide).max()) <= 900
    assert abs((top / (900 - high)).mean() - 0.5) < 0.02
    assert abs(flipped.mean() - 0.25) < 0.03


def test_the_same_number_of_parts_does_not_fit_as_in_torchvision():
    from vision import v2

    transform = v2.RandomResizedCrop(8, scale=(0.5, 1), ratio=(0.9, 1.2))
    torch.manual_seed(0)
    theirs = [transform.make_params([torch.zeros(1, 100, 150)]) for _ in range(3000)]
    sizes = np.array([[one["height"], one["width"]] for one in theirs]) / (100, 150)
    ours = Augment(resize=8, scale=(0.5, 1), ratio=(0.9, 1.2)).draws(range(3000), 100, 150)[:, 3:] / (100, 150)
    assert np.abs(np.quantile(sizes, [0.1, 0.5, 0.9], 0) - np.quantile(ours, [0.1, 0.5, 0.9], 0)).max() < 0.02


@pytest.mark.parametrize(("size", "part"), [((20, 400), [0, 186, 0, 20, 27]), ((400, 20), [186, 0, 0, 27, 20])])
def test_where_nothing_fits_the_middle_is_taken(size, part):
    drawn = Augment(resize=8, scale=(1, 1)).draws(range(5), *size)
    assert drawn[:, 3:].tolist() == [part[3:]] * 5
    assert Augment(resize=8, scale=(1, 1), ratio=(0.01, 100)).draws([0], 30, 30)[0, 3:].max() == 30


def test_image_and_mask_share_parts_even_in_another_size():
    seeds, augment = range(500), Augment(resize=64, **PART)
    whole = augment.draws(seeds, 256, 320)
    mask = dataclasses.replace(augment, interpolation="nearest", resize=(32, 32))
    assert np.array_equal(mask.draws(seeds, 256, 320), whole)
    half = mask.draws(seeds, 128, 160)
    assert np.array_equal(half[:, 2], whole[:, 2])
    assert np.abs(half[:, [0, 1, 3, 4]] * 2 - whole[:, [0, 1, 3, 4]]).max() <= 3
    assert not np.array_equal(dataclasses.replace(augment, stream=1).draws(seeds, 256, 320), whole)


def test_crops_and_flips_of_a_stream_share_the_flip_with_resized_fields():
    seeds = range(200)
    flips = [one.draws(seeds, 64, 64)[:, 2] for one in (Augment(crop=8, flip=0.5), Augment(resize=8, **PART))]
    assert np.array_equal(*flips)


# In loaders.


def photos(rows=24):
    image = images(torch.uint8, (rows, 30, 40, 3))
    return memload.from_arrays(image=image, mask=image.amax(-1).contiguous(), label=torch.arange(rows))


AUGMENT = Augment(resize=(16, 12), **PART)
CASTS = {
    "image": Cast(torch.float32, channels=-1, layout="NCHW", augment=AUGMENT, mean=(1.0, 2.0, 3.0)),
    "mask": Cast(torch.float32, augment=dataclasses.replace(AUGMENT, interpolation="nearest")),
}


def epoch(ds, loader_class=memload.FastLoader, **arguments):
    arguments = {"batch_size": 8, "shuffle": True, "cast": CASTS, **arguments}
    loader = loader_class(ds, generator=torch.Generator().manual_seed(1), **arguments)
    return loader, [{k: v.clone() for k, v in batch.items()} for batch in loader]


def equal(some, others):
    pairs = zip(some, others, strict=True)
    return all(torch.equal(a[key], b[key]) for a, b in pairs for key in ("image", "mask", "label"))


@pytest.mark.parametrize(
    "arguments",
    [{"options": EngineOptions(threads=3, depth=4, transform_threads=3)}, {"batch_size": 8, "pin_memory": False}],
)
def test_a_pass_is_native_and_does_not_depend_on_threads(arguments):
    loader, batches = epoch(photos())
    assert loader.engine == "native"
    assert batches[0]["image"].shape == (8, 3, 16, 12)
    assert batches[0]["mask"].shape == (8, 16, 12)
    assert equal(batches, epoch(photos(), **arguments)[1])


def test_rows_have_the_same_draws_in_batches_of_another_size_and_of_one_row():
    def by_row(batch_size):
        batches = epoch(photos(), batch_size=batch_size)[1]
        return {int(k): image for batch in batches for k, image in zip(batch["label"], batch["image"], strict=True)}

    eight, five = by_row(8), by_row(5)
    assert all(torch.equal(eight[k], five[k]) for k in range(24))


@pytest.mark.parametrize("native", [True, False])
def test_batches_on_a_device_are_those_on_the_cpu(native):
    device = SimulatedInterface(native=native)
    loader = memload.FastLoader(
        photos(), 8, shuffle=True, cast=CASTS, generator=torch.Generator().manual_seed(1), device=device
    )
    read = [{key: device.read(value) for key, value in batch.items()} for batch in loader]
    assert equal([{key: value() for key, value in batch.items()} for batch in read], epoch(photos())[1])


def test_cast_on_device_gives_the_same():
    x = images(torch.uint8, (4, 30, 40, 3))
    assert torch.equal(cast_on_device(x, CASTS["image"], seeds=range(4)), CASTS["image"].apply(x, range(4)))


def test_the_plan_counts_what_is_made():
    cast = {"image": CASTS["image"]}
    plan = memload.plan(photos(), 8, cast=cast, ram="16GB", disk="1TB")
    assert plan.data.batch_bytes == 8 * (3 * 16 * 12 * 4 + 30 * 40 + 8)


# What is refused, and how it is shown.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"resize": 2.5}, TypeError, "resize is .height, width. in pixels"),
        ({"resize": (0, 2)}, ValueError, "resize is at least"),
        ({"resize": 2**31}, ValueError, "below 2.31"),
        ({"resize": 8, "crop": 4}, ValueError, "exclude each other"),
        ({"scale": (0.08, 1)}, ValueError, "scale= is of images that are resized"),
        ({"antialias": False}, ValueError, "antialias= is of images that are resized"),
        ({"resize": 8, "scale": 0.5}, TypeError, "scale is .least, greatest."),
        ({"resize": 8, "scale": np.array([0.08, 1])}, TypeError, "scale is .least, greatest."),
        ({"resize": 8, "scale": (0, 1)}, ValueError, "both above 0"),
        ({"resize": 8, "scale": (0.5, 1.5)}, ValueError, "fractions of the image"),
        ({"resize": 8, "scale": (0.5, float("nan"))}, ValueError, "finite"),
        ({"resize": 8, "scale": (0.5, 1), "ratio": (2, 1)}, ValueError, "both above 0"),
        ({"resize": 8, "ratio": (1, 2)}, ValueError, "give scale= too"),
        ({"resize": 8, "scale": (0.5, 1), "fit": "pad"}, ValueError, "fit='pad' and scale="),
        ({"resize": 8, "fit": "shortest"}, ValueError, "'stretch', 'crop', 'pad'"),
        ({"resize": 8, "interpolation": "bicubic"}, ValueError, "'bilinear', 'nearest'"),
        ({"resize": 8, "antialias": 1}, TypeError, "antialias is True or False"),
        ({"resize": 8, "pad_value": 3}, ValueError, 'border that fit="pad"'),
        ({"resize": 8, "fit": "pad", "pad_value": "black"}, TypeError, "pad_value is a number"),
        ({"resize": 8, "fit": "pad", "pad_value": np.zeros(3)}, TypeError, "pad_value is a number"),
    ],
)
def test_what_cannot_be_is_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        Augment(**arguments)


def test_dtypes_and_borders_that_cannot_be_are_refused_when_the_loader_is_made():
    ds = memload.from_arrays(x=torch.zeros(4, 8, 8, dtype=torch.int64), y=torch.zeros(4, 8, 8, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"'x': resize= by bilinear weights takes images of uint8.*got int64.*nearest"):
        memload.FastLoader(ds, 2, cast={"x": Cast(torch.float32, augment=Augment(resize=4))})
    with pytest.raises(ValueError, match=r"'y': pad_value is a pixel.*0 to 255; got 256"):
        memload.FastLoader(ds, 2, cast={"y": Cast(torch.float32, augment=Augment(resize=4, fit="pad", pad_value=256))})
    with pytest.raises(TypeError, match="bilinear weights"):
        cast_tensor(torch.zeros(1, 8, 8, dtype=torch.float64), Cast(torch.float32, augment=Augment(resize=4)), [0])


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_a_border_that_no_pixel_holds_is_refused(interpolation):
    padded = Augment(resize=(4, 8), fit="pad", pad_value=1e39, interpolation=interpolation)
    for dtype in (torch.float16, torch.float32):
        ds = memload.from_arrays(x=torch.zeros(4, 8, 8, dtype=dtype))
        with pytest.raises(ValueError, match=r"'x': pad_value is a pixel of the images.*got 1e\+39"):
            memload.FastLoader(ds, 2, cast={"x": Cast(torch.float64, augment=padded)})


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_images_without_pixels_are_refused_when_the_loader_is_made(shape, fit):
    ds = memload.from_arrays(x=torch.zeros(4, *shape, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"'x': images of . x . pixels have none to resize"):
        memload.FastLoader(ds, 2, cast={"x": Cast(torch.float32, augment=Augment(resize=4, fit=fit))})
    with pytest.raises(ValueError, match="have none to resize"):
        Augment(resize=4, scale=(0.1, 1)).draws([1], *shape)


def test_it_shows_what_is_asked_for_and_travels():
    assert repr(Augment(crop=3)) == "Augment(crop=(3, 3), flip=0.0, stream=0)"
    given = Augment(resize=[4, 5], scale=[0.5, 1], flip=np.float32(0.5))
    assert repr(given) == "Augment(crop=None, flip=0.5, stream=0, resize=(4, 5), scale=(0.5, 1.0))"
    assert pickle.loads(pickle.dumps(given)) == given
    assert hash(given) == hash(eval(repr(given)))


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        ([[0, 0, 0, 5, 1]], "is no part of an image"), ([[0, 0, 0, 0, 1]], "is no part of an image"),
        ([[0, 0, 0, -1, 1]], "of no image"), ([[0, 0, 0]], r"\(rows, 5\)"),
    ],
)  # fmt: skip
def test_native_code_refuses_parts_that_leave_their_image(draws, message):
    shape, method = (4, 4, 1, 2, 2, True, True), ((0, 0, 2, 2), False, True, 0.0)
    with pytest.raises(ValueError, match=message):
        _core.resize_images(0, 0, 1, 1, np.array(draws), shape, method, ("U8", "F32", False))


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (None, "need draws of their parts"), ((0, 0.5, None), "need draws of their parts"),
        ((0, 0.5, ((0, 1, 4, 4), None)), "is no part of an image"),
    ],
)  # fmt: skip
def test_the_gather_refuses_images_whose_parts_are_not_known(draws, message):
    field = resolve(memload.from_arrays(x=torch.zeros(2, 4, 4, dtype=torch.uint8))).fields["x"].column
    images = (4, 4, 1, 2, 2, False, True), draws, ((0, 0, 2, 2), False, True, 0.0)
    with pytest.raises(ValueError, match=message):
        _core.Pipeline.ring_bytes([(field, ("U8", "F32", False), 2, 32, [2, 2], images)], 1, depth=1)
