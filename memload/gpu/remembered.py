"""What was worked out of an object, for as long as that lives: found by which object it is, whatever it holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Remembered:
    """Results by object and key. Any thread may call it.

    An ordinary cache hashes and compares its keys: constants for 100,000 channels would be gone through for each batch.

    Example:
        >>> class Rule: ...
        >>> rules, rule = Remembered(), Rule()
        >>> rules.of(rule, "a", lambda: [1]) is rules.of(rule, "a", lambda: [2])
        True
        >>> rules.of(Rule(), "a", lambda: [3])
        [3]
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], dict[Hashable, Any]]] = {}

    def of(self, owner: Any, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned at the first call with this very object and an equal key."""
        ref, results = self._found.get(id(owner), (None, {}))
        if ref is None or ref() is not owner:
            ref, results = weakref.ref(owner, self._forgetting(id(owner))), {}
            self._found[id(owner)] = ref, results
        if key not in results:
            results[key] = make()
        made: T = results[key]
        return made

    def _forgetting(self, number: int) -> Callable[[weakref.ref[Any]], None]:
        found = self._found

        def forget(ref: weakref.ref[Any]) -> None:
            if found.get(number, (None,))[0] is ref:  # another object may have its number by now
                del found[number]

        return forget
