"""`memload write`: files, as a set of shards; what is converted on the way is said by options."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from memload.cast import Cast
from memload.dataset import Dataset
from memload.dtypes import as_torch_dtype
from memload.errors import LayoutWarning
from memload.groups import concat
from memload.opening import open  # noqa: A004 - memload's own
from memload.source_options import add_source_options, stated
from memload.writing import write
from memload.zipping import zip  # noqa: A004 - memload's own

HELP = "Convert files into a set of shards"

_USAGE = "memload write [options] [NAME=]SRC... DST"

_DESCRIPTION = """\
Convert files into a set of shards, a directory that memload reads fastest and any safetensors tool reads, too.

Each SRC is whatever `memload info` opens. Sources of one name follow one another; those of several names lie side by
side, and must have as many rows. NAME= names the field of a source that has one.

What is interrupted leaves nothing that opens; the same command goes on where it was interrupted, after it has
verified what is there. Another command begins anew.
"""

_EXAMPLES = """\
examples:
  memload write betas.npy shards/
  memload write stim=stimuli.npy robs=responses.npy --cast robs=bfloat16 shards/
  memload write session01.hdf5 session02.hdf5 --key betas --mask roi.npy --scale 1/300 --cast bfloat16 shards/
  memload write movie.raw --dtype uint8 --shape 425,425,3 --rows 0:1000 shards/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload write`."""
    parser.usage, parser.description, parser.epilog = _USAGE, _DESCRIPTION, _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("paths", nargs="*", metavar="PATH", help="what to convert, and last the directory to make")
    _add_conversions(parser.add_argument_group("conversions, in this order"))
    add_source_options(parser.add_argument_group("how to open the sources"))
    _add_target_options(parser.add_argument_group("how to write"))


def _add_conversions(group: Any) -> None:
    group.add_argument(
        "--rows",
        metavar="A:B",
        help="these rows only: 0:1000, as Python slices, or a .npy file of row numbers or bools",
    )
    group.add_argument(
        "--mask",
        action="append",
        metavar="[NAME=]NPY",
        help="of each row, the elements where this bool array is true: of the shape of a row, or of its first axes",
    )
    group.add_argument(
        "--scale",
        action="append",
        metavar="[NAME=]X",
        help="multiply by X, such as 0.5 or 1/300; the result is float32",
    )
    group.add_argument(
        "--cast",
        action="append",
        metavar="[NAME=]DTYPE",
        help="to bfloat16, float16, float32 or float64: all floating and scaled fields, or the one named. A uint8 "
        "field is cast only if named, and keeps its values; with DTYPE,norm_removed it becomes (x - 127) / 255",
    )


def _add_target_options(group: Any) -> None:
    group.add_argument("--shard-bytes", default="512MB", help="how large a shard may grow (default: %(default)s)")
    group.add_argument("--append", action="store_true", help="add shards to the set if it exists")
    group.add_argument("--anew", action="store_true", help="do not go on where the same command was interrupted")
    group.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(options: argparse.Namespace) -> int:
    """Convert, and print what was written."""
    *sources, target = options.paths or [""]
    if not sources:
        raise ValueError(f"expected what to convert and the directory to make: {_USAGE}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # which would advise to do what is done here
        dataset = _open_sources(sources, stated(options))
    written = write(
        target,
        dataset,
        rows=None if options.rows is None else _rows(options.rows, len(dataset)),
        mask=_named("--mask", options.mask, _path),
        scale=_named("--scale", options.scale, _factor),
        cast=_named("--cast", options.cast, _cast),
        shard_bytes=options.shard_bytes,
        append=options.append,
        resume=not options.anew,
        progress=False if options.quiet else None,
    )
    print(written)
    return 0


def _open_sources(sources: Sequence[str], stated: dict[str, Any]) -> Dataset:
    members: dict[str, list[Dataset]] = {}
    for source in sources:
        name, path = _name_and_value(source)
        dataset = open(path, **stated)
        members.setdefault(name or " and ".join(dataset.fields), []).append(dataset)
    parts = {label: parts[0] if len(parts) == 1 else concat(parts) for label, parts in members.items()}
    return zip(**parts)


def _name_and_value(text: str) -> tuple[str, str]:
    """Split NAME=VALUE; a value that is a path with `=` in it has no name."""
    name, equals, value = text.partition("=")
    return (name, value) if equals and not Path(text).exists() else ("", text)


def _named(option: str, given: Sequence[str] | None, read: Callable[[str], Any]) -> Any:
    """Return what an option says: of all fields, or by field."""
    if given is None:
        return None
    pairs = [_name_and_value(text) for text in given]
    if len(pairs) == 1 and not pairs[0][0]:
        return read(pairs[0][1])
    if not all(name for name, _ in pairs):
        raise ValueError(f"{option} is given once for all fields, or as NAME=... for each: got {' '.join(given)}")
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError(f"{option} names a field twice: {' '.join(given)}")
    return {name: read(value) for name, value in pairs}


def _path(text: str) -> Path:
    return Path(text)


def _factor(text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--scale: {text!r} is no number such as 0.00333 or 1/300") from None


def _cast(text: str) -> Cast:
    dtype, comma, norm = text.partition(",")
    if comma and norm != "norm_removed":
        raise ValueError(f"--cast: expected DTYPE or DTYPE,norm_removed, got {text!r}")
    return Cast(as_torch_dtype(dtype), norm_removed=bool(comma))


def _rows(text: str, length: int) -> Any:
    if text.endswith(".npy"):
        return np.load(text, allow_pickle=False)
    try:
        parts = [int(part) if part else None for part in text.split(":")]
        if not 2 <= len(parts) <= 3:
            raise ValueError
        return range(*slice(*parts).indices(length))
    except ValueError:
        raise ValueError(f"--rows: expected a slice such as 0:1000, or a .npy file, got {text!r}") from None
