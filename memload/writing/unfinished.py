"""unfinished.json: what of a set is complete while it is written, so that a writer that was killed can be followed.

It is an index.json of the shards that are complete, and says beside it what is being written (`plan`) and what the
source brought that is no row of the set (`left_out`). It stands outside the set's directory, which has no index.json
before its end: nothing that was interrupted opens.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from memload.errors import ShardFormatError
from memload.formats.shards.index import ShardIndex, dump_index, parse_index
from memload.formats.shards.reading import damages_of
from memload.formats.shards.staging import Staging, fsync_directory, write_durably
from memload.progress import byte_bar, note
from memload.sizes import format_size


@dataclass(frozen=True)
class Unfinished:
    """The complete shards of an unfinished set, and what it was to become."""

    plan: Mapping[str, str]
    index: ShardIndex
    left_out: tuple[str, ...]


class Journal:
    """Keeps the file true to what is complete; no more bytes are written for that than for the shards.

    Args:
        path: of the file.
        plan: what is being written, in words by name; two writings are the same if all of them are equal.
    """

    def __init__(self, path: Path, plan: Mapping[str, str]) -> None:
        self.left_out: tuple[str, ...] = ()
        self._path = path
        self._plan = dict(plan)
        self._size = 0  # of the file as it is
        self._told = 0  # bytes of the shards that it tells of

    def follow(self, staging: Staging, target: Path, progress: bool | None) -> ShardIndex | None:
        """Return the complete shards that a writer with the same plan left, all read and verified; clear the rest.

        None if there are none. What was found, and what became of it, is said on standard error.
        """
        found = read_unfinished(self._path)
        if found is None or found.plan != self._plan:
            if found is not None:
                note(f"{target}: {self._begins_anew(found)}", progress)
            staging.clear()
            return None
        index = _intact(found.index, staging.directory, progress)
        for path in staging.directory.iterdir():
            if path.is_dir():  # of a set inside this one
                shutil.rmtree(path)
            elif path.name not in {shard.file for shard in index.shards}:
                path.unlink()
        self.left_out = found.left_out
        nbytes = sum(shard.nbytes for shard in index.shards)
        verified = f"{len(index.shards)} shards of it are complete and verified ({format_size(nbytes)})"
        note(f"{target}: taken up where it was interrupted, at row {index.rows:,}: {verified}", progress)
        return index

    def record(self, index: ShardIndex, *, all_of_it: bool = False) -> None:
        """Tell of the shards that are complete now, if there is enough to tell, or if all of it is to be told."""
        nbytes = sum(shard.nbytes for shard in index.shards)
        if nbytes - self._told < self._size and not all_of_it:
            return
        content = json.loads(dump_index(index)) | {"plan": self._plan, "left_out": list(self.left_out)}
        raw = json.dumps(content, ensure_ascii=False).encode()
        fresh = self._path.with_name(f"{self._path.name}.new")
        write_durably(fresh, raw)
        fresh.rename(self._path)
        fsync_directory(self._path.parent)
        self._size, self._told = len(raw), nbytes

    def _begins_anew(self, found: Unfinished) -> str:
        different = sorted(name for name in {*found.plan, *self._plan} if found.plan.get(name) != self._plan.get(name))
        return (
            f"{found.index.rows:,} rows of an unfinished writing are there, but with another {', '.join(different)}; "
            "it begins anew"
        )


def read_unfinished(path: Path) -> Unfinished | None:
    """Return what the file says; None if there is none, or none that this memload could have written."""
    try:
        raw = path.read_bytes()
        index = parse_index(raw)
    except (FileNotFoundError, ShardFormatError):
        return None
    content = json.loads(raw)
    plan, left_out = content.get("plan"), content.get("left_out")
    if not isinstance(plan, dict) or not isinstance(left_out, list) or not all(isinstance(k, str) for k in left_out):
        return None
    return Unfinished(plan, index, tuple(left_out))


def _intact(index: ShardIndex, directory: Path, progress: bool | None) -> ShardIndex:
    """Return the shards before the first whose bytes are not those that were written; every byte is read."""
    with byte_bar("verify what is there", sum(shard.nbytes for shard in index.shards), progress) as bar:
        damaged = {damage.shard for damage in damages_of(directory, index, bar)}
    good = next((k for k, shard in enumerate(index.shards) if shard.file in damaged), len(index.shards))
    return replace(index, shards=index.shards[:good])
