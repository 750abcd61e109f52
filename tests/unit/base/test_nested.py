"""What lies in nested containers: literal cases of every kind, leaves with their paths, and what is built anew."""

from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

from memload.nested import all_tensors_of, leaves, leaves_with_paths, map_tensors, mapped, refilled, tensors_of


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Plain:
    x: Any
    y: Any = 0


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any


@dataclass
class Late:
    x: Any
    made: Any = field(init=False)


class Named(list):
    name = ""


class Fixed(Mapping):
    """A mapping that nobody can write to."""

    def __init__(self, held):
        self._held = held

    def __getitem__(self, key):
        return self._held[key]

    def __iter__(self):
        return iter(self._held)

    def __len__(self):
        return len(self._held)


class Refuses(OrderedDict):
    """Takes no update, as the results of some models."""

    def update(self, *_):
        raise RuntimeError("no update")


class Moves(UserDict):
    """Knows how it is moved."""

    def to(self, where):
        return where


def times_ten(number):
    return 10 * number


CASES = {
    "a leaf": (1, 10),
    "a text": ("ab", "ab" * 10),
    "a dict": ({"a": 1, 2: 3}, {"a": 10, 2: 30}),
    "a list": ([1, [2]], [10, [20]]),
    "a tuple": ((1, (2,)), (10, (20,))),
    "a named tuple": (Pair(1, Pair(2, 3)), Pair(10, Pair(20, 30))),
    "a dataclass": (Plain(1, [2]), Plain(10, [20])),
    "a frozen dataclass with slots": (Frozen(1), Frozen(10)),
    "an ordered dict": (OrderedDict(b=1, a=2), OrderedDict(b=10, a=20)),
    "a mapping of the user's": (UserDict(a=1), UserDict(a=10)),
    "a view of a dict": (MappingProxyType({"a": 1}), MappingProxyType({"a": 10})),
    "a mapping that takes no update": (Refuses(a=1), Refuses(a=10)),
    "nothing": ([{}, (), []], [{}, (), []]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_container_is_built_anew_as_it_was(case):
    given, expected = CASES[case]
    made = mapped(given, times_ten)
    assert made == expected
    assert type(made) is type(expected)


def test_what_a_subclass_has_besides_its_members_stays():
    named, counts = Named([1, 2]), defaultdict(list, a=1)
    named.name = "a list"
    made, other = mapped(named, times_ten), mapped(counts, times_ten)
    assert (made, type(made), made.name) == ([10, 20], Named, "a list")
    assert (other, other["new"]) == ({"a": 10, "new": []}, [])
    assert (named, counts) == ([1, 2], {"a": 1})


def test_a_mapping_that_nobody_can_write_to_becomes_a_dict():
    assert mapped(Fixed({"a": 1}), times_ten) == {"a": 10}


def test_a_field_that_has_no_value_yet_is_passed_over():
    made = mapped(Late(1), times_ten)
    assert (made.x, hasattr(made, "made")) == (10, False)


def test_leaves_come_from_left_to_right_with_their_paths():
    value = {"a": 1, "b": [2, Pair(3, Plain("text", None))], "c": Frozen({7: 4}), "d": {5}}
    assert list(leaves_with_paths(value)) == [
        (("a",), 1),
        (("b", 0), 2),
        (("b", 1, 0), 3),
        (("b", 1, 1, "x"), "text"),
        (("b", 1, 1, "y"), None),
        (("c", "x", 7), 4),
        (("d",), {5}),
    ]
    assert list(leaves(value)) == [1, 2, 3, "text", None, 4, {5}]


def test_a_value_for_which_is_leaf_is_true_is_left_whole():
    def is_pair(value):
        return isinstance(value, Pair)

    value = [Pair(1, 2), (3,)]
    assert list(leaves(value, is_pair)) == [Pair(1, 2), 3]
    assert mapped(value, lambda leaf: leaf[0] if is_pair(leaf) else -leaf, is_pair) == [1, (-3,)]


def test_a_class_is_no_container_even_one_of_dataclasses():
    assert list(leaves([Plain, dict])) == [Plain, dict]


def test_a_container_is_filled_with_other_members():
    assert refilled(Pair(1, 2), ["a", "b"]) == Pair("a", "b")
    assert refilled({"x": 1, "y": 2}, ["a", "b"]) == {"x": "a", "y": "b"}
    with pytest.raises(ValueError, match="zip"):
        refilled({"x": 1, "y": 2}, ["a"])


def test_tensors_are_found_but_not_in_what_moves_itself():
    batch = {"x": torch.tensor(1), "m": Moves(x=torch.tensor(2)), "r": (torch.tensor(3), "text")}
    assert [int(one) for one in tensors_of(batch)] == [1, 3]
    made = map_tensors(batch, torch.neg, lambda leaf: leaf.to("moved") if isinstance(leaf, Moves) else leaf)
    assert made == {"x": torch.tensor(-1), "m": "moved", "r": (torch.tensor(-3), "text")}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_a_jagged_tensor_is_its_values_and_offsets():
    jagged = torch.nested.nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    assert [one.tolist() for one in tensors_of([jagged])] == [[0, 1, 0, 1, 2], [0, 2, 5]]
    (made,) = map_tensors([jagged], torch.clone)
    assert [one.tolist() for one in made.unbind()] == [[0, 1], [0, 1, 2]]
    assert next(leaves([jagged])) is jagged


def test_all_tensors_of_objects_are_found_once():
    class Holder:
        __slots__ = ("held",)

    shared, holder = torch.tensor(1), Holder()
    holder.held = deque([shared, {"x": torch.tensor(2)}])
    assert [int(one) for one in all_tensors_of([holder, holder, shared, Moves(x=torch.tensor(3))])] == [1, 2, 3]


class Pair(tuple):
    """A tuple whose constructor takes its members, and which has an attribute."""

    def __new__(cls, first, second):
        return super().__new__(cls, (first, second))


def test_a_tuple_of_a_class_keeps_its_class_and_its_attributes():
    pair = Pair(1, 2)
    pair.name = "of numbers"
    made = mapped(pair, lambda number: -number)
    assert (type(made), tuple(made), made.name) == (Pair, (-1, -2), "of numbers")
    assert mapped(torch.Size([2, 3]), lambda number: number + 1) == torch.Size([3, 4])
