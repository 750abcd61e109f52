"""Batches as lists of groups, gathered natively: one pipeline for each dataset, or one for all where they are alike.

plan -> batches of rows -> shares of each source -> gather (+ cast), native threads -> groups -> batch
sampling/row_plan.py       source.py                a _core.Pipeline for each source       the loop
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import SequentialSampler

from memload import _core
from memload.engine.passes import Gatherer, PassSettings, gathering, transforming
from memload.engine.pipelined import longest_close
from memload.engine.slot_room import check_joined_room
from memload.engine.source import Source
from memload.gpu.landing import bound_for
from memload.gpu.near_batches import NearSettings, lies_near
from memload.groups.source import GroupedSource, Share
from memload.ragged_rows.forms import is_ragged, split_by
from memload.sampling.draws import Indices
from memload.sampling.planned_rows import PlannedRows
from memload.stats import LoaderStats
from memload.transforms.seeding import PassSeed

if TYPE_CHECKING:
    from memload.loader import FastLoader


def settings_of(loader: FastLoader[Any], source: Source | GroupedSource) -> PassSettings | GroupSettings | NearSettings:
    """Work out what a pass over a source is set to."""
    if isinstance(source, GroupedSource):
        return GroupSettings.of(loader, source)
    if lies_near(source):
        return NearSettings.of(loader, source)
    return PassSettings.of(loader, bound_for(loader, source))


@dataclass(frozen=True)
class GroupSettings:
    """What a pass by groups is set to.

    Attributes:
        source: the dataset as the engine reads it.
        each: the settings of each source's pipeline, all of one depth.
    """

    source: GroupedSource
    each: tuple[PassSettings, ...]

    @classmethod
    def of(cls, loader: FastLoader[Any], source: GroupedSource) -> GroupSettings:
        """Work the settings out. Any batch may be wholly of one dataset, so each slot is made for a full batch."""
        settings = [PassSettings.of(loader, one) for one in source.sources]
        depth = min(one.depth for one in settings)
        shares = [one.planned_rows * one.source.rows // max(1, source.rows) for one in settings]
        each = [
            replace(one, depth=depth, planned_rows=n, pins=False, joined=True)
            for one, n in zip(settings, shares, strict=True)
        ]
        return cls(source, tuple(each))

    @property
    def depth(self) -> int:
        """Batches gathered ahead."""
        return self.each[0].depth

    @property
    def slot_rows(self) -> int:
        """Rows of the largest batch, as far as it is known beforehand."""
        return self.each[0].slot_rows

    @property
    def ring_bytes(self) -> int:
        """Bytes of the slots of all sources, if each once gave whole batches; memory is taken as rows come."""
        return sum(one.ring_bytes for one in self.each)

    def gatherer(self, loader: FastLoader[Any], reuse: Gatherer | None) -> Gatherer:
        """Return what gathers the batches of one pass, on the slots of an earlier one if given."""
        watches = [watch for one in self.source.sources for watch in one.watches]
        gatherer = GroupedBatches(self, loader, gathering(reuse))
        return self.each[0].around(gatherer, loader, watches, loader._placer(), transforming(reuse))


class GroupedBatches:
    """Gathers each batch as a list of groups; a `Gatherer`.

    Batches are cut from the plan ``depth`` ahead of the loop. An error, such as a row that is not there, keeps its
    place among the batches.
    """

    def __init__(self, settings: GroupSettings, loader: FastLoader[Any], reuse: Gatherer | None) -> None:
        for one in settings.source.sources:
            one.check_in_place()
        self._source = settings.source
        self.rows, self.depth = settings.source.rows, settings.depth
        kept = reuse._pipelines if isinstance(reuse, GroupedBatches) else [None] * len(settings.each)
        if not isinstance(reuse, GroupedBatches):
            _check_room(settings, loader)
        self._pipelines: list[_core.Pipeline] = [
            one.pipeline(loader, old) for one, old in zip(settings.each, kept, strict=True)
        ]
        self._unpack = [one.unpacker() for one in settings.source.sources]
        self._plan = PlannedRows(settings.each[0].batch_rows, settings.each[0].drop_last)
        self._ahead: deque[list[Share] | Exception] = deque()
        self._gathered: list[Iterator[Any]] = []  # of the next batch
        self._failed = False
        self._batches = 0

    def begin(self, seed: PassSeed) -> None:
        """Nothing random happens here."""

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._plan.extend(rows)
        self._place_ahead()

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._plan.push(rows)
        self._place_ahead()

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._plan.finish()
        self._place_ahead()

    def next(self, timeout: float) -> Any:
        """Return the next batch, None at the end."""
        self._place_ahead()
        if not self._ahead:
            return None
        shares = self._ahead[0]
        if isinstance(shares, Exception):
            self._ahead.popleft()
            try:
                raise shares
            finally:
                del shares  # the traceback of an error holds this frame, which would hold the error
        end = time.monotonic() + timeout if timeout else None
        while len(self._gathered) < len(shares):  # a batch that was not ready in time is gone on with
            groups = self._groups(shares[len(self._gathered)], end)
            if groups is None:
                return None
            self._gathered.append(groups)
        self._ahead.popleft()
        batch = [*itertools.chain.from_iterable(self._gathered)]
        self._gathered.clear()
        self._batches += 1
        return batch

    def stats(self) -> LoaderStats:
        """Return the counters of all pipelines; batches are those handed to the loop."""
        each = [LoaderStats(**pipeline.stats()) for pipeline in self._pipelines]
        return replace(sum(each, LoaderStats()), batches=self._batches)

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        end = time.monotonic() + longest_close(at_once)  # of all together
        with contextlib.ExitStack() as each:  # an interrupt while one is waited for keeps none from being closed
            for pipeline in self._pipelines:
                each.callback(_close, pipeline, keep_slots, end)

    def _place_ahead(self) -> None:
        while len(self._ahead) <= self.depth and self._plan.ready and not self._failed:
            self._place(self._plan.take())

    def _place(self, rows: Indices) -> None:
        try:
            shares = self._source.shares(rows)
        except Exception as error:  # comes out in its turn: after the batches before it
            self._failed = True
            self._ahead.append(error)
            return
        for share in shares:
            self._pipelines[share.source].push(share.rows)
        self._ahead.append(shares)

    def _groups(self, share: Share, end: float | None) -> Iterator[Any] | None:
        """The groups of a share; None if the pass was closed meanwhile."""
        patience = 0.0 if end is None else max(end - time.monotonic(), 1e-3)
        capsules = self._pipelines[share.source].next(patience)
        if capsules is None:
            return None
        batch = self._unpack[share.source](capsules)
        return iter([batch]) if len(share.counts) == 1 else _parts(batch, share.counts)


def _check_room(settings: GroupSettings, loader: FastLoader[Any]) -> None:
    batches = -(-sum(one.planned_rows for one in settings.each) // settings.each[0].batch_rows)
    in_order = type(getattr(loader.batch_sampler, "sampler", None)) is SequentialSampler
    check_joined_room(settings.source.sources, settings.slot_rows, settings.depth, batches, in_order=in_order)


def _close(pipeline: _core.Pipeline, keep_slots: bool, end: float) -> None:
    pipeline.close(keep_slots, max(0.0, end - time.monotonic()))


def _parts(batch: Mapping[str, torch.Tensor], counts: Sequence[int]) -> Iterator[dict[str, torch.Tensor]]:
    """The groups of a batch whose rows follow each other group by group.

    They share its memory and nothing else: as `.data`, each is a tensor of its own to autograd, so that what is written
    to one of them does not count as a change of the others.
    """
    split = {
        key: list(split_by(value, counts))
        if is_ragged(value)
        else [part.data for part in torch.split(value, list(counts))]
        for key, value in batch.items()
    }
    return ({key: parts[k] for key, parts in split.items()} for k in range(len(counts)))
