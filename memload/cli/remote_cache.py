"""`memload cache` of the folder that `memload.open` was given as ``cache=``: lists its sets, or removes some."""

from __future__ import annotations

import argparse

from memload.cli.output import answer
from memload.formats.remote.cache_folder import CachedSet, CacheFolder, held_bytes
from memload.sizes import format_size


def run(options: argparse.Namespace) -> int:
    """List the sets, or remove the named ones."""
    folder = CacheFolder(options.root, make=False)
    found = folder.sets()
    if options.action == "list":
        held = {one.key: held_bytes(one.table(folder.room)) for one in found}
        lines = [
            f"{one.key}  {format_size(held[one.key]):>8} of {format_size(one.nbytes):>8}  {one.url}" for one in found
        ]
        total = format_size(sum(held.values()))
        lines.append(f"{options.root}: {len(found)} set{'s' * (len(found) != 1)}, {total}")
        entries = [
            {"name": one.key, "url": one.url, "nbytes": held[one.key], "set_nbytes": one.nbytes} for one in found
        ]
        answer(options, "\n".join(lines), {"path": options.root, "entries": entries})
        return 0
    freed = {one.key: folder.clear(one) for one in _chosen(options, found)}
    lines = [f"removed {key}, {format_size(nbytes)}" for key, nbytes in freed.items()]
    removed = [{"name": key, "nbytes": nbytes} for key, nbytes in freed.items()]
    answer(options, "\n".join(lines), {"path": options.root, "removed": removed})
    return 0


def _chosen(options: argparse.Namespace, found: list[CachedSet]) -> list[CachedSet]:
    if not (options.names or options.all):
        raise ValueError("name the sets to remove, or give --all")
    for name in options.names:
        if not name or not any(one.key.startswith(name) for one in found):
            raise FileNotFoundError(f"{options.root}: no set {name!r}; `memload cache list` names them")
    return [one for one in found if options.all or any(one.key.startswith(name) for name in options.names)]
