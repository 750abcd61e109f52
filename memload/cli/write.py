"""`memload write`: converts files into a set of shards; options select and convert rows."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from memload.casts.rule import Cast
from memload.cli.cast_options import cast_of
from memload.cli.decoded import decoder_of, size_of
from memload.cli.described import described
from memload.cli.options import WRITE_USAGE, sized, stated
from memload.cli.output import answer, plain
from memload.cli.recordings import described as described_recording
from memload.cli.recordings import recordings_at, write_all
from memload.cli.source_options import name_and_value, open_sources
from memload.dataset.dataset import Dataset
from memload.dataset.recordings.recording import Recording
from memload.errors import LayoutWarning
from memload.formats.shards.part_terms import PartNumber
from memload.images.writing import write_images
from memload.sizes import counted
from memload.writing.masks import load_array
from memload.writing.parts import WrittenPart, write_share
from memload.writing.write import write

_OF_SOURCES = (
    *("rows", "mask", "scale", "cast", "codec", "key", "dtype", "shape", "offset", "trust"),
    *("row_field", "file_field", "axis", "on", "how"),
)
_OF_IMAGES = (
    *("masks", "mask_suffix", "labels", "table", "image_column", "size", "fit", "crop", "pad_value", "mask_pad_value"),
    *("mode", "skip_damaged", "skip_unmatched"),
)
_OF_DECODED = ("tr", "raw", "rate")
_NOT_IN_PARTS = ("images", "append")
_NOT_FOR_RECORDINGS = ("rows", "mask", "scale", "cast", "axis", "on", "how", "append", "part")


def run(options: argparse.Namespace) -> int:
    """Convert, and print what was written."""
    if written := _write_recordings(options):
        text = "\n".join(f"{place}: {recording}" for place, recording in written.items())
        documents = {place: described_recording(recording) for place, recording in written.items()}
        answer(options, text, {"path": options.paths[-1], "recordings": documents})
    elif options.part is not None:
        part = _write_part(options)
        answer(options, part, {"path": options.paths[-1], **plain(part)})
    else:
        dataset = _write_images(options) if options.images else _write_sources(options)
        answer(options, dataset, {"path": options.paths[-1], **described(dataset)})
    return 0


def _write_recordings(options: argparse.Namespace) -> dict[str, Recording]:
    """Write the sources if all are recordings, or files that are decoded into some; return these by name."""
    if decoded := None if options.images or len(options.paths) < 2 else decoder_of(options.paths[:-1]):
        decoder, paths = decoded
        others = [name for name in (*_OF_SOURCES, *_OF_IMAGES, *_OF_DECODED, "append", "part") if name != "codec"]
        if surplus := _given(options, [name for name in others if name not in decoder.options]):
            raise ValueError(f"{', '.join(surplus)}: not for {decoder.what}, which become recordings")
        return decoder.write(options.paths[-1], paths, options, {"codec": _codec(options), **_of_target(options)})
    if surplus := _given(options, _OF_DECODED):
        raise ValueError(
            f"{', '.join(surplus)}: only for files that are decoded into recordings, which all SRC must be"
        )
    found = _recordings(options)
    return write_all(found, Path(options.paths[-1]), codec=_codec(options), **_of_target(options)) if found else {}


def _recordings(options: argparse.Namespace) -> list[Path]:
    """Return the sources if all are recordings, and no option asks for arrays of files instead."""
    if options.images or len(options.paths) < 2 or stated(options):
        return []
    found = recordings_at(options.paths[:-1])
    surplus = _given(options, (*_OF_IMAGES, *_NOT_FOR_RECORDINGS)) if found else []
    if surplus:
        raise ValueError(f"{', '.join(surplus)}: not for recordings, whose fields differ in their rows")
    return found


def _write_images(options: argparse.Namespace) -> Dataset:
    given = _given(options, _OF_SOURCES)
    if len(options.paths) != 1 or given:
        surplus = given or [counted(len(options.paths), "path")]
        raise ValueError(f"with --images, expected only the directory to make, got {', '.join(surplus)}")
    return write_images(
        options.paths[0],
        options.images,
        options.masks,
        labels=options.labels,
        table=options.table,
        image_column=options.image_column,
        mask_suffix=options.mask_suffix or "",
        size=None if options.size is None else size_of(options.size),
        fit=options.fit or "stretch",
        crop=None if options.crop is None else size_of(options.crop, "--crop"),
        pad_value=None if options.pad_value is None else _pad_value(options.pad_value),
        mask_pad_value=options.mask_pad_value,
        mode=options.mode,
        skip_damaged=options.skip_damaged,
        skip_unmatched=options.skip_unmatched,
        append=options.append,
        **_of_target(options),
    )


def _given(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) not in (None, False)]


def _write_sources(options: argparse.Namespace) -> Dataset:
    target, dataset = _opened(options)
    return write(
        target,
        dataset,
        rows=None if options.rows is None else _rows(options.rows, len(dataset)),
        append=options.append,
        **_conversions(options),
        **_of_target(options),
    )


def _write_part(options: argparse.Namespace) -> WrittenPart:
    """Write one part of the rows that the same command without --part would write."""
    if options.images or options.append:
        raise ValueError(
            f"--part writes part of a new set of sources, and not with {_given(options, _NOT_IN_PARTS)[0]}"
        )
    target, dataset = _opened(options)
    rows = dataset if options.rows is None else dataset.select(_rows(options.rows, len(dataset)))
    return write_share(target, rows, _part(options.part), **_conversions(options), **_of_target(options))


def _opened(options: argparse.Namespace) -> tuple[str, Dataset]:
    """Return the directory to make, and the sources as one dataset."""
    given = _given(options, _OF_IMAGES)
    if given:
        raise ValueError(f"{', '.join(given)}: only for images, which --images DIR gives")
    *sources, target = options.paths or [""]
    if not sources:
        raise ValueError(f"expected what to convert and the directory to make: {WRITE_USAGE.splitlines()[0]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # its advice is to run this command
        axis = _named("--axis", options.axis, _axis)
        how = stated(options) | ({} if axis is None else {"axis": axis})
        return target, open_sources(sources, how, options.on, options.how, target)


def _conversions(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "mask": _named("--mask", options.mask, _path),
        "scale": _named("--scale", options.scale, _factor),
        "cast": _named("--cast", options.cast, _cast),
        "codec": _codec(options),
    }


def _codec(options: argparse.Namespace) -> Any:
    return _named("--codec", options.codec, str, _codec_of_field)


def _of_target(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "shard_bytes": sized(options.shard_bytes, "--shard-bytes"),
        "resume": not options.anew,
        "progress": False if options.quiet else None,
    }


def _codec_of_field(text: str) -> tuple[str, str]:
    """Split NAME=CODEC, of which CODEC may have a `=` behind its colon."""
    return ("", text) if ":" in text.partition("=")[0] else name_and_value(text)


def _named(
    option: str,
    given: Sequence[str] | None,
    read: Callable[[str], Any],
    split: Callable[[str], tuple[str, str]] = name_and_value,
) -> Any:
    """Return the value of an option for all fields, or its values by field."""
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
    return cast_of(text, "--cast")


def _axis(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--axis: {text!r} is no number of an axis, such as 0, or -1 for the last") from None


def _pad_value(text: str) -> int | list[int]:
    values = text.split(",")
    if not all(value.strip().isdecimal() for value in values):
        raise ValueError(f"--pad-value: expected a number, or one for each channel as in 124,116,104, got {text!r}")
    return int(text) if len(values) == 1 else [int(value) for value in values]


def _part(text: str) -> PartNumber:
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise ValueError(f"--part: expected PART/PARTS, counted from 0, as in 0/16 to 15/16, got {text!r}")
    return PartNumber(int(part), int(parts))


def _stated_rows(path: str) -> Any:
    """Return the row numbers in a .npy file, or the bool of each row."""
    rows = load_array(path, "a .npy file with row numbers, or a bool for each row")
    if rows.ndim != 1 or rows.dtype.kind not in "bui":
        raise ValueError(
            f"--rows {path}: expected row numbers, or a bool for each row, in one dimension; got {rows.dtype} with the "
            f"shape {rows.shape}"
        )
    return rows


def _rows(text: str, length: int) -> Any:
    if text.endswith(".npy"):
        return _stated_rows(text)
    try:
        parts = [int(part) if part else None for part in text.split(":")]
        if not 2 <= len(parts) <= 3:
            raise ValueError
        rows = range(*slice(*parts).indices(length))
    except ValueError:
        raise ValueError(f"--rows: expected a slice such as 0:1000, or a .npy file, got {text!r}") from None
    if not rows:
        raise ValueError(f"--rows {text} is none of the {counted(length, 'row')}, which count from 0")
    return rows
