"""What one pass of a FastLoader takes, worked out from its settings before anything is gathered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from memload import _core
from memload.columns.fields import Field
from memload.columns.ragged_fields import RaggedField
from memload.dataset.group_batches import GroupSettings
from memload.device.destination_buffers import device_bytes, why_whole
from memload.device.resident_batches import ResidentSettings
from memload.engine.gather_spec import GatherSpec, Key
from memload.engine.settings import PassSettings
from memload.loader.fast_loader import FastLoader
from memload.planning.transform_bytes import made_bytes


@dataclass(frozen=True)
class LoaderBytes:
    """The bytes of one pass.

    Attributes:
        rows: of the dataset.
        stored_bytes: of all rows, as they are stored or would be gathered without a cast.
        batch_rows: rows of a full batch.
        batch_bytes: of a full batch, as the loop gets it; of rows that differ in length, the mean.
        made_bytes: of what functions (`map`, `batch_transform`) and casts that move pixels make of a batch; 0 without.
        work_bytes: of what they take beside that while all threads work: memory that is used again, and what the C
            library keeps of samples.
        slot_bytes: of one slot.
        slots: batches ahead, and one for the loop.
        nbytes: what `loader.nbytes` says: slots, plan and row selections.
        plan_bytes: of the plan and the selections alone.
        device_bytes: what `loader.device_nbytes` says; 0 for batches that stay on the CPU.
        threads: threads that gather.
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
        """Bytes of one row as it is stored; the mean, where rows differ."""
        return self.stored_bytes // max(1, self.rows)

    @property
    def made_in_all(self) -> int:
        """Bytes of what functions made and the loop has not dropped, and work with.

        That is a batch for each slot, and one that a thread may begin before the loop has dropped its last.
        """
        return (self.slots + 1) * self.made_bytes + self.work_bytes

    @classmethod
    def of(cls, loader: FastLoader[Any], *, to_device: bool = False) -> LoaderBytes:
        """Work them out.

        Args:
            loader: one whose batches stay on the CPU.
            to_device: whether they are to go to a GPU; none need be here.

        Raises:
            TypeError: the loader runs on stock machinery, of which nobody knows what it takes; or the rows lie on a
                device already.
        """
        access = loader.__memload_loader__()
        here = access.cast_source()
        if isinstance(here, str):
            raise TypeError(f"only what the native engine reads can be planned. {here}")
        there = here.as_raw() if to_device and isinstance(here, GatherSpec) and why_whole(here) is None else here
        settings, as_said = access.settings(there), access.settings(here)
        if isinstance(settings, ResidentSettings):
            raise TypeError('these rows lie on a device already: plan those they were made of, with tier="device"')
        each = list(settings.each) if isinstance(settings, GroupSettings) else [settings]
        plan_bytes = loader.nbytes - as_said.ring_bytes
        made = made_bytes(loader.dataset, each[0], _batch_bytes(each[0]))
        return cls(
            rows=here.rows,
            stored_bytes=sum(field.nbytes for one in each for field in one.source.fields.values()),
            batch_rows=each[0].batch_rows,
            batch_bytes=max(map(_batch_bytes, each)),
            made_bytes=made.batch,
            work_bytes=made.work * each[0].transform_threads,
            slot_bytes=sum(map(_slot_bytes, each)),
            slots=settings.depth + 1,
            nbytes=settings.ring_bytes + plan_bytes,
            plan_bytes=plan_bytes,
            device_bytes=sum(map(device_bytes, each)) if to_device else 0,
            threads=each[0].threads,
        )


def sample_batch(loader: FastLoader[Any]) -> Any:
    """Return a batch of the form that the loader gives, on "meta".

    Raises:
        ValueError: functions make the batches, or each is several; only the user knows their form.
    """
    access = loader.__memload_loader__()
    source = access.source
    if not isinstance(source, GatherSpec) or source.maps or source.collate or loader.batch_transform:
        raise ValueError("what a batch looks like is for your functions to say: give one as sample=, on any device")
    request = access.asks()
    source = source.with_casts(request.casts)
    rows = PassSettings.of(request, source).slot_rows
    return source.layout.build(iter([_sample_field(source, key, rows) for key in source.fields]))


def _sample_field(source: GatherSpec, key: Key, rows: int) -> Any:
    field = source.fields[key]
    dtype, shape = _as_given(source, key)
    if not isinstance(field, RaggedField):
        return torch.empty((rows, *shape), dtype=dtype, device="meta")
    values = torch.empty((_items(field, rows), *field.item_shape), dtype=dtype, device="meta")
    return field.assembled(values, iter([torch.empty(rows + 1, dtype=torch.int64, device="meta")]))


def _slot_bytes(settings: PassSettings) -> int:
    return _core.Pipeline.ring_bytes(settings.source.pipeline_fields(), settings.slot_rows, depth=1) // 2


def _batch_bytes(settings: PassSettings) -> int:
    """Return bytes of a full batch as the loop gets it, unless functions make it."""
    source, rows = settings.source, min(settings.batch_rows, max(1, settings.source.rows))
    return sum(_field_bytes(source, key, rows) for key in source.fields)


def _field_bytes(source: GatherSpec, key: Key, rows: int) -> int:
    field = source.fields[key]
    dtype, shape = _as_given(source, key)
    items = _items(field, rows) if isinstance(field, RaggedField) else rows
    return items * math.prod(shape) * dtype.itemsize


def _as_given(source: GatherSpec, key: Key) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return the dtype and shape of a row of a field, or of an item of it, in a batch of the loop."""
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
