"""What one pass of a FastLoader takes in RAM, worked out from its settings before anything is gathered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from memload import _core
from memload.engine import PassSettings
from memload.gpu.near_batches import NearSettings
from memload.grouped_batches import GroupSettings, settings_of
from memload.grouped_source import GroupedSource
from memload.loader import FastLoader
from memload.native import Key, PipelineField, Source
from memload.ragged_fields import RaggedField


@dataclass(frozen=True)
class LoaderBytes:
    """The bytes of one pass.

    Attributes:
        rows: of the dataset.
        stored_bytes: of all rows, as they are stored or would be gathered without a cast.
        batch_rows: rows of a full batch.
        batch_bytes: of a full batch, as the loop gets it; of rows that differ in length, the mean.
        made_bytes: of a batch that functions (`map`, `batch_transform`) made; 0 without any.
        slot_bytes: of one slot.
        slots: batches ahead, and one for the loop.
        nbytes: what `loader.nbytes` says: slots, plan and row selections.
        plan_bytes: of the plan and the selections alone.
        threads: threads that gather.
    """

    rows: int
    stored_bytes: int
    batch_rows: int
    batch_bytes: int
    made_bytes: int
    slot_bytes: int
    slots: int
    nbytes: int
    plan_bytes: int
    threads: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as it is stored; the mean, where rows differ."""
        return self.stored_bytes // max(1, self.rows)

    @property
    def made_in_all(self) -> int:
        """Bytes of what functions made and the loop has not dropped: at most as many batches as there are slots."""
        return self.slots * self.made_bytes

    @classmethod
    def of(cls, loader: FastLoader[Any]) -> LoaderBytes:
        """Work them out.

        Raises:
            TypeError: the loader runs on stock machinery, of which nobody knows what it takes; or the rows lie on a
                device already.
        """
        resolved = loader._resolved()
        if isinstance(resolved, str):
            raise TypeError(f"only what the native engine reads can be planned. {resolved}")
        source = resolved.with_casts(loader._casts)
        settings = settings_of(loader, source)
        if isinstance(settings, NearSettings):
            raise TypeError('these rows lie on a device already: plan those they were made of, with tier="device"')
        each = list(settings.each) if isinstance(settings, GroupSettings) else [settings]
        batch_bytes = max(map(_batch_bytes, each))
        return cls(
            rows=source.rows,
            stored_bytes=_stored_bytes(source),
            batch_rows=each[0].batch_rows,
            batch_bytes=batch_bytes,
            made_bytes=_made_bytes(loader, each[0], batch_bytes),
            slot_bytes=sum(map(_slot_bytes, each)),
            slots=settings.depth + 1,
            nbytes=loader.nbytes,
            plan_bytes=loader.nbytes - settings.ring_bytes,
            threads=each[0].threads,
        )


def sample_batch(loader: FastLoader[Any]) -> Any:
    """Return a batch of the form that the loader gives, on "meta".

    Raises:
        ValueError: functions make the batches, or each is several; only the user knows their form.
    """
    source = loader._resolved()
    if not isinstance(source, Source) or source.maps or source.collate or loader.batch_transform:
        raise ValueError("what a batch looks like is for your functions to say: give one as sample=, on any device")
    source = source.with_casts(loader._casts)
    rows = PassSettings.of(loader, source).slot_rows
    return source.layout.build(iter([_sample_field(source, key, rows) for key in source.fields]))


def _sample_field(source: Source, key: Key, rows: int) -> Any:
    field, cast = source.fields[key], source.casts.get(key)
    dtype = field.dtype if cast is None else cast.dtype
    if not isinstance(field, RaggedField):
        return torch.empty((rows, *field.shape), dtype=dtype, device="meta")
    items = round(rows * field.column.items / max(1, field.rows)) * field.column.planes
    values = torch.empty((items, *field.item_shape), dtype=dtype, device="meta")
    return field.assembled(values, iter([torch.empty(rows + 1, dtype=torch.int64, device="meta")]))


def _stored_bytes(source: Source | GroupedSource) -> int:
    sources = source.sources if isinstance(source, GroupedSource) else (source,)
    return sum(field.nbytes for one in sources for field in one.fields.values())


def _slot_bytes(settings: PassSettings) -> int:
    return _core.Pipeline.ring_bytes(settings.source.pipeline_fields(), settings.slot_rows, depth=1) // 2


def _batch_bytes(settings: PassSettings) -> int:
    rows = min(settings.batch_rows, max(1, settings.source.rows))
    return sum(_field_bytes(field, rows) for field in settings.source.pipeline_fields())


def _field_bytes(field: PipelineField, rows: int) -> int:
    column, _, _, bits, shape = field
    items = rows
    if isinstance(column, _core.Ragged):
        mean = column.items / max(1, column.rows)
        items = round(rows * column.planes * (column.longest(1) if column.pads else mean))
    return items * bits // 8 * math.prod(shape)


def _made_bytes(loader: FastLoader[Any], settings: PassSettings, batch_bytes: int) -> int:
    """Of a batch after the functions: mapped samples are as large as the first; `batch_transform` keeps the size."""
    if settings.recipe is None:
        return 0
    if not settings.recipe.maps:
        return batch_bytes
    with torch.random.fork_rng(devices=[]):
        sample = loader.dataset[0]
    return settings.batch_rows * sum(x.nbytes for x in _tensors_in(sample))


def _tensors_in(sample: Any) -> list[torch.Tensor]:
    if isinstance(sample, dict):
        sample = list(sample.values())
    if isinstance(sample, list | tuple):
        return [x for part in sample for x in _tensors_in(part)]
    return [sample] if isinstance(sample, torch.Tensor) else []
