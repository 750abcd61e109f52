"""The bytes of one pass of a FastLoader, computed from its settings before anything is gathered."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload.columns.fields import Field
from memload.columns.ragged_fields import RaggedField
from memload.dataset.group_batches import GroupSettings
from memload.dataset.grouped_spec import GroupedSpec
from memload.device.destination_buffers import device_bytes, why_whole
from memload.device.resident_settings import ResidentSettings
from memload.engine.gather_spec import GatherSpec, Key
from memload.engine.settings import PassSettings
from memload.loader.fast_loader import FastLoader
from memload.planning.graph_spread import GraphSpread
from memload.planning.group_samples import SampleBatches, group_batches
from memload.planning.mixture import Mixture
from memload.planning.transform_bytes import made_bytes


@dataclass(frozen=True)
class LoaderBytes:
    """The bytes of one pass.

    Attributes:
        rows: the rows of the dataset.
        stored_bytes: bytes of all rows, as they are stored or would be gathered without a cast.
        batch_rows: the rows of a full batch.
        batch_bytes: bytes of a full batch as the loop gets it; the mean if rows differ in length, or if batches mix
            data sets.
        made_bytes: bytes of the results of functions (`map`, `batch_transform`) and of casts that move pixels, for one
            batch; 0 without such.
        work_bytes: further bytes while all threads run functions: reused buffers, and memory that the C library keeps
            for samples.
        slot_bytes: bytes of one slot.
        slots: the number of slots: batches ahead, and one for the loop.
        nbytes: `loader.nbytes`: slots, row order and row selections; of slots that mixed batches fill in part, that
            part.
        plan_bytes: the row order and the selections alone.
        device_bytes: `loader.device_nbytes`; 0 for batches that stay on the CPU.
        threads: the threads that gather.
    """

    rows: int
    stored_bytes: int
    batch_rows: int
    batch_bytes: int
    made_bytes: int
    work_bytes: int
    slot_bytes: int
    slots: int
    nbytes: int
    plan_bytes: int
    device_bytes: int
    threads: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row; the mean if rows differ in length."""
        return self.stored_bytes // max(1, self.rows)

    @property
    def made_in_all(self) -> int:
        """Bytes of all results of functions that exist at one time, and of `work_bytes`.

        There is a batch for each slot, and one that a thread may begin before the loop has dropped its last.
        """
        return (self.slots + 1) * self.made_bytes + self.work_bytes

    @classmethod
    def of(cls, loader: FastLoader[Any], *, to_device: bool = False) -> LoaderBytes:
        """Return the bytes of a pass of a loader.

        Args:
            loader: a loader whose batches stay on the CPU.
            to_device: whether its batches are to go to a GPU, which need not be in this machine.

        Raises:
            TypeError: the loader runs on torch's machinery, whose memory cannot be computed; or the rows are on a
                device already.
        """
        access = loader.__memload_loader__()
        source = access.cast_source()
        if isinstance(source, str):
            raise TypeError(f"only datasets that the native engine reads can be planned. {source}")
        gathered = source
        if to_device and isinstance(source, GatherSpec) and why_whole(source) is None:
            gathered = source.as_raw()
        settings, own_settings = access.settings(gathered), access.settings(source)
        if isinstance(settings, ResidentSettings):
            raise TypeError(
                'these rows are on a device already: plan the dataset that they were copied from, with tier="device"'
            )
        each = list(settings.each) if isinstance(settings, GroupSettings) else [settings]
        plan_bytes = loader.nbytes - own_settings.ring_bytes
        made = made_bytes(loader.dataset, each[0], _batch_bytes(each[0]))
        batch_bytes, ring_bytes = max(map(_batch_bytes, each)), settings.ring_bytes
        if isinstance(settings, GroupSettings):
            mixture = Mixture.of(settings, loader.sampler)
            ring_bytes = mixture.ring_bytes
            batch_bytes = mixture.mean([_batch_bytes(one) for one in each])
        return cls(
            rows=source.rows,
            stored_bytes=sum(field.nbytes for one in each for field in one.source.fields.values()),
            batch_rows=each[0].batch_rows,
            batch_bytes=batch_bytes,
            made_bytes=made.batch,
            work_bytes=made.work * each[0].transform_threads,
            slot_bytes=sum(one.slot_bytes for one in each),
            slots=settings.depth + 1,
            nbytes=ring_bytes + plan_bytes,
            plan_bytes=plan_bytes,
            device_bytes=sum(map(device_bytes, each)) if to_device else 0,
            threads=each[0].threads,
        )


def sample_batch(loader: FastLoader[Any], spread: GraphSpread | None = None, *, has_values: bool = True) -> Any:
    """Return a batch of the loader's form, on "meta"; of graphs the largest that the loader gives.

    Of joined data sets that `group_collate` mixes, it is several: see `SampleBatches`.

    Args:
        loader: a loader whose batches stay on the CPU.
        spread: the sizes of its batches of graphs; None: they are not known, and the graphs of the batch are from all
            parts of the dataset.
        has_values: whether its dataset has values, rather than only a shape.

    Raises:
        ValueError: functions make the batches, or a batch has several members, so the form is not known here; or of
            graphs, the dataset is a shape, or a batch sampler chooses them.
    """
    access = loader.__memload_loader__()
    source = access.source
    if isinstance(source, GroupedSpec) and not loader.batch_transform:
        return group_batches(loader, source, _sample_field)
    if not isinstance(source, GatherSpec) or source.maps or source.collate or loader.batch_transform:
        raise ValueError("your functions decide the form of a batch: give a batch as sample=, on any device")
    request = access.asks()
    source = source.with_casts(request.casts)
    rows = PassSettings.of(request, source).slot_rows
    if source.layout.reads_values:
        if not has_values:
            raise ValueError("a shape has no edges, which decide what a step takes: give a batch of graphs as sample=")
        if spread is not None:
            largest = tuple(_read_batches(loader, spread.largest))
            return SampleBatches(largest, functools.partial(_read_batches, loader, spread.first))
        return _read_batches(loader, [_at_equal_distances(loader, source.rows, rows)])[0]
    return source.layout.build(iter([_sample_field(source, key, rows) for key in source.fields]))


def _at_equal_distances(loader: FastLoader[Any], rows: int, batch_rows: int) -> NDArray[np.int64]:
    if loader.batch_size is None:
        raise ValueError("a batch_sampler= decides the graphs of a batch: give the largest of its batches as sample=")
    if not rows:
        raise ValueError("the dataset has no graphs: give a batch of graphs as sample=")
    return np.linspace(0, rows - 1, min(rows, batch_rows)).round().astype(np.int64)


def _read_batches(loader: FastLoader[Any], chosen: Sequence[NDArray[np.int64]]) -> list[Any]:
    """Return the batches of these rows, as the loader gives them; torch's random generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        rows = [each.tolist() for each in chosen]
        return list(FastLoader(loader.dataset, batch_sampler=rows, collate_fn=loader.collate_fn))


def _sample_field(source: GatherSpec, key: Key, rows: int) -> Any:
    field = source.fields[key]
    dtype, shape = _as_given(source, key)
    if not isinstance(field, RaggedField):
        return torch.empty((rows, *shape), dtype=dtype, device="meta")
    values = torch.empty((_items(field, rows), *field.item_shape), dtype=dtype, device="meta")
    return field.assembled(values, iter([torch.empty(rows + 1, dtype=torch.int64, device="meta")]))


def _batch_bytes(settings: PassSettings) -> int:
    """Return the bytes of a full batch as the loop gets it, before functions of the user."""
    source, rows = settings.source, min(settings.batch_rows, max(1, settings.source.rows))
    return sum(_field_bytes(source, key, rows) for key in source.fields)


def _field_bytes(source: GatherSpec, key: Key, rows: int) -> int:
    field = source.fields[key]
    dtype, shape = _as_given(source, key)
    items = _items(field, rows) if isinstance(field, RaggedField) else rows
    return items * math.prod(shape) * dtype.itemsize


def _as_given(source: GatherSpec, key: Key) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return the dtype and shape of a row of a field, or of an item of a ragged one, in a batch of the loop."""
    field: Field = source.fields[key]
    cast = (source.late_casts or {}).get(key) or source.casts.get(key)
    if cast is None:
        return field.dtype, field.item_shape
    return cast.dtype, field.item_shape if isinstance(field, RaggedField) else cast.row_shape(field.shape)


def _items(field: RaggedField, rows: int) -> int:
    """Return the number of items in a batch of `rows` rows of the mean length, or of the greatest if padded."""
    column = field.pipeline_column
    each = column.longest(1) if column.pads else column.items / max(1, column.rows)
    return round(rows * each) * column.planes
