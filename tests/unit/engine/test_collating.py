"""What is collated as it is made equals what default_collate makes of the list."""

import gc
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from memload import _core
from memload.engine.collating import CutBatch, FieldSlots, collate_as_made

LARGE = (70, 80)  # 22 KB as float32


def value(kind, row):
    g = np.random.default_rng(row)
    array = g.random(LARGE, dtype=np.float32)
    return {
        "array": lambda: array,
        "tensor": lambda: torch.from_numpy(array),
        "bf16": lambda: torch.from_numpy(array).bfloat16(),
        "bytes": lambda: (array * 255).astype(np.uint8).repeat(4, 0),
        "turned": lambda: torch.from_numpy(array).t(),
        "sliced": lambda: array[:, ::2].repeat(2, 1)[:, :80][::-1],
        "mostly": lambda: array.astype(np.float64) if row == 2 else array,
        "odd tensor": lambda: torch.from_numpy(array)[None] if row == 3 else torch.from_numpy(array),
        "turned now and then": lambda: torch.from_numpy(array).t() if row % 2 else torch.from_numpy(array.T.copy()),
        "small array": lambda: np.arange(3) + row,
        "point": lambda: np.array(1.5),
        "nothing": lambda: np.empty((2, 0)),
        "small": lambda: torch.tensor([row]),
        "int": lambda: row,
        "text": lambda: str(row),
        "nested": lambda: {"x": array, "n": [row, 1.5]},
    }[kind]()


KINDS = [
    "array",
    "tensor",
    "bf16",
    "bytes",
    "turned",
    "sliced",
    "mostly",
    "odd tensor",
    "turned now and then",
    "small array",
    "point",
    "nothing",
    "small",
    "int",
    "text",
    "nested",
]


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def making(samples):
    """The samples, so many at a time as they are asked for."""
    left = iter(samples)
    return lambda count: list(itertools.islice(left, count))


def outcome(collate):
    try:
        return collate()
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        return type(error), str(error)


@given(
    st.sampled_from([dict, tuple, list, None]),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    st.integers(1, 6),
)
def test_any_samples_are_collated_as_default_collate_does(container, kinds, count):
    def sample(row):
        values = [value(kind, row) for kind in kinds]
        if container is None:
            return values[0]
        return dict(zip("abc", values)) if container is dict else container(values)  # noqa: B905

    made = outcome(lambda: collate_as_made(making(map(sample, range(count))), count, FieldSlots(2)))
    assert equal(made, outcome(lambda: default_collate([sample(row) for row in range(count)])))


@pytest.mark.parametrize(
    "samples",
    [
        [{"x": np.ones(9000), "y": 1}, {"x": np.ones(9000)}],
        [{"x": np.ones(9000)}, {"x": np.ones(9000), "y": 1}],
        [(np.ones(9000), 1), (np.ones(9000),)],
        [np.ones(9000), torch.ones(9000, dtype=torch.float64)],
        [np.ones(9000), {"x": 1}],
        [np.array(["a" * 20000])],
        [torch.ones(9000, requires_grad=True)],
        [torch.ones(9000, dtype=torch.complex64)],
        [torch.nn.Parameter(torch.ones(9000))],
    ],
)
def test_samples_that_are_not_alike_or_not_plain_give_what_default_collate_gives(samples):
    made = outcome(lambda: collate_as_made(making(samples), len(samples), FieldSlots(1)))
    assert equal(made, outcome(lambda: default_collate(samples)))


def test_large_samples_are_asked_for_when_those_before_lie_in_the_batch():
    asked = []

    def samples():
        for row in range(6):
            asked.append(row)
            yield torch.full((100_000,), float(row))

    left = samples()

    def make(count):
        assert count <= 2
        return list(itertools.islice(left, count))

    batch = collate_as_made(make, 6, FieldSlots(1))
    assert batch[:, 0].tolist() == asked == [0, 1, 2, 3, 4, 5]


def gathered():
    return {"a": torch.arange(12.0).reshape(6, 2), "b": torch.arange(6), "c": [torch.ones(6), torch.zeros(6)]}


def mapped(fn, batch):
    """The batch of mapped samples, and what default_collate makes of them."""
    expected = default_collate([fn(sample) for sample in CutBatch(gathered()).samples])
    cut = CutBatch(batch)
    made = collate_as_made(lambda n: [fn(one) for one in itertools.islice(cut.samples, n)], 6, FieldSlots(1), cut)
    assert equal(made, expected)
    return made


def test_what_is_handed_on_is_the_gathered_field():
    batch = gathered()
    made = mapped(lambda sample: {"renamed": sample["a"].add_(1), "b": sample["b"]}, batch)
    assert made["renamed"] is batch["a"]
    assert made["b"] is batch["b"]


KEPT = []


@pytest.mark.parametrize(
    "fn",
    [
        lambda sample: {"one": sample["b"], "two": sample["b"], "three": sample["b"]},
        lambda sample: sample if sample["b"] < 3 else {**sample, "a": sample["a"] * 2},
        lambda sample: {"a": sample["a"].unsqueeze_(0), "b": sample["b"]},
        lambda sample: sample["a"] if sample["b"] < 4 else sample["a"].clone(),
        lambda sample: (sample["a"].resize_(1), sample["b"].numpy()),
        lambda sample: {"a": KEPT.append(sample["a"][1:]) or sample["a"]},
        lambda sample: {"a": KEPT.append(sample["a"].numpy()) or sample["a"]},
    ],
)
def test_what_is_handed_on_otherwise_is_copied(fn):
    batch = gathered()
    made = mapped(fn, batch)
    for value in made.values() if isinstance(made, dict) else [made]:
        fields = [value] if isinstance(value, torch.Tensor) else value
        shared = [f for f in fields if f.untyped_storage().data_ptr() == batch["a"].untyped_storage().data_ptr()]
        assert not shared
    KEPT.clear()


def test_no_two_fields_of_a_batch_share_memory():
    batch = gathered()
    made = mapped(lambda sample: {"one": sample["b"], "two": sample["b"]}, batch)
    assert made["one"] is batch["b"]
    assert made["two"].data_ptr() != batch["b"].data_ptr()


def test_slots_are_lent_again_when_the_last_tensor_is_gone_and_never_before():
    slots = _core.Slots(1)
    first = torch.from_dlpack(slots.take(5000))
    view, place = first[100:].numpy(), first.data_ptr()
    del first
    second = torch.from_dlpack(slots.take(5000))  # beyond the one slot
    assert second.data_ptr() != place
    del view, second
    gc.collect()
    third = torch.from_dlpack(slots.take(6000))
    fourth = torch.from_dlpack(slots.take(0))
    assert third.data_ptr() == place
    assert (third.dtype, third.shape, fourth.shape) == (torch.uint8, (6000,), (0,))
    del slots
    third.fill_(3)  # outlives what lent it
    assert third.sum() == 18000


def test_each_field_of_a_batch_has_a_storage_and_a_count_of_changes_of_its_own():
    made = ({"a": np.zeros(LARGE, np.float32), "b": torch.ones(9000)} for _ in range(3))
    batch = collate_as_made(making(made), 3, FieldSlots(1))
    for field in batch.values():
        assert field.untyped_storage().nbytes() == field.nbytes
        assert not field._is_view()
    before = batch["b"]._version
    batch["a"].add_(1)
    assert batch["b"]._version == before


def test_the_memory_of_each_field_is_lent_again():
    slots = FieldSlots(1)

    def places():
        batch = collate_as_made(making({"a": torch.zeros(9000), "b": torch.ones(5000)} for _ in range(3)), 3, slots)
        return {name: field.data_ptr() for name, field in batch.items()}

    assert places() == places()
