"""`memload cache`: lists what a cache holds, or removes some of it.

A cache is the folder of mapped datasets that `cache()` was given, or the one that `memload.open` was given as
``cache=``, which holds sets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from memload.caching.cache_files import Entry, entries, remove
from memload.cli.output import answer, is_json, keep, say
from memload.formats.paths import is_remote
from memload.formats.remote.cache_folder import CachedSet, CacheFolder, is_folder
from memload.sizes import counted, format_size


def run(options: argparse.Namespace) -> int:
    """List the entries, or remove the named ones."""
    if is_remote(options.root):
        raise ValueError(f"{options.root}: a cache lies on a disk of this machine: give its folder")
    if is_folder(options.root):
        return _run_on_sets(options)
    found = entries(options.root)
    if not found and any(Path(options.root).iterdir()):
        raise ValueError(
            f"{options.root}: no cache, but a folder with other content; give the folder that cache() was given, or "
            "memload.open as cache="
        )
    if options.action == "list":
        answer(options, "\n".join(_listed(options.root, found)), {"path": options.root, "entries": found})
        return 0
    chosen = _chosen(options, found)
    for entry in chosen:
        remove(entry)
        if not is_json(options):
            print(f"removed {entry.name}, {format_size(entry.nbytes)}")
    if not chosen and not is_json(options):
        print(f"{options.root}: there is nothing to remove")
    keep(options, {"path": options.root, "removed": chosen})
    return 0


def _listed(root: str, found: list[Entry]) -> Iterator[str]:
    width = max((len(entry.name) for entry in found), default=0)
    for entry in found:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made))
        what = f"{counted(entry.rows, 'row'):>17}" if entry.complete else f"{'unfinished':>17}"
        yield f"{entry.name:{width}}  {what}  {format_size(entry.nbytes):>8}  {made}  {entry.function}".rstrip()
    total = format_size(sum(entry.nbytes for entry in found))
    yield f"{root}: {counted(len(found), 'entry', 'entries')}, {total}"


def _chosen(options: argparse.Namespace, found: list[Entry]) -> list[Entry]:
    if not (options.names or options.all or options.unfinished):
        raise ValueError("name the entries to remove, or give --all or --unfinished")
    chosen = [entry for entry in found if options.all or (options.unfinished and not entry.complete)]
    for name in options.names:
        if not name:
            raise ValueError("an empty name stands for no entry; --all removes all of them")
        matching = [entry for entry in found if entry.name.startswith(name)]
        if not matching:
            raise FileNotFoundError(f"{options.root}: no entry {name!r}; `memload cache list` names them")
        chosen += [entry for entry in matching if entry not in chosen]
    return chosen


def _run_on_sets(options: argparse.Namespace) -> int:
    """List the sets of a folder, or remove the named ones."""
    folder = CacheFolder(options.root, make=False)
    found, begun = folder.sets(), folder.removed_unfinished
    if begun:
        say(options, f"removed {counted(begun, 'set')} that a killed process had begun to make")
    if options.action == "list":
        held = {one.key: folder.held(one) for one in found}
        lines = [
            f"{one.key}  {format_size(held[one.key]):>8} of {format_size(one.nbytes):>8}  {one.url}"
            + (", which was damaged: its blocks are fetched again" if one.key in folder.damaged else "")
            for one in found
        ]
        total = format_size(sum(held.values()))
        lines.append(f"{options.root}: {counted(len(found), 'set')}, {total}")
        listed = [
            {
                "name": one.key,
                "url": one.url,
                "nbytes": held[one.key],
                "set_nbytes": one.nbytes,
                "is_damaged": one.key in folder.damaged,
            }
            for one in found
        ]
        answer(options, "\n".join(lines), {"path": options.root, "entries": listed, "unfinished": begun})
        return 0
    cleared = {one.key: folder.clear(one) for one in _chosen_sets(options, found)}
    lines = [_removed(key, *how) for key, how in cleared.items()]
    removed = [{"name": key, "nbytes": nbytes, "is_gone": is_gone} for key, (nbytes, is_gone) in cleared.items()]
    answer(options, "\n".join(lines), {"path": options.root, "removed": removed, "unfinished": begun})
    return 0


def _removed(key: str, nbytes: int, is_gone: bool) -> str:
    if is_gone:
        return f"removed {key}, {format_size(nbytes)}"
    return (
        f"removed {format_size(nbytes)} of {key}, which a process reads now, so that its ETags stay; "
        "remove it again when that process has closed the dataset"
    )


def _chosen_sets(options: argparse.Namespace, found: list[CachedSet]) -> list[CachedSet]:
    if not (options.names or options.all):
        raise ValueError("name the sets to remove, or give --all")
    for name in options.names:
        if not name or not any(one.key.startswith(name) for one in found):
            raise FileNotFoundError(f"{options.root}: no set {name!r}; `memload cache list` names them")
    return [one for one in found if options.all or any(one.key.startswith(name) for name in options.names)]
