"""Finds out whether a user's function does what a `Cast` does, from two batches that a pass gives to it anyway.

gathered batch -> some elements of its fields  \
     |                                          > a cast that makes the same of them -> `LoaderStats.advice`
user's function -> the same elements of those  /

The first batch proposes casts and the second confirms them, so that statistics of a batch are not taken for constants.
The function is called no more often than without this; what is kept between the two batches are casts.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MethodType, TracebackType
from typing import Any

import torch

from memload.casts.rule import Cast
from memload.engine.gather_spec import GatherSpec, ImpliedCast
from memload.engine.transforms.cast_fit import Match, compared, matched, same_bits
from memload.engine.transforms.observed import Observation, Part
from memload.engine.transforms.seeding import Drawing, Randomness
from memload.engine.transforms.torchvision_steps import cast_of_steps

_MOST_TRIES = 8  # batches that are observed, including those that tell nothing


@dataclass(frozen=True)
class _Found:
    """What makes one tensor of the result.

    Attributes:
        key: the field that it is made of.
        match: the cast without layout that makes it; None: it is the field, unchanged.
        layout: the layout of the cast.
    """

    key: Any
    match: Match | None
    layout: str | None

    def confirmed(self, parts: Iterable[Part]) -> _Found | None:
        """Return this with what another batch showed; None: that batch contradicts it."""
        part = next((part for part in parts if (part.key, part.layout) == (self.key, self.layout)), None)
        if part is None:
            return None
        if self.match is None:
            return self if same_bits(part.x, part.y) else None
        match = compared(self.match.cast, part.x, part.y)
        return None if match is None else replace(self, match=Match(match.cast, max(match.apart, self.match.apart)))


class CastAdvice:
    """The casts that would replace the function of a loader, once two batches have shown them.

    Several threads may call it.

    Args:
        source: what is gathered, with the casts of the loader.
        casts: the casts of the loader.
        fns: the functions that samples go through, or the function of batches.
        whole: whether `fns` is the function of batches.
    """

    def __init__(self, source: GatherSpec, casts: Mapping[Any, Cast], fns: tuple[Drawing, ...], whole: bool) -> None:
        self._keys = list(source.fields)
        self._castable = {key: casts.get(key) for key in self._keys if _is_castable(key, source, casts, whole)}
        self._fns = [_reference(fn.fn) for fn in fns]
        names = ", ".join(_name_of(fn.fn) for fn in fns)
        self._named = f"batch_transform={names}" if whole else f"ds.map({names})"
        self._whole = whole
        self._lock = threading.Lock()
        self._observed = self._tries = 0  # batches that are observed now
        self._proposed: dict[Any, _Found] | None = None
        self._has_rest = False
        self.over = not self._castable or any(fn.wants for fn in fns)
        """Whether no further batch is to be observed."""
        self.text = ""
        """What the user can do, as one sentence; "" if no cast is known to replace the function."""

    def is_of(self, fns: tuple[Drawing, ...]) -> bool:
        """Whether this is about these functions."""
        return len(fns) == len(self._fns) and all(map(_is_same, (one() for one in self._fns), (one.fn for one in fns)))

    def observing(self, random: Randomness) -> Observing | None:
        """Return what observes the next batch of the thread that has these generators; None: it is not observed."""
        with self._lock:
            wanted = 2 if self._proposed is None else 1
            if self.over or self._observed >= wanted or self._tries >= _MOST_TRIES:
                return None
            self._observed += 1
            self._tries += 1
        try:
            return Observing(self, Observation(self._keys), random)
        except Exception:  # of the user's generator
            self.end()
            return None

    def take(self, seen: Observation | None) -> None:
        """Draw the conclusions from a batch that was observed; None: it told nothing."""
        with self._lock:
            self._observed -= 1
            if seen is not None and not self.over:
                self._conclude(seen)
            self.over |= self._tries >= _MOST_TRIES and not self._observed

    def end(self) -> None:
        """Observe no further batch."""
        self.over = True

    def _conclude(self, seen: Observation) -> None:
        parts = seen.parts()
        self._has_rest |= seen.has_rest
        if self._proposed is None:
            found = {key: self._proposal(parts[key]) for key in parts}
        else:
            found = {key: one.confirmed(parts.get(key, ())) for key, one in self._proposed.items()}
        known = {key: one for key, one in found.items() if one is not None}
        self._has_rest |= len(known) < len(found)
        made = [one for one in known.values() if one.match is not None]
        cast = {one.key: one for one in made}
        self._has_rest |= len(cast) < len(made)  # a field has one cast
        if not cast:
            self.over = True
        elif self._proposed is None:
            self._proposed = known
        else:
            self.over, self.text = True, self._sentence(cast)

    def _proposal(self, parts: Iterable[Part]) -> _Found | None:
        for part in parts:
            if part.layout is None and same_bits(part.x, part.y):
                return _Found(part.key, None, None)
            if part.key not in self._castable:
                continue
            known = [cast for fn in self._fns if (cast := cast_of_steps(fn(), part.x.dtype)) is not None]
            match = matched(part.x, part.y, known if len(self._fns) == 1 else ())
            found = None if match is None else _Found(part.key, match, part.layout)
            if found is not None and self._merged(found) is not None:
                return found
        return None

    def _merged(self, found: _Found) -> Cast | None:
        """Return the cast of the loader that includes the one found; None if no cast does both."""
        cast, held = found.match.cast if found.match else None, self._castable[found.key]
        if cast is None or (found.layout is not None and cast.channels not in (None, -1)):
            return None
        if found.layout is not None:
            cast = replace(cast, layout=found.layout, channels=-1)
        if held is None:
            return cast
        if held.layout is None and held.augment is None:
            return cast
        channels = -1 if held.layout is not None and cast.channels == -3 else cast.channels
        if found.layout is not None or channels not in (None, held.channels):
            return None
        return replace(cast, layout=held.layout, augment=held.augment, channels=held.channels)

    def _sentence(self, found: Mapping[Any, _Found]) -> str:
        casts = {key: merged for key, one in found.items() if (merged := self._merged(one)) is not None}
        apart = max(one.match.apart for one in found.values() if one.match is not None)
        code = ", ".join(f"{_key_code(key)}: {cast_code(cast)}" for key, cast in casts.items())
        same = (
            "all bits compared were the same"
            if apart == 0.0
            else f"the results compared were at most {apart:.2g} apart"
        )
        if self._has_rest:
            instead = "that cast, and leave this step out of the function"
        else:
            instead = (
                "that cast instead of the function" if self._whole else "the dataset without the map, and that cast"
            )
        names = " and ".join(_key_code(key) if isinstance(key, str) else f"field {key}" for key in casts)
        return (
            f"{self._named} does to {names} what cast={{{code}}} does: in two batches {same}. "
            f"Give FastLoader {instead}: native threads then convert while they gather."
        )


class Observing:
    """One batch that is observed; a context in which it is made. Errors in it end the advice, never the batch.

    Args:
        advice: takes what was seen.
        seen: the observation.
        random: the generators of the thread, which tell whether the function drew from them.
    """

    def __init__(self, advice: CastAdvice, seen: Observation, random: Randomness) -> None:
        self._advice, self.seen, self._random = advice, seen, random

    def __enter__(self) -> Observation:
        self._random.drew = False
        return self.seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._random.drew or self.seen.failed:
            self._advice.end()
        try:
            told = kind is None and not self.seen.is_random
            self._advice.take(self.seen if told else None)
        except Exception:  # tensors and generators may be of kinds that nobody thought of: the loop gets its batch
            self._advice.end()


def _is_castable(key: Any, source: GatherSpec, casts: Mapping[Any, Cast], whole: bool) -> bool:
    """Whether the loader can be given a cast of this field that takes the place of the one that it has."""
    if key in (source.uncastable or {}) or source.fields[key].kind == "text":
        return False
    held = casts.get(key)
    if held is None:
        return key not in source.casts
    if not whole or isinstance(source.casts.get(key), ImpliedCast):  # casts of samples come after their functions
        return False
    resized = held.augment is not None and held.augment.resize is not None
    widens = held.dtype == torch.float32 and source.fields[key].dtype != torch.float64
    return widens and not (held.computes or held.norm_removed or resized)


def _reference(fn: Any) -> Callable[[], Any]:
    """Return a reference that does not keep a function alive, where there is one to its kind of object."""
    try:
        return weakref.WeakMethod(fn) if isinstance(fn, MethodType) else weakref.ref(fn)
    except TypeError:
        return lambda: fn


def _is_same(one: Any, other: Any) -> bool:
    """Whether two functions are one object, or one method of one object."""
    return one is other or (isinstance(one, MethodType) and isinstance(other, MethodType) and one == other)


def _name_of(fn: Any) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def _key_code(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def cast_code(cast: Cast) -> str:
    """Return the code that makes a cast.

    Example:
        >>> cast_code(Cast(torch.float32, scale=1 / 255, mean=(0.5, 0.25), channels=-1))
        'memload.Cast("float32", scale=1 / 255, mean=(0.5, 0.25), channels=-1)'
    """
    given = [f'"{str(cast.dtype).removeprefix("torch.")}"']
    for one in fields(cast)[1:]:
        value = getattr(cast, one.name)
        if value != one.default:
            prefix = "memload." if one.name == "augment" else ""
            given.append(f"{one.name}={prefix}{_value_code(value)}")
    return f"memload.Cast({', '.join(given)})"


def _value_code(value: Any) -> str:
    if isinstance(value, float) and 0 < value < 1 and 1 / round(1 / value) == value and len(repr(value)) > 6:
        return f"1 / {round(1 / value)}"
    return f'"{value}"' if isinstance(value, str) else repr(value)
