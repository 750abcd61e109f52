"""The options of commands that open sources: what `memload.open` takes beside the path."""

from __future__ import annotations

import argparse
from typing import Any


def add_source_options(group: Any) -> None:
    """Declare them, in a group of a parser's."""
    group.add_argument("--key", action="append", help="which array of a file that has several; may be repeated")
    group.add_argument("--dtype", help="dtype of the elements of a raw binary file")
    group.add_argument("--shape", help="shape of one row of a raw binary file, such as 425,425,3")
    group.add_argument("--offset", type=int, help="bytes before the first row of a raw binary file (default: 0)")
    group.add_argument("--trust", action="store_true", help="unpickle any class in a torch.save file; may run code")


def stated(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the options say of how to open a source, as arguments of `memload.open`.

    Raises:
        ValueError: the shape is not one of whole numbers.
    """
    key = options.key[0] if options.key and len(options.key) == 1 else options.key
    shape = None if options.shape is None else _shape(options.shape)
    given = {"key": key, "dtype": options.dtype, "shape": shape, "offset": options.offset}
    trust = {"trust": True} if options.trust else {}
    return {name: value for name, value in given.items() if value is not None} | trust


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(side) for side in text.replace("x", ",").split(",") if side)
    except ValueError:
        raise ValueError(f"--shape: expected sides such as 425,425,3, got {text!r}") from None
