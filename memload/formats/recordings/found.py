"""What a file or folder has of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from memload._core import Column
from memload.columns.clocks import Clock
from memload.columns.fields import Field
from memload.columns.intervals import Intervals
from memload.columns.spikes import Spikes
from memload.formats.arrays import borrow_array


@dataclass
class Found:
    """What a file holds.

    Attributes:
        fields: series and spikes by name.
        clocks: of the series.
        intervals: tables by name.
        scales: scale and offset of the series whose values are not in their unit as they are stored.
        left_out: why something is not among these, by its place in the file.
        name: what the file says of itself.
    """

    fields: dict[str, Field | Spikes] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    intervals: dict[str, Intervals] = field(default_factory=dict)
    scales: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    name: str = ""


def one_row(image: Field) -> Field:
    """An image, whose first axis counts its lines, as a field of one row."""
    shape, nbytes, column = (image.rows, *image.shape), image.nbytes, image.column
    if isinstance(column, Column) and len(column.segments) == 1:
        storage, offset, _, stride = column.segments[0]
        if stride == image.row_bytes:
            return Field(image.dtype, shape, Column(nbytes, [(storage, offset, 1, nbytes)]))
    return borrow_array("image", image.gather(np.arange(image.rows)).unsqueeze(0))  # decoded, once
