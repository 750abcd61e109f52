"""Every kind of dataset under every kind of sampler: native where it can be, and always what the stock loader gives."""

import copy
import re
import typing

import numpy as np
import pytest
import tensordict
import torch
from simulated import SimulatedInterface
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import memload
from memload.columns import collate_rules

N = 12


def numbers(*shape, dtype=torch.float32):
    return torch.arange(N * torch.Size(shape).numel()).reshape(N, *shape).to(dtype)


def dicts():
    return memload.from_arrays(stim=numbers(2, 3, dtype=torch.uint8), robs=numbers(4))


def tensors():
    return TensorDataset(numbers(3), numbers(dtype=torch.int64))


def tensordicts(**arguments):
    inner = tensordict.TensorDict({"c": numbers(2, 3)}, batch_size=[N, 2])
    return tensordict.TensorDict({"a": numbers(), "b": inner, "d": numbers(2)}, batch_size=[N], **arguments)


class Offering(torch.utils.data.Dataset):
    """A dataset of somebody's own that offers memload's way to its samples."""

    def __init__(self, offered=None):
        self.arrays = dicts()
        self.offered = offered or self.arrays

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.arrays[index]

    def __memload__(self):
        return self.offered


class Plain(TensorDataset):
    """A subclass that answers as its base does."""

    def tensor_names(self):
        return ["x"]


class Doubled(TensorDataset):
    def __getitem__(self, index):
        return tuple(2 * x for x in super().__getitem__(index))


class DoubledAtOnce(TensorDataset):
    def __getitems__(self, indices):
        return [tuple(2 * x for x in self[i]) for i in indices]


class Shorter(TensorDataset):
    def __len__(self):
        return super().__len__() - 5


class Computed(TensorDataset):
    @property
    def tensors(self):
        return (self.held[0] + 1,)

    @tensors.setter
    def tensors(self, value):
        self.held = value


class WithTransform(Subset):
    def __getitem__(self, index):
        return [x + 1 for x in super().__getitem__(index)]

    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Reversed(list):
    def __getitem__(self, index):
        return super().__getitem__(-1 - index)


class Withdrawn(Offering):
    __memload__ = None


class Tagged(torch.Tensor):
    """A tensor of somebody's own."""


def with_instance_getitems():
    dataset = tensors()
    dataset.__getitems__ = lambda indices: [(torch.zeros(1),)] * len(indices)
    return dataset


def grown_part():
    part = tensors()
    dataset = ConcatDataset([part, tensors()])
    part.tensors = tuple(torch.cat([x, x]) for x in part.tensors)
    return dataset


NATIVE = {
    "memload": dicts,
    "memload tuple": lambda: dicts().as_tuple("robs", "stim"),
    "memload only": lambda: dicts().only("stim"),
    "tensors": tensors,
    "one tensor": lambda: TensorDataset(numbers(3)),
    "tensors in a list": lambda: setattr(d := tensors(), "tensors", list(d.tensors)) or d,
    "plain subclass": lambda: Plain(numbers(3)),
    "stack": lambda: StackDataset(tensors(), dicts()),
    "named stack": lambda: StackDataset(a=tensors(), b=dicts(), c=dicts().only("robs")),
    "stack in stacks": lambda: StackDataset(x=StackDataset(StackDataset(y=tensors()), dicts()), z=dicts()),
    "stack of one tensor": lambda: StackDataset(dicts().only("robs")),
    "subset": lambda: Subset(tensors(), [3, 1, 1, -1, 7]),
    "subset of subset": lambda: Subset(Subset(dicts(), range(2, 12)), np.array([5, 0, 9, -10])),
    "subset by tensor": lambda: Subset(tensors(), torch.tensor([3, 1, 4])),
    "subset by numbers and tensors": lambda: Subset(tensors(), [3, torch.tensor(1), 4, 0]),
    "subset of a stack": lambda: Subset(StackDataset(tensors(), dicts()), [0, 5, 11]),
    "no rows": lambda: Subset(tensors(), []),
    "concat": lambda: ConcatDataset([tensors(), Subset(tensors(), [2, 3]), Subset(tensors(), [])]),
    "concat of stacks": lambda: ConcatDataset([StackDataset(x=tensors(), y=dicts()) for _ in range(2)]),
    "random split": lambda: random_split(tensors(), [5, 7], torch.Generator().manual_seed(1))[1],
    "view": lambda: memload.Float32View(dicts(), norm_removed=True),
    "view in a stack": lambda: StackDataset(x=memload.Float32View(dicts(), norm_removed=False), y=tensors()),
    "subset of a view": lambda: Subset(memload.Float32View(dicts(), norm_removed=True, float16=True), [1, 0]),
    "tensordict": tensordicts,
    "tensordict with a device": lambda: tensordicts(device="cpu"),
    "locked tensordict": lambda: tensordicts().lock_(),
    "memory-mapped tensordict": lambda: tensordicts().memmap_(),
    "subset of a tensordict": lambda: Subset(tensordicts(), [3, 1, 2]),
    "concat of tensordicts": lambda: ConcatDataset([tensordicts(), tensordicts()]),
    "stack with a tensordict": lambda: StackDataset(x=tensordicts(), y=tensors()),
    "offering": Offering,
    "subset of an offering": lambda: Subset(Offering(), [4, 4, 0]),
    "rows apart": lambda: TensorDataset(numbers(4)[::2], numbers(4)[:6]),
    "every row the same": lambda: TensorDataset(torch.ones(1, 3).expand(N, 3)),
}
STOCK = {
    "overridden __getitem__": (lambda: Doubled(numbers()), "Doubled overrides __getitem__ of TensorDataset"),
    "overridden __getitems__": (lambda: DoubledAtOnce(numbers()), "DoubledAtOnce overrides __getitems__"),
    "overridden __len__": (lambda: Shorter(numbers()), "Shorter overrides __len__"),
    "computed tensors": (lambda: Computed(numbers()), "Computed overrides tensors"),
    "subset with transform": (lambda: WithTransform(tensors(), [3, 2]), "WithTransform overrides __getitem__"),
    "__getitems__ of one instance": (with_instance_getitems, "__getitems__ of this TensorDataset was replaced"),
    "member that overrides": (lambda: StackDataset(x=tensors(), y=Doubled(numbers())), "Doubled overrides"),
    "requires grad": (lambda: TensorDataset(numbers().requires_grad_()), "tensor 0 of the TensorDataset requires grad"),
    "sparse": (lambda: TensorDataset(numbers(3).to_sparse()), "is sparse or nested"),
    "nested": (lambda: TensorDataset(torch.nested.nested_tensor([torch.ones(2)] * N)), "is sparse or nested"),
    "quantised": (lambda: TensorDataset(torch.quantize_per_tensor(numbers(3), 1.0, 0, torch.quint8)), "is quantised"),
    "meta": (lambda: TensorDataset(numbers(3).to("meta")), "is a meta tensor"),
    "conjugated": (lambda: TensorDataset(numbers(3, dtype=torch.complex64).conj()), "lazily conjugated"),
    "negative bit": (lambda: TensorDataset(numbers(3, dtype=torch.complex64).conj().imag), "lazily conjugated|run of"),
    "stands for zeros": (lambda: TensorDataset(torch._efficientzerotensor(N, 2)), "or is a placeholder of zeros"),
    "tensor subclass": (lambda: TensorDataset(numbers(3).as_subclass(Tagged)), "is of the type Tagged"),
    "scattered rows": (lambda: TensorDataset(numbers(4)[:, ::2]), "one contiguous run of bytes"),
    "wider complex": (lambda: TensorDataset(numbers(3, dtype=torch.complex128)), "cannot be read in place"),
    "list": (lambda: list(range(N)), "list is not a dataset that memload reads natively"),
    "list of tuples in a subset": (lambda: Subset([(1, 2.0)] * N, [1, 2]), "list is not a dataset"),
    "subset by bools": (lambda: Subset(tensors(), [True, False, True]), "they are bools"),
    "subset by an array of bools": (lambda: Subset(tensors(), np.array([True, False])), "they are bools"),
    "subset by ints and bools": (lambda: Subset(tensors(), [3, True]), "they are bools"),
    "subset by a mapping": (lambda: Subset(tensors(), {0: 3, 1: 2}), "what a dict gives for an index"),
    "subset by a table": (lambda: Subset(tensors(), Reversed([1, 2, 3])), "what a Reversed gives for an index"),
    "subset by something": (lambda: Subset(tensors(), [None, None]), "are not row indices"),
    "grown part": (grown_part, "parts whose length changed"),
    "named stack of a list": (lambda: StackDataset(x=list(range(N)), y=tensors()), "list is not a dataset"),
    "text in a tensordict": (lambda: tensordict.TensorDict({"a": numbers(), "t": "text"}, [N]), "NonTensorData"),
    "named tensordict": (lambda: tensordicts(names=["n"]), "named dimensions"),
    "empty tensordict": (lambda: tensordict.TensorDict({}, [N]), "has no entries"),
    "offer withdrawn": (Withdrawn, "Withdrawn is not a dataset that memload reads natively"),
    "offer not overridden": (type("Own", (Offering,), {"__getitem__": lambda s, i: i}), "Own overrides __getitem__"),
}  # fmt: skip

SAMPLERS = {
    "in order": lambda d, g: {},
    "shuffled": lambda d, g: {"shuffle": len(d) > 0},
    "sequential": lambda d, g: {"sampler": SequentialSampler(d)},
    "with replacement": lambda d, g: {"sampler": _or_none(d) or RandomSampler(d, True, 17, generator=g)},
    "more than all": lambda d, g: {"sampler": _or_none(d) or RandomSampler(d, num_samples=2 * len(d) + 1, generator=g)},
    "subset": lambda d, g: {"sampler": SubsetRandomSampler(range(0, len(d), 2), generator=g)},
    "weighted": lambda d, g: {"sampler": _or_none(d) or WeightedRandomSampler([1.0] * len(d), 9, generator=g)},
    "distributed": lambda d, g: {"sampler": DistributedSampler(d, 2, 1, seed=3)} if len(d) else {},
    "distributed in order": lambda d, g: {"sampler": DistributedSampler(d, 5, 4, shuffle=False)} if len(d) else {},
    "distributed, drop last": lambda d, g: {"sampler": DistributedSampler(d, 5, 4, drop_last=True)} if len(d) else {},
    "batches": lambda d, g: {"batch_sampler": BatchSampler(SequentialSampler(d), 5, drop_last=True)},
    "batches of a list": lambda d, g: {"batch_sampler": BatchSampler([*range(len(d))][::-1], 2, drop_last=False)},
    "a list": lambda d, g: {"sampler": [*range(len(d))][::-2]},
    "a generator": lambda d, g: {"sampler": iter(range(len(d)))},
    "ragged batches": lambda d, g: {"batch_sampler": [[0], [len(d) - 1, 0], [0] * 7] if len(d) else []},
    "lists as samples": lambda d, g: {"batch_size": None, "sampler": BatchSampler(SequentialSampler(d), 5, False)},
    "shuffled lists as samples": lambda d, g: {
        "batch_size": None,
        "sampler": BatchSampler(RandomSampler(d, generator=g) if len(d) else [], 4, True),
    },
    "no batches": lambda d, g: {"batch_size": None},
}
NEVER_NATIVE = ("no batches",)
ONLY_LISTABLE = ("lists as samples", "shuffled lists as samples")
LISTABLE = (
    "tensors", "one tensor", "tensors in a list", "plain subclass", "subset", "no rows",
    "random split", "rows apart", "every row the same",
)  # fmt: skip


def _or_none(dataset):
    return [] if not len(dataset) else None


def same(a, b):
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.dtype, a.shape, a.requires_grad) != (
            b.dtype,
            b.shape,
            b.requires_grad,
        ):
            return False
        if a.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        return type(a) is type(b) and (a.device.type == "meta" or torch.equal(a, b))
    if isinstance(a, tensordict.TensorDictBase):
        alike = (a.batch_size, a.device, a.names, a.is_locked) == (b.batch_size, b.device, b.names, b.is_locked)
        return (
            type(a) is type(b)
            and alike
            and list(a.keys()) == list(b.keys())
            and all(same(a[k], b[k]) for k in list(a.keys()))
        )
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def two_epochs(kind, make, sampler_of):
    """Batches of two epochs and the states of the generators after each; or the error."""
    torch.default_generator.manual_seed(1)
    dataset, generator = make(), torch.Generator().manual_seed(5)
    order = sampler_of(dataset, generator)
    sizes = {} if order.keys() & {"batch_sampler", "batch_size"} else {"batch_size": 5}
    loader = kind(dataset, **sizes, **order)
    seen = []
    try:
        for _ in range(2):
            seen += [copy.deepcopy(batch) for batch in loader]
            seen.append([torch.get_rng_state(), generator.get_state()])
    except Exception as error:
        seen.append(type(error))
    return seen, loader


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence for multidimensional indexing:UserWarning")
@pytest.mark.parametrize("kind", NATIVE)
def test_a_native_kind_gives_what_the_stock_loader_gives_under_every_sampler(kind):
    for name, sampler in SAMPLERS.items():
        expected, _ = two_epochs(DataLoader, NATIVE[kind], sampler)
        got, loader = two_epochs(memload.FastLoader, NATIVE[kind], sampler)
        assert same(expected, got), name
        native = name not in NEVER_NATIVE and (name not in ONLY_LISTABLE or kind in LISTABLE)
        assert loader.engine == ("native" if native else "torch"), f"{name}: {loader.why}"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.filterwarnings("ignore:.*uantized tensor:UserWarning")
@pytest.mark.parametrize("kind", STOCK)
def test_what_would_differ_runs_on_stock_machinery_and_says_why(kind):
    make, reason = STOCK[kind]
    for name in ("in order", "shuffled", "ragged batches", "lists as samples", "no batches"):
        expected, _ = two_epochs(DataLoader, make, SAMPLERS[name])
        got, loader = two_epochs(memload.FastLoader, make, SAMPLERS[name])
        assert same(expected, got), name
        assert loader.engine == "torch"
    why = memload.FastLoader(make()).why
    assert re.search(reason, why), why
    assert why.endswith(".")


def test_a_patched_class_answers_by_its_patch(monkeypatch):
    dataset, original = tensors(), TensorDataset.__getitem__
    loader = memload.FastLoader(dataset, batch_size=5)
    assert loader.engine == "native"
    with monkeypatch.context() as patch:
        patch.setattr(TensorDataset, "__getitem__", lambda self, index: tuple(-x for x in original(self, index)))
        assert loader.why.startswith("__getitem__ of this TensorDataset was replaced")
        assert same(list(loader), list(DataLoader(dataset, batch_size=5)))
    assert loader.engine == "native"


def test_a_patched_sampler_is_iterated(monkeypatch):
    monkeypatch.setattr(SequentialSampler, "__iter__", lambda self: iter([3, 1]))
    loader = memload.FastLoader(tensors(), batch_size=2)
    assert loader.engine == "native"
    assert [batch[1].tolist() for batch in loader] == [[3, 1]]


@pytest.mark.parametrize(
    "offered", [None, TensorDataset(numbers()), {"stim": numbers()}], ids=lambda o: type(o).__name__
)
def test_an_offer_of_something_else_than_a_memload_dataset_is_a_type_error(offered):
    class Offer(Offering):
        def __memload__(self):
            return offered

    loader = memload.FastLoader(Subset(Offer(), [1, 2]), batch_size=2)
    for use in (lambda: loader.engine, lambda: loader.why, lambda: iter(loader)):
        with pytest.raises(
            TypeError, match=rf"Offer.__memload__\(\) must return .* it returned {type(offered).__name__}"
        ):
            use()


def test_an_offer_of_another_length_is_a_value_error():
    loader = memload.FastLoader(Offering(dicts().select([0, 1])), batch_size=2)
    with pytest.raises(ValueError, match=r"__memload__\(\) returned a dataset of 2 rows; len\(\) .* is 12"):
        iter(loader)


def test_the_batches_are_those_of_the_offered_dataset():
    (batch,) = memload.FastLoader(Offering(dicts().select([*range(N)][::-1]).only("robs")), batch_size=N)
    assert torch.equal(batch, numbers(4).flip(0))


def test_a_collate_function_gets_a_tensordict_natively_as_the_stock_loader_gives_it():
    for dataset in (tensordicts(), Subset(tensordicts(), [1, 0, 2])):
        for collate in (lambda batch: batch, lambda batch: batch["a"].sum(), tensordict.TensorDict.to_dict):
            got = memload.FastLoader(dataset, batch_size=2, collate_fn=collate)
            assert got.engine == "native"
            assert same(list(got), list(DataLoader(dataset, batch_size=2, collate_fn=collate)))


@pytest.mark.parametrize("error", [KeyError("third"), TimeoutError("third")])
@pytest.mark.parametrize("more", [{}, {"batch_transform": lambda batch: batch}, {"pin_memory": True}])
def test_an_error_of_a_collate_function_of_whole_batches_ends_no_pass(error, more, monkeypatch):
    monkeypatch.setattr(memload.FastLoader, "_host_memory", lambda self: SimulatedInterface())

    def collate(batch):
        if 3 in batch["x"]:
            raise error
        return batch["x"].tolist()

    loader = memload.FastLoader(tensordict.TensorDict({"x": torch.arange(6)}, [6]), 2, collate_fn=collate, **more)
    batches = iter(loader)
    assert loader.engine == "native"
    assert next(batches) == [0, 1]
    with pytest.raises(type(error), match="third"):
        next(batches)
    assert list(batches) == [[4, 5]]


@pytest.mark.parametrize("more", [{}, {"batch_transform": lambda batch: batch}])
def test_a_stop_iteration_of_a_collate_function_of_whole_batches_ends_a_loop_as_in_the_stock_loader(more):
    def collate(batch):
        if 3 in batch["x"]:
            raise StopIteration("third")
        return batch["x"].tolist()

    td = tensordict.TensorDict({"x": torch.arange(6)}, [6])
    stock, fast = (
        iter(DataLoader(td, 2, collate_fn=collate)),
        iter(memload.FastLoader(td, 2, collate_fn=collate, **more)),
    )
    for batches in (stock, fast):
        assert list(batches) == [[0, 1]]
        assert list(batches) == [[4, 5]]


def test_none_of_a_collate_function_of_whole_batches_is_a_batch_and_no_end():
    td = tensordict.TensorDict({"x": torch.arange(6)}, [6])
    loader = memload.FastLoader(td, 2, collate_fn=lambda batch: None)
    assert loader.engine == "native"
    assert list(loader) == list(DataLoader(td, 2, collate_fn=lambda batch: None)) == [None] * 3
    iterator = iter(loader)
    next(iterator)
    td["x"] = torch.zeros(6)  # what follows is asked of the dataset itself
    assert list(iterator) == [None] * 2


def test_a_cast_follows_a_collate_function_of_ones_own_on_stock_machinery():
    arguments = {"batch_size": 2, "collate_fn": lambda td: {"a": td["a"] + 1}}
    loader = memload.FastLoader(tensordicts(), **arguments, cast={"a": memload.Cast(torch.float64)})
    assert "cast= follows a collate_fn of your own" in loader.why
    batches = [{"a": batch["a"].double()} for batch in DataLoader(tensordicts(), **arguments)]
    assert same(list(loader), batches)


def test_what_torch_knows_nothing_of_is_not_native_either(monkeypatch):
    # An older tensordict does not teach default_collate about its class.
    rules = {key: rule for key, rule in collate_rules.default_collate_fn_map.items() if "tensordict" not in str(key)}
    monkeypatch.setattr("memload.engine.collate_function.default_collate_fn_map", rules)
    assert "does not teach default_collate" in memload.FastLoader(tensordicts()).why
    assert memload.FastLoader(tensordicts(), collate_fn=lambda batch: batch).engine == "native"


def test_a_loader_can_be_named_with_its_batches_type_in_annotations():
    def count(loader: memload.FastLoader[int]) -> int:
        return len(loader)

    assert count(memload.FastLoader[int](tensors(), batch_size=5)) == 3
    assert typing.get_args(memload.FastLoader[dict[str, torch.Tensor]]) == (dict[str, torch.Tensor],)


ARGUMENTS = {
    "own collate": ({"collate_fn": len}, "leave collate_fn out"),
    "no batches": ({"batch_size": None}, "give a batch_size, or a BatchSampler as sampler"),
    "lists": (
        {"batch_size": None, "sampler": BatchSampler(range(4), 2, False)},
        "give the BatchSampler as batch_sampler",
    ),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_arguments_that_keep_a_loader_from_being_native_say_what_to_do(what):
    arguments, advice = ARGUMENTS[what]
    loader = memload.FastLoader(dicts(), **arguments)
    assert loader.engine == "torch"
    assert advice in loader.why


def test_lists_with_a_collate_function_of_ones_own_run_on_stock_machinery():
    arguments = {"batch_size": None, "sampler": BatchSampler(range(N), 5, False), "collate_fn": len}
    loader = memload.FastLoader(tensors(), **arguments)
    assert "called with what the dataset gives" in loader.why
    assert list(loader) == list(DataLoader(tensors(), **arguments)) == [2, 2, 2]
