"""Masks of NIfTI files: voxels that become rows; one mask for all runs, or one for each of them.

    "brain.nii.gz"                        of all runs
    {"sub-01_task-rest_bold": path}       of each run, by the name of its recording
    "*_desc-brain_mask.nii.gz"            of each run, the one that its name asks for, as fMRIPrep writes them

A mask that a pattern matches is that of a run if the run's name has all entities of the mask's name, but for those that
say what the mask is of; or, of names that are none of BIDS, if the mask's name is the run's with more behind it.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from memload.errors import FormatError
from memload.formats.nifti import NiftiHeader, decoded_volumes, is_nifti, nifti_name, read_header
from memload.formats.paths import PathLike, matching, no_file
from memload.formats.recordings.bids import BidsName, folders_of, name_of
from memload.memory.budget import default_threads
from memload.memory.threads import ThreadPool
from memload.sizes import counted
from memload.writing.masks import as_mask, places_by_first_axis

Masks = PathLike | Mapping[str, PathLike] | None
"""What users give: a file or a pattern, a file for each run by its name, or nothing."""

_APART = 0.01  # millimetres by which two grids may differ
_OF_THE_MASK = ("desc", "label", "atlas", "seg", "thresh")  # entities that say what a mask is of
_MOST_NAMED = 5


@dataclass(frozen=True)
class Mask:
    """Voxels of a grid.

    Attributes:
        path: of the file.
        header: its header.
        count: how many voxels there are.
        packed: bits, set where a voxel is one of them, in the order of a volume (z, y, x).
        digest: a text that differs between masks.
    """

    path: Path
    header: NiftiHeader
    count: int
    packed: NDArray[np.uint8]
    digest: str

    @classmethod
    def read(cls, path: Path) -> Mask:
        """Return the mask in a NIfTI file. Raises FormatError or ValueError if there is none."""
        if not path.is_file():
            raise no_file(path)
        if not is_nifti(path):
            raise FormatError(
                f"{path}: the mask of NIfTI files is a .nii or .nii.gz file, which says where its voxels lie"
            )
        header = read_header(path)
        if header.volumes != 1 or len(header.shape) != 3:
            raise FormatError(f"{path}: {header}; a mask is one volume with one number for each voxel")
        stored = np.concatenate([block.copy() for block in decoded_volumes(path, header, 1)])
        values = stored.view(str(header.dtype).removeprefix("torch.")).reshape(header.shape)
        if header.scale is not None:
            values = np.round(values * header.scale[0] + header.scale[1], 4)  # of floats that were saved as integers
        try:
            mask = as_mask(values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
        digest = xxhash.xxh3_64_hexdigest(places_by_first_axis(mask).tobytes())
        return cls(path, header, int(mask.sum()), np.packbits(mask), f"{header.shape} {digest}")

    def volume(self) -> NDArray[np.bool_]:
        """Return the mask in the shape of a volume (z, y, x)."""
        shape = self.header.shape
        return np.unpackbits(self.packed, count=int(np.prod(shape))).view(np.bool_).reshape(shape)

    def voxels(self) -> NDArray[np.int64]:
        """Return places in a volume (z, y, x), in the order of ``volume[mask]`` of the transposed volume (x, y, z)."""
        return places_by_first_axis(self.volume())

    def check(self, path: Path, header: NiftiHeader) -> None:
        """Raise ValueError unless the grid of a file is that of the mask."""
        if header.shape != self.header.shape:
            raise ValueError(
                f"{path}: its volumes are {header.shape[::-1]}, and the mask {self.path} is "
                f"{self.header.shape[::-1]} (x, y, z): resample it to the grid of the run"
            )
        mine, theirs = self.header.place, header.place
        if mine and theirs and max(abs(a - b) for a, b in zip(mine, theirs, strict=True)) > _APART:
            raise ValueError(
                f"{path}: its voxels lie elsewhere than those of the mask {self.path}: sform is {_short(theirs)}, "
                f"and {_short(mine)}: resample the mask to the grid of the run"
            )


def _short(place: Sequence[float]) -> str:
    return " / ".join(" ".join(f"{value:g}" for value in place[row : row + 4]) for row in (0, 4, 8))


def masks_of(given: Masks, runs: Sequence[Path]) -> list[Mask | None]:
    """Return the mask of each run, None without masks; each file is read once.

    Args:
        given: a file, a pattern, or files by the names of runs.
        runs: the NIfTI files of the runs.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file.
        FormatError, ValueError: a file holds no mask; no mask of a pattern is that of a run, or two of them are; or a
            mapping names no mask for a run.
        KeyError: a mapping names what is no run.
    """
    if given is None:
        return [None] * len(runs)
    places = _by_name(given, runs) if isinstance(given, Mapping) else _places_of(given, runs)
    files = [*dict.fromkeys(places)]
    with ThreadPool(min(default_threads(), max(1, len(files)))) as pool:
        found = dict(zip(files, pool.map(Mask.read, files), strict=True))
    return [found[place] for place in places]


def _by_name(given: Mapping[str, PathLike], runs: Sequence[Path]) -> list[Path]:
    names = [nifti_name(run) for run in runs]
    for name in given:
        if name not in names:
            raise KeyError(f"mask: no run {name!r}; there are {_listed(names)}")
    without = [name for name in names if name not in given]
    if without:
        raise ValueError(f"mask: no file for {len(without):,} of {counted(len(names), 'run')}, such as {without[0]}")
    return [Path(given[name]) for name in names]


def _places_of(given: PathLike, runs: Sequence[Path]) -> list[Path]:
    pattern = str(given)
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [Path(pattern)] * len(runs)
    there = sorted(map(Path, matching(pattern))) if "/" in pattern else None
    return [_mask_beside(run, pattern, _beside(run, pattern) if there is None else there) for run in runs]


def _beside(run: Path, pattern: str) -> list[Path]:
    """Return the files that match in the folder of a run and in those above it."""
    return [place for folder in folders_of(run) for place in sorted(folder.glob(pattern))]


def _mask_beside(run: Path, pattern: str, there: Sequence[Path]) -> Path:
    """Return that of the masks which says most of what the run's name says."""
    others = [place for place in there if place.absolute() != run.absolute()]
    fitting = {place: shared for place in others if (shared := _shared(run, place)) is not None}
    best = [place for place, shared in fitting.items() if shared == max(fitting.values())]
    if len(best) > 1:
        raise ValueError(
            f"{run}: several masks that match {pattern!r} are its masks: {_listed(best)}; give a pattern of one of "
            "them, such as '*_desc-brain_mask.nii.gz'"
        )
    if not best:
        found = _listed(there) if there else f"none, looked for in {_listed(folders_of(run))}"
        raise ValueError(
            f"{run}: no mask that matches {pattern!r} is its mask; those that match are {found}. The name of a run has "
            "all entities of its mask, such as sub-, task-, run- and space-; desc- and label- may differ"
        )
    return best[0]


def _shared(run: Path, place: Path) -> int | None:
    """Return how many entities two names share if the mask is that of the run; None if it is not."""
    mine, other = name_of(run), BidsName.read(nifti_name(place)) if is_nifti(place) else None
    if mine is None or other is None:
        begins = nifti_name(place) if is_nifti(place) else ""
        name = nifti_name(run)
        return len(name) if begins.startswith(name) and begins[len(name) : len(name) + 1] in ("_", "-", ".") else None
    asked = {key: value for key, value in other.entities.items() if key not in _OF_THE_MASK}
    return len(asked) if asked and asked.items() <= mine.entities.items() else None


def _listed(names: Iterable[Any]) -> str:
    listed = [str(name) for name in names]
    more = f" and {len(listed) - _MOST_NAMED:,} more" if len(listed) > _MOST_NAMED else ""
    return f"{', '.join(listed[:_MOST_NAMED])}{more}"


def inside(volumes: NDArray[np.uint8], voxels: NDArray[np.int64], nbytes: int) -> NDArray[np.uint8]:
    """Return these voxels, of so many bytes each, of each volume: (n, bytes)."""
    return np.take(volumes.view(f"u{nbytes}"), voxels, axis=1).view(np.uint8)
