"""What a path in an HDF5 file leads to, followed link by link: so that one that leads nowhere, out of the folder, or in
a circle is told by its name and its target, and no other file is opened than the one that is meant.

HDF5 itself would look for the file of an external link in the working directory and where the environment says, too.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from memload.errors import FormatError

_MOST_LINKS = 16  # as many as HDF5 follows
_MOST_SHOWN = 8


def follow(path: Path, file: Any, name: str, files: ExitStack) -> Any | None:
    """Return the dataset or group at a path in a file, also by links; None if there is none.

    Args:
        path: the path of the file.
        file: the open file.
        name: the path of the dataset or group in it.
        files: closes the files that links led to.

    Raises:
        FormatError: a link on the way leads nowhere, to a file outside the folder of `path`, or in a circle.
    """
    import h5py

    links: list[str] = []
    member, parts = file["/"], _parts(name)
    rest = len(parts) + 1  # of the name, behind the last link
    while parts:
        part = parts.pop(0)
        link = member.get(part, getlink=True) if isinstance(member, h5py.Group) else None
        if link is None:
            if len(parts) >= rest:  # what is missing is named by a link
                raise FormatError(f"{path}: {links[-1]}, which is not there")
            return None
        if isinstance(link, h5py.HardLink):
            member = member[part]
            continue
        links.append(_said(path, member, part, link))
        if len(links) > _MOST_LINKS:
            shown, circle = list(dict.fromkeys(links)), ", in a circle" * (len(set(links)) < len(links))
            listed = ", ".join(shown[:_MOST_SHOWN])
            raise FormatError(f"{path}: {name!r} leads through more than {_MOST_LINKS} links{circle}: {listed}")
        if isinstance(link, h5py.ExternalLink):
            member = _other_file(path, member.file, link, links[-1], files)["/"]
        elif link.path.startswith("/"):
            member = member.file["/"]
        rest = min(rest, len(parts))
        parts = [*_parts(link.path), *parts]
    return member


def listed_links(path: Path, file: Any) -> str:
    """Return the links at the top of a file, for messages; "" if there are none."""
    import h5py

    links = [(name, file.get(name, getlink=True)) for name in file]
    said = [_said(path, file, name, link) for name, link in links if not isinstance(link, h5py.HardLink)]
    return "; ".join([*said[:_MOST_SHOWN], *(["and more"] if len(said) > _MOST_SHOWN else [])])


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _said(path: Path, group: Any, name: str, link: Any) -> str:
    where = f"{group.name.rstrip('/')}/{name}".lstrip("/")
    holder = Path(os.fsdecode(group.file.filename))
    of_another = f" of {holder.name!r}" if holder.name != path.name else ""
    other = f" in {link.filename!r}" if hasattr(link, "filename") else ""
    return f"{where!r}{of_another} is a link to {link.path!r}{other}"


def _target(path: Path, holder: Path, filename: str) -> tuple[Path, bool]:
    """Return the target file of a link in `holder`, and whether it is in the folder of `path`.

    Only the text of the link decides: it may not lead out of the folder. Symlinks in the folder are trusted.
    """
    target = _plain(holder.parent / filename)
    return target, target.is_relative_to(_plain(path).parent)


def _plain(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _other_file(path: Path, holder: Any, link: Any, said: str, files: ExitStack) -> Any:
    """Open the file of an external link, whose path is relative to the file with the link."""
    import h5py

    where = Path(os.fsdecode(holder.filename))
    target, inside = _target(path, where, link.filename)
    if not target.is_file():  # the file may be a symlink to one that has its neighbours elsewhere
        beside, inside_too = _target(path.resolve(), where.resolve(), link.filename)
        target, inside = (beside, True) if inside_too and beside.is_file() else (target, inside)
    if not inside:
        raise FormatError(
            f"{path}: {said}, outside the folder of {path.name}. memload follows links to files in that folder and "
            f"below it only; open the file itself: memload.open({str(target)!r}, key={link.path!r})"
        )
    if not target.is_file():
        raise FormatError(
            f"{path}: {said}, which does not exist; such paths are relative to the folder of "
            f"{Path(holder.filename).name}: put that file there, or open it itself"
        )
    try:
        return files.enter_context(h5py.File(target, "r", locking="best-effort"))
    except OSError as error:
        raise FormatError(f"{path}: {said}, which HDF5 cannot read ({error})") from error
