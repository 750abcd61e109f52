"""
memload's native core: mapped storage, gather, cast and the pipeline of reused slots.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions
__all__: list[str] = ['BlockTable', 'BlocksOf', 'CacheRoom', 'Ceiling', 'Chain', 'Clock', 'Column', 'Device', 'DeviceEvent', 'EventCounts', 'EventItems', 'Events', 'HugeMemory', 'OpenFiles', 'PinnedSlots', 'Pipeline', 'PlainImages', 'PlanQueue', 'Ragged', 'RoomLock', 'RowCache', 'RowIndex', 'SliceTimes', 'Slices', 'Slots', 'Spares', 'Storage', 'TileGrid', 'Tiles', 'Windows', 'augment_images', 'bench_decode', 'bench_disk', 'bench_memcpy', 'cast', 'copy', 'copy_seconds', 'extents', 'free_spares', 'free_spares_below', 'give_back', 'gpu_view', 'image_draws', 'isas', 'load_rows', 'permutation', 'resize_images', 'skip_permutation', 'small_arrays', 'spare_bytes', 'version', 'withheld']
class RowCache:
    """
    Rows of files kept in RAM up to a budget; what comes first stays, unless others are drawn more.
    """
    @staticmethod
    def unfilled() -> int:
        """
        Bytes that all caches of this process, those that shrink apart, may still take.
        """
    def __init__(self, budget: typing.SupportsInt | typing.SupportsIndex, shrinks: bool = False) -> None:
        """
        `shrinks`: a pass may lower the budget when memory runs short. Raises ValueError below 1 MB.
        """
    def set_budget(self, budget: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Give what is held above so many bytes back to the system, and hold no more from now on.
        """
    def stats(self) -> dict[str, typing.Any]:
        """
        hits, misses, hit_bytes, entries, displaced, bytes held now, budget.
        """
    @property
    def budget(self) -> int:
        """
        Bytes that it may hold now.
        """
    @property
    def shrinks(self) -> bool:
        ...
class RoomLock:
    """
    A context that has the lock of a room.
    """
    def __enter__(self) -> None:
        ...
    def __exit__(self, arg0: typing.Any, arg1: typing.Any, arg2: typing.Any) -> None:
        ...
class CacheRoom:
    """
    The room that the blocks of all sets of a cache share, counted in bytes.
    """
    def __init__(self, path: str = '') -> None:
        """
        A file that the processes of a machine share; "": memory of this process. Raises OSError.
        """
    def admit(self) -> None:
        """
        Let other processes open it again.
        """
    def announce(self) -> None:
        """
        Tell all who wait, in all processes, that something has happened.
        """
    def call(self) -> None:
        """
        Wake all who wait in this process, for blocks too, since there is more to do.
        """
    def lock(self) -> RoomLock:
        """
        A context in which no table of the room changes. Raises OSError where another process keeps it.
        """
    def set_used(self, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Correct the count, of a room that is shut, or with its lock.
        """
    def shut(self) -> bool:
        """
        Keep other processes from opening it, if none has it; returns whether.
        """
    def wait(self, seen: typing.SupportsInt | typing.SupportsIndex, seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Wait until `events` differs from `seen`, or so long.
        """
    @property
    def calls(self) -> int:
        """
        A number that changes when `call` was called.
        """
    @property
    def events(self) -> int:
        """
        A number that changes when something may have happened.
        """
    @property
    def is_there(self) -> bool:
        """
        Whether its file is still where it was opened, and not removed or replaced.
        """
    @property
    def used(self) -> int:
        """
        Bytes of all blocks that are there, arriving or leaving.
        """
class BlockTable:
    """
    The state of the blocks of some files, which the processes of a machine share.
    """
    @staticmethod
    def held_bytes(path: str, block_bytes: typing.SupportsInt | typing.SupportsIndex, file_bytes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> int:
        """
        Bytes of all blocks that a table in a file counts, with the room's lock. Raises OSError.
        """
    @staticmethod
    def is_in_use(path: str) -> bool:
        """
        Whether a process has the table in a file open, this one included. Raises OSError.
        """
    def __init__(self, room: CacheRoom, path: str, block_bytes: typing.SupportsInt | typing.SupportsIndex, file_bytes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        `path` "": for this process alone. Raises OSError, and RuntimeError for a file that is no such table.
        """
    def bytes_of(self, block: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def checksum(self, block: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def discard(self, block: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Let a block be `left`.
        """
    def evict(self, blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], files: collections.abc.Mapping[typing.SupportsInt | typing.SupportsIndex, tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> int:
        """
        Remove blocks that are present and not pinned, and lie in one of some files; returns how many bytes. `files`: by its number a file's descriptor, or -1 if it is there no more, and where it begins there. Raises OSError if bytes cannot be given back; these blocks are `left`.
        """
    def failed(self, blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None:
        ...
    def has_to_wait(self, blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> bool:
        """
        Whether some arrive or leave, and none is absent, so that `hold` is of no use yet.
        """
    def hold(self, blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], limit: typing.SupportsInt | typing.SupportsIndex, again: bool = False, claims: list | None = None) -> tuple:
        """
        Pin blocks, and claim the absent ones while the room has at most `limit` bytes. Returns those that are claimed, arriving by others, lacking room, doubtful. The claimed ones are appended to `claims` before.
        """
    def hold_all(self) -> bool:
        """
        Pin all blocks if all are present and beyond doubt.
        """
    def left(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        Blocks that were discarded, that ended processes wrote or removed, or that could not be given back.
        """
    def let_go(self, blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None:
        """
        End one pin of each.
        """
    def let_go_all(self) -> None:
        ...
    def recover(self) -> bool:
        """
        Clear what processes left that have ended; returns whether there was anything, and `left` may have some.
        """
    def remove_left(self, files: collections.abc.Mapping[typing.SupportsInt | typing.SupportsIndex, tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> int:
        """
        Remove those that lie in one of some files; arguments, result and errors are those of `evict`.
        """
    def states(self, first: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Of each: 0 absent, 1 arriving, 2 present, 3 written or leaving; + 4 if pinned, + 8 if another process wants it, + 16 if another process moves it.
        """
    def store(self, first: typing.SupportsInt | typing.SupportsIndex, checksums: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], file: typing.SupportsInt | typing.SupportsIndex, offset: typing.SupportsInt | typing.SupportsIndex, data: typing_extensions.Buffer, reserve: bool) -> None:
        """
        Write the bytes of claimed blocks at an offset of a file; then the blocks from `first` on are there, but for those that another process has taken over. With `reserve` the file system is asked for their space before. Raises OSError; then those that are not there have no bytes, and `failed` has to follow.
        """
    def take_over(self, blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], claims: list | None = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        Claim those that another process claimed and does not seem to bring; returns them. `claims`: as in `hold`.
        """
    def vouch(self, block: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Returns False if the block is there no more.
        """
    def wait_for(self, blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], called: typing.SupportsInt | typing.SupportsIndex, seconds: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Wait as long as `has_to_wait` and the room's `calls` is `called`, or so long; then return False.
        """
    def want(self, blocks: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], wanted: bool) -> None:
        """
        Say whether this process has a use for them.
        """
    @property
    def block_bytes(self) -> int:
        ...
    @property
    def blocks(self) -> int:
        ...
    @property
    def first_blocks(self) -> list[int]:
        """
        The first block of each file, and the end of the last.
        """
    @property
    def is_alone(self) -> bool:
        """
        Whether no other process has the table.
        """
    @property
    def is_there(self) -> bool:
        """
        Whether its file is still where it was opened, and not removed or replaced.
        """
    @property
    def room(self) -> CacheRoom:
        ...
    @property
    def was_alone(self) -> bool:
        """
        Whether no other process had the table when it was opened.
        """
class OpenFiles:
    """
    Descriptors that are kept open for the next read: those used last, at most so many.
    """
    @staticmethod
    def shared() -> OpenFiles:
        """
        That of the files that were given no other.
        """
    def __init__(self, limit: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __len__(self) -> int:
        ...
    @property
    def limit(self) -> int:
        ...
class Storage:
    """
    One readable run of bytes: a mapped file, or memory of somebody else's.
    """
    @staticmethod
    def borrow(owner: typing.Any, address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex, name: str) -> Storage:
        """
        View memory that `owner` keeps alive; errors call it `name`.
        """
    @staticmethod
    def image(owner: typing.Any, address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex, name: str, tier: str, reason: str = '', locator: str = '', stamp: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] | None = None) -> Storage:
        """
        Memory that `owner` keeps alive and that was loaded: `name` is the file that it holds, byte by byte where columns read it, or no path, and `stamp` that of the file; `locator` is what another process finds it by.
        """
    @staticmethod
    def map_file(path: str, past_cache: bool = False, cache: RowCache | None = None, tier: str = 'mmap', reason: str = '', files: OpenFiles | None = None) -> Storage:
        """
        Map a whole file read-only. past_cache: rows are read past the page cache, always, and `cache` keeps some of them; `tier` names that, and `reason` says why. `files` keeps its descriptor while it is read past the page cache; None: one for all such files. Raises OSError.
        """
    @staticmethod
    def mirror(path: str, name: str, table: BlockTable, file: typing.SupportsInt | typing.SupportsIndex, origin: typing.Any, offset: typing.SupportsInt | typing.SupportsIndex | None = None, nbytes: typing.SupportsInt | typing.SupportsIndex = 0) -> Storage:
        """
        Map the mirror file of a remote file called `name`, number `file` of the table. Its bytes are read where the table says that they are there and pinned; else the methods hold and let_go of `origin` are called with numbers of blocks, or ShardReadError is raised. With `offset`, `nbytes` of a file in memory are mapped.
        """
    @staticmethod
    def name_file(path: str, nbytes: typing.SupportsInt | typing.SupportsIndex) -> Storage:
        """
        A file that is opened, read and closed whenever a chunk of it is wanted: for tiles with a chain.
        """
    def load(self, offset: typing.SupportsInt | typing.SupportsIndex, address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy bytes to memory, past the page cache where they are not in it. Raises IndexError and ShardReadError.
        """
    @property
    def cache(self) -> RowCache:
        """
        What keeps rows of it, or None.
        """
    @property
    def closed(self) -> bool:
        """
        Whether it is a file that is opened for each read.
        """
    @property
    def direct_bytes(self) -> int:
        """
        Bytes read past the page cache so far.
        """
    @property
    def files(self) -> OpenFiles:
        """
        What keeps its descriptor; None: what keeps those of all files that were given nothing else.
        """
    @property
    def is_image(self) -> bool:
        """
        Whether it is memory that holds what a file held.
        """
    @property
    def knows_residency(self) -> bool:
        """
        Whether the kernel tells what of it is in the page cache.
        """
    @property
    def locator(self) -> str:
        ...
    @property
    def mapped(self) -> bool:
        """
        Whether it is a file, rather than memory.
        """
    @property
    def mirror_number(self) -> int | None:
        """
        The number of a mirror file in its table; None for other storages.
        """
    @property
    def name(self) -> str:
        ...
    @property
    def nbytes(self) -> int:
        ...
    @property
    def origin(self) -> typing.Any:
        """
        What fetches the bytes of a mirror file; None for other storages.
        """
    @property
    def past_cache(self) -> bool:
        """
        Whether rows are read past the page cache, always.
        """
    @property
    def reason(self) -> str:
        ...
    @property
    def size_now(self) -> int | None:
        """
        The bytes of the file that was opened, as they are now; None if that cannot be asked.
        """
    @property
    def stamp(self) -> tuple[int, int, int, int] | None:
        """
        (device, inode, time of the last change, time of birth) of the file as it was opened, times in ns since 1970, 0 where the file system does not tell; None: not a file.
        """
    @property
    def tier(self) -> str:
        ...
class Column:
    """
    Where the rows of one field lie. Immutable.
    """
    @staticmethod
    def concat(columns: collections.abc.Sequence[Column]) -> Column:
        """
        All rows of the first, then of the second, and so on.
        """
    def __init__(self, row_bytes: typing.SupportsInt | typing.SupportsIndex, segments: collections.abc.Sequence[tuple[Storage, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> None:
        """
        Segments are (storage, offset of the first row, rows, bytes from one row to the next).
        """
    def gather(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy rows to memory, one after the other. Raises IndexError and ShardReadError.
        """
    def select(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> Column:
        """
        These rows in this order. Raises IndexError at the first that is not there.
        """
    @property
    def row_bytes(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def segments(self) -> list[tuple[Storage, int, int, int]]:
        """
        (storage, offset, rows, stride) of each run of rows, in order.
        """
    @property
    def selection(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """
        A copy of the stored rows in order; None if all, as they lie.
        """
    @property
    def selection_bytes(self) -> int:
        """
        Memory taken by the row selection, if any.
        """
    @property
    def storages(self) -> list[Storage]:
        """
        What is read, each storage once.
        """
class Chain:
    """
    Filters in the order in which the writer applied them.
    """
    def __init__(self, filters: collections.abc.Sequence[tuple[str, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> None:
        """
        Of (name, bytes of an element, elements in a block); zeros where the filter has none.
        """
    def decode(self, src: typing_extensions.Buffer, nbytes: typing.SupportsInt | typing.SupportsIndex, skipped: typing.SupportsInt | typing.SupportsIndex = 0) -> bytes:
        """
        Undo the filters, but for those whose bit is set in `skipped`. Raises DecodeError.
        """
    def encode(self, src: typing_extensions.Buffer, level: typing.SupportsInt | typing.SupportsIndex = 1, inner: str = 'zstd', shuffle: str = 'none') -> bytes:
        """
        Apply the filters. `inner` and `shuffle` are for blosc.
        """
    def scratch_bytes(self, nbytes: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The memory that decoding so many bytes takes besides them.
        """
    @property
    def filters(self) -> list[tuple[str, int, int]]:
        ...
class TileGrid:
    """
    An array of rows that is stored in tiles: where each lies, and what it went through. Immutable.
    """
    def __init__(self, rows: typing.SupportsInt | typing.SupportsIndex, item_bytes: typing.SupportsInt | typing.SupportsIndex, row_shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], tile_shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], storages: collections.abc.Sequence[Storage], table: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], chain: Chain | None = None, fill: bytes = b'', cut: bool = False, order: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = []) -> None:
        """
        The table has a row for each tile, in C order of the grid: (number of its storage, or -1 if it was never written; offset; bytes; bits of the filters that it did without). fill: one element, b'' for zeros. cut: tiles at the far edges are stored without what lies beyond. order: a tile's axes, from the slowest to the fastest, if not as they come.
        """
    @property
    def chain(self) -> Chain | None:
        ...
    @property
    def cut(self) -> bool:
        ...
    @property
    def fill(self) -> bytes:
        ...
    @property
    def item_bytes(self) -> int:
        ...
    @property
    def order(self) -> list[int]:
        ...
    @property
    def row_bytes(self) -> int:
        ...
    @property
    def row_shape(self) -> list[int]:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def storages(self) -> list[Storage]:
        ...
    @property
    def stored_bytes(self) -> int:
        """
        Bytes of all tiles as they are stored.
        """
    @property
    def table(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        A copy, as it was given.
        """
    @property
    def tile_bytes(self) -> int:
        """
        Bytes of a whole tile, decoded.
        """
    @property
    def tile_shape(self) -> list[int]:
        ...
class Tiles:
    """
    Rows that lie inside tiles, of one array or of several one after the other. Immutable.
    """
    @staticmethod
    def concat(columns: collections.abc.Sequence[Tiles]) -> Tiles:
        """
        All rows of the first, then of the second, and so on.
        """
    def __init__(self, parts: collections.abc.Sequence[TileGrid | Column]) -> None:
        """
        A plain column is a part, too: files may be stored differently.
        """
    def gather(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy rows to memory, one after the other. Raises IndexError and ShardReadError.
        """
    def select(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> Tiles:
        """
        These rows in this order. Raises IndexError at the first that is not there.
        """
    @property
    def parts(self) -> list[TileGrid | Column]:
        """
        What the stored rows are made of, in order.
        """
    @property
    def row_bytes(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def selection(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """
        A copy of the stored rows in order; None if all, as they lie.
        """
    @property
    def selection_bytes(self) -> int:
        """
        Memory taken by the row selection, if any.
        """
    @property
    def storages(self) -> list[Storage]:
        """
        What is read, each storage once.
        """
class Ragged:
    """
    Where the rows of a field lie that differ in length: runs of items, found by offsets. Immutable. `row_bytes` is their average; `gather` copies the items of rows, one row after the other, plane by plane, or padded.
    """
    @staticmethod
    def concat(columns: collections.abc.Sequence[Ragged]) -> Ragged:
        """
        All rows of the first, then of the second, and so on.
        """
    def __init__(self, item_bytes: typing.SupportsInt | typing.SupportsIndex, planes: typing.SupportsInt | typing.SupportsIndex, segments: collections.abc.Sequence[tuple[Storage, typing.SupportsInt | typing.SupportsIndex, Storage | collections.abc.Sequence[TileGrid], typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> None:
        """
        Segments are (storage of the offsets, where they begin, storage of the values, where they begin, rows, items of a plane, bytes from one plane to the next); or for encoded values, instead of their storage, a TileGrid of whole items for each plane. The int64 offsets, rows + 1 of them, are read and checked. Raises ValueError and ShardReadError.
        """
    def counted_by(self, counts: Ragged) -> Ragged:
        """
        The same rows of int32 or int64, by their size, each item of which is increased in a batch by the items that `counts` has in the rows before: the node numbers of graphs that become one.
        """
    def gather(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy rows to memory, one after the other. Raises IndexError and ShardReadError.
        """
    def lengths(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> numpy.typing.NDArray[numpy.int64]:
        """
        Items of each of these rows. Raises IndexError and ShardReadError.
        """
    def longest(self, rows: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Items of so many of the longest rows.
        """
    def padded(self, pad: bytes = b'') -> Ragged:
        """
        The same rows, padded in a batch to the length of its longest: with these bytes of an element as batches have it, again and again, or with zeros.
        """
    def select(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> Ragged:
        """
        These rows in this order. Raises IndexError at the first that is not there.
        """
    @property
    def decodes(self) -> bool:
        """
        Whether items of some rows are encoded.
        """
    @property
    def item_bytes(self) -> int:
        ...
    @property
    def items(self) -> int:
        """
        Items of one plane, of all rows.
        """
    @property
    def pad(self) -> bytes:
        """
        The element that rows are padded with; empty for zeros.
        """
    @property
    def pads(self) -> bool:
        """
        Whether rows of a batch are padded to the longest.
        """
    @property
    def planes(self) -> int:
        """
        How many runs of items a row has, one behind the other.
        """
    @property
    def read_bytes(self) -> int:
        """
        Stored bytes that are read for a row by itself, on average.
        """
    @property
    def row_bytes(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def segments(self) -> list[tuple[Storage, int, Storage | list[TileGrid], int, int, int, int]]:
        """
        What the column was made of.
        """
    @property
    def selection(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """
        A copy of the stored rows in order; None if all, as they lie.
        """
    @property
    def selection_bytes(self) -> int:
        """
        Memory taken by the row selection, if any.
        """
    @property
    def storages(self) -> list[Storage]:
        """
        What is read, each storage once.
        """
class Windows:
    """
    Rows that are windows of frames; each frame is stored once. Immutable.
    """
    @staticmethod
    def concat(columns: collections.abc.Sequence[Windows]) -> Windows:
        """
        All rows of the first, then of the second, and so on.
        """
    def __init__(self, frames: Column | Tiles | Windows | Ragged, steps: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], runs: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> None:
        """
        A row beginning at the frame b is the frames b + step for each step; runs are (first frame, rows, hop).
        """
    def gather(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy rows to memory, one after the other. Raises IndexError and ShardReadError.
        """
    def select(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> Windows:
        """
        These rows in this order. Raises IndexError at the first that is not there.
        """
    def sharing(self) -> Windows:
        """
        The same windows, of which a pipeline gives a batch as frames, each once, and the int64 places of windows among them: of each one's lowest step, where the steps leave no gap, else of each step. Without places, as few frames are shared, the frames are those of window after window.
        """
    @property
    def frames(self) -> Column | Tiles | Windows | Ragged:
        ...
    @property
    def row_bytes(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """
        (first frame, rows, hop) of each run of windows, in order.
        """
    @property
    def selection(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """
        A copy of the stored rows in order; None if all, as they lie.
        """
    @property
    def selection_bytes(self) -> int:
        """
        Memory taken by the row selection, if any.
        """
    @property
    def steps(self) -> list[int]:
        ...
    @property
    def storages(self) -> list[Storage]:
        """
        What is read, each storage once.
        """
class Clock:
    """
    At which time each row was recorded, in whole nanoseconds. Immutable.
    """
    @staticmethod
    def at_times(times: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], period: typing.SupportsInt | typing.SupportsIndex, longest: typing.SupportsInt | typing.SupportsIndex) -> Clock:
        """
        Rows at these times. Those more than `longest` apart have a gap between them, before which the last row holds for `period`.
        """
    def __init__(self, rows: typing.SupportsInt | typing.SupportsIndex, start: typing.SupportsInt | typing.SupportsIndex, rate: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        A regular clock; the rate is a fraction (count, seconds).
        """
    @property
    def longest(self) -> int:
        ...
    @property
    def period(self) -> int:
        ...
    @property
    def rate(self) -> tuple[int, int]:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def start(self) -> int:
        ...
    @property
    def times(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """
        A copy of the times; None for a regular clock.
        """
class SliceTimes:
    """
    When slices start, in nanoseconds, by recording. Immutable.
    """
    def __init__(self, starts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], spans: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], lows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], highs: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], counts: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        Spans, lows and highs may be empty. A slice starts up to `span` later than its start, as is drawn; padding stands before `low`, and from `high` on. `counts` are the slices of each recording.
        """
    @property
    def counts(self) -> list[int]:
        ...
    @property
    def draws(self) -> bool:
        ...
    @property
    def highs(self) -> numpy.typing.NDArray[numpy.int64]:
        ...
    @property
    def lows(self) -> numpy.typing.NDArray[numpy.int64]:
        ...
    @property
    def spans(self) -> numpy.typing.NDArray[numpy.int64]:
        ...
    @property
    def starts(self) -> numpy.typing.NDArray[numpy.int64]:
        ...
class Slices:
    """
    Rows that are samples of frames at regular times from a start on. Immutable.
    """
    @staticmethod
    def concat(columns: collections.abc.Sequence[Slices]) -> Slices:
        """
        All rows of the first, then of the second, and so on.
        """
    def __init__(self, frames: Column | Tiles | Windows | Ragged, recordings: collections.abc.Sequence[tuple[Clock, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], times: SliceTimes, grid: tuple[typing.SupportsInt | typing.SupportsIndex, tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], typing.SupportsInt | typing.SupportsIndex], sampling: str, element: str) -> None:
        """
        Recordings are (clock, its first frame, the frame that is padding or -1). Sampling is nearest, previous, linear or mean; `element` is the dtype of a frame's elements.
        """
    def gather(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy rows to memory, one after the other. Raises IndexError and ShardReadError.
        """
    def select(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> Slices:
        """
        These rows in this order. Raises IndexError at the first that is not there.
        """
    @property
    def blends(self) -> bool:
        """
        Whether samples are computed of several frames.
        """
    @property
    def draws(self) -> bool:
        """
        Whether starts are drawn for each pass.
        """
    @property
    def element(self) -> str:
        ...
    @property
    def frames(self) -> Column | Tiles | Windows | Ragged:
        ...
    @property
    def grid(self) -> tuple[int, tuple[int, int], int]:
        """
        (samples, rate, offset)
        """
    @property
    def recordings(self) -> list[tuple[Clock, int, int]]:
        ...
    @property
    def row_bytes(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def sampling(self) -> str:
        ...
    @property
    def selection(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """
        A copy of the stored rows in order; None if all, as they lie.
        """
    @property
    def selection_bytes(self) -> int:
        """
        Memory taken by the row selection, if any.
        """
    @property
    def storages(self) -> list[Storage]:
        """
        What is read, each storage once.
        """
    @property
    def times(self) -> SliceTimes:
        """
        Of all stored slices, in order.
        """
class Events:
    """
    Events of several units in the order of their times.
    """
    def __init__(self, times: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], units: typing.Annotated[numpy.typing.ArrayLike, numpy.int32]) -> None:
        ...
    @property
    def times(self) -> numpy.typing.NDArray[numpy.int64]:
        ...
    @property
    def units(self) -> numpy.typing.NDArray[numpy.int32]:
        ...
class EventCounts:
    """
    Rows that count the events of each unit in regular bins from a start on: int16. Immutable.
    """
    @staticmethod
    def concat(columns: collections.abc.Sequence[EventCounts]) -> EventCounts:
        """
        All rows of the first, then of the second, and so on.
        """
    def __init__(self, events: collections.abc.Sequence[Events], units: typing.SupportsInt | typing.SupportsIndex, times: SliceTimes, grid: tuple[typing.SupportsInt | typing.SupportsIndex, tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], typing.SupportsInt | typing.SupportsIndex]) -> None:
        ...
    def gather(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy rows to memory, one after the other. Raises IndexError and ShardReadError.
        """
    def select(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> EventCounts:
        """
        These rows in this order. Raises IndexError at the first that is not there.
        """
    @property
    def draws(self) -> bool:
        """
        Whether starts are drawn for each pass.
        """
    @property
    def events(self) -> list[Events]:
        ...
    @property
    def grid(self) -> tuple[int, tuple[int, int], int]:
        """
        (samples, rate, offset)
        """
    @property
    def row_bytes(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def selection(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """
        A copy of the stored rows in order; None if all, as they lie.
        """
    @property
    def selection_bytes(self) -> int:
        """
        Memory taken by the row selection, if any.
        """
    @property
    def storages(self) -> list[Storage]:
        """
        What is read, each storage once.
        """
    @property
    def times(self) -> SliceTimes:
        """
        Of all stored slices, in order.
        """
    @property
    def units(self) -> int:
        ...
class EventItems:
    """
    Rows that differ in length, of the events of slices: their float64 seconds from the beginning of the slice, or their int64 units. Immutable. `row_bytes` is their average.
    """
    @staticmethod
    def concat(columns: collections.abc.Sequence[EventItems]) -> EventItems:
        """
        All rows of the first, then of the second, and so on.
        """
    def __init__(self, events: collections.abc.Sequence[Events], times: SliceTimes, window: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], item: str) -> None:
        """
        The window is (offset, duration) in nanoseconds; `item` is time or unit.
        """
    def gather(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy rows to memory, one after the other. Raises IndexError and ShardReadError.
        """
    def lengths(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> numpy.typing.NDArray[numpy.int64]:
        """
        Items of each of these rows. Raises IndexError and ShardReadError.
        """
    def longest(self, rows: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Items of so many of the longest rows.
        """
    def padded(self, pad: bytes = b'') -> EventItems:
        """
        The same rows, padded in a batch to the length of its longest: with these bytes of an element as batches have it, again and again, or with zeros.
        """
    def select(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> EventItems:
        """
        These rows in this order. Raises IndexError at the first that is not there.
        """
    @property
    def draws(self) -> bool:
        """
        Whether starts are drawn for each pass.
        """
    @property
    def events(self) -> list[Events]:
        ...
    @property
    def item(self) -> str:
        ...
    @property
    def item_bytes(self) -> int:
        ...
    @property
    def items(self) -> int:
        """
        Of all rows, as they are outside of passes.
        """
    @property
    def pad(self) -> bytes:
        """
        The element that rows are padded with; empty for zeros.
        """
    @property
    def pads(self) -> bool:
        """
        Whether rows of a batch are padded to the longest.
        """
    @property
    def planes(self) -> int:
        ...
    @property
    def row_bytes(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def selection(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """
        A copy of the stored rows in order; None if all, as they lie.
        """
    @property
    def selection_bytes(self) -> int:
        """
        Memory taken by the row selection, if any.
        """
    @property
    def storages(self) -> list[Storage]:
        """
        What is read, each storage once.
        """
    @property
    def times(self) -> SliceTimes:
        """
        Of all stored slices, in order.
        """
    @property
    def window(self) -> tuple[int, int]:
        ...
class BlocksOf:
    """
    Finds the blocks in which rows of some fields lie.
    """
    def __call__(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> list[tuple[typing.Any, numpy.typing.NDArray[numpy.int64]]]:
        """
        (origin, its blocks in rising order) for each origin of mirrored storages. Raises IndexError.
        """
    def __init__(self, columns: collections.abc.Sequence[Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems]) -> None:
        ...
class HugeMemory:
    """
    Zero-filled private memory on huge pages.
    """
    def __init__(self, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Raises MemoryError.
        """
    @property
    def address(self) -> int:
        ...
    @property
    def nbytes(self) -> int:
        ...
class DeviceEvent:
    """
    A point in a stream of a Device.
    """
class Device:
    """
    A device that native threads copy to. Streams are their handles.
    """
    def __init__(self, capsule: typing_extensions.CapsuleType) -> None:
        """
        From what memload._cuda.device() gives.
        """
    def create_stream(self, urgent: bool) -> int:
        """
        Make a stream that lives until the process ends; what is queued in urgent ones goes first.
        """
    def done(self, event: DeviceEvent) -> bool:
        """
        Whether an event has come.
        """
    def follow(self, stream: typing.SupportsInt | typing.SupportsIndex, other: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Let what is queued in the stream from now on run after all that is in the other one now.
        """
    def record(self, stream: typing.SupportsInt | typing.SupportsIndex) -> DeviceEvent:
        """
        An event that comes when all that is in the stream now is done.
        """
    def register_host(self, address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Pin memory of the host, until `unregister_host`; others may be capturing graphs meanwhile.
        """
    def synchronise(self, event: DeviceEvent) -> None:
        """
        Wait, without the GIL, until an event has come.
        """
    def unregister_host(self, address: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Unpin memory that no stream reads any more.
        """
    def wait(self, stream: typing.SupportsInt | typing.SupportsIndex, event: DeviceEvent) -> None:
        """
        Let what is queued in the stream from now on run after an event.
        """
class PinnedSlots:
    """
    Where a pipeline's slots come from: memory that the device reads.
    """
    def __init__(self, device: Device, limit: typing.SupportsInt | typing.SupportsIndex | None = None, node: typing.SupportsInt | typing.SupportsIndex | None = None) -> None:
        """
        Huge pages that are registered with the driver, on a NUMA node if one is named; pageable memory beyond `limit` bytes.
        """
    @property
    def pinned_bytes(self) -> int:
        ...
    @property
    def refusal(self) -> str:
        """
        Why slots are pageable; empty if they are not.
        """
class Spares:
    """
    Memory and threads of a loader's passes that have ended, kept for passes that begin soon.
    """
    def __init__(self, seconds: typing.SupportsFloat | typing.SupportsIndex = 10.0) -> None:
        """
        They stay for so many seconds without use.
        """
    def release(self) -> None:
        """
        Free what is kept here now.
        """
class Slots:
    """
    Memory that tensors lease, and that is used again when the last of them is gone.
    """
    def __init__(self, count: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        At most so many are kept; those beyond are freed when their tensors are gone.
        """
    def take(self, nbytes: typing.SupportsInt | typing.SupportsIndex) -> typing.Any:
        """
        A DLPack capsule of so many bytes, uninitialised.
        """
class PlanQueue:
    """
    The rows of a plan, from which batches are cut: of a stream of rows, or each by itself.
    """
    def __init__(self, batch_rows: typing.SupportsInt | typing.SupportsIndex, drop_last: bool) -> None:
        ...
    def extend(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None:
        """
        Plan rows, to be cut into batches of batch_rows.
        """
    def finish(self) -> None:
        """
        No more rows will come.
        """
    def push(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None:
        """
        Plan one batch of exactly these rows.
        """
    def put_back(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None:
        """
        Put a batch that was taken back to the front.
        """
    def take(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        The rows of the next batch. Raises IndexError if there is none now.
        """
    @property
    def ready(self) -> bool:
        """
        Whether the next batch is known.
        """
class RowIndex:
    """
    The stored number of each row.
    """
    def __init__(self, stored: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None, rows: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        stored: the number of each row; None: of so many rows, row k is number k.
        """
    def numbers(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> numpy.typing.NDArray[numpy.int64]:
        """
        The numbers of some rows. Raises IndexError for one that does not exist.
        """
class Pipeline:
    """
    One pass over a plan: rows gathered by native threads into reused slots.
    """
    @staticmethod
    def ring_bytes(fields: collections.abc.Sequence[tuple[Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems, tuple[str, str, bool | tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]]] | None, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, bool, bool], tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex] | None] | None] | None, tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], bool, bool, typing.SupportsFloat | typing.SupportsIndex] | None] | None]], slot_rows: typing.SupportsInt | typing.SupportsIndex, depth: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
        """
        Bytes that the slots of such a pipeline take, and what so many threads decode and resize in.
        """
    def __init__(self, fields: collections.abc.Sequence[tuple[Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems, tuple[str, str, bool | tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]]] | None, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, bool, bool], tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex] | None] | None] | None, tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], bool, bool, typing.SupportsFloat | typing.SupportsIndex] | None] | None]], batch_rows: typing.SupportsInt | typing.SupportsIndex, slot_rows: typing.SupportsInt | typing.SupportsIndex, drop_last: bool, depth: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex, read_blocks: bool = False, direct: bool = False, tile_bytes: typing.SupportsInt | typing.SupportsIndex = 0, tiles_of: Pipeline | None = None, isa: str = '', streaming: bool | None = None, reuse: Pipeline | None = None, slots: PinnedSlots | None = None, route: tuple[Device, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] | None = None, buffers: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] | None = None, borrowed: bool = False, spares: Spares | None = None, cpus: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = []) -> None:
        """
        Fields are (column, None or (from, to, norm_removed), DLPack code, bits, shape of what follows the first axis). With a route (device, stream of copies, stream of what follows, first field of the second part) batches go to a device, by `slots`; buffers: (address, number, bytes of each) of the device's memory that they go to in turn, instead of memory that set_destination() gives. borrowed: they are gathered into memory that set_destination() gives. tile_bytes: of decoded chunks that are kept for further batches, or in what the pipeline `tiles_of` keeps. `spares` keep memory that is not pinned, and threads, for the next pass. cpus: those near the slots, on which threads stay if each has one.
        """
    def begin(self, key: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        The key of the pass, from which the draws of each row follow; before the first rows.
        """
    def cancel(self) -> PlanQueue:
        """
        Stop gathering: the plan of what next() has not given, which gives nothing more. close() has to follow.
        """
    def check_files(self) -> None:
        """
        Raise ShardReadError if a file of the pass was cut since it was opened; asked at the end of a pass.
        """
    def close(self, keep_slots: bool = False, patience: typing.SupportsFloat | typing.SupportsIndex = 2.0) -> bool:
        """
        Stop, and give memory and threads back. Returns whether all threads stopped: one whose read does not answer for so many seconds is left behind.
        """
    def extend(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None:
        """
        Plan rows, to be cut into batches of batch_rows.
        """
    def finish(self) -> None:
        """
        No more rows will come.
        """
    def needed_destination(self) -> typing.Any:
        """
        Bytes of each part of the first batch that has begun and has no destination; None if there is none.
        """
    def next(self, timeout: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> typing.Any:
        """
        The next batch as a list of DLPack capsules, or with a route or borrowed memory of (part, offset, DLPack code, bits, shape); None at the end; a tuple like that of needed_destination(): set_destination() comes first. Raises TimeoutError, ShardReadError, IndexError.
        """
    def next_addresses(self, wait: bool = True) -> typing.Any:
        """
        With buffers: the next batch as (address, rows) of each of its fields on the device; None at the end, or without `wait`, if it is not there yet.
        """
    def push(self, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> None:
        """
        Plan one batch of exactly these rows.
        """
    def push_from(self, index: RowIndex, first: typing.SupportsInt | typing.SupportsIndex, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> tuple:
        """
        Plan one batch: of these rows those whose numbers are at least `first`, counted from there; none: nothing. Returns the numbers of all rows, in which those are `first`, first + 1, ..., and how many they are.
        """
    def ready(self) -> typing.Any:
        """
        Whether next() has a batch, or its error, without waiting; or a tuple like that of needed_destination(): set_destination() comes first.
        """
    def release(self) -> None:
        """
        With buffers: all that reads the batch that next_addresses() gave first is in its stream by now.
        """
    def row_numbers(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        The rows of the batch that next() gave last, as they were planned.
        """
    def set_destination(self, first: typing.SupportsInt | typing.SupportsIndex, second: typing.SupportsInt | typing.SupportsIndex, owner: typing.Any) -> typing.Any:
        """
        Memory for the two parts of that batch; without a route only the first, which `owner` keeps. Returns what needed_destination() gives then.
        """
    def stats(self) -> dict[str, typing.Any]:
        """
        Counters of this pass.
        """
    @property
    def rows(self) -> int:
        """
        The number of rows of the data set.
        """
class Ceiling:
    """
    Planned rows gathered and cast into four reused huge-page buffers.
    """
    def __init__(self, fields: collections.abc.Sequence[tuple[Column, tuple[str, str, bool] | None, tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.Annotated[numpy.typing.ArrayLike, numpy.int64]] | None]], rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], batch_size: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex, isa: str = '') -> None:
        ...
    def run(self, batches: typing.SupportsInt | typing.SupportsIndex = 0, streaming: bool = False) -> dict[str, typing.Any]:
        """
        Gathers that many batches (0: the whole plan once) and says how long it took.
        """
    def run_fresh(self, streaming: bool = False) -> dict[str, typing.Any]:
        """
        Gathers the first batch into memory that nobody has touched yet.
        """
    def written(self, batch: typing.SupportsInt | typing.SupportsIndex, field: typing.SupportsInt | typing.SupportsIndex) -> bytes:
        """
        The bytes that a batch of the last run wrote for a field; overwritten four batches later.
        """
    @property
    def batch_bytes(self) -> int:
        ...
    @property
    def batches_in_plan(self) -> int:
        ...
class PlainImages:
    """
    Planned images made by plain loops into four reused huge-page buffers.
    """
    def __init__(self, column: Column, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], draws: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], shape: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, bool, bool], to: str, constants: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]], batch_size: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def run(self, batches: typing.SupportsInt | typing.SupportsIndex = 0) -> dict[str, typing.Any]:
        """
        Makes that many batches (0: the whole plan once) and says how long it took.
        """
    def written(self, batch: typing.SupportsInt | typing.SupportsIndex) -> bytes:
        """
        The bytes that a batch of the last run wrote; overwritten four batches later.
        """
    @property
    def batch_bytes(self) -> int:
        ...
def augment_images(src_address: typing.SupportsInt | typing.SupportsIndex, dst_address: typing.SupportsInt | typing.SupportsIndex, images: typing.SupportsInt | typing.SupportsIndex, images_per_draw: typing.SupportsInt | typing.SupportsIndex, draws: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], shape: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, bool, bool], cast: tuple[str, str, bool | tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]]], isa: str = '', threads: typing.SupportsInt | typing.SupportsIndex = 1) -> None:
    """
    Cut, flip, lay out and cast images; shape: (height, width, channels, height and width of the result, stored interleaved, result in planes); cast: (from, to, how); draws: (rows, 3) of top, left, flipped.
    """
def bench_decode(storages: collections.abc.Sequence[Storage], table: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], threads: typing.SupportsInt | typing.SupportsIndex, seconds: typing.SupportsFloat | typing.SupportsIndex, chain: Chain | None = None, ring_bytes: typing.SupportsInt | typing.SupportsIndex = 0) -> dict[str, typing.Any]:
    """
    Decodes parts over and over, and says how long it took: seconds, cpu_seconds, parts, bytes. The table has a row for each: (number of its storage, offset, stored bytes, decoded bytes). Without a chain, they are zlib or gzip streams, and it is zlib-ng itself that is measured. Parts are decoded one behind the other into `ring_bytes` of memory, those of all threads, and then from its beginning again; by default into one place for each thread, which stays in the processor's cache.
    """
def bench_disk(path: str, offsets: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], nbytes: typing.SupportsInt | typing.SupportsIndex, in_flight: typing.SupportsInt | typing.SupportsIndex, method: str) -> dict[str, typing.Any]:
    """
    Reads rows past the page cache: seconds, cpu_seconds, reads, bytes.
    """
def bench_memcpy(nbytes: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex, seconds: typing.SupportsFloat | typing.SupportsIndex) -> dict[str, typing.Any]:
    """
    Copies between huge-page buffers for about that long: seconds, cpu_seconds, bytes.
    """
def cast(src_address: typing.SupportsInt | typing.SupportsIndex, dst_address: typing.SupportsInt | typing.SupportsIndex, n: typing.SupportsInt | typing.SupportsIndex, from_code: str, to_code: str, how: bool | tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]] = False, isa: str = '', streaming: bool = False, threads: typing.SupportsInt | typing.SupportsIndex = 1) -> None:
    """
    Cast n elements from one address to another; dtypes by their safetensors names, isa "" for the best. how: norm_removed, or constants (elements from one channel to the next, scale, offset, means, deviations).
    """
def copy(src_address: typing.SupportsInt | typing.SupportsIndex, dst_address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex, isa: str = '', streaming: bool = False) -> None:
    """
    Copy bytes from one address to another.
    """
def copy_seconds(device: Device, stream: typing.SupportsInt | typing.SupportsIndex, to: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> float:
    """
    Seconds of the fastest of a few copies from such slots to the device.
    """
def extents(column: Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems) -> list[tuple[Storage, int, int]]:
    """
    (storage, offset, bytes) of all that is read of files for any row, in whole pages, each byte once.
    """
def free_spares() -> None:
    """
    Free what is kept of all loaders of this process.
    """
def free_spares_below(available: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Free it as soon as the machine has fewer bytes available; a thread looks while something is kept.
    """
def give_back(file: typing.SupportsInt | typing.SupportsIndex, offset: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Give the pages of a part of a file back to its file system; they read as zeros from then on. Raises OSError.
    """
def gpu_view(address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex, device: typing.SupportsInt | typing.SupportsIndex) -> typing.Any:
    """
    A DLPack capsule of memory that kernels of a GPU read at this address; the caller keeps it.
    """
def image_draws(seeds: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], shape: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, bool, bool], rule: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex] | None] | None]) -> numpy.typing.NDArray[numpy.int64]:
    """
    The draws of rows with these seeds: int64 (rows, 3) of top, left, flipped, and of images that are resized (rows, 5), height and width of the part behind them; shape: as of augment_images(); rule: (stream, probability of a flip, None or ((top, left, height, width), None or (least and greatest area, least and greatest width / height))): the part where nothing is drawn, or none that is drawn fits.
    """
def isas() -> list[str]:
    """
    The instruction sets that this build holds and this machine runs, the best last.
    """
def load_rows(column: Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems, cast: tuple[str, str, bool | tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]]] | None, rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Copy rows to memory, one after the other; cast is None or (from, to, norm_removed). Raises IndexError and ShardReadError.
    """
def permutation(state: numpy.typing.NDArray[numpy.uint8], rows: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int64]:
    """
    What torch.randperm(rows) draws from a generator in this state (uint8), which is changed as by it.
    """
def resize_images(src_address: typing.SupportsInt | typing.SupportsIndex, dst_address: typing.SupportsInt | typing.SupportsIndex, images: typing.SupportsInt | typing.SupportsIndex, images_per_draw: typing.SupportsInt | typing.SupportsIndex, draws: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], shape: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, bool, bool], method: tuple[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], bool, bool, typing.SupportsFloat | typing.SupportsIndex], cast: tuple[str, str, bool | tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]]], isa: str = '', threads: typing.SupportsInt | typing.SupportsIndex = 1) -> None:
    """
    Resize a part of each image, flip, lay out and cast it, as augment_images; method: ((top, left, height, width) of the resized pixels in the result, nearest, antialias, padding); draws: (rows, 5) of top, left, flipped, height, width.
    """
def skip_permutation(state: numpy.typing.NDArray[numpy.uint8], rows: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Change the state as permutation() does.
    """
def small_arrays(sizes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> list[int]:
    """
    Which arrays of a batch, by their sizes in bytes, get memory of their own: few bytes in all.
    """
def spare_bytes() -> int:
    """
    Bytes of the memory that is kept of all loaders of this process.
    """
def withheld(nbytes: typing.SupportsInt | typing.SupportsIndex, node: typing.SupportsInt | typing.SupportsIndex | None = None) -> typing.Any:
    """
    A DLPack capsule of so many bytes, zeros on huge pages, which processes that are forked do not have; on a NUMA node if one is named.
    """
version: str
