"""The statistics of a loader name the cast that makes what a user's function makes, once two batches have shown it."""

import ast
import functools
import gc
import random
import re
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from programs import run
from torch.utils.data import TensorDataset
from vision import v2

import memload
from memload import Cast
from memload.engine.transforms.cast_advice import cast_code
from memload.engine.transforms.cast_fit import matched
from memload.engine.transforms.torchvision_steps import cast_of_steps
from memload.stats import LoaderStats

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def pixels(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def stored():
    """Images as they are stored, (H, W, C)."""
    return memload.from_arrays(image=pixels(48, 12, 10, 3), label=torch.arange(48))


@pytest.fixture
def planes():
    """Images of planes, (C, H, W)."""
    return memload.from_arrays(image=pixels(48, 3, 12, 10), label=torch.arange(48))


def loader_of(ds, fn=None, **options):
    options = {"batch_size": 12, "shuffle": True, "generator": torch.Generator().manual_seed(5), **options}
    return memload.FastLoader(ds, batch_transform=fn, **options)


def advice_of(ds, fn, **options):
    """What the loader says after one pass, and its batches."""
    loader = loader_of(ds, fn, **options)
    batches = list(loader)
    return loader.stats().advice, batches


def cast_in(advice):
    """The casts that an advice names, made by the code in it."""
    code = re.search(r"what cast=(\{.*\}) does", advice)[1]
    ast.parse(code, mode="eval")
    return eval(code, {"memload": memload})


def on(field, fn):
    """A function of a batch or sample, of a function of one field."""

    def of_field(batch):
        return {**batch, field: fn(batch[field])}

    return of_field


def per_channel(numbers):
    return torch.tensor(numbers).view(-1, 1, 1)


EXACT = {
    "a dtype": lambda x: x.half(),
    "divided": lambda x: x.float() / 255,
    "multiplied": lambda x: x.float() * (1 / 255),
    "shifted": lambda x: (x.float() - 127) / 255,
    "to [-1, 1]": lambda x: (x.float() - 127.5) / 127.5,
    "double": lambda x: x.double() / 255,
    "bfloat16, rounded twice": lambda x: (x.to(torch.bfloat16) - 127) / 255,
    "by channel": lambda x: (x.float() * (1 / 255) - torch.tensor(MEAN)) / torch.tensor(STD),
    "planes": lambda x: (x.float() / 255).movedim(-1, -3).contiguous(),
    "planes as a view": lambda x: x.movedim(-1, -3).float() / 255,
    "planes by channel": lambda x: (
        (x.movedim(-1, -3).float() * (1 / 255) - per_channel(MEAN)) / per_channel(STD)
    ).contiguous(),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("samples", [False, True], ids=["batches", "samples"])
def test_the_cast_that_is_named_makes_the_same_bits_as_the_function(stored, name, samples):
    fn = on("image", EXACT[name])
    advice, batches = advice_of(stored.map(fn), None) if samples else advice_of(stored, fn)
    assert "all bits compared were the same" in advice
    casts = cast_in(advice)
    for batch, other in zip(batches, loader_of(stored, cast=casts), strict=True):
        assert batch["image"].dtype == other["image"].dtype
        assert torch.equal(batch["image"], other["image"])
        assert batch["image"].stride() == other["image"].stride() or "view" in name
        assert torch.equal(batch["label"], other["label"])
    assert ("the dataset without the map, and that cast" if samples else "that cast instead of the function") in advice


def test_a_result_that_differs_by_rounding_is_named_with_the_largest_difference(stored):
    fn = on("image", lambda x: (x.float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD))
    advice, batches = advice_of(stored, fn)
    assert cast_in(advice) == {"image": Cast("float32", scale=1 / 255, mean=MEAN, std=STD, channels=-1)}
    said = float(re.search(r"were at most (\S+) apart", advice)[1])
    pairs = zip(batches, loader_of(stored, cast=cast_in(advice)), strict=True)
    apart = max(float((batch["image"] - other["image"]).abs().max()) for batch, other in pairs)
    assert 0 < apart <= 4 * 2.64 * torch.finfo(torch.float32).eps
    assert 0 < said <= 1.01 * apart  # two batches of four


def unlike(x):
    return (x.float() - x.float().mean()) / x.float().std()


NOT_CASTS = {
    "statistics of the batch or sample": unlike,
    "no straight line": lambda x: x.float().sqrt(),
    "clamped": lambda x: x.float().clamp(16, 235) / 255,
    "flipped": lambda x: x.flip(-2).float() / 255,
    "cropped": lambda x: x[..., :4, :, :].float() / 255,
    "integers": lambda x: x.int(),
    "a constant": lambda x: torch.zeros(x.shape),
    "drawn from torch": lambda x: x.float() / 255 + 0 * torch.rand(()),
    "drawn from Python": lambda x: x.float() / 255 + 0 * random.random(),
    "drawn from numpy": lambda x: x.float() / 255 + 0 * np.random.rand(),  # noqa: NPY002 - users do
    "unchanged": lambda x: x,
}


@pytest.mark.parametrize("name", NOT_CASTS)
@pytest.mark.parametrize("samples", [False, True], ids=["batches", "samples"])
def test_no_cast_is_named_for_what_no_cast_does(stored, name, samples):
    fn = on("image", NOT_CASTS[name])
    advice, batches = advice_of(stored.map(fn), None) if samples else advice_of(stored, fn)
    assert (advice, len(batches)) == ("", 4)


@pytest.mark.parametrize("asks", ["rng", "generator"])
def test_no_cast_is_named_for_a_function_that_asks_for_random_numbers(stored, asks):
    fns = {
        "rng": lambda batch, rng: {"image": batch["image"].float() / 255},
        "generator": lambda batch, generator: {"image": batch["image"].float() / 255},
    }
    assert advice_of(stored, fns[asks])[0] == ""


def test_statistics_of_the_first_batch_are_not_taken_for_constants(stored):
    """Each batch alone is a straight line: only the second one tells."""
    seen = []

    def scaled(batch):
        seen.append(batch)
        return {**batch, "image": batch["image"].float() / (100 * len(seen))}

    assert advice_of(stored, scaled, threads=1)[0] == ""


def test_one_batch_is_not_enough_and_the_next_pass_goes_on(stored):
    loader = loader_of(stored, on("image", EXACT["divided"]), batch_size=48)
    list(loader)
    assert loader.stats().advice == ""
    list(loader)
    assert cast_in(loader.stats().advice) == {"image": Cast("float32", std=255)}


STEPS = {
    "scale": (v2.ToDtype(torch.float32, scale=True), Cast("float32", scale=1 / 255)),
    "no scale": (v2.ToDtype(torch.bfloat16), Cast("bfloat16")),
    "imagenet": (
        v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]),
        Cast("float32", scale=1 / 255, mean=MEAN, std=STD, channels=-3),
    ),
    "clip": (
        v2.Compose([v2.Identity(), v2.Compose([v2.ConvertImageDtype(torch.float32)]), v2.Normalize(*CLIP)]),
        Cast("float32", scale=1 / 255, mean=CLIP[0], std=CLIP[1], channels=-3),
    ),
    "then bfloat16": (
        torch.nn.Sequential(v2.ToDtype(torch.float32), v2.Normalize(*CLIP), v2.ToDtype(torch.bfloat16)),
        Cast("bfloat16", mean=CLIP[0], std=CLIP[1], channels=-3),
    ),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("samples", [False, True], ids=["batches", "samples"])
def test_transforms_of_torchvision_are_named_with_their_own_constants(planes, name, samples):
    fn, cast = STEPS[name]
    advice, batches = advice_of(planes.map(fn), None) if samples else advice_of(planes, fn)
    assert cast_in(advice) == {"image": cast}
    assert "all bits compared were the same" in advice
    for batch, other in zip(batches, loader_of(planes, cast=cast_in(advice)), strict=True):
        assert torch.equal(batch["image"], other["image"])


class Halved(v2.Normalize):
    """A class of a user's, which does something else."""

    def transform(self, inpt, params):
        return super().transform(inpt, params) / 2


@pytest.mark.parametrize(
    "fn",
    [
        v2.RandomHorizontalFlip(),
        v2.Compose([v2.ToDtype(torch.float32), v2.RandomHorizontalFlip()]),
        Halved(MEAN, STD),
        v2.Compose([v2.Normalize(MEAN, STD), v2.Normalize(MEAN, STD)]),
        functools.partial(v2.functional.normalize, mean=MEAN, std=STD),
        v2.ToDtype(torch.int32),
        torch.nn.Identity(),
        len,
    ],
    ids=["random", "random step", "subclass", "twice", "arguments", "integers", "of torch", "function"],
)
def test_what_is_not_known_of_torchvision_gives_no_constants(fn):
    assert cast_of_steps(fn, torch.uint8) is None


def test_constants_of_torchvision_are_read_where_it_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "torchvision.transforms")
    monkeypatch.delitem(sys.modules, "torchvision.transforms.v2")
    assert cast_of_steps(STEPS["imagenet"][0], torch.uint8) is None
    assert "torchvision.transforms" not in sys.modules


def test_the_rest_of_a_function_stays(stored):
    advice, _ = advice_of(stored, lambda batch: (batch["image"].float() / 255, batch["label"] + 1))
    assert cast_in(advice) == {"image": Cast("float32", std=255)}
    assert "leave this step out of the function" in advice


def test_a_field_that_the_function_makes_of_another_is_found(stored):
    advice, _ = advice_of(stored, lambda batch: {"x": batch["image"].float() / 255, "y": batch["label"]})
    assert cast_in(advice) == {"image": Cast("float32", std=255)}
    assert "leave this step out of the function" in advice


def test_several_fields_are_named_together():
    ds = memload.from_arrays(a=pixels(24, 5, 7), b=torch.arange(24 * 6, dtype=torch.int16).view(24, 6))
    advice, _ = advice_of(ds, lambda batch: {"a": batch["a"].float() / 255, "b": batch["b"].float() / 300})
    assert advice.startswith('batch_transform=<lambda> does to "a" and "b" what cast=')
    assert cast_in(advice) == {"a": Cast("float32", std=255), "b": Cast("float32", std=300)}


def test_fields_without_names_are_named_by_their_positions():
    advice, _ = advice_of(TensorDataset(pixels(24, 4, 5), torch.arange(24)), lambda batch: [batch[0] / 255, batch[1]])
    assert cast_in(advice) == {0: Cast("float32", std=255)}
    assert "does to field 0 what" in advice
    assert "instead of the function" in advice


def test_a_batch_that_is_one_tensor(stored):
    advice, _ = advice_of(stored.only("image"), EXACT["divided"])
    assert cast_in(advice) == {"image": Cast("float32", std=255)}


@pytest.mark.parametrize("options", [{}, {"layout": "NCHW", "augment": memload.Augment(crop=(8, 8), flip=0.5)}])
def test_the_cast_of_the_loader_and_that_of_the_function_become_one(stored, options):
    held = {"image": Cast("float32", channels=-1, **options)}
    shape = (-1, 1, 1) if options else (-1,)
    fn = on("image", lambda x: (x - 255 * torch.tensor(MEAN).view(shape)) / (255 * torch.tensor(STD).view(shape)))
    advice, batches = advice_of(stored, fn, cast=held)
    casts = cast_in(advice)
    assert casts["image"].layout == options.get("layout")
    assert casts["image"].augment == options.get("augment")
    for batch, other in zip(batches, loader_of(stored, cast=casts), strict=True):
        torch.testing.assert_close(batch["image"], other["image"], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "held",
    [
        Cast("bfloat16"),
        Cast("float32", scale=1 / 255),
        Cast("float32", augment=memload.Augment(resize=(6, 6)), channels=-1),
    ],
    ids=["rounded before", "computes", "resizes"],
)
def test_no_cast_is_named_where_that_of_the_loader_cannot_include_it(stored, held):
    assert advice_of(stored, on("image", lambda x: x.float() / 2), cast={"image": held})[0] == ""


def test_no_cast_is_named_for_samples_whose_field_is_cast_after_the_function(stored):
    ds = stored.map(on("image", EXACT["divided"]))
    assert advice_of(ds, None, cast={"image": "bfloat16"})[0] == ""


def test_the_function_is_called_once_for_each_batch_and_sample(stored):
    calls, lock = [], threading.Lock()

    def counted(value):
        with lock:
            calls.append(1)
        return {**value, "image": value["image"].float() / 255}

    assert advice_of(stored, counted)[0] != ""
    assert len(calls) == 4
    assert advice_of(stored.map(counted), None)[0] != ""
    assert len(calls) == 4 + 48


def test_a_function_may_write_to_its_batch():
    ds = memload.from_arrays(x=torch.randn(24, 6, generator=torch.Generator().manual_seed(1)))
    advice, _ = advice_of(ds, lambda batch: {"x": batch["x"].sub_(0.3).div_(0.7)})
    assert cast_in(advice) == {"x": Cast("float32", mean=0.3, std=0.7)}


def test_an_error_of_the_function_is_the_loops_and_tells_nothing(stored):
    calls = []

    def fails_first(batch):
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("the first batch")
        return {**batch, "image": batch["image"].float() / 255}

    loader = loader_of(stored, fails_first, threads=1)
    batches = iter(loader)
    with pytest.raises(KeyError, match="the first batch"):
        next(batches)
    assert len(list(batches)) == 3
    assert cast_in(loader.stats().advice) == {"image": Cast("float32", std=255)}


@pytest.mark.parametrize(
    "result",
    [
        *(None, 3, "text", [], {}, np.zeros(3, np.longdouble), np.array([None])),
        *({"image": torch.zeros(0)}, {"image": torch.zeros(3, 4).to_sparse()}),
    ],
    ids=str,
)
def test_results_of_any_kind_reach_the_loop(stored, result):
    advice, batches = advice_of(stored, lambda _: result)
    assert advice == ""
    assert len(batches) == 4
    assert all(batch is result for batch in batches)


def test_an_error_while_batches_are_compared_ends_the_advice_alone(stored, monkeypatch):
    def refused(*_):
        raise RuntimeError("cannot be compared")

    monkeypatch.setattr("memload.engine.transforms.cast_advice.matched", refused)
    advice, batches = advice_of(stored, on("image", EXACT["divided"]))
    assert (advice, len(batches)) == ("", 4)


def test_generators_of_any_kind_are_looked_at(stored):
    before = np.random.mtrand._rand._bit_generator
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        advice, batches = advice_of(stored, on("image", EXACT["divided"]))
        assert "does to" in advice
        drawing, _ = advice_of(stored, lambda batch: {"image": batch["image"] / 255 + np.random.rand()})  # noqa: NPY002
        assert drawing == ""
    finally:
        np.random.set_bit_generator(before)
    assert len(batches) == 4


@pytest.mark.usefixtures("passes_end_patiently")
def test_nothing_of_a_batch_and_no_function_is_kept(stored):
    made = []

    def divided(batch):
        image = batch["image"].float() / 255
        made.append(weakref.ref(image))
        return {**batch, "image": image}

    gc.disable()
    try:
        loader = loader_of(stored, divided)
        for batch in loader:
            del batch
        assert loader.stats().advice != ""
        assert [image() for image in made] == [None] * 4
        function = weakref.ref(divided)
        del loader, divided
        assert function() is None
    finally:
        gc.enable()


def test_another_function_is_looked_at_anew(stored):
    loader = loader_of(stored, on("image", EXACT["divided"]))
    list(loader)
    loader.batch_transform = on("image", EXACT["shifted"])
    list(loader)
    assert cast_in(loader.stats().advice) == {"image": Cast("float32", mean=127, std=255)}


class Scaler:
    """An object whose method is the function."""

    def divide(self, batch):
        return {**batch, "image": batch["image"].float() / 255}


def test_a_method_stays_the_same_function_from_pass_to_pass(stored):
    loader = loader_of(stored, Scaler().divide, batch_size=48)
    list(loader)
    list(loader)
    assert loader.stats().advice.startswith("batch_transform=divide does to")


def test_statistics_print_the_advice_and_their_sum_keeps_it():
    said = LoaderStats(batches=1, advice="Give it a cast.")
    assert str(said).endswith(" Give it a cast.")
    assert (LoaderStats() + said).advice == (said + said).advice == "Give it a cast."
    assert str(LoaderStats()) == str(LoaderStats()).rstrip()


def test_a_pass_without_functions_loads_none_of_this(tmp_path):
    memload.write(tmp_path / "rows", {"x": np.arange(6, dtype=np.uint8)})
    program = f"""
import sys, memload
list(memload.FastLoader(memload.open({str(tmp_path / "rows")!r}), batch_size=2, cast={{"x": "float32"}}))
print([name for name in sys.modules if "cast_advice" in name or "cast_fit" in name or "observed" in name])
"""
    assert run(program).out == ["[]"]


CODES = [
    Cast("float32"),
    Cast("bfloat16", norm_removed=True),
    Cast("float32", scale=1 / 255, mean=MEAN, std=STD, channels=-3),
    Cast("float64", scale=0.25, offset=-1.0),
    Cast("float16", channels=-1, layout="NCHW", augment=memload.Augment(crop=(4, 4), flip=0.5)),
]


@pytest.mark.parametrize("cast", CODES, ids=str)
def test_the_code_of_a_cast_makes_that_cast(cast):
    assert eval(cast_code(cast), {"memload": memload}) == cast


decimals = st.integers(1, 999).map(lambda n: n / 1000)


@given(
    st.sampled_from([torch.uint8, torch.int16, torch.float32]),
    st.sampled_from(["float32", "float64", "bfloat16"]),
    st.one_of(
        st.builds(lambda std: {"std": std}, st.integers(2, 1000).map(float)),
        st.builds(lambda scale: {"scale": scale}, decimals),
        st.builds(lambda mean, std: {"mean": mean, "std": std}, decimals, decimals),
        st.builds(
            lambda means, stds: {"mean": tuple(means), "std": tuple(stds), "channels": -2},
            st.lists(decimals, min_size=3, max_size=3),
            st.lists(decimals, min_size=3, max_size=3),
        ),
    ),
)
def test_a_cast_of_short_constants_is_found_by_what_it_makes(dtype, target, constants):
    x = pixels(16, 3, 40).to(dtype)
    cast = Cast(target, **constants)
    match = matched(x, cast.apply(x))
    assert match is not None
    apart = float((match.cast.apply(x).double() - cast.apply(x).double()).abs().max())
    assert match.apart == apart
    assert target == "bfloat16" or apart <= 1e-6 * float(cast.apply(x).abs().max())
