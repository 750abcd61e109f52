"""Small checks of the entries of a state, which are combined to checks of whole states.

A check is a function of a value and of the path to it, such as ``state["position"]["row"]``. It raises ValueError,
with the path, the value and the expectation, if the value cannot be right.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Check = Callable[[Any, str], None]

LARGEST = (1 << 62) - 1
"""The largest value of a counter in a state."""
SEEDS = 1 << 63
"""The upper bound of seeds, which are not negative."""


def damaged(path: str, value: Any, expected: str) -> ValueError:
    """Return the error for an entry that cannot be right."""
    return ValueError(f"the state is damaged: {path} is {value!r:.80}, expected {expected}")


def whole(least: int, most: int = LARGEST) -> Check:
    """Return the check that a value is an integer in this range, both ends included."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            wanted = str(least) if least == most else f"an integer from {least} to {most}"
            raise damaged(path, value, wanted)

    return check


def exactly(number: int, reason: str) -> Check:
    """Return the check that a value is this integer; errors name the reason."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value != number:
            raise damaged(path, value, f"{number} {reason}")

    return check


def flag(value: Any, path: str) -> None:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise damaged(path, value, "True or False")


def true(value: Any, path: str) -> None:
    """Check that a value, which may be missing, is True."""
    if value is not True:
        raise damaged(path, value, "True, or no such entry")


def anything(value: Any, path: str) -> None:
    """Accept any value, because the user's sampler or dataset judges it."""


def optional(check: Check) -> Check:
    """Return the check that a value is None or passes another check."""

    def either(value: Any, path: str) -> None:
        if value is not None:
            check(value, path)

    return either


def listed(check: Check, least: int = 0, most: int = LARGEST) -> Check:
    """Return the check that a value is a list of `least` to `most` entries that pass another check."""

    def each(value: Any, path: str) -> None:
        if not isinstance(value, list | tuple):
            raise damaged(path, value, "a list")
        if not least <= len(value) <= most:
            entries = str(least) if least == most else f"{least} to {most}"
            raise damaged(path, value, f"a list of {entries} entries, not {len(value)}")
        for number, one in enumerate(value):
            check(one, f"{path}[{number}]")

    return each


def rising(value: Sequence[int], path: str) -> None:
    """Check that each entry of a list of integers is larger than the one before."""
    for number, (before, one) in enumerate(itertools.pairwise(value), 1):
        if one <= before:
            raise damaged(f"{path}[{number}]", one, f"more than {before}, the entry before it")


def entries(required: Mapping[str, Check], others: Mapping[str, Check] | None = None) -> Check:
    """Return the check of a dict with required and optional entries; entries of other names may be anything."""

    def each(value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            raise damaged(path, value, "a dict")
        for name, check in {**(others or {}), **required}.items():
            if name in value:
                check(value[name], f'{path}["{name}"]')
            elif name in required:
                raise ValueError(f'the state is damaged: {path} has no entry "{name}"')

    return each


def by_name(check: Callable[[str], Check]) -> Check:
    """Return the check of a dict whose keys are texts and whose entries pass the check for their key."""

    def each(value: Any, path: str) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise damaged(path, value, "a dict with names as keys")
        for name, one in value.items():
            check(name)(one, f'{path}["{name}"]')

    return each


def generator_state(generator: torch.Generator | None = None) -> Check:
    """Return the check that a value is the state, as text, of a generator on the device of this one."""

    def check(value: Any, path: str) -> None:
        state = _bytes(value, path, "the base64 of a generator's state")
        try:
            torch.Generator("cpu" if generator is None else generator.device).set_state(state)
        except (RuntimeError, TypeError) as error:
            raise damaged(path, value, f"the base64 of a generator's state ({error})") from error

    return check


def bits(count: int, ones: int) -> Check:
    """Return the check that a value is the base64 of `count` bits with `ones` set; an empty text has no bit set."""

    def check(value: Any, path: str) -> None:
        expected = f"the base64 of {count} bits, {ones} of them set"
        if value == "" and not ones:
            return
        packed = _bytes(value, path, expected).numpy().tobytes()
        if len(packed) != -(-count // 8) or int.from_bytes(packed, "big").bit_count() != ones:
            raise damaged(path, value, expected)

    return check


def text(length: int) -> Check:
    """Return the check that a value is a text of `length` characters."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str) or len(value) != length:
            raise damaged(path, value, f"a text of {length} characters")

    return check


def _bytes(value: Any, path: str, expected: str) -> torch.Tensor:
    if not isinstance(value, str) or not value:
        raise damaged(path, value, expected)
    try:
        return torch.frombuffer(bytearray(base64.b64decode(value, validate=True)), dtype=torch.uint8)
    except (binascii.Error, ValueError) as error:
        raise damaged(path, value, expected) from error
