"""What users can write stays: names, arguments, methods, attributes and options of commands are those on record."""

import argparse
import enum
import functools
from typing import NamedTuple

import public_interface
import pytest
import torch

import memload


def test_nothing_that_users_can_write_was_lost_and_nothing_came_unnoticed():
    said = public_interface.difference(public_interface.RECORD.read_text().splitlines(), public_interface.interface())
    assert not said, said


def test_a_difference_names_what_was_lost_what_is_new_and_how_to_record_it():
    assert public_interface.difference(["a(x)", "b"], ["a(x, y=1)", "b"]).splitlines() == [
        "lost:  a(x)",
        "added: a(x, y=1)",
        "If this is meant: python tools/public_interface.py --record",
    ]
    assert public_interface.difference(["a"], ["a"]) == ""


NO_TEXT = object()


class Colour(enum.Enum):
    RED = 1


def of_many_kinds(
    a,
    /,
    b,
    c=1,
    *d,
    e,
    f="x",
    g=torch.int8,
    h=Colour.RED,
    i=len,
    j=(1, None),
    k=NO_TEXT,
    **m,
): ...


def test_arguments_are_said_as_a_user_writes_them():
    said = "(a, /, b, c=1, *d, e, f='x', g=torch.int8, h=Colour.RED, i=len, j=(1, None), k=..., **m)"
    assert public_interface.arguments(of_many_kinds) == said
    assert public_interface.arguments(lambda self, *, x: x, bound=True) == "(*, x)"


class Base:
    def __init__(self, size):
        self.size = size
        self._hidden = size

    def grown(self, by=1):
        self.grown_by = by

    @functools.cached_property
    def later(self): ...

    @property
    def now(self): ...

    @classmethod
    def of(cls, text): ...

    @staticmethod
    def plain(text): ...

    def _own(self): ...

    def __len__(self): ...


class Derived(Base, list):
    declared: int

    def grown(self, by=2, *, further=None): ...


def test_a_class_is_its_constructor_its_bases_methods_and_attributes(monkeypatch):
    monkeypatch.setattr(public_interface, "OURS", __name__.partition(".")[0])
    assert sorted(public_interface.of_class("It", Derived)) == [
        "It is a list",
        "It(size)",
        "It.__len__()",
        "It.declared",
        "It.grown(by=2, *, further=None)",
        "It.grown_by",
        "It.later",
        "It.now",
        "It.of(text)",
        "It.plain(text)",
        "It.size",
    ]


class Pair(NamedTuple):
    left: int
    right: int = 0


def test_named_tuples_and_errors_are_recorded_as_what_they_are(monkeypatch):
    error = list(public_interface.of_class("FormatError", memload.FormatError))
    assert error == ["FormatError", "FormatError is a MemloadError, ValueError, Exception, BaseException"]
    monkeypatch.setattr(public_interface, "OURS", __name__.partition(".")[0])
    assert sorted(public_interface.of_class("Pair", Pair)) == [
        *("Pair is a tuple", "Pair(left, right=0)"),
        *("Pair.left", "Pair.right"),
    ]


def test_an_enumeration_is_its_members():
    said = list(public_interface.of_class("Tier", memload.Tier))
    assert "Tier" in said
    assert "Tier.RAM" in said


def test_options_of_all_commands_are_walked_into_the_depth():
    parser = argparse.ArgumentParser("it", add_help=False)
    parser.add_argument("--size", type=int, default=3)
    inner = parser.add_subparsers().add_parser("do", add_help=False)
    inner.add_argument("-f", "--form", choices=["a", "b"], required=True)
    inner.add_argument("paths", nargs="+")
    assert sorted(public_interface.options_of("it", parser)) == [
        "it",
        "it --size default=3",
        "it do",
        "it do -f/--form of a|b required",
        "it do paths nargs=+",
    ]


@pytest.mark.parametrize("line", ["memload write --fit of stretch|crop|pad", "__version__", "Tier.RAM"])
def test_the_record_has(line):
    assert line in public_interface.RECORD.read_text().splitlines()
