"""What the loaders are compared on: datasets, samplers and arguments as hypothesis draws them.

Everything is drawn as a `Recipe`, since each loader gets objects of its own: samplers and iterable datasets have state.
"""

import random
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st
from strategies import DTYPES, random_tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

import memload

Point = namedtuple("Point", ["x", "y"])


@dataclass(frozen=True)
class Recipe:
    """How to make an object; shown by what it says."""

    says: str
    make: Callable[..., Any] = field(repr=False)

    def __call__(self, *args: Any) -> Any:
        return self.make(*args)

    def __repr__(self) -> str:
        return self.says


def one_in(draw, n: int) -> bool:
    return draw(st.integers(1, n)) == n


def numbers(draw, least: int, most: int, longest: int) -> list[int]:
    """A list of integers, which is seldom short."""
    count = draw(st.sampled_from([5, 7, 9, longest, longest, 3, 2, 1, 0]))
    return draw(st.lists(st.integers(least, most), min_size=count, max_size=count))


# Datasets ------------------------------------------------------------------------------------------------------------


class Fails(Dataset):
    """A row that cannot be read."""

    def __init__(self, n, bad, error):
        self.n, self.bad, self.error = n, bad, error

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index == self.bad:
            raise self.error(f"row {index} is bad")
        return torch.tensor(float(index))


class Batched(Dataset):
    """Answers whole batches."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        raise AssertionError("asked row by row")

    def __getitems__(self, indices):
        return [{"row": int(index), "all": len(indices)} for index in indices]


class Noisy(Dataset):
    """Draws random numbers while it is read."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.rand(2), random.random(), np.random.rand(1)  # noqa: NPY002 - the state that all share


class Offers(Dataset):
    """Samples of its own that memload can read from elsewhere."""

    def __init__(self, base):
        self.base = base

    def __len__(self):
        return len(self.base)

    def __getitem__(self, index):
        return self.base[index]

    def __memload__(self):
        return self.base


class Doubled(TensorDataset):
    """Answers differently from the class it is made of."""

    def __getitem__(self, index):
        return tuple(x + x for x in super().__getitem__(index))


class Stream(IterableDataset):
    def __init__(self, values, said):
        self.values, self.said = values, said

    def __iter__(self):
        return iter(self.values)


class SizedStream(Stream):
    def __len__(self):
        return self.said


def noted(sample):
    return {"of": sample, "is": type(sample).__name__}


def changing(numbers, of_tensors):
    """A dataset whose data the loop changes between batches."""
    made = TensorDataset(numbers) if of_tensors else memload.from_arrays(x=numbers)
    CHANGING[id(made)] = (made, numbers)
    return made


CHANGING: dict[int, Any] = {}  # the data of datasets that the loop changes, by the id of the dataset


sample_leaves = st.sampled_from(
    [
        lambda i: i,
        lambda i: i / 3,
        lambda i: f"row {i}",
        lambda i: bytes([i % 256]),
        lambda i: bool(i % 2),
        lambda i: torch.full((2, 1), i),
        lambda i: torch.tensor(i, dtype=torch.int16),
        lambda i: torch.zeros(2, 0),
        lambda i: np.full(3, i, dtype=np.float32),
        lambda i: np.int8(i),
        lambda i: np.datetime64(i, "D"),
        lambda i: None,
        lambda i: torch.zeros(i % 3 + 1),
        lambda i: {i},
    ]
)
samples = st.recursive(
    st.one_of(*[sample_leaves] * 3),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: lambda i: (two[0](i), two[1](i))),
        st.tuples(inner, inner).map(lambda two: lambda i: [two[0](i), two[1](i)]),
        st.tuples(inner, inner).map(lambda two: lambda i: {"a": two[0](i), "b": two[1](i)}),
        st.tuples(inner, inner).map(lambda two: lambda i: Point(two[0](i), two[1](i))),
    ),
    max_leaves=4,
)
row_shapes = st.sampled_from([(3,), (), (2, 2), (1, 5), (4,), (2, 3), (2, 0, 1)])
COMMON = [torch.float32, torch.uint8, torch.int64, torch.bool, torch.float64, torch.bfloat16]


@st.composite
def tensors(draw, n: int) -> torch.Tensor:
    dtype, seed = draw(st.one_of(st.sampled_from(COMMON), st.sampled_from(DTYPES))), draw(st.integers(0, 9))
    made = random_tensor(dtype, (n, *draw(row_shapes)), seed)
    odd = draw(st.integers(0, 15))
    if odd == 0 and made.is_complex():
        return made.conj()
    if odd == 1 and made.is_floating_point() and dtype.itemsize > 1:
        return made.requires_grad_()
    if odd == 2 and made.dim() > 1:
        return made.transpose(0, -1).contiguous().transpose(0, -1)
    if odd == 3 and n:
        return made[:1].expand_as(made)
    if odd == 4:
        return made.repeat_interleave(2, 0)[::2]
    return made


@st.composite
def own(draw, n: int) -> Recipe:
    count = draw(st.integers(1, 3))
    fields = {f"f{k}": draw(tensors(n).filter(_borrowable)) for k in range(count)}
    layout = draw(st.sampled_from(["dict", "tuple", "only"]))
    made = memload.from_arrays(**fields)
    if layout == "tuple":
        made = made.as_tuple(*reversed(fields))
    elif layout == "only":
        made = made.only("f0")
    if one_in(draw, 4) and n:
        made = made.select(numbers(draw, 0, n - 1, 12))
    return Recipe(
        f"memload {layout} {[(str(f.dtype), f.shape) for f in made.fields.values()]} x {len(made)}", lambda: made
    )


def _borrowable(tensor: torch.Tensor) -> bool:
    try:
        memload.from_arrays(x=tensor)
    except (TypeError, ValueError):
        return False
    return True


@st.composite
def leaves(draw) -> Recipe:
    n = draw(st.sampled_from([7, 11, 5, 16, 8, 4, 3, 10, 13, 2, 1, 0]))
    kinds = ["own"] * 5 + ["tensors"] * 5 + ["samples", "odd", "view", "doubled", "offers", "mapped", "changing"]
    kind = draw(st.sampled_from(kinds))
    if kind == "own":
        return draw(own(n))
    if kind in ("offers", "mapped"):
        base = draw(own(n))()
        made = Offers(base) if kind == "offers" else base.map(noted)
        return Recipe(f"{kind} {base}", lambda: made)
    if kind == "changing":
        numbers = torch.arange(n * 2.0).reshape(n, 2)
        of_tensors = draw(st.booleans())
        make = lambda: changing(numbers.clone(), of_tensors)  # noqa: E731
        return Recipe(f"changing {'TensorDataset' if of_tensors else 'memload'} x {n}", make)
    if kind == "view":
        stim = random_tensor(torch.uint8, (n, 2, 3), 1)
        norm_removed = draw(st.booleans())
        made = memload.Float32View(memload.from_arrays(stim=stim, robs=torch.ones(n)), norm_removed=norm_removed)
        return Recipe(f"Float32View x {n}", lambda: made)
    if kind == "samples":
        sample = draw(samples)
        return Recipe(f"samples such as {sample(1)!r} x {n}", lambda: [sample(i) for i in range(n)])
    if kind == "odd":
        bad, error = draw(st.integers(0, n)), draw(st.sampled_from([ValueError, KeyError, StopIteration, IndexError]))
        made = [Fails(n, bad, error), Batched(n), Noisy(n), torch.arange(n), np.arange(n), range(n), "ab" * n, {0: 1.5}]
        chosen = draw(st.sampled_from([one for one in made if not isinstance(one, str)]))
        return Recipe(f"{type(chosen).__name__} x {n}", lambda: chosen)
    columns = [draw(tensors(n)) for _ in range(draw(st.integers(1, 3)))]
    made = (Doubled if kind == "doubled" else TensorDataset)(*columns)
    told = [(str(c.dtype), *c.shape, *["requires grad"] * c.requires_grad) for c in columns]
    return Recipe(f"{type(made).__name__} {told}", lambda: made)


@st.composite
def datasets(draw, depth: int = 2) -> Recipe:
    base = draw(leaves())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2])) if depth else 0):
        base = draw(_around(base))
    return base


@st.composite
def _around(draw, base: Recipe) -> Recipe:
    kind = draw(st.sampled_from(["subset", "subset", "concat", "twice", "split", "stack"]))
    n = len(base())
    if kind == "subset":
        rows = numbers(draw, -n, n - 1 if not one_in(draw, 15) else n, 10) if n else []
        shape = draw(st.sampled_from([list, tuple, np.asarray, torch.tensor])) if rows else list
        return Recipe(f"Subset({base}, {shape.__name__} {rows})", lambda: Subset(base(), shape(rows)))
    if kind == "split" and n > 1:
        first, part = draw(st.integers(0, n)), draw(st.integers(0, 1))
        lengths = [first, n - first]
        made = lambda: random_split(base(), lengths, torch.Generator().manual_seed(7))[part]  # noqa: E731
        return Recipe(f"random_split({base}, {lengths})[{part}]", made)
    if kind == "stack" and draw(st.booleans()):
        return Recipe(f"StackDataset({base}, {base})", lambda: StackDataset(base(), base()))
    if kind == "stack":
        return Recipe(f"StackDataset(a={base}, b=range)", lambda: StackDataset(a=base(), b=range(n)))
    other = base if kind == "twice" else draw(leaves())
    return Recipe(f"ConcatDataset([{base}, {other}])", lambda: ConcatDataset([base(), other()]))


@st.composite
def streams(draw) -> Recipe:
    values = [draw(samples)(i) for i in range(1)] * draw(st.integers(0, 7))
    said = draw(st.sampled_from([None, 0, 2, len(values)]))
    made = Stream if said is None else SizedStream
    return Recipe(f"{made.__name__}({values!r}, {said})", lambda: made(values, said))


# Samplers ------------------------------------------------------------------------------------------------------------


class Own(Sampler):
    """A sampler of a kind of its own: yields what it is told, or does something that shows when it is pulled."""

    def __init__(self, n, habit, indices, sized):
        self.n, self.habit, self.indices = n, habit, indices
        self.shift = 0  # the loop turns this
        if sized:
            self.__class__ = SizedOwn

    def __iter__(self):
        if self.habit == "eager":
            return iter(torch.randperm(self.n).tolist())
        return self._one_by_one()

    def _one_by_one(self):
        for k, index in enumerate(self.indices):
            if self.habit == "draws":
                yield int(torch.randint(self.n, ())) if self.n else 0
            elif self.habit == "draws outside torch":
                random.random()
                yield int(np.random.randint(self.n)) if self.n else 0  # noqa: NPY002
            elif self.habit == "follows the loop":
                yield (k + self.shift) % max(self.n, 1)
            elif self.habit == "fails" and k == 3:
                raise LookupError("no more of this")
            else:
                yield index


class SizedOwn(Own):
    def __len__(self):
        return len(self.indices)


class Iterator:
    """An iterator that fails once and goes on."""

    def __init__(self, batches):
        self.batches, self.k = batches, 0

    def __iter__(self):
        return Iterator(self.batches)

    def __next__(self):
        self.k += 1
        if self.k > len(self.batches):
            raise StopIteration
        if self.k == 2:
            raise OSError("not now")
        return self.batches[self.k - 1]


ODD = [True, 0.5, "a", None, [0, 0], torch.tensor(0), torch.tensor([0]), np.int64(0), np.uint64(2**64 - 1), 2**70, (0,)]
HABITS = ["plain", "eager", "draws", "draws outside torch", "follows the loop", "fails"]


@st.composite
def indices(draw, n: int) -> list[Any]:
    """Mostly rows that are there; from the end, not there, or of odd types now and then."""
    if n == 0:
        return draw(st.sampled_from([[], [], [0]]))
    rows = numbers(draw, -n, n - 1, 14)
    if rows and one_in(draw, 8):
        odd = draw(st.sampled_from([n, n + 3, -n - 1, *ODD]))
        rows[draw(st.integers(0, len(rows) - 1))] = odd
    return rows


@st.composite
def samplers(draw, n: int) -> tuple[Recipe, bool]:
    """A recipe that takes the case's generator, and whether the sampler may be pulled ahead unseen."""
    kinds = ["own", "random", "subset", "own", "weighted", "container", "own", "distributed", "container", "sequential"]
    kind = draw(st.sampled_from(kinds))
    size = n if not one_in(draw, 8) else draw(st.integers(0, n + 2))  # made for another dataset now and then
    if kind == "sequential":
        return Recipe(f"Sequential({size})", lambda g: SequentialSampler(range(size))), True
    if kind == "random":
        replacement, drawn = draw(st.booleans()), draw(st.sampled_from([None, 1, 5, 33, 70, n, 2 * n]))
        make = lambda g: RandomSampler(range(size), replacement, drawn, g)  # noqa: E731
        return Recipe(f"Random({size}, {replacement}, {drawn})", make), True
    if kind == "subset":
        rows = draw(indices(n))
        return Recipe(f"SubsetRandom({rows})", lambda g: SubsetRandomSampler(rows, g)), True
    if kind == "weighted":
        replacement = draw(st.booleans())
        count = draw(st.integers(1, 2 * n + 2 if replacement or one_in(draw, 8) else max(1, size)))
        weights = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0, 0.0]), min_size=size, max_size=size))
        make = lambda g: WeightedRandomSampler(weights, count, replacement, g)  # noqa: E731
        return Recipe(f"Weighted({weights}, {count}, {replacement})", make), True
    if kind == "distributed":
        shuffle, drop, rank = draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2))
        make = lambda g: DistributedSampler(range(size), 3, rank, shuffle, 4, drop)  # noqa: E731
        return Recipe(f"Distributed({size}, {rank} of 3, {shuffle}, {drop})", make), True
    rows = draw(indices(n))
    if kind == "container":
        shape = draw(st.sampled_from([list, tuple])) if any(type(row) is not int for row in rows) else None
        shape = shape or draw(st.sampled_from([list, tuple, np.asarray, torch.tensor]))
        return Recipe(f"{shape.__name__} {rows}", lambda g: shape(rows)), True
    habit, sized = draw(st.sampled_from(HABITS)), draw(st.booleans())
    return Recipe(f"Own({habit}, {rows})", lambda g: Own(n, habit, rows, sized)), False


class OwnBatches:
    """A batch sampler of a kind of its own, with attributes that a BatchSampler has."""

    def __init__(self, batches, shape, sampler):
        self.batches, self.shape, self.sampler = batches, shape, sampler
        self.batch_size, self.drop_last = 3, True

    def __iter__(self):
        if self.sampler is not None:
            yield from BatchSampler(self.sampler, 2, False)
        for batch in self.batches:
            yield self.shape(batch)


@st.composite
def batch_samplers(draw, n: int, workers: bool) -> tuple[Recipe, bool]:
    kind = draw(st.sampled_from(["stock", "stock", "lists", "own", "iterator"]))
    sampler, unseen = draw(samplers(n))
    if kind == "stock":
        size, drop = draw(st.integers(1, 6)), draw(st.booleans())
        return Recipe(
            f"BatchSampler({sampler}, {size}, {drop})", lambda g: BatchSampler(sampler(g), size, drop)
        ), unseen
    batches = draw(st.lists(indices(n), max_size=5))
    if kind == "lists":
        return Recipe(f"{batches}", lambda g: batches), True
    if kind == "iterator":
        return Recipe(f"Iterator({batches})", lambda g: Iterator(batches)), False
    shapes = [list, tuple] if workers else [list, tuple, iter, lambda rows: (row for row in rows), dict.fromkeys]
    unhashable = any(isinstance(row, list) for batch in batches for row in batch)
    shape = list if unhashable else draw(st.sampled_from(shapes))  # stock workers wait for ever for what cannot pickle
    inner = sampler if draw(st.booleans()) else lambda g: None
    return Recipe(f"OwnBatches({batches}, {inner})", lambda g: OwnBatches(batches, shape, inner(g))), False


# Arguments -----------------------------------------------------------------------------------------------------------


@st.composite
def grouped(draw) -> Recipe:
    """Several memload datasets in one, whose rows are dicts with the number of their dataset."""
    parts = {name: draw(own(draw(st.integers(1, 6)))) for name in "ab"[: draw(st.integers(1, 2))]}
    members = {name: memload.Dataset(part().fields) for name, part in parts.items()}
    return Recipe(f"concat({parts})", lambda: memload.concat(members))


def as_list(samples):
    return samples


def counted(samples):
    return {"n": len(samples), "first": samples[0]}


REFUSED = [
    {"num_workers": -1}, {"timeout": -1}, {"prefetch_factor": 2}, {"persistent_workers": True}, {"batch_size": 0},
    {"batch_size": True}, {"batch_size": 2.0}, {"batch_size": -3}, {"drop_last": 1}, {"drop_last": None},
    {"multiprocessing_context": "fork"}, {"num_workers": 1, "multiprocessing_context": "spork"},
    {"num_workers": 1, "multiprocessing_context": 3}, {"num_workers": 1, "prefetch_factor": -1}, {"num_workers": "1"},
    {"shuffle": True, "sampler": [0]}, {"batch_size": 2, "batch_sampler": [[0]]}, {"timeout": "1"},
    {"batch_size": None, "drop_last": True}, {"sampler": [0], "batch_sampler": [[0]]},
]  # fmt: skip


@dataclass(frozen=True)
class Pass:
    """One way through a loader.

    Attributes:
        stop: batches after which the loop breaks; None: at the end.
        twins: whether a second iterator takes turns with the first.
        draws: whether the loop draws random numbers.
        holds: whether the loop keeps its batches.
        changes: whether the loop changes the data, where it can.
    """

    stop: int | None
    twins: bool
    draws: bool
    holds: bool
    changes: bool


@dataclass(frozen=True)
class Case:
    """Two loaders to be: what they are given, and what is done with them."""

    dataset: Recipe
    order: Recipe
    arguments: dict[str, Any]
    own_generator: bool
    passes: list[Pass]
    fast_only: dict[str, Any]
    same_generator: bool = True


passes = st.lists(
    st.builds(
        Pass,
        stop=st.sampled_from([None, None, None, None, None, 3, 2, 1, 4, 0]),
        twins=st.sampled_from([False, False, False, True]),
        draws=st.booleans(),
        holds=st.booleans(),
        changes=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def orders(draw, n: int, workers: bool) -> tuple[Recipe, dict[str, Any], bool]:
    """What decides on the order of rows: a recipe of arguments, others as they are, and whether pulls are unseen."""
    sizes = st.sampled_from([2, 3, 4, 1, 5, 8, n + 1, 10_000])
    rest = {"batch_size": draw(sizes), "drop_last": draw(st.booleans())}
    if one_in(draw, 12):
        rest = {"batch_size": None}
    kind = draw(st.sampled_from(["shuffle", "sampler", "sampler", "sampler", "batch_sampler"]))
    if kind == "shuffle":
        shuffle = draw(st.sampled_from([True, True, False, None]))
        return Recipe(f"shuffle={shuffle}", lambda g: {"shuffle": shuffle}), rest, True
    if kind == "sampler":
        sampler, unseen = draw(batch_samplers(n, workers) if rest == {"batch_size": None} else samplers(n))
        return Recipe(f"sampler={sampler}", lambda g: {"sampler": sampler(g)}), rest, unseen
    batch_sampler, unseen = draw(batch_samplers(n, workers))
    return Recipe(f"batch_sampler={batch_sampler}", lambda g: {"batch_sampler": batch_sampler(g)}), {}, unseen


@st.composite
def cases(draw, workers: bool = False) -> Case:
    iterable, many = one_in(draw, 12), one_in(draw, 12)
    dataset = draw(streams() if iterable else grouped() if many else datasets())
    order, arguments, unseen = draw(orders(3 if iterable else len(dataset()), workers))
    if iterable and not one_in(draw, 8):
        order, unseen = Recipe("as it comes", lambda g: {}), True
    if many and not iterable:
        arguments["collate_fn"] = memload.group_collate
    elif one_in(draw, 5):
        arguments["collate_fn"] = draw(st.sampled_from([as_list, counted, default_collate, len, str]))
    if one_in(draw, 10):
        arguments["pin_memory"] = True
        arguments["pin_memory_device"] = draw(st.sampled_from(["", "cuda"]))
    if one_in(draw, 10):
        arguments["in_order"] = False
    if one_in(draw, 40):
        arguments = {**arguments, **draw(st.sampled_from(REFUSED))}
    elif workers:
        arguments["num_workers"] = draw(st.integers(1, 2))
        if draw(st.booleans()):
            arguments["prefetch_factor"] = draw(st.integers(1, 3))
        arguments["persistent_workers"] = draw(st.booleans())
        arguments["timeout"] = 30
        assume("requires grad" not in repr(dataset))  # workers cannot send it, and the stock loader waits for ever
        arguments.pop("in_order", None)
    fast_only: dict[str, Any] = {"threads": draw(st.integers(1, 3))}
    if unseen and draw(st.booleans()):
        fast_only["depth"] = draw(st.integers(1, 4))
    ways = draw(passes)
    if arguments.get("persistent_workers"):  # a stock loader that keeps its workers has one iterator, which starts anew
        ways = [replace(one, twins=False) for one in ways]
    if workers:  # which have their own copy of the data
        ways = [replace(one, changes=False) for one in ways]
    return Case(dataset, order, arguments, draw(st.booleans()), ways, fast_only, draw(st.booleans()))
