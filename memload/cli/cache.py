"""`memload cache`: lists the entries of a cache of mapped datasets, or removes some."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from memload.caching.cache_files import Entry, entries, remove
from memload.cli.output import answer, is_json, keep
from memload.formats.remote.cache_folder import is_folder
from memload.sizes import format_size


def run(options: argparse.Namespace) -> int:
    """List the entries, or remove the named ones."""
    if is_folder(options.root):
        from memload.cli import remote_cache

        return remote_cache.run(options)
    found = entries(options.root)
    if options.action == "list":
        answer(options, "\n".join(_listed(options.root, found)), {"path": options.root, "entries": found})
        return 0
    chosen = _chosen(options, found)
    for entry in chosen:
        remove(entry)
        if not is_json(options):
            print(f"removed {entry.name}, {format_size(entry.nbytes)}")
    keep(options, {"path": options.root, "removed": chosen})
    return 0


def _listed(root: str, found: list[Entry]) -> Iterator[str]:
    width = max((len(entry.name) for entry in found), default=0)
    for entry in found:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made))
        what = f"{entry.rows:>12,} rows" if entry.complete else f"{'unfinished':>17}"
        yield f"{entry.name:{width}}  {what}  {format_size(entry.nbytes):>8}  {made}  {entry.function}".rstrip()
    total = format_size(sum(entry.nbytes for entry in found))
    yield f"{root}: {len(found)} entr{'y' if len(found) == 1 else 'ies'}, {total}"


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
