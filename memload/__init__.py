"""Feeds a training loop with array data at the speed of memory: a drop-in for torch's DataLoader."""

from memload.dataset import Dataset, concat, zip  # noqa: A004 - memload.zip is its public name
from memload.errors import (
    ChecksumError,
    Damage,
    DiskSpaceError,
    FormatError,
    MemloadError,
    ShardFormatError,
    ShardReadError,
    WriterBusyError,
)
from memload.fields import Field
from memload.loader import EngineOptions, FastLoader
from memload.opening import from_arrays, open  # noqa: A004 - memload.open is its public name
from memload.shard_writer import ShardWriter
from memload.shards import verify
from memload.stats import LoaderStats
from memload.writing import write

__all__ = [
    "ChecksumError",
    "Damage",
    "Dataset",
    "DiskSpaceError",
    "EngineOptions",
    "FastLoader",
    "Field",
    "FormatError",
    "LoaderStats",
    "MemloadError",
    "ShardFormatError",
    "ShardReadError",
    "ShardWriter",
    "WriterBusyError",
    "concat",
    "from_arrays",
    "open",
    "verify",
    "write",
    "zip",
]
