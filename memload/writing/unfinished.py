"""unfinished.json lists the complete shards of an unfinished set, so that another writer can continue it.

It is an index.json of the complete shards with two more entries: a description of the write (`plan`) and the names in
the source that are no rows of the set (`left_out`). It is outside the set's directory, which has no index.json before
the set is complete; so an interrupted set cannot be opened.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from memload._core import version
from memload.errors import ShardFormatError
from memload.formats.shards.index import ShardIndex, dump_index, parse_index
from memload.formats.shards.staging import Staging, fsync_directory, write_durably
from memload.formats.shards.verification import damages_of
from memload.progress import byte_bar, note
from memload.sizes import counted, format_size

_OF_OTHER_FORMAT = (
    f"an unfinished write is here that memload {version} cannot go on with: its list of complete shards is damaged, or "
    "of another version; starting over"
)


@dataclass(frozen=True)
class Unfinished:
    """The complete shards of an unfinished set, the plan of the whole set, and the version of memload that wrote it."""

    plan: Mapping[str, str]
    index: ShardIndex
    left_out: tuple[str, ...]
    version: str = ""  # as of writers before it was noted


class Journal:
    """Keeps the file up to date. It is rewritten only after as many bytes of shards as the file has.

    Args:
        path: the path of the file.
        plan: texts by name that describe the write; two writes are the same if all texts are equal.
    """

    def __init__(self, path: Path, plan: Mapping[str, str]) -> None:
        self.left_out: tuple[str, ...] = ()
        self._path = path
        self._plan = dict(plan)
        self._size = 0  # bytes of the file
        self._recorded = 0  # bytes of the shards in the file

    def follow(self, staging: Staging, target: Path, progress: bool | None) -> ShardIndex | None:
        """Return the complete shards of a writer with the same plan after verifying them, and remove all other files.

        Returns None if there are none. A note on standard error says what was found.
        """
        found = read_unfinished(self._path)
        if found is None or found.plan != self._plan:
            if self._path.exists():
                note(f"{target}: {_OF_OTHER_FORMAT if found is None else self._starts_over(found)}", progress)
            staging.clear()
            return None
        index = _intact(found.index, staging.directory, progress)
        for path in staging.directory.iterdir():
            if path.is_dir():  # the directory of an inner set
                shutil.rmtree(path)
            elif path.name not in {shard.file for shard in index.shards}:
                path.unlink()
        self.left_out = found.left_out
        nbytes = sum(shard.nbytes for shard in index.shards)
        verified = (
            f"{counted(len(index.shards), 'shard is', 'shards are')} complete and verified ({format_size(nbytes)})"
        )
        note(f"{target}: resumed where it was interrupted, at row {index.rows:,}: {verified}", progress)
        return index

    def record(self, index: ShardIndex, *, force: bool = False) -> None:
        """Write the complete shards to the file, if enough are new or `force` is set."""
        nbytes = sum(shard.nbytes for shard in index.shards)
        if nbytes - self._recorded < self._size and not force:
            return
        about = {"plan": self._plan, "left_out": list(self.left_out), "memload": version}
        content = json.loads(dump_index(index)) | about
        raw = json.dumps(content, ensure_ascii=False).encode()
        fresh = self._path.with_name(f"{self._path.name}.new")
        write_durably(fresh, raw)
        fresh.rename(self._path)
        fsync_directory(self._path.parent)
        self._size, self._recorded = len(raw), nbytes

    def _starts_over(self, found: Unfinished) -> str:
        different = sorted(name for name in {*found.plan, *self._plan} if found.plan.get(name) != self._plan.get(name))
        earlier = found.version or "of an earlier version"
        by = "" if found.version == version else f", by memload {earlier}, and this is {version}"
        return (
            f"an unfinished write left {counted(found.index.rows, 'row')}, but with another "
            f"{', '.join(different)}{by}; "
            "starting over"
        )


def read_unfinished(path: Path) -> Unfinished | None:
    """Return the content of the file; None if there is no file or it has another format."""
    try:
        raw = path.read_bytes()
        index = parse_index(raw)
    except (FileNotFoundError, ShardFormatError):
        return None
    content = json.loads(raw)
    plan, left_out = content.get("plan"), content.get("left_out")
    if not isinstance(plan, dict) or not isinstance(left_out, list) or not all(isinstance(k, str) for k in left_out):
        return None
    return Unfinished(plan, index, tuple(left_out), str(content.get("memload", "")))


def _intact(index: ShardIndex, directory: Path, progress: bool | None) -> ShardIndex:
    """Return the shards before the first damaged one; every byte is read."""
    with byte_bar("verify existing shards", sum(shard.nbytes for shard in index.shards), progress) as bar:
        damaged = {damage.shard for damage in damages_of(directory, index, bar)}
    good = next((k for k, shard in enumerate(index.shards) if shard.file in damaged), len(index.shards))
    return replace(index, shards=index.shards[:good])
