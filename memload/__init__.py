"""Feeds a training loop with array data at the speed of memory: a drop-in for torch's DataLoader.

    dataset = memload.open("shards/")  # or .npy, HDF5, ...; or memload.from_arrays(stim=..., robs=...)
    loader = memload.FastLoader(dataset, batch_size=256, shuffle=True)
    for batch in loader:  # {"stim": tensor, "robs": tensor}
        ...

Begin with `open`, `from_arrays`, `write`, `FastLoader` and `Cast`: each has an example in its help. `python -m memload`
lists the commands. What is not in `memload.__all__` may change.

A name's module is imported when the name is first used: `import memload` takes no time, and a loop over shards loads
nothing of what it does not use.
"""

import importlib
import typing

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

if typing.TYPE_CHECKING:
    from memload.caching.scoring import score
    from memload.casts.augment import Augment
    from memload.casts.rule import Cast
    from memload.columns.clocks import Clock
    from memload.columns.fields import Field
    from memload.columns.graph_attributes import GraphBatch
    from memload.columns.intervals import Intervals
    from memload.columns.ragged_forms import Padded, Ragged
    from memload.columns.spikes import Spikes
    from memload.dataset.dataset import Dataset
    from memload.dataset.float32_view import Float32View
    from memload.dataset.groups import GroupedDataset, concat, group_collate
    from memload.dataset.joining import join
    from memload.dataset.mapped import MappedDataset
    from memload.dataset.matlab import open_matlab
    from memload.dataset.opening import from_arrays, from_hf, open  # noqa: A004 - memload.open is its public name
    from memload.dataset.recordings.opening import (
        open_bids,
        open_experanto,
        open_nifti,
        open_nwb,
        open_recording,
        open_spikeglx,
        open_temporaldata,
    )
    from memload.dataset.recordings.recording import Recording, recording
    from memload.dataset.to_device import to_device
    from memload.dataset.zipping import zip  # noqa: A004 - memload.zip is its public name
    from memload.device.cast_stim import cast_stim
    from memload.device.offload import Offloaded, offload
    from memload.engine.request import EngineOptions
    from memload.engine.tiers.tier import Tier
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
        ShardWriteError,
        ThreadLimitError,
        WriterBusyError,
    )
    from memload.formats.codecs.codec import Codec
    from memload.formats.ragged_arrays import ragged
    from memload.formats.verifying import verify
    from memload.graphs.collating import graph_collate
    from memload.graphs.datasets import GraphDataset, from_graphs
    from memload.graphs.files import open_graphs, write_graphs
    from memload.images.writing import write_images
    from memload.loader.accelerate import prepare
    from memload.loader.accumulation import Micro, accumulate
    from memload.loader.fast_loader import FastLoader
    from memload.monitoring.diagnosis import Finding
    from memload.monitoring.metric_logs import MLflowLog, TensorBoardLog
    from memload.monitoring.monitor import Monitor
    from memload.planning.batch_size import compute_batch_size
    from memload.planning.fitting import FitAdvice, FitOption, fit
    from memload.planning.memory_budget import MemoryBudget, StaticBytes
    from memload.planning.planner import plan
    from memload.planning.probing import ProbeReport, probe
    from memload.planning.result import Plan
    from memload.planning.shape import DatasetShape
    from memload.sampling.block_shuffle import BlockShuffle
    from memload.sampling.budget_batches import BudgetBatchSampler
    from memload.sampling.samplers import MixingSampler, WeightedSampler
    from memload.stats import LoaderStats
    from memload.writing.nifti import write_nifti
    from memload.writing.parts import WrittenPart, seal, write_part
    from memload.writing.ray_sink import ShardSink
    from memload.writing.videos import write_videos
    from memload.writing.write import write
    from memload.writing.writer import ShardWriter

__all__ = [
    "Augment",
    "BlockShuffle",
    "BudgetBatchSampler",
    "Cast",
    "ChecksumError",
    "Clock",
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
    "Intervals",
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
    "Recording",
    "ShardFormatError",
    "ShardReadError",
    "ShardSink",
    "ShardWriteError",
    "ShardWriter",
    "Spikes",
    "StaticBytes",
    "TensorBoardLog",
    "ThreadLimitError",
    "Tier",
    "WeightedSampler",
    "WriterBusyError",
    "WrittenPart",
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
    "join",
    "offload",
    "open",
    "open_bids",
    "open_experanto",
    "open_graphs",
    "open_matlab",
    "open_nifti",
    "open_nwb",
    "open_recording",
    "open_spikeglx",
    "open_temporaldata",
    "plan",
    "prepare",
    "probe",
    "ragged",
    "recording",
    "score",
    "seal",
    "to_device",
    "verify",
    "write",
    "write_graphs",
    "write_images",
    "write_nifti",
    "write_part",
    "write_videos",
    "zip",
]


# The module of each public name, for `__getattr__`; the imports for type checkers above say the same.
_HOMES = {
    "memload.loader.accumulation": "Micro accumulate",
    "memload.caching.scoring": "score",
    "memload.casts.augment": "Augment",
    "memload.device.cast_stim": "cast_stim",
    "memload.dataset.float32_view": "Float32View",
    "memload.casts.rule": "Cast",
    "memload.formats.codecs.codec": "Codec",
    "memload.dataset.dataset": "Dataset",
    "memload.engine.request": "EngineOptions",
    "memload.errors": "ChecksumError Damage DecodeError DeviceError DiskSpaceError FormatError LayoutWarning "
    "MemloadError MemorySpaceError MemoryStopError MemoryWarning ShardFormatError ShardReadError ShardWriteError "
    "ThreadLimitError "
    "WriterBusyError",
    "memload.columns.clocks": "Clock",
    "memload.columns.fields": "Field",
    "memload.columns.intervals": "Intervals",
    "memload.columns.spikes": "Spikes",
    "memload.dataset.to_device": "to_device",
    "memload.graphs.collating": "graph_collate",
    "memload.graphs.datasets": "GraphDataset from_graphs",
    "memload.graphs.files": "open_graphs write_graphs",
    "memload.dataset.groups": "GroupedDataset concat group_collate",
    "memload.images.writing": "write_images",
    "memload.loader.accelerate": "prepare",
    "memload.dataset.opening": "from_arrays from_hf open",
    "memload.dataset.joining": "join",
    "memload.loader.fast_loader": "FastLoader",
    "memload.monitoring.diagnosis": "Finding",
    "memload.monitoring.metric_logs": "MLflowLog TensorBoardLog",
    "memload.monitoring.monitor": "Monitor",
    "memload.device.offload": "Offloaded offload",
    "memload.planning.batch_size": "compute_batch_size",
    "memload.planning.fitting": "FitAdvice FitOption fit",
    "memload.planning.memory_budget": "MemoryBudget StaticBytes",
    "memload.planning.planner": "plan",
    "memload.planning.probing": "ProbeReport probe",
    "memload.planning.result": "Plan",
    "memload.planning.shape": "DatasetShape",
    "memload.columns.ragged_forms": "Padded Ragged",
    "memload.columns.graph_attributes": "GraphBatch",
    "memload.sampling.block_shuffle": "BlockShuffle",
    "memload.sampling.budget_batches": "BudgetBatchSampler",
    "memload.sampling.samplers": "MixingSampler WeightedSampler",
    "memload.formats.verifying": "verify",
    "memload.writing.writer": "ShardWriter",
    "memload.writing.nifti": "write_nifti",
    "memload.writing.videos": "write_videos",
    "memload.writing.write": "write",
    "memload.writing.parts": "WrittenPart seal write_part",
    "memload.writing.ray_sink": "ShardSink",
    "memload.formats.ragged_arrays": "ragged",
    "memload.stats": "LoaderStats",
    "memload.engine.tiers.tier": "Tier",
    "memload.dataset.mapped": "MappedDataset",
    "memload.dataset.matlab": "open_matlab",
    "memload.dataset.recordings.opening": "open_bids open_experanto open_nifti open_nwb open_recording "
    "open_spikeglx open_temporaldata",
    "memload.dataset.recordings.recording": "Recording recording",
    "memload.dataset.zipping": "zip",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    """Import the module of a public name when the name is first used, and return its object."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    """Return the public names, which tab completion shows."""
    return __all__
