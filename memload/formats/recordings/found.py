"""What a file or folder has of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field

from memload.columns.clocks import Clock
from memload.columns.fields import Field
from memload.columns.intervals import Intervals
from memload.columns.spikes import Spikes


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
