"""What the native engine sets a pass to: sizes of batches, threads, depth, and whether memory holds the slots.

What is not in the page cache is read by rows through it, by whole blocks, or past it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import BatchSampler

from memload import _core
from memload._core import Column, Slices, Storage, Windows
from memload.columns.fields import AnyColumn
from memload.engine.gather_spec import GatherSpec, PipelineField
from memload.engine.mutation_guards import MutationGuard
from memload.engine.request import MOST, Destination, EngineOptions, PassRequest
from memload.memory.budget import local_threads, memory_to_take, process_is_limited
from memload.memory.guards import check_memory
from memload.sampling.batch_streams import MOST_ROWS, batches_known
from memload.sampling.block_shuffle import BlockShuffle
from memload.sampling.blocks import decoded_bytes
from memload.sampling.draws import Indices
from memload.sizes import format_size

if TYPE_CHECKING:
    from memload.engine.transforms.transform_pipeline import TransformPipeline
    from memload.formats.remote.block_cache import BlockCache

# Batches gathered ahead: two measured as fast as six, one being filled while one waits. Batches of some 100 KB are
# gathered faster than a thread wakes up, so of these there are more, up to so many bytes in all.
# A slot that is copied to a device is free again only once its copy has ended, so there are more for a device.
_LEAST_DEPTH, _MOST_DEPTH, _AHEAD_BYTES, _AHEAD_BYTES_TO_DEVICE = 2, 8, 2 << 20, 16 << 20
_MOST_TRANSFORMING = 8  # threads, where the user does not say: each holds a batch, and all share Python's lock
_STOCK_PREFETCH_FACTOR = 2  # what torch sets where the user gives none
_BLOCK = 1 << 16  # rows whose lengths are looked up at once
SMALL_ROW = 64 << 10  # bytes; Gather::kLargeRow: rows above it can be read past the page cache
_MOST_OF_A_FILE = 0.1
_SURELY = 16 << 20  # bytes that any page cache can hold: to ask what is free takes longer than to begin a small pass
_LARGE = 1 << 30  # bytes of slots from which on it is asked what is free, unless this process is limited


@dataclass(frozen=True)
class PassSettings:
    """What one pass is set to, worked out once from the request.

    Attributes:
        source: the dataset as the engine reads it.
        fields: what the pipeline gathers of it.
        batch_rows: rows of a full batch.
        slot_bytes: bytes of a slot.
        slot_rows: rows that a slot is made for: those of the largest batch as far as it is known beforehand. A batch
            sampler of an unknown kind may give larger ones; slots then grow to the largest seen.
        planned_rows: rows of the pass, 0 if its sampler does not say.
        drop_last: whether a last batch of fewer rows is left out.
        depth: batches gathered ahead, those that threads transform included.
        threads: threads that gather.
        transform_pipeline: the transforms and late casts of a gathered batch; None: the loop gets it as it is.
        transform_threads: threads that apply them, 0 if there are none.
        options: further settings of the engine.
        destination: where batches go.
        guards: detect changes of the data during the pass.
        cached: whether a cache of the hybrid tier is in front of a field.
        pins: whether batches are gathered into pinned memory of torch's allocator.
        joined: whether it is that of one source of several, whose room is judged together.
        tile_bytes: of decoded chunks that are kept, so that further batches find them.
        spares: where memory and threads stay for a while when the pass ends; None: nowhere.
        remote: what fetches rows of sets in stores.
    """

    source: GatherSpec
    fields: list[PipelineField]
    slot_bytes: int
    batch_rows: int
    slot_rows: int
    planned_rows: int
    drop_last: bool
    depth: int
    threads: int
    transform_pipeline: TransformPipeline | None
    transform_threads: int
    options: EngineOptions
    destination: Destination
    guards: Sequence[MutationGuard] = ()
    cached: bool = False
    pins: bool = False
    joined: bool = False
    tile_bytes: int = 0
    spares: _core.Spares | None = None
    remote: Sequence[BlockCache] = ()

    @classmethod
    def of(cls, request: PassRequest, source: GatherSpec) -> PassSettings:
        """Work the settings out."""
        options, destination = request.options, request.destination
        transform_pipeline = _transforms(source, None if destination.transforms else request.transform)
        sizes, (cached, remote) = BatchSizes.of(request.batches, source), source.behind()
        fields = source.pipeline_fields()
        slot = bytes_of_slot(fields, sizes.slot_rows)
        depth = min(_depth(request, slot), request.most_ahead or MOST)
        threads = gathering_threads(request)
        transforming = 0
        if transform_pipeline is not None:
            most = 1 if transform_pipeline.seeds_shared_numbers else _MOST_TRANSFORMING
            transforming = options.transform_threads or min(threads, most)
        sampler, flying = getattr(request.batches, "sampler", None), (depth + transforming + 2) * sizes.slot_rows
        return cls(
            source,
            fields,
            slot,
            sizes.batch_rows,
            sizes.slot_rows,
            sizes.planned_rows,
            bool(getattr(request.batches, "drop_last", False)),
            depth + transforming,
            threads,
            transform_pipeline,
            transforming,
            options,
            destination,
            source.guards,
            cached,
            pins=transform_pipeline is None and destination.pins,
            tile_bytes=tile_bytes(sampler, source, flying) if isinstance(sampler, BlockShuffle) else 0,
            spares=request.spares,
            remote=remote,
        )

    @property
    def ring_bytes(self) -> int:
        """Bytes of the slots, one per batch ahead and one for the loop, of their row numbers, and to decode in."""
        slots = _core.Pipeline.ring_bytes(self.fields, self.slot_rows, self.depth, self.threads)
        if self.pins:
            slots = (self.depth + 1) * self.destination.slot_bytes(slots // (self.depth + 1))
        late = 0 if self.source.raw else self.source.late_row_bytes
        numbers = (self.depth + 1) * self.slot_rows * (8 + late)
        return slots + numbers + self.tile_bytes + sum(field.index_bytes for field in self.source.fields.values())

    def pipeline(self, reuse: _core.Pipeline | None, **where: Any) -> _core.Pipeline:
        """Return a pipeline for one pass, on the slots of an earlier one if given; `where`: its further arguments.

        Raises:
            RuntimeError: the memory of a tensor was moved since its field was made.
            MemorySpaceError: this process cannot take the slots.
        """
        blocks = reads_blocks(self.source, self.planned_rows)
        direct = reads_directly(self.source, self.planned_rows, self.options.direct)
        if reuse is None and not self.pins and not self.joined:
            check_room(self.source, self.slot_bytes, self.depth, -(-self.planned_rows // self.batch_rows))
        self.source.check_in_place()
        self.source.warn_of_longer_files()
        return _core.Pipeline(
            self.fields,
            batch_rows=self.batch_rows,
            slot_rows=self.slot_rows,
            drop_last=self.drop_last,
            depth=self.depth,
            threads=self.threads,
            read_blocks=blocks,
            direct=direct,
            tile_bytes=self.tile_bytes,
            isa=self.options.isa or "",
            streaming=self.options.streaming,
            reuse=reuse,
            spares=self.spares,
            **where,
        )


def bytes_of_slot(fields: list[PipelineField], rows: int) -> int:
    """Return the bytes of a slot for a batch of so many rows."""
    return _core.Pipeline.ring_bytes(fields, rows, depth=1) // 2


def _transforms(source: GatherSpec, transform: Callable[..., Any] | None) -> TransformPipeline | None:
    """Return what threads do to gathered batches; None if the gather leaves nothing to do, or a device does it."""
    if source.raw or not (source.maps or source.late_casts or transform is not None):
        return None
    from memload.engine.transforms.transform_pipeline import TransformPipeline

    return TransformPipeline.of(source, transform)


def _depth(request: PassRequest, slot_bytes: int) -> int:
    if request.options.depth is not None:
        return request.options.depth
    if request.prefetch_factor and (request.depth_given or request.prefetch_factor != _STOCK_PREFETCH_FACTOR):
        return min(operator.index(request.prefetch_factor), MOST)
    ahead = _AHEAD_BYTES_TO_DEVICE if request.destination.transforms else _AHEAD_BYTES
    return min(max(_LEAST_DEPTH, ahead // slot_bytes), _MOST_DEPTH)


def gathering_threads(request: PassRequest) -> int:
    """Return the number of threads that gather for a pass."""
    if request.options.threads is not None:
        return request.options.threads
    if request.num_workers:
        return min(operator.index(request.num_workers), MOST)
    return local_threads()


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of the batches of one pass.

    Attributes:
        batch_rows: rows of a full batch; of the largest, where they differ and are known.
        slot_rows: rows that a slot is made for. Where rows differ in length it is made for so many of the longest.
        planned_rows: rows of the pass, 0 if its sampler does not say.
    """

    batch_rows: int
    slot_rows: int
    planned_rows: int

    @classmethod
    def of(cls, sampler: Any, source: GatherSpec) -> BatchSizes:
        """Work the sizes out for a batch sampler, or for what is taken for one."""
        if type(sampler) is BatchSampler:
            rows, planned = min(_batch_rows(sampler), MOST_ROWS), _length(sampler.sampler)
            return cls(rows, max(1, min(rows, planned or source.rows)), planned or _length(sampler) * rows)
        if batches_known(sampler):
            largest = sampler.largest
            return cls(largest, _enough_rows(sampler, source, largest), sampler.rows)
        rows = _batch_rows(sampler)
        return cls(rows, rows, _length(sampler) * rows)


def _length(sized: Any) -> int:
    try:
        return len(sized)
    except Exception:  # samplers need not have a length, and whoever asks for it gets their own error
        return 0


def _batch_rows(batch_sampler: Any) -> int:
    if isinstance(batch_sampler, list | tuple):
        return max(1, *map(_length, batch_sampler)) if batch_sampler else 1
    rows = getattr(batch_sampler, "batch_size", None)
    return rows if isinstance(rows, int) and rows > 0 else 1


def _enough_rows(sampler: Any, source: GatherSpec, largest: int) -> int:
    """So many rows that a slot for the longest of them takes any of the batches, to a factor of two.

    A batch of many rows has short ones, if it is filled by length: one of as many long rows never comes.
    """
    fields = source.pipeline_fields()
    ragged = any(isinstance(column, _core.Ragged | _core.EventItems) for column, *_ in fields)
    if not ragged or source.rows < len(sampler.costs) or not len(sampler):
        return largest
    rows, bounds = sampler.planned()
    most = sum(_bytes_of_batches(field, rows, bounds) for field in fields).max(initial=0)
    enough = 1
    while enough < largest and bytes_of_slot(fields, enough) < most:
        enough *= 2
    return min(enough, largest)


def _bytes_of_batches(field: PipelineField, rows: Indices, bounds: Indices) -> Any:
    """Bytes that the field takes in each batch, of the rows between its two bounds: float64 (batches,)."""
    column, _, _, bits, shape, _ = field
    item, counts = bits // 8 * math.prod(shape), bounds[:, 1] - bounds[:, 0]
    if not isinstance(column, _core.Ragged | _core.EventItems):
        return counts * float(item)
    parts = [column.lengths(rows[at : at + _BLOCK]) for at in range(0, len(rows), _BLOCK)]
    lengths = np.concatenate([*parts, np.zeros(1, dtype=np.int64)])  # one more, so that every bound is a place in it
    combined = np.maximum if column.pads else np.add
    items = combined.reduceat(lengths, bounds.reshape(-1))[::2] * (counts if column.pads else column.planes)
    return items * float(item) + 8.0 * (counts + 1)


def tile_bytes(sampler: BlockShuffle, source: GatherSpec, rows: int) -> int:
    """Return the bytes of decoded chunks that a pass keeps: those of the blocks in use.

    Args:
        sampler: that of the pass; one of another number of rows keeps nothing.
        source: what it gathers.
        rows: rows of the batches in flight, of this rank.
    """
    if sampler.blocks.rows != source.rows:
        return 0
    columns = [field.column for field in source.fields.values()]
    return sampler.blocks_in_use(rows * sampler.num_replicas) * sum(decoded_bytes(c, sampler.blocks) for c in columns)


def check_room(source: GatherSpec, slot_bytes: int, depth: int, batches: int) -> None:
    """Raise MemorySpaceError if this process cannot take the slots of a pass: each will be filled by a batch.

    Args:
        source: what is gathered; slots of rows that differ in length are seldom full, and not judged.
        slot_bytes: bytes of a slot.
        depth: batches gathered ahead, beside that of the loop.
        batches: of the pass; 0: not known.
    """
    slots = min(depth + 1, batches or depth + 1)
    if _is_large(need := slots * slot_bytes) and not source.is_ragged:
        _check(need, slots)


def check_joined_room(
    sources: Sequence[GatherSpec], slot_rows: int, depth: int, batches: int, *, in_order: bool
) -> None:
    """Raise MemorySpaceError if this process cannot take the slots of a pass over several sources together.

    Args:
        sources: each has slots of its own, which take memory as rows come.
        slot_rows: rows of the largest batch.
        depth: batches gathered ahead, beside that of the loop.
        batches: of the pass; 0: not known.
        in_order: whether batches are wholly of one source after the other. If not, each source is taken to have its
            share of every batch, which is the least that it comes to.
    """
    slots = min(depth + 1, batches or depth + 1)
    if in_order:
        each = [min(slots * slot_rows, source.rows) for source in sources]
    else:
        rows = max(1, sum(source.rows for source in sources))
        each = [slots * slot_rows * source.rows // rows for source in sources]
    room = (count * _slot_bytes(source, slot_rows) // slot_rows for count, source in zip(each, sources, strict=True))
    if _is_large(need := sum(room)):
        _check(need, slots)


def _slot_bytes(source: GatherSpec, slot_rows: int) -> int:
    """Bytes of a slot; 0 where rows differ in length."""
    if source.is_ragged:
        return 0
    return bytes_of_slot(source.pipeline_fields(), slot_rows)


def _is_large(need: int) -> bool:
    """Return whether so many bytes are worth the question of what is free, which takes longer than a small pass."""
    return need >= _LARGE or process_is_limited()


def _check(need: int, slots: int) -> None:
    check_memory(
        need,
        f"the loop's batch with those gathered ahead, {slots} of {format_size(need // slots)},",
        "give a smaller batch_size=, or depth=1 for fewer batches ahead; memload.plan says beforehand what fits",
    )


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
    return _run_bytes(column.frames) if isinstance(column, Windows | Slices) else column.row_bytes


def _files(columns: Sequence[AnyColumn]) -> list[Storage]:
    """The files of these columns, each once for every time it was opened."""
    return list({storage: None for column in columns for storage in column.storages if _is_cached(storage)})


def _total(files: list[Storage]) -> int:
    return sum({file.name: file.nbytes for file in files}.values())


def _fits(nbytes: int) -> bool:
    """Whether the page cache can hold so many bytes, and leave as much to everybody else."""
    return nbytes <= _SURELY or nbytes <= memory_to_take(2 * nbytes).free_together // 2
