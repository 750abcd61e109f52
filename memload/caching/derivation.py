"""The key of a computation over a dataset, made of its rows and its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import xxhash

from memload.caching.content import content_of
from memload.caching.fingerprints import UnhashableError, fingerprint
from memload.casts.rule import exact_text
from memload.dataset.dataset import Dataset
from memload.dataset.mapped import MappedDataset
from memload.engine.gather_spec import NotNative
from memload.engine.readers import resolve


def key_of(
    what: str,
    dataset: Any,
    functions: Sequence[Callable[..., Any]],
    version: str | None,
    progress: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return 32 hexadecimal digits, which are equal in other processes for the same functions and rows.

    Args:
        what: the kind of the computation, as a word.
        dataset: the rows.
        functions: the functions that are applied to the rows, in order.
        version: a text that stands for the functions, and for a dataset without an identity; None: they are hashed.
        progress: whether to show a bar while rows are read; None shows it on a terminal.
        options: the options that change the results, by name.

    Raises:
        ValueError: a function or the dataset cannot be hashed, and there is no version.
        TypeError: the version is not a text.
    """
    if version is not None and not isinstance(version, str):
        raise TypeError(f"version= must be a text, got {type(version).__name__}")
    code = [version] if version is not None else [_hashed_function(fn) for fn in functions]
    parts = [what, _rows(dataset, version, progress), *code, *_hashed_options(options or {}, version)]
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode())


def name_of(fn: Any) -> str:
    """Return the name of a function for messages and paths."""
    inner = getattr(fn, "func", fn)  # the function in a functools.partial
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def _hashed_function(fn: Callable[..., Any]) -> str:
    try:
        return fingerprint(fn)
    except UnhashableError as error:
        raise ValueError(
            f"{name_of(fn)} cannot be hashed ({error}), so its results could not be found again; give version=, a text "
            "that you change whenever the function or anything it uses changes"
        ) from error


def _hashed_options(options: Mapping[str, Any], version: str | None) -> Iterator[str]:
    for name in sorted(options):
        try:
            yield f"{name} {fingerprint(options[name])}"
        except UnhashableError as error:
            if version is None:
                raise ValueError(f"{name}= cannot be hashed ({error}); give version=, a text of your choice") from error


def _rows(dataset: Any, version: str | None, progress: bool | None) -> str:
    if isinstance(dataset, Dataset):
        return content_of(dataset, progress)
    if isinstance(dataset, MappedDataset):
        function = "" if version is not None else _hashed_function(dataset.fn)
        return f"{_rows(dataset.base, version, progress)}\0{function}"
    try:
        source = resolve(dataset)
        known = content_of(Dataset({str(key): field for key, field in source.fields.items()}), progress)
        casts = ", ".join(f"{key!r}: {exact_text(cast)}" for key, cast in source.casts.items())
        return f"{known}\0{source.layout!r}\0{{{casts}}}\0{fingerprint(source.maps)}"
    except NotNative:
        pass
    except UnhashableError as error:
        if version is None:
            raise ValueError(f"the dataset's functions cannot be hashed ({error}); give version=") from error
    if version is not None:
        return f"{type(dataset).__qualname__} {len(dataset)}"
    try:
        return fingerprint(dataset)
    except UnhashableError as error:
        raise ValueError(
            f"{type(dataset).__name__} cannot be hashed ({error}); give version=, a text that you change whenever its "
            "rows or the function change"
        ) from error
