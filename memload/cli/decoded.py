"""What `memload write` decodes once into recordings, and the options that it takes for each kind."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memload.casts.rule import Cast
from memload.cli.cast_options import cast_of
from memload.cli.source_options import name_and_value
from memload.dataset.recordings.recording import Recording
from memload.formats.nifti import is_compressed, is_nifti
from memload.formats.paths import is_remote, paths_of
from memload.formats.recordings.bids import is_bids
from memload.formats.recordings.nifti import is_run
from memload.formats.video import is_video
from memload.writing.nifti import write_nifti
from memload.writing.videos import write_videos
from memload.writing.voxel_masks import Masks


@dataclass(frozen=True)
class Decoder:
    """Files of one kind.

    Attributes:
        what: their name, for messages.
        takes: whether a path is one of them.
        options: the options that apply to them, beside those of all targets and `codec`.
        write: writes such files to a folder; it gets the folder, the files, the options, and those of all targets.
    """

    what: str
    takes: Callable[[Path], bool]
    options: Sequence[str]
    write: Callable[[str, list[Path], argparse.Namespace, dict[str, Any]], dict[str, Recording]]


def decoder_of(sources: Sequence[str]) -> tuple[Decoder, list[Path]] | None:
    """Return what decodes all of these sources, and their paths; None if they are no files to decode.

    Raises:
        ValueError: some of them can only be decoded, and others are of another kind.
    """
    if any(is_remote(source) or (not Path(source).exists() and "=" in source) for source in sources):
        return None  # NAME=PATH is a field
    paths = [path for source in sources for path in paths_of(source)]
    if not paths or not all(path.exists() for path in paths):
        return None
    found = next(((one, paths) for one in DECODERS if all(map(one.takes, paths))), None)
    if found is None:
        _check_none_is_decoded(paths)
    return found


def _check_none_is_decoded(paths: Sequence[Path]) -> None:
    """Raise ValueError if some of the sources can only be decoded; others are of another kind."""
    for one in DECODERS:
        taken = [path for path in paths if one.takes(path) and not _opens_in_place(path)]
        if taken:
            other = next(path for path in paths if not one.takes(path))
            raise ValueError(
                f"kinds cannot be mixed: {taken[0]} is one of {one.what}, which become recordings, and {other} is "
                "none: write each kind by a command of its own"
            )


def _opens_in_place(path: Path) -> bool:
    return path.is_file() and is_nifti(path) and not is_compressed(path)


def _write_nifti(
    target: str, paths: list[Path], options: argparse.Namespace, given: dict[str, Any]
) -> dict[str, Recording]:
    cast = _only("--cast", options.cast)
    return write_nifti(
        target,
        paths,
        mask=_mask(options.mask),
        cast=None if cast is None else _dtype(cast),
        tr=options.tr,
        raw=options.raw,
        **given,
    )


def _write_videos(
    target: str, paths: list[Path], options: argparse.Namespace, given: dict[str, Any]
) -> dict[str, Recording]:
    size = None if options.size is None else size_of(options.size)
    return write_videos(target, paths, size=size, rate=options.rate, mode=options.mode or "RGB", **given)


def _mask(given: Sequence[str] | None) -> Masks:
    """Return the mask of all runs, a pattern of masks, or the mask of each run that NAME=FILE names."""
    pairs = [name_and_value(text) for text in given or ()]
    if all(name for name, _ in pairs):
        return dict(pairs) or None
    if len(pairs) > 1:
        raise ValueError(
            "--mask is one file for all runs, a pattern in quotes that finds one for each run, such as "
            f"'*_desc-brain_mask.nii.gz', or RUN=FILE for each; got {' '.join(given or ())}"
        )
    return pairs[0][1]


def _only(option: str, given: Sequence[str] | None) -> str | None:
    """Return the one value of an option that may be repeated for sources of other kinds."""
    if given is not None and len(given) > 1:
        raise ValueError(
            f"{option} is given once for NIfTI files, whose recordings have one field; got {' '.join(given)}"
        )
    return given[0] if given else None


def _dtype(text: str) -> Any:
    cast = cast_of(text, "--cast")
    if cast != Cast(cast.dtype):
        raise ValueError(f"--cast is a dtype for NIfTI files, whose header states scale and offset; got {text}")
    return cast.dtype


def size_of(text: str, option: str = "--size") -> int | tuple[int, int]:
    """Return the size that an option names: a number, or height and width."""
    sides = text.split("x")
    if not all(side.isdecimal() for side in sides) or len(sides) > 2:
        raise ValueError(f"{option}: expected a number of pixels, or height x width as in 480x640, got {text!r}")
    return int(text) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


DECODERS = (
    Decoder("NIfTI files", lambda path: is_run(path) or is_bids(path), ("mask", "cast", "tr", "raw"), _write_nifti),
    Decoder("videos", is_video, ("size", "rate", "mode"), _write_videos),
)
