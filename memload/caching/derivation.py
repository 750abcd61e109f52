"""The key of a computation over a dataset, made of its rows and its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import xxhash

from memload.caching.content import content_of
from memload.caching.fingerprints import UnhashableError, fingerprint
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
    """Return 32 hexadecimal digits that are the same in another process for the same functions over the same rows.

    Args:
        what: is computed, as a word.
        dataset: whose rows these are.
        functions: that are applied to them, in order.
        version: stands for the functions, and for a dataset that is not known again otherwise; None: they are hashed.
        progress: whether to show a bar where rows have to be read for it; None shows it on a terminal.
        options: that change what is computed, by name.

    Raises:
        ValueError: a function or the dataset cannot be hashed, and there is no version.
        TypeError: the version is no text.
    """
    if version is not None and not isinstance(version, str):
        raise TypeError(f"version= is a text of yours, got {type(version).__name__}")
    code = [version] if version is not None else [_hashed_function(one) for one in functions]
    parts = [what, _rows(dataset, version, progress), *code, *_hashed_options(options or {}, version)]
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode())


def name_of(fn: Any) -> str:
    """Return what people call a function."""
    inner = getattr(fn, "func", fn)  # of functools.partial
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def _hashed_function(fn: Callable[..., Any]) -> str:
    try:
        return fingerprint(fn)
    except UnhashableError as error:
        raise ValueError(
            f"{name_of(fn)} cannot be told from other functions, so that what it computed would not be known again "
            f"({error}); give version=, a text of yours that changes whenever the function or what it uses changes"
        ) from error


def _hashed_options(options: Mapping[str, Any], version: str | None) -> Iterator[str]:
    for name in sorted(options):
        try:
            yield f"{name} {fingerprint(options[name])}"
        except UnhashableError as error:
            if version is None:
                raise ValueError(
                    f"{name}= cannot be told from others ({error}); give version=, a text of yours"
                ) from error


def _rows(dataset: Any, version: str | None, progress: bool | None) -> str:
    if isinstance(dataset, Dataset):
        return content_of(dataset, progress)
    if isinstance(dataset, MappedDataset):
        own = "" if version is not None else _hashed_function(dataset.fn)
        return f"{_rows(dataset.base, version, progress)}\0{own}"
    try:
        source = resolve(dataset)
        known = content_of(Dataset({str(key): field for key, field in source.fields.items()}), progress)
        return f"{known}\0{source.layout!r}\0{source.casts!r}\0{fingerprint(source.maps)}"
    except NotNative:
        pass
    except UnhashableError as error:
        if version is None:
            raise ValueError(f"the dataset's functions cannot be told from others ({error}); give version=") from error
    if version is not None:
        return f"{type(dataset).__qualname__} {len(dataset)}"
    try:
        return fingerprint(dataset)
    except UnhashableError as error:
        raise ValueError(
            f"{type(dataset).__name__} cannot be told from other datasets ({error}); give version=, a text of yours "
            "that changes whenever its rows or the function change"
        ) from error
