"""The blocks of one remote set: fetched, checked, kept in mirror files, and removed when others need their room.

hold(blocks): pin -> claim what is absent -> request -> mirror file -> checksum -> present
                          |
                          +-- no room: blocks of farthest next use are removed first
"""

from __future__ import annotations

import errno
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xxhash

from memload._core import BlockTable, CacheRoom, Storage
from memload.errors import DiskSpaceError, MemorySpaceError, ShardReadError
from memload.formats.remote.cache_disk import telling_of_a_full_disk
from memload.formats.remote.cache_folder import (
    ETAGS,
    PINNED,
    PRESENT,
    STATE,
    CachedSet,
    CacheFolder,
    RemoteFile,
    evicted,
    present,
    remove_left,
)
from memload.formats.remote.claims import Claim, Claims, claiming
from memload.formats.remote.etags import Etags
from memload.formats.remote.link import link
from memload.formats.remote.mirrors import Mirrors, MirrorsInMemory, read_at
from memload.formats.remote.objects import Objects, Part
from memload.formats.remote.packed_objects import PackedObjects
from memload.formats.remote.patience import Blocks, Patience, Seen
from memload.formats.remote.run_fetch import RunFetch, runs_of
from memload.sizes import counted, format_size

NEVER = np.iinfo(np.int32).max
"""The next use of a block that no planned batch needs."""

_MOST_OF_A_REQUEST = 8 << 20  # bytes
_VICTIMS = 64  # one of so many blocks is chosen at once: of a large cache many, since all states are looked at
_OTHERS = 8  # the bit of BlockTable.states that says that another process wants the block


class Counts:
    """Counters of a cache in this process: bytes that were fetched, and blocks held that were there or were not."""

    def __init__(self) -> None:
        self.fetched_bytes = self.requests = self.hits = self.misses = self.evicted = 0


RowAt = Callable[[int, int], "tuple[str, int] | None"]
"""Returns the field and the row that have a byte of a file, by the number of the file and the offset of the byte."""


@dataclass(frozen=True)
class Keeping:
    """Where the blocks of sets are kept: a folder, or None for RAM; and at most how many bytes."""

    folder: str | None
    nbytes: int


class BlockCache:
    """The blocks of one remote set, in this process.

    Args:
        objects: the objects of the set.
        content: the bytes of its index.
        files: its shards.
        block_bytes: bytes of a block.
        keeping: where blocks are kept.
        address: where the set lies, by which another process opens it.
        row_at: returns the field and the row of a file that have a byte of it, which errors name; None: none is known.

    Raises:
        OSError, FileExistsError, FormatError: the folder of the cache cannot be used.
        DiskSpaceError: the disk has no room for the empty folder.
    """

    def __init__(
        self,
        objects: Objects | PackedObjects,
        content: bytes,
        files: Sequence[RemoteFile],
        block_bytes: int,
        keeping: Keeping,
        address: Any,
        row_at: RowAt = lambda _number, _offset: None,
    ) -> None:
        self.objects, self.keeping, self.address, self.files = objects, keeping, address, tuple(files)
        self.counts, self._row_at = Counts(), row_at
        self.folder: CacheFolder | None = None
        self._entry: CachedSet | None = None
        self.mirrors: Mirrors | MirrorsInMemory
        if keeping.folder is None:
            self.table = BlockTable(CacheRoom(), "", block_bytes, [file.nbytes for file in files])
            self.mirrors = MirrorsInMemory(files)
        else:
            with telling_of_a_full_disk(keeping.folder):
                self.folder = CacheFolder(keeping.folder)
                self._entry, self.table = self.folder.opened(objects.url, content, block_bytes, files)
            self.mirrors = Mirrors(self._entry, self.table)
        self._etags = Etags(None if self._entry is None else self._entry.path / ETAGS)
        self._unknown: set[int] = set()  # files without a kept ETag, of which what earlier processes left is useless
        weakref.finalize(self, self.mirrors.close)
        self.limit, self._block_bytes = keeping.nbytes, self.table.block_bytes
        self._bounds = list(self.table.first_blocks)  # of the files, and the end
        self._begins = frozenset(self._bounds)
        self._firsts = np.asarray(self._bounds, dtype=np.int64)
        self._sizes = np.asarray([file.nbytes for file in files], dtype=np.int64)
        self.next_use = np.full(self.table.blocks, NEVER, dtype=np.int32)
        self.claims = Claims(self.table)
        self.let_go: Callable[[Blocks], None] = self.table.let_go
        """Ends a pin of each block, also while a signal waits for the next function of Python."""
        self._victims: deque[tuple[int, int]] = deque()
        self._lock = threading.RLock()
        if self._entry is not None:
            self._take_up(self._entry)

    def _take_up(self, entry: CachedSet) -> None:
        """Remove blocks of earlier processes of whose objects the ETags are unknown, and say how others leave."""
        if isinstance(self.objects, Objects):
            self.objects.advice += f"; if that fails, too, remove its blocks: memload cache rm {entry.path.parent} "
            self.objects.advice += entry.key
        self._unknown.update(number for number in range(len(self.files)) if self._etags.of(number) is None)
        for blocks in present(self.table) if self.table.was_alone else ():
            numbers = np.searchsorted(self._firsts, blocks, side="right") - 1
            entry.remove_blocks(self.table, blocks[np.isin(numbers, list(self._unknown))])

    @property
    def room(self) -> CacheRoom:
        """The room that the blocks share with those of other sets."""
        return self.table.room

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks of the set."""
        return sum(file.nbytes for file in self.files)

    def storage(self, number: int) -> Storage:
        """Return the mirror file of a shard, mapped. Its bytes are read only where they are held."""
        return self.mirrors.map(number, self.objects.url_of(self.files[number].name), self.table, self)

    def bytes_of(self, blocks: Blocks) -> int:
        """Return the bytes of some blocks."""
        if len(blocks) == 0:
            return 0
        numbers = np.searchsorted(self._firsts, blocks, side="right") - 1
        at = (blocks - self._firsts[numbers]) * self._block_bytes
        return int(np.minimum(self._block_bytes, self._sizes[numbers] - at).sum())

    # What a pass calls, which does not wait.

    def begin(self, blocks: Blocks) -> Blocks:
        """Pin blocks and begin to fetch the absent ones; return those that are not there yet. Pins none if it raises.

        Raises:
            MemorySpaceError: the cache cannot have all of them at once.
            OSError: what an earlier process left cannot be read, or blocks of other sets cannot be removed.
        """
        claims = list[Blocks]()
        try:
            missing = self._begun(blocks, claims)
        except BaseException:
            if claims:
                self.let_go(blocks)
            raise
        return missing

    def _begun(self, blocks: Blocks, claims: list[Blocks]) -> Blocks:
        """Pin blocks as `begin` does, if this raises, too, once `claims` has anything, which may be no blocks."""
        if (nbytes := self.bytes_of(blocks)) > self.limit:
            raise MemorySpaceError(
                f"{format_size(nbytes)} of {self.objects.url} are needed at once, in {counted(len(blocks), 'block')}, "
                f"and its cache has {format_size(self.limit)}: give a larger cache_bytes=, read fewer rows at once, or "
                "shuffle by memload.BlockShuffle, which reads neighbours together"
            )
        with claiming(self.table, claims):
            held = self.claims.hold(blocks, self.limit, False, claims)
            self.claims.forget_errors_of_others(held[1])
            self.claims.forget_errors(held[2])  # those that lack room are asked for as soon as they have it
            missing = self._bring(held, claims)
        self.counts.misses += len(missing)
        self.counts.hits += len(blocks) - len(missing)
        return missing

    def proceed(self, missing: Blocks) -> Blocks:
        """Return which of the blocks that were begun are still not there.

        Raises:
            ShardReadError, FileNotFoundError, PermissionError: one of them cannot be fetched.
            DiskSpaceError: the disk of the cache is full.
        """
        has_to_wait = self.table.has_to_wait(missing)
        self._raise_of(missing)  # afterwards: a block that is absent by now has its error by now
        if has_to_wait:
            return missing
        with claiming(self.table, claims := list[Blocks]()):
            return self._bring(self.claims.hold(missing, self.limit, True, claims), claims)

    def take_over(self, missing: Blocks) -> None:
        """Ask for those of some blocks that another process asked for and does not bring."""
        with claiming(self.table, claims := list[Blocks]()):
            self.claims.take_over(missing, claims)
            self._fetch(claims)

    def is_lacking(self, absent: Blocks) -> bool:
        """Whether the first of some absent blocks lacks room, and none of them is absent since its request failed."""
        if len(absent) == 0 or any(block in self.claims.errors for block in absent.tolist()):
            return False
        return bool(self.room.used + self.bytes_of(absent[:1]) > self.limit)

    def recover(self) -> None:
        """Clear what processes left that have ended, and remove the bytes of blocks that they wrote or removed."""
        self.table.recover()
        remove_left(self.table, self.mirrors.place)  # of an earlier call, too, that could not go on

    # What everything else calls.

    def hold(self, blocks: Blocks, ends: list[Callable[[], None]] | None = None) -> None:
        """Pin blocks, fetch the absent ones, and wait until all are there; `let_go` has to follow unless it raises.

        Args:
            blocks: the blocks.
            ends: to which what lets go of them is appended at the end; it has to be called then, if this raises, too.

        Raises:
            ShardReadError, FileNotFoundError, PermissionError, DiskSpaceError: as `proceed`.
            MemorySpaceError: the room of the cache is too small for them.
        """
        link()  # refuses a forked process
        blocks = np.asarray(blocks, dtype=np.int64)
        end, claims = partial(self.let_go, blocks), list[Blocks]()
        try:
            self._wait_for(self._begun(blocks, claims))
            if ends is not None:
                ends.append(end)
        except BaseException:
            if claims and end not in (ends or ()):
                end()
            raise

    def _wait_for(self, missing: Blocks) -> None:
        """Wait until blocks that were begun are there."""
        patience = Patience(self)
        while len(missing):
            seen = Seen.of(self.room)
            missing = self.proceed(missing)
            if len(missing):
                patience.wait(seen, missing)

    def _bring(self, held: tuple[Blocks, Blocks, Blocks, Blocks], claims: list[Blocks]) -> Blocks:
        """Do what `BlockTable.hold` found to do; return the blocks that are not there yet."""
        claimed, arriving, lacking, doubtful = held
        self._fetch(claims)  # before anything that may raise: others wait for what is claimed
        bad = [block for block in doubtful.tolist() if not self._is_sound(block)]
        missing = [np.asarray(bad, dtype=np.int64), claimed, arriving]
        while len(lacking) and self._make_room(lacking):
            claimed, arriving, lacking, _ = self.claims.hold(lacking, self.limit, True, claims)
            missing += [claimed, arriving]
            self._fetch(claims)
        return np.concatenate([*missing, lacking])

    def _raise_of(self, blocks: Blocks) -> None:
        if (failed := self.claims.failed_of(blocks)) is None:
            return
        self.claims.errors.clear()  # whoever tries again gets new requests
        try:
            raise self._with_row(failed[1], failed[0])
        finally:
            del failed  # the error's traceback refers to this frame, which would keep the error and the cache

    def _with_row(self, error: BaseException, block: int) -> BaseException:
        """Return an error of a request that had a block with the first row there, if that is known."""
        number, offset, nbytes = self.place(block)
        refusals = (FileNotFoundError, PermissionError)
        is_of_store = isinstance(error, ShardReadError) or (isinstance(error, refusals) and error.errno is None)
        found = self._row_at(number, offset) if is_of_store else None
        if found is None:
            return error
        name, row = found
        file = self.files[number].name
        what = f"{error} (bytes {offset} to {offset + nbytes}: from row {row} of the shard's field {name!r} on)"
        if isinstance(error, ShardReadError):
            named: BaseException = ShardReadError(what, file=self.objects.url_of(file), row=row, offset=offset)
        else:
            named = type(error)(what)
        named.__cause__ = error.__cause__
        return named

    # Blocks of earlier processes.

    def _is_sound(self, block: int) -> bool:
        """Compare a block that an earlier process left with its checksum."""
        number, offset, nbytes = self.place(block)
        file, base = self.mirrors.place(number)
        data = b"" if number in self._unknown else read_at(file, base + offset, nbytes)
        if len(data) == nbytes and xxhash.xxh3_64_intdigest(data) == self.table.checksum(block):
            return self.table.vouch(block)
        self.table.discard(block)
        remove_left(self.table, self.mirrors.place)  # at once: others can ask for it again only then
        return False

    # Fetching.

    def etag(self, number: int) -> str:
        """Return the ETag of a file, "" if none is known."""
        return self._etags.of(number) or ""

    def place(self, block: int, count: int = 1) -> tuple[int, int, int]:
        """Return the number of the file of a block, its offset there, and the bytes of it and those that follow."""
        number = bisect_right(self._bounds, block) - 1
        offset = (block - self._bounds[number]) * self._block_bytes
        return number, offset, min(count * self._block_bytes, self.files[number].nbytes - offset)

    def _fetch(self, claims: list[Blocks]) -> None:
        """Begin the requests for claimed blocks, of which the claims have none then; neighbours go together."""
        most = max(1, _MOST_OF_A_REQUEST // self._block_bytes)
        for k, some in enumerate(claims):
            claimed = np.sort(some)
            self.claims.forget_errors(claimed)
            for first, count in runs_of(claimed, self._begins, most):
                link().fetch(RunFetch(self, self.claims.of(range(first, first + count))))
                claims[k] = claimed[claimed >= first + count]

    def store(self, first: int, number: int, offset: int, data: Any) -> None:
        """Write the bytes of claimed blocks, from `first` on, to their mirror file.

        Args:
            first: the first of them.
            number: of the file.
            offset: of the first one there.
            data: the bytes.

        Raises:
            OSError: they cannot be written.
        """
        with self._lock:
            self.counts.fetched_bytes += len(data)
            self.counts.requests += 1
        file, base = self.mirrors.place(number)
        self.table.store(first, self._checksums(data), file.number, base + offset, data, self.mirrors.reserve)

    def _checksums(self, data: Any) -> list[int]:
        """Return the checksum of each block of some bytes that begin with a block."""
        size, whole = self._block_bytes, memoryview(data)
        return [xxhash.xxh3_64_intdigest(whole[at : at + size]) for at in range(0, len(whole), size)]

    def check(self, answers: Sequence[tuple[int, int, Part]]) -> None:
        """Check that answers are of the objects that this set has: their bytes, and the ETags of the first answers.

        Args:
            answers: of each the number of the file, the first byte, and what came.

        Raises:
            ShardReadError: an object was replaced, or cut.
            OSError: an ETag cannot be kept.
        """
        for number, begin, part in answers:
            if (nbytes := self.files[number].nbytes) != part.size:
                happened = "cut" if part.size < nbytes else "replaced"
                raise self._other(number, begin, f"{happened}: it has {part.size} bytes instead of {nbytes}")
        if all(self._etags.of(number) == part.etag for number, _, part in answers):
            return
        settled = self._etags.settle({number: part.etag for number, _, part in reversed(answers)})
        for number, begin, part in answers:
            if settled[number] != part.etag:
                raise self._other(number, begin, "replaced: it has another ETag, or Last-Modified, than before")

    def _other(self, number: int, begin: int, happened: str) -> ShardReadError:
        url = self.objects.url_of(self.files[number].name)
        return ShardReadError(f"{url}: the object was {happened}; {self.objects.advice}", file=url, offset=begin)

    def give_up(self, claim: Claim, error: BaseException) -> None:
        """Raise an error for whoever waits for claimed blocks; where the disk is full, go on with less room instead."""
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            if self._goes_on_with_less(claim.standing()):
                claim.end()
                return
            error = DiskSpaceError(
                f"{self.keeping.folder}: the disk is full, and has room for less than half of cache_bytes="
                f"{format_size(self.keeping.nbytes)}; make room, or give a smaller cache_bytes="
            )
        claim.end(error)

    def _goes_on_with_less(self, own: Blocks) -> bool:
        """Take what lies there, without some blocks, as the room from now on; return False if that is too little.

        What a process has pinned is at most half of its room, so with half of it a pass still goes on.
        """
        left = self.room.used - self.bytes_of(own)
        with self._lock:
            self.limit = min(self.limit, left)
            return self.limit >= self.keeping.nbytes // 2

    # Eviction.

    def _make_room(self, lacking: Blocks) -> bool:
        """Remove blocks until there is room for some of those that lack it; return whether there is any."""
        need = self.bytes_of(lacking[:1])
        wanted = self.room.used + self.bytes_of(lacking) - self.limit
        freed = 0
        with self._lock:
            while freed < wanted and (chosen := self._choose(wanted - freed)):
                freed += (count := evicted(self.table, chosen, self.mirrors.place))
                self.counts.evicted += count
        if freed < wanted and self.folder is not None and self._entry is not None:
            freed += self.folder.make_room(wanted - freed, self._entry)
        return bool(self.room.used + need <= self.limit)

    def _choose(self, nbytes: int) -> list[int]:
        """Return blocks of about so many bytes whose next use is farthest; none if all are pinned."""
        chosen: list[int] = []
        count = max(1, nbytes // self._block_bytes)
        for fresh in (False, True):
            if fresh:
                self._victims.extend(self._farthest(count))
            while self._victims and len(chosen) < count:
                block, use = self._victims.popleft()
                if self.next_use[block] == use:
                    chosen.append(block)
            if chosen:
                break
        return chosen

    def _farthest(self, count: int) -> list[tuple[int, int]]:
        """Return `count` blocks that may go, or more, with their next uses: the farthest of what nobody else wants."""
        states = self.table.states(0, self.table.blocks)
        free = np.flatnonzero((states & (STATE | PINNED)) == PRESENT)
        if len(free) == 0:
            return []
        keys = self.next_use[free].astype(np.int64) - (states[free] & _OTHERS != 0) * (np.int64(1) << 40)
        count = min(max(count, len(free) // _VICTIMS), len(free))
        some = np.argpartition(-keys, count - 1)[:count]
        order = some[np.argsort(-keys[some], kind="stable")]
        return list(zip(free[order].tolist(), self.next_use[free[order]].tolist(), strict=True))
