"""`memload write`: files, as a set of shards; what is converted on the way is said by options."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from memload.casts.rule import Cast
from memload.commands.source_options import add_source_options, stated
from memload.dataset import Dataset
from memload.dtypes import as_torch_dtype
from memload.errors import LayoutWarning
from memload.groups.datasets import concat
from memload.opening import open  # noqa: A004 - memload's own
from memload.pictures.pixels import FITS, MODES
from memload.pictures.writing import write_images
from memload.shards.conversion import load_array
from memload.shards.writing import write
from memload.zipping import zip  # noqa: A004 - memload's own

HELP = "Convert files into a set of shards"

_USAGE = """\
memload write [options] [NAME=]SRC... DST
       memload write --images DIR [--masks DIR] [--size N] [options] DST"""

_DESCRIPTION = """\
Convert files into a set of shards, a directory that memload reads fastest and any safetensors tool reads, too.

Each SRC is whatever `memload info` opens. Sources with the same name are concatenated; sources with different names
become fields side by side, and must have equally many rows. NAME= names the field of a source that has only one.
Pictures (--images) are decoded, and become the fields image, mask, those of --labels, and file.

An interrupted conversion leaves nothing that opens; the same command resumes it, after verifying what is complete.
Any other command starts over.
"""

_EXAMPLES = """\
examples:
  memload write betas.npy shards/
  memload write stim=stimuli.npy robs=responses.npy --cast robs=bfloat16 shards/
  memload write session01.hdf5 session02.hdf5 --key betas --mask roi.npy --scale 1/300 --cast bfloat16 shards/
  memload write movie.raw --dtype uint8 --shape 425,425,3 --rows 0:1000 shards/
  memload write --images photos/ --masks masks/ --labels prompts.csv --size 1024 shards/
"""


_OF_SOURCES = ("rows", "mask", "scale", "cast", "codec", "key", "dtype", "shape", "offset", "trust")
_OF_PICTURES = ("masks", "labels", "size", "fit", "mode", "skip_damaged")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload write`."""
    parser.usage, parser.description, parser.epilog = _USAGE, _DESCRIPTION, _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("paths", nargs="*", metavar="PATH", help="what to convert, and last the directory to make")
    _add_conversions(parser.add_argument_group("conversions, in this order"))
    add_source_options(parser.add_argument_group("how to open the sources"))
    _add_pictures(parser.add_argument_group("pictures, instead of sources"))
    _add_target_options(parser.add_argument_group("how to write"))


def _add_conversions(group: Any) -> None:
    group.add_argument(
        "--rows",
        metavar="A:B",
        help="these rows only: 0:1000 or -100:, as Python slices, or a .npy file of row numbers or bools",
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


def _add_pictures(group: Any) -> None:
    group.add_argument("--images", metavar="DIR", help="a folder of JPEG and PNG files")
    group.add_argument("--masks", metavar="DIR", help="a folder of PNG files, one of the same name for each image")
    group.add_argument(
        "--labels", metavar="folders|CSV", help="the folder of each image; or a table with a column `file` or `stem`"
    )
    group.add_argument("--size", metavar="N|HxW", help="resize images (bicubic) and masks (nearest pixel) to this")
    group.add_argument("--fit", choices=FITS, help="stretch to that size (default), or crop to its proportions first")
    group.add_argument("--mode", choices=MODES, help="of the images (default: grey if all are, otherwise RGB)")
    group.add_argument("--skip-damaged", action="store_true", help="leave damaged pictures out, and list them")


def _add_target_options(group: Any) -> None:
    group.add_argument("--shard-bytes", default="512MB", help="how large a shard may grow (default: %(default)s)")
    group.add_argument(
        "--codec",
        action="append",
        metavar="[NAME=]CODEC",
        help="compress: lz4, zstd or blosc2, with options as in zstd:9,shuffle=bit; auto takes a sample, and states "
        "ratio, decode rate and choice",
    )
    group.add_argument("--append", action="store_true", help="add shards to the set if it exists")
    group.add_argument("--anew", action="store_true", help="do not go on where the same command was interrupted")
    group.add_argument("--quiet", action="store_true", help="show no progress bar")


def attached(arguments: Sequence[str]) -> list[str]:
    """Return arguments of a command line with values such as -5: attached to their options, as in --rows=-5:.

    For argparse, what begins with a minus and is no number is an option.
    """
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] in ("--rows", "--scale") and re.match(r"-[\d.:]", argument):
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


def run(options: argparse.Namespace) -> int:
    """Convert, and print what was written."""
    print(_write_pictures(options) if options.images else _write_sources(options))
    return 0


def _write_pictures(options: argparse.Namespace) -> Dataset:
    given = [f"--{name}" for name in _OF_SOURCES if getattr(options, name)]
    if len(options.paths) != 1 or given:
        surplus = given or [f"{len(options.paths)} paths"]
        raise ValueError(f"with --images, expected the directory to make alone, got {', '.join(surplus)}")
    return write_images(
        options.paths[0],
        options.images,
        options.masks,
        labels=options.labels,
        size=None if options.size is None else _size(options.size),
        fit=options.fit or "stretch",
        mode=options.mode,
        skip_damaged=options.skip_damaged,
        **_of_target(options),
    )


def _write_sources(options: argparse.Namespace) -> Dataset:
    given = [f"--{name}" for name in _OF_PICTURES if getattr(options, name)]
    if given:
        raise ValueError(f"{', '.join(given)}: for pictures, which are given by --images DIR")
    *sources, target = options.paths or [""]
    if not sources:
        raise ValueError(f"expected what to convert and the directory to make:\n       {_USAGE}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # which would advise to do what is done here
        dataset = _open_sources(sources, stated(options))
    return write(
        target,
        dataset,
        rows=None if options.rows is None else _rows(options.rows, len(dataset)),
        mask=_named("--mask", options.mask, _path),
        scale=_named("--scale", options.scale, _factor),
        cast=_named("--cast", options.cast, _cast),
        codec=_named("--codec", options.codec, str, _codec_of_field),
        **_of_target(options),
    )


def _of_target(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "shard_bytes": options.shard_bytes,
        "append": options.append,
        "resume": not options.anew,
        "progress": False if options.quiet else None,
    }


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


def _codec_of_field(text: str) -> tuple[str, str]:
    """Split NAME=CODEC, of which CODEC may have a `=` behind its colon."""
    return ("", text) if ":" in text.partition("=")[0] else _name_and_value(text)


def _named(
    option: str,
    given: Sequence[str] | None,
    read: Callable[[str], Any],
    split: Callable[[str], tuple[str, str]] = _name_and_value,
) -> Any:
    """Return what an option says: of all fields, or by field."""
    if given is None:
        return None
    pairs = [split(text) for text in given]
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
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"--scale: {text!r} is no number such as 0.00333 or 1/300") from None


def _cast(text: str) -> Cast:
    dtype, comma, norm = text.partition(",")
    if comma and norm != "norm_removed":
        raise ValueError(f"--cast: expected DTYPE or DTYPE,norm_removed, got {text!r}")
    return Cast(as_torch_dtype(dtype), norm_removed=bool(comma))


def _size(text: str) -> int | tuple[int, int]:
    sides = text.split("x")
    if not all(side.isdecimal() for side in sides) or len(sides) > 2:
        raise ValueError(f"--size: expected a number of pixels, or height x width as in 480x640, got {text!r}")
    return int(text) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _rows(text: str, length: int) -> Any:
    if text.endswith(".npy"):
        return load_array(text)
    try:
        parts = [int(part) if part else None for part in text.split(":")]
        if not 2 <= len(parts) <= 3:
            raise ValueError
        return range(*slice(*parts).indices(length))
    except ValueError:
        raise ValueError(f"--rows: expected a slice such as 0:1000, or a .npy file, got {text!r}") from None
