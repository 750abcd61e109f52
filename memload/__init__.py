"""Feeds a training loop with array data at the speed of memory: a drop-in for torch's DataLoader.

    dataset = memload.open("shards/")  # or .npy, HDF5, ...; or memload.from_arrays(stim=..., robs=...)
    loader = memload.FastLoader(dataset, batch_size=256, shuffle=True)
    for batch in loader:  # {"stim": tensor, "robs": tensor}
        ...

Begin with `open`, `from_arrays`, `write`, `FastLoader` and `Cast`: each has an example in its help. `python -m memload`
lists the commands. What is not in `memload.__all__` may change.
"""

try:
    from memload._core import version as __version__
except ModuleNotFoundError as error:
    if error.name != "memload._core":
        raise
    raise ImportError(
        f"{__path__[0]} is memload's source, without its compiled module _core. To use an installed memload, start "
        "Python from another folder; to install it, run `pip install .` in the source folder; to build it in place, "
        "run `cmake --preset dev && cmake --build --preset dev`."
    ) from error

from memload.accumulation import Micro, accumulate
from memload.casts.augment import Augment
from memload.casts.cast_stim import cast_stim
from memload.casts.float32_view import Float32View
from memload.casts.rule import Cast
from memload.codecs.codec import Codec
from memload.dataset import Dataset
from memload.engine.passes import EngineOptions
from memload.errors import (
    ChecksumError,
    Damage,
    DecodeError,
    DeviceError,
    DiskSpaceError,
    FormatError,
    LayoutWarning,
    MemloadError,
    MemorySpaceError,
    MemoryStopError,
    MemoryWarning,
    ShardFormatError,
    ShardReadError,
    WriterBusyError,
)
from memload.fields import Field
from memload.frameworks.accelerate import prepare
from memload.frameworks.hugging_face import from_hf
from memload.gpu.to_device import to_device
from memload.graphs.collating import graph_collate
from memload.graphs.datasets import GraphDataset, from_graphs
from memload.graphs.files import open_graphs, write_graphs
from memload.graphs.layout import GraphBatch
from memload.groups.datasets import GroupedDataset, concat, group_collate
from memload.loader import FastLoader
from memload.monitoring.diagnosis import Finding
from memload.monitoring.metric_logs import MLflowLog, TensorBoardLog
from memload.monitoring.monitor import Monitor
from memload.offloading.offload import Offloaded, offload
from memload.opening import from_arrays, open  # noqa: A004 - memload.open is its public name
from memload.pictures.writing import write_images
from memload.planning.planner import plan
from memload.planning.result import Plan
from memload.planning.shape import DatasetShape
from memload.ragged_rows.forms import Padded, Ragged
from memload.results.scoring import score
from memload.sampling.budget_batches import BudgetBatchSampler
from memload.sampling.samplers import MixingSampler, WeightedSampler
from memload.shards.reading import verify
from memload.shards.writer import ShardWriter
from memload.shards.writing import write
from memload.sources.ragged_arrays import ragged
from memload.stats import LoaderStats
from memload.tiers.tier import Tier
from memload.training.batch_size import compute_batch_size
from memload.training.fitting import FitAdvice, FitOption, fit
from memload.training.memory_budget import MemoryBudget, StaticBytes
from memload.training.probing import ProbeReport, probe
from memload.transforms.mapped import MappedDataset
from memload.zipping import zip  # noqa: A004 - memload.zip is its public name

__all__ = [
    "Augment",
    "BudgetBatchSampler",
    "Cast",
    "ChecksumError",
    "Codec",
    "Damage",
    "Dataset",
    "DatasetShape",
    "DecodeError",
    "DeviceError",
    "DiskSpaceError",
    "EngineOptions",
    "FastLoader",
    "Field",
    "Finding",
    "FitAdvice",
    "FitOption",
    "Float32View",
    "FormatError",
    "GraphBatch",
    "GraphDataset",
    "GroupedDataset",
    "LayoutWarning",
    "LoaderStats",
    "MLflowLog",
    "MappedDataset",
    "MemloadError",
    "MemoryBudget",
    "MemorySpaceError",
    "MemoryStopError",
    "MemoryWarning",
    "Micro",
    "MixingSampler",
    "Monitor",
    "Offloaded",
    "Padded",
    "Plan",
    "ProbeReport",
    "Ragged",
    "ShardFormatError",
    "ShardReadError",
    "ShardWriter",
    "StaticBytes",
    "TensorBoardLog",
    "Tier",
    "WeightedSampler",
    "WriterBusyError",
    "__version__",
    "accumulate",
    "cast_stim",
    "compute_batch_size",
    "concat",
    "fit",
    "from_arrays",
    "from_graphs",
    "from_hf",
    "graph_collate",
    "group_collate",
    "offload",
    "open",
    "open_graphs",
    "plan",
    "prepare",
    "probe",
    "ragged",
    "score",
    "to_device",
    "verify",
    "write",
    "write_graphs",
    "write_images",
    "zip",
]


def __dir__() -> list[str]:
    """The public names, which is what tab completion shows."""
    return __all__
