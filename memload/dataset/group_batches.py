"""Native batches as lists of groups: one pipeline for each dataset, or a single one if all have the same fields.

plan -> batches of rows -> shares of each source -> gather (+ cast), native threads -> groups -> batch
sampling/row_plan.py       grouped_spec.py                a _core.Pipeline for each source       the loop
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import SequentialSampler

from memload import _core
from memload.columns.ragged_forms import is_ragged, split_by
from memload.dataset.grouped_spec import GroupedSpec, Share
from memload.engine.gatherer import Gatherer, longest_close
from memload.engine.mutation_guards import MutationGuard
from memload.engine.request import Destination, PassRequest
from memload.engine.settings import PassSettings, check_joined_room
from memload.engine.transforms.seeding import PassSeed
from memload.kept_errors import without_frames
from memload.sampling.block_shuffle import BlockShuffle
from memload.sampling.blocks import decoded_bytes_of_groups
from memload.sampling.draws import Indices
from memload.stats import LoaderStats


@dataclass(frozen=True)
class GroupSettings:
    """The settings of a pass whose batches are lists of groups.

    Attributes:
        source: the gather specification of the dataset.
        each: the settings of each source's pipeline, all of one depth.
        in_order: whether each batch has rows of one source only, one source after the other.
    """

    source: GroupedSpec
    each: tuple[PassSettings, ...]
    in_order: bool

    @classmethod
    def of(cls, request: PassRequest, source: GroupedSpec) -> GroupSettings:
        """Return the settings. A batch may consist of one dataset alone, so each slot has room for a full batch."""
        settings = [PassSettings.of(request, one) for one in source.sources]
        depth = min(one.depth for one in settings)
        shares = [one.planned_rows * one.source.rows // max(1, source.rows) for one in settings]
        each = [
            replace(one, depth=depth, planned_rows=n, pins=False, joined=True)
            for one, n in zip(settings, shares, strict=True)
        ]
        if len(each) > 1:  # all keep decoded chunks in what the first has for them
            kept = _tile_bytes(request, source, each[0])
            each = [replace(one, tile_bytes=0 if number else kept) for number, one in enumerate(each)]
        in_order = type(getattr(request.batches, "sampler", None)) is SequentialSampler
        return cls(source, tuple(each), in_order)

    @property
    def depth(self) -> int:
        """The number of batches gathered ahead."""
        return self.each[0].depth

    @property
    def slot_rows(self) -> int:
        """The rows of the largest batch, as far as the size of batches is known beforehand."""
        return self.each[0].slot_rows

    @property
    def ring_bytes(self) -> int:
        """Bytes of the slots of all sources if each fills whole batches; memory is committed only as rows arrive."""
        return sum(one.ring_bytes for one in self.each)

    @property
    def destination(self) -> Destination:
        """The destination of batches."""
        return self.each[0].destination

    @property
    def guards(self) -> Sequence[MutationGuard]:
        """The guards that detect changes of the data during the pass."""
        return [guard for one in self.source.sources for guard in one.guards]

    @property
    def around(self) -> PassSettings:
        """The settings of the layers around the gatherer."""
        return self.each[0]

    def gatherer(self, kept: Gatherer | None) -> Gatherer:
        """Return the gatherer of one pass, which reuses the slots of an earlier gatherer if one is given."""
        return GroupedBatches(self, kept)


class GroupedBatches(Gatherer):
    """A `Gatherer` that gathers each batch as a list of groups.

    It cuts batches from the row order ``depth`` batches ahead of the loop. An error, such as a row number out of range,
    is raised in place of its batch, after the batches before it.
    """

    def __init__(self, settings: GroupSettings, reuse: Gatherer | None) -> None:
        self._source = settings.source
        self.rows, self.depth = settings.source.rows, settings.depth
        kept = reuse._pipelines if isinstance(reuse, GroupedBatches) else [None] * len(settings.each)
        if not isinstance(reuse, GroupedBatches):
            _check_room(settings)
        self._pipelines: list[_core.Pipeline] = []
        for one, old in zip(settings.each, kept, strict=True):
            self._pipelines.append(one.pipeline(old, tiles_of=self._pipelines[0] if self._pipelines else None))
        self._draw = [
            pipeline
            for one, pipeline in zip(settings.each, self._pipelines, strict=True)
            if any(getattr(column, "draws", False) for column, *_ in one.fields)
        ]
        self._unpack = [one.unpacker() for one in settings.source.sources]
        self._plan = _core.PlanQueue(settings.around.batch_rows, settings.around.drop_last)
        self._ahead: deque[tuple[Indices, list[Share] | Exception]] = deque()  # rows of a batch, and what they are
        self._gathered: list[Iterator[Any]] = []  # of the next batch
        self._failed = False
        self._batches = 0

    def begin(self, seed: PassSeed) -> None:
        """Give the pipelines of slices with drawn starts what these follow from; no other gathering draws."""
        for pipeline in self._draw:
            pipeline.begin(seed.key)

    def extend(self, rows: Indices) -> None:
        """Append rows to the row order; batches are cut from it in turn."""
        self._plan.extend(rows)
        self._place_ahead()

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the row order."""
        self._plan.push(rows)
        self._place_ahead()

    def finish(self) -> None:
        """Mark the end of the row order."""
        self._plan.finish()
        self._place_ahead()

    def next(self, timeout: float) -> Any:
        """Return the next batch, None at the end."""
        self._place_ahead()
        if not self._ahead:
            return None
        rows, shares = self._ahead[0]
        if isinstance(shares, Exception):
            self._ahead.popleft()
            try:
                raise shares
            finally:
                del shares  # the traceback of an error refers to this frame, which would keep the error alive
        end = time.monotonic() + timeout if timeout else None
        while len(self._gathered) < len(shares):  # after a timeout, the next call continues here
            groups = self._groups(shares[len(self._gathered)], end)
            if groups is None:
                return None
            self._gathered.append(groups)
        self._ahead.popleft()
        self._row_numbers = rows
        batch = [*itertools.chain.from_iterable(self._gathered)]
        self._gathered.clear()
        self._batches += 1
        return batch

    def row_numbers(self) -> Indices:
        """Return the rows of the batch that `next` returned last."""
        return self._row_numbers

    def check_files(self) -> None:
        """Raise if a file of the pass was cut since it was opened."""
        for pipeline in self._pipelines:
            pipeline.check_files()

    def cancel(self) -> _core.PlanQueue:
        """Stop gathering, and return the plan of the batches that `next` has not returned."""
        for rows, _ in reversed(self._ahead):
            self._plan.put_back(rows)
        self._ahead.clear()
        return self._plan

    def stats(self) -> LoaderStats:
        """Return the counters of all pipelines; ``batches`` counts the batches that the loop received."""
        each = [LoaderStats(**pipeline.stats()) for pipeline in self._pipelines]
        return replace(sum(each, LoaderStats()), batches=self._batches)

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and free memory and threads, or keep the slots for a later pass."""
        end = time.monotonic() + longest_close(at_once)  # one limit for all pipelines together
        with contextlib.ExitStack() as each:  # closes all pipelines even if a wait is interrupted
            for pipeline in self._pipelines:
                each.callback(_close, pipeline, keep_slots, end)

    def _place_ahead(self) -> None:
        while len(self._ahead) <= self.depth and self._plan.ready and not self._failed:
            self._place(self._plan.take())

    def _place(self, rows: Indices) -> None:
        try:
            shares = self._source.shares(rows)
        except Exception as error:  # raised in its turn, after the batches before it
            self._failed = True
            self._ahead.append((rows, without_frames(error)))
            return
        for share in shares:
            self._pipelines[share.source].push(share.rows)
        self._ahead.append((rows, shares))

    def _groups(self, share: Share, end: float | None) -> Iterator[Any] | None:
        """Return the groups of a share; None if the pass was closed meanwhile."""
        patience = 0.0 if end is None else max(end - time.monotonic(), 1e-3)
        capsules = self._pipelines[share.source].next(patience)
        if capsules is None:
            return None
        batch = self._unpack[share.source](capsules)
        return iter([batch]) if len(share.counts) == 1 else _parts(batch, share.counts)


def _tile_bytes(request: PassRequest, source: GroupedSpec, each: PassSettings) -> int:
    """Return the bytes of decoded chunks that all pipelines of a pass keep together: those of the blocks in use."""
    sampler = getattr(request.batches, "sampler", None)
    if not isinstance(sampler, BlockShuffle) or sampler.blocks.rows != source.rows:
        return 0
    flying = (each.depth + 2) * each.slot_rows * sampler.num_replicas
    columns = [[field.column for field in one.fields.values()] for one in source.sources]
    return sampler.blocks_in_use(flying) * decoded_bytes_of_groups(columns, source.locate, sampler.blocks)


def _check_room(settings: GroupSettings) -> None:
    batches = -(-sum(one.planned_rows for one in settings.each) // settings.each[0].batch_rows)
    sources, rows = settings.source.sources, settings.slot_rows
    check_joined_room(sources, rows, settings.depth, batches, in_order=settings.in_order)


def _close(pipeline: _core.Pipeline, keep_slots: bool, end: float) -> None:
    pipeline.close(keep_slots, max(0.0, end - time.monotonic()))


def _parts(batch: Mapping[str, torch.Tensor], counts: Sequence[int]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the groups of a batch whose rows are ordered by group.

    The groups share the memory of the batch and nothing else: each is taken through `.data`, so that autograd does not
    count a write to one of them as a change of the others.
    """
    split = {
        key: list(split_by(value, counts))
        if is_ragged(value)
        else [part.data for part in torch.split(value, list(counts))]
        for key, value in batch.items()
    }
    return ({key: parts[k] for key, parts in split.items()} for k in range(len(counts)))
