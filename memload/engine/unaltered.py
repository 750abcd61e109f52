"""Whether an object answers as its class was written to: native reading must not pass by what a user overrides."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


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
