"""How a pass reads what is not in the page cache: by rows through it, by whole blocks, or past it."""

from __future__ import annotations

from collections.abc import Sequence

from memload._core import Column, Storage, Windows
from memload.columns.fields import AnyColumn
from memload.engine.gather_spec import GatherSpec
from memload.memory.budget import memory

SMALL_ROW = 64 << 10  # bytes; Gather::kLargeRow: rows above it can be read past the page cache
_MOST_OF_A_FILE = 0.1
_SURELY = 16 << 20  # bytes that any page cache can hold: to ask what is free takes longer than to begin a small pass


def reads_blocks(source: GatherSpec, planned_rows: int) -> bool:
    """Whether rows that are not in the page cache are best read with the whole 2 MB block around them.

    A disk gives small random reads at about a tenth of its rate for large ones. So where a pass reads a tenth of its
    files or more in small rows, and the page cache can keep them, reading blocks soon has all of them.
    """
    mapped = _mapped(source)
    if not mapped or max(map(_run_bytes, mapped)) > SMALL_ROW:
        return False
    total = _total(_files(mapped))
    wanted = planned_rows * sum(column.row_bytes for column in mapped)
    return wanted >= total * _MOST_OF_A_FILE and _fits(total)


def reads_directly(source: GatherSpec, planned_rows: int, wish: bool | None) -> bool:
    """Whether large rows that are not in the page cache are best read past it.

    That is up to twice as fast, but leaves nothing behind for whoever reads them next. So the cache gets what is wanted
    a second time, if the files fit there: by a pass of which half was read directly before, or which itself reads more
    than one and a half times the bytes that the files have.

    Args:
        source: what is read.
        planned_rows: rows of the pass, 0 if that is not known.
        wish: the user's word, which decides; None leaves the choice to this function.
    """
    if wish is not None:
        return wish
    large = [column for column in _mapped(source) if isinstance(column, Column) and column.row_bytes > SMALL_ROW]
    files = _files(large)
    if not files or not all(file.knows_residency for file in files):
        return False
    total = _total(files)
    wanted = planned_rows * sum(column.row_bytes for column in large) or total
    repeats = wanted > 1.5 * total or 2 * sum(file.direct_bytes for file in files) >= min(wanted, total)
    return not (repeats and _fits(total))


def _mapped(source: GatherSpec) -> list[AnyColumn]:
    columns = [field.column for field in source.fields.values()]
    return [column for column in columns if any(_is_cached(storage) for storage in column.storages)]


def _is_cached(storage: Storage) -> bool:
    """Whether it is a file that may be read through the page cache."""
    return storage.mapped and not storage.past_cache


def _run_bytes(column: AnyColumn) -> int:
    """Bytes that are read in one run."""
    return _run_bytes(column.frames) if isinstance(column, Windows) else column.row_bytes


def _files(columns: Sequence[AnyColumn]) -> list[Storage]:
    """The files of these columns, each once for every time it was opened."""
    return list({storage: None for column in columns for storage in column.storages if _is_cached(storage)})


def _total(files: list[Storage]) -> int:
    return sum({file.name: file.nbytes for file in files}.values())


def _fits(nbytes: int) -> bool:
    """Whether the page cache can hold so many bytes, and leave as much to everybody else."""
    return nbytes <= _SURELY or nbytes <= memory().free_together // 2
