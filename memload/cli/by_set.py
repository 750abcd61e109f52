"""Parses options that hold for all data sets of a plan, or for one by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memload.casts.rule import Cast
from memload.cli.cast_options import cast_of
from memload.planning.shape import DatasetShape


def by_set(given: Sequence[str] | None, option: str, read: Callable[[str, str], Any] = lambda text, _: text) -> Any:
    """Return the value of an option for all data sets, or its values by their names; None if it was not given.

    Args:
        given: texts such as "ram", or "mouse=ram".
        option: the option, such as "--tier", for messages.
        read: turns the text of a value, and the option, into the value.

    Raises:
        ValueError: it is given for all and by name, or twice for a data set.

    Example:
        >>> by_set(["mouse=ram", "monkey=auto"], "--tier")
        {'mouse': 'ram', 'monkey': 'auto'}
    """
    if not given:
        return None
    pairs = [text.rpartition("=") for text in given]
    if len(pairs) == 1 and not pairs[0][1]:
        return read(pairs[0][2], option)
    if not all(name for name, _, _ in pairs) or len({name for name, _, _ in pairs}) < len(pairs):
        raise ValueError(f"{option} is given once, or as SET=... once for each data set: got {' '.join(given)}")
    return {name: read(value, option) for name, _, value in pairs}


def casts(given: Sequence[str] | None, option: str, data: Any) -> dict[str, Any] | None:
    """Return casts by field, or by data set and field; None if there are none.

    Args:
        given: texts such as "bfloat16" for all floating fields, "stim=bfloat16" or "mouse:stim=float32,norm_removed".
        option: the option, such as "--cast", for messages.
        data: the dataset, its shape, or data sets by name.

    Raises:
        ValueError: it is no such text, or there is no floating field.
    """
    if not given:
        return None
    found: dict[str, dict[str, Cast]] = {}
    for text in given:
        name, _, wanted = text.rpartition("=")
        of, _, field = name.rpartition(":")
        if "=" in text and not field:
            raise ValueError(f"{option}: expected [[SET:]NAME=]DTYPE such as stim=bfloat16, got {text!r}")
        cast = cast_of(wanted, option)
        fields = [field] if field else _floating(data, option, text)
        found.setdefault(of, {}).update(dict.fromkeys(fields, cast))
    if list(found) == [""]:
        return found[""]
    if not isinstance(data, dict):
        raise ValueError(f"{option}: {' '.join(given)} names a data set, and there is one only: leave the name out")
    common = found.pop("", {})
    for of in found:
        if of not in data:
            raise ValueError(f"{option} names the data set {of!r}; there are {', '.join(data)}")
    return {name: {**_known(common, one), **found.get(name, {})} for name, one in data.items()}


def whole_number(text: str, option: str) -> int:
    """Return the number of a text. Raises ValueError if it is none."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{option}: expected a whole number, got {text!r}") from None


def _known(common: dict[str, Cast], data: Any) -> dict[str, Cast]:
    return {field: cast for field, cast in common.items() if field in data.fields}


def _floating(data: Any, option: str, text: str) -> list[str]:
    """Return the names of the floating fields of all data sets, as `memload write` casts them without a name."""
    sets = list(data.values()) if isinstance(data, dict) else [data]
    dtypes = {
        name: form[0] if isinstance(one, DatasetShape) else form.dtype
        for one in sets
        for name, form in one.fields.items()
    }
    found = [name for name, dtype in dtypes.items() if dtype.is_floating_point]
    if not found:
        raise ValueError(
            f"{option} without a name is for floating fields, and no field is: name it, as in {option} "
            f"{next(iter(dtypes))}={text}; the fields are {', '.join(dtypes)}"
        )
    return found
