"""Functions that are read and found not to draw, and all others."""

import functools
import math
import random
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import memload
from memload.engine.transforms.captured import seeding_calls
from memload.engine.transforms.random_free import _ATTRIBUTES, cannot_draw
from memload.engine.transforms.seeding import RANDOM_NAMES

SCALE, NAMES, MEAN, TABLE = 3, ("x", "y"), torch.zeros(3), {"x": 1}
DROPOUT = torch.nn.Dropout()


def scaled(x):
    return x * SCALE


def recursive(x, depth=2):
    return recursive(x, depth - 1) if depth else np.float32(math.pi) * x


def crop(sample, rng):
    x = sample["x"].numpy()
    top = int(rng.integers(2))
    return {**sample, "x": np.ascontiguousarray(x[top : top + 2])}


def closing(over):
    return lambda sample: sample["x"] + over


def filled_later():
    inner = lambda sample: later(sample)  # noqa: E731

    def unfilled(sample):
        return not_yet(sample)

    later = scaled
    if random is None:
        not_yet = 1
    return inner, unfilled


DOES_NOT = [
    lambda sample: sample,
    lambda sample: sample["x"][:2].float().div_(255),
    lambda sample: {name: scaled(sample[name]) for name in NAMES},
    lambda sample: torch.stack([sample["x"], sample["x"].flip(0)]).to(torch.float16),
    lambda sample: (lambda y: y.clone())(sample["x"]),
    lambda sample: [recursive(one) for one in sample.values()],
    lambda sample: torch.from_numpy(np.pad(sample["x"].numpy(), 1)) - MEAN,
    closing(2.5),
    closing(torch.ones(3)),
    crop,
    filled_later()[0],
]

MAY = [
    lambda sample: torch.rand(3),
    lambda sample: sample["x"].uniform_(),
    lambda sample: sample["x"].bernoulli(),
    lambda sample: [torch.randperm(3) for _ in range(2)],
    lambda sample: (lambda: torch.randn(2))(),
    lambda sample: F.dropout(sample["x"]),
    lambda sample: torch.nn.functional.relu(sample["x"]),
    lambda sample: torch.distributions.Normal(0, 1).sample(),
    lambda sample: torch.manual_seed(0),
    lambda sample: torch.random.fork_rng(),
    lambda sample: torch.initial_seed(),
    lambda sample: np.random.seed(0),  # noqa: NPY002
    lambda sample: random.seed(0),
    lambda sample: getattr(torch, "ra" + "nd")(3),
    lambda sample: eval("torch.rand(3)"),
    lambda sample: __import__("torch").rand(3),
    lambda sample: torch.__dict__["rand"](3),
    lambda sample: torch.ops.aten.rand([3]),
    lambda sample: torch.lstm(sample["x"]),
    lambda sample: DROPOUT(sample["x"]),
    lambda sample: sample["x"] + TABLE["x"],
    lambda sample: not_there(sample),  # noqa: F821
    lambda sample: scaled(DROPOUT(sample["x"])),
    closing(DROPOUT),
    closing(functools.partial(torch.rand, 3)),
    lambda sample, fn=torch.rand: fn(3),
    lambda sample, *, fn=torch.rand: fn(3),
    filled_later()[1],
    functools.partial(crop, rng=None),
    torch.neg,
    torch.rand_like,
    DROPOUT,
    DROPOUT.forward,
    dict,
]


def imports(sample):
    import torch as t

    return t.zeros(3)


def imports_a_name(sample):
    from torch import rand as zeros

    return zeros(3)


def makes_a_class(sample):
    class Odd:
        pass

    return Odd


def sets_a_global(sample):
    global SCALE
    SCALE = 4


@pytest.mark.parametrize("fn", DOES_NOT)
def test_simple_functions_are_known_not_to_draw(fn):
    assert cannot_draw(fn)


@pytest.mark.parametrize("fn", [*MAY, imports, imports_a_name, makes_a_class, sets_a_global])
def test_all_others_may(fn):
    assert not cannot_draw(fn)


def test_no_name_that_is_taken_for_harmless_draws():
    random_names = set(RANDOM_NAMES)
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        overload = getattr(packet, schema.overload_name or "default", None)
        reachable = not name.startswith("_") and (hasattr(torch, name) or hasattr(torch.Tensor, name))
        if reachable and torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ()):
            random_names.add(name)
    assert len(random_names) > 40
    assert random_names & _ATTRIBUTES == {"random"}  # numpy's; of torch it is a module
    assert not {"manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state", "fork_rng"} & _ATTRIBUTES
    assert not {"nn", "ops", "distributions", "default_generator", "Generator", "compile"} & _ATTRIBUTES


def test_a_random_function_that_is_put_under_a_harmless_name_is_found(monkeypatch):
    monkeypatch.setitem(globals(), "scaled", torch.rand_like)
    assert not cannot_draw(DOES_NOT[2])


def test_results_are_the_same_as_of_a_function_that_is_looked_at():
    ds = memload.from_arrays(x=torch.rand(40, 3), y=torch.rand(40))
    for fn in (DOES_NOT[1], DOES_NOT[2], crop):
        made = [
            list(memload.FastLoader(ds.map(one), 8, shuffle=True, generator=torch.Generator().manual_seed(1)))
            for one in (fn, functools.wraps(fn)(functools.partial(fn)))
        ]
        for ours, watched in zip(*made, strict=True):
            for a, b in zip(
                *(one.values() if isinstance(one, dict) else [one] for one in (ours, watched)), strict=True
            ):
                assert torch.equal(a, b)


def seeded_by_a_helper(sample):
    return reseeded(sample)


def reseeded(sample):
    torch.manual_seed(int(sample[0]))
    return sample + torch.rand(())


class Seeding:
    def __call__(self, sample):
        return seeded_by_a_helper(sample)


class Lazy(types.ModuleType):
    def __getattr__(self, name):
        raise RuntimeError("a back end is missing")


LAZY, SEED = Lazy("lazy"), torch.manual_seed


def captures(seed):
    return lambda sample: seed(0)


def all_seeded(sample):
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - users do
    return reseeded(sample)


SEEDING = {
    "itself": (reseeded, ["torch.manual_seed"]),
    "by a function of its package": (seeded_by_a_helper, ["torch.manual_seed"]),
    "in a function within": (lambda sample: [reseeded(part) for part in sample], ["torch.manual_seed"]),
    "of torch.random": (lambda sample: torch.random.set_rng_state(sample), ["torch.set_rng_state"]),
    "in a block": (lambda sample: [sample for _ in [torch.random.fork_rng()]], ["torch.fork_rng"]),
    "an object": (Seeding(), ["torch.manual_seed"]),
    "a partial": (functools.partial(reseeded), ["torch.manual_seed"]),
    "captured": (captures(torch.manual_seed), ["torch.manual_seed"]),
    "by another name": (lambda sample: SEED(0), ["torch.manual_seed"]),
    "an argument of a partial": (functools.partial(map, torch.manual_seed), ["torch.manual_seed"]),
    "a module that raises": (lambda sample: LAZY.missing, []),
    "a function of torch's that puts back what it seeds": (functools.partial(torch.vmap, torch.sin), []),
    "a module": (torch.nn.Linear(2, 2), []),
    "a function in C": (torch.sin, []),
    "a generator of the row": (lambda sample, generator: generator.manual_seed(3), []),
    "a generator of its own": (lambda sample: torch.Generator().manual_seed(3), []),
    "of Python": (lambda sample: random.seed(3), ["random.seed"]),
    "of Python by its state": (
        lambda sample: random.setstate(random.getstate()),
        ["random.setstate", "random.getstate"],
    ),
    "of numpy": (lambda sample: np.random.seed(3), ["numpy.random.seed"]),  # noqa: NPY002
    "of numpy by its state": (
        lambda sample: np.random.set_state(np.random.get_state()),  # noqa: NPY002
        ["numpy.random.set_state", "numpy.random.get_state"],
    ),
    "of all": (all_seeded, ["random.seed", "numpy.random.seed", "torch.manual_seed"]),
    "captured, of Python": (captures(random.seed), ["random.seed"]),
    "Python's generator of a row": (lambda sample: random.Random(3).random(), []),
    "numpy's generator of a row": (lambda sample: np.random.default_rng(3).random(), []),
    "draws alone": (lambda sample: random.random() + np.random.rand(), []),  # noqa: NPY002
    "a name that is an attribute of something else": (lambda sample: sample.seed + torch.rand(()), []),
}


@pytest.mark.parametrize("case", SEEDING)
def test_calls_that_seed_the_process_are_found_in_the_code(case):
    fn, names = SEEDING[case]
    assert sorted(seeding_calls(fn)) == sorted(names) == sorted(seeding_calls(fn))


def test_functions_that_seed_the_process_are_warned_of_once_they_are_given():
    ds = memload.from_arrays(x=torch.arange(12).reshape(4, 3))
    with pytest.warns(UserWarning, match=r"map: reseeded calls torch\.manual_seed.*parameter named generator"):
        ds.map(reseeded)
    with pytest.warns(UserWarning, match=r"batch_transform= reseeded calls torch\.manual_seed"):
        memload.FastLoader(ds, batch_size=2, batch_transform=reseeded)
    assert ds.map(reseeded, in_processes=True).in_processes  # and no warning, which would be an error here


def shifted(sample):
    return sample + random.random()


def alike(sample):
    seed = random.randrange(1 << 31)
    random.seed(seed)
    image = shifted(sample["x"].double())
    random.seed(seed)
    return image, shifted(sample["x"].double())


def alike_in_numpy(batch):
    state = np.random.get_state()  # noqa: NPY002
    image = batch["x"].double() + np.random.rand()  # noqa: NPY002
    np.random.set_state(state)  # noqa: NPY002
    return image, batch["x"].double() + np.random.rand()  # noqa: NPY002


@pytest.mark.usefixtures("passes_end_patiently")
def test_functions_that_seed_pythons_or_numpys_numbers_are_warned_of_and_run_in_one_thread():
    ds = memload.from_arrays(x=torch.zeros(4000, 2))
    options = {"batch_size": 16, "threads": 8}
    with pytest.warns(UserWarning, match=r"map: alike calls random\.seed, which .* one thread.*default_rng\(seed\)"):
        mapped = memload.FastLoader(ds.map(alike), **options)
    with pytest.warns(UserWarning, match=r"batch_transform= alike_in_numpy calls numpy\.random\.get_state, numpy.*"):
        batches = memload.FastLoader(ds, batch_transform=alike_in_numpy, **options)
    for loader in (mapped, batches):
        assert all(torch.equal(image, mask) for image, mask in loader)
        assert loader.__memload_loader__().history.tuner.most == 1
    assert ds.map(alike, in_processes=True).in_processes  # and no warning


def test_a_function_that_seeds_two_kinds_of_numbers_is_warned_of_once():
    ds = memload.from_arrays(x=torch.zeros(4, 2))
    with pytest.warns(UserWarning, match=r"all_seeded calls") as warned:
        ds.map(all_seeded)
    (text,) = (str(one.message) for one in warned)
    assert "calls torch.manual_seed, which" in text
    assert "all_seeded calls random.seed, numpy.random.seed, which" in text
