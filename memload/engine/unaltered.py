"""Whether an object answers as its class was written to: native reading must not pass by what a user overrides."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

ITEMS = ("__getitem__", "__getitems__", "__len__")
"""The methods that give the samples of any dataset."""

T = TypeVar("T")


class Unaltered:
    """What a class answers by, taken down when memload is imported.

    Args:
        kind: the class.
        methods: names of the methods that decide what an instance answers; one that the class lacks must stay lacking.
        attributes: what those methods read of an instance: plain attributes, which a subclass could make computed ones.
    """

    def __init__(self, kind: type, methods: Iterable[str], attributes: Iterable[str] = ()) -> None:
        self.kind = kind
        self._methods = {name: getattr(kind, name, None) for name in (*methods, "__getattribute__", "__getattr__")}
        self._attributes = tuple(attributes)

    def difference(self, instance: Any) -> str | None:
        """Return the name of the first thing by which this instance of the class may answer differently, or None."""
        cls, own = type(instance), getattr(instance, "__dict__", {})
        for name, method in self._methods.items():
            if getattr(cls, name, None) is not method or self._is_patch(method) or name in own:
                return name
        return next((name for name in self._attributes if hasattr(cls, name) or name not in own), None)

    def _is_patch(self, method: Any) -> bool:
        """Whether the class had got this method from elsewhere before memload was imported."""
        home = getattr(method, "__globals__", None)
        return home is not None and all(home is not vars(sys.modules[cls.__module__]) for cls in self.kind.__mro__)


def answers_by(*methods: str, attributes: Iterable[str] = ()) -> Callable[[type[T]], type[T]]:
    """Return a decorator for a class of datasets that say by ``__memload_source__()`` how the engine reads them.

    It takes down what the class answers by, so that the engine asks no subclass that answers otherwise.

    Args:
        methods: the methods that decide what an instance answers, beside those that give samples.
        attributes: what the methods read of an instance; see `Unaltered`.
    """

    def taken_down(kind: type[T]) -> type[T]:
        kind.__memload_unaltered__ = Unaltered(kind, (*ITEMS, *methods), attributes)  # type: ignore[attr-defined]
        return kind

    return taken_down


def unaltered_of(kind: type) -> Unaltered | None:
    """Return what a class with `answers_by` of its own answers by; None for others, and for their subclasses."""
    found = vars(kind).get("__memload_unaltered__")
    return found if isinstance(found, Unaltered) else None
