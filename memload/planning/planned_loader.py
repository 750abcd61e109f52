"""The arguments of `memload.plan` that a loader stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, default_collate

from memload.engine.carrying_collate import CarryingCollate
from memload.loader.access import access

_OF_BOTH = ("num_workers", "pin_memory", "drop_last", "persistent_workers")
_OF_FAST_LOADERS = ("threads", "depth", "cast", "batch_transform", "static_buffers", "options")


@dataclass(frozen=True)
class PlannedLoader:
    """What a plan takes from a loader.

    Attributes:
        dataset: what it reads.
        batch_size: the rows of a batch; None: its batch sampler knows.
        device: where its batches arrive; None: on the CPU.
        arguments: its other arguments, those that differ from their defaults and decide about memory.
    """

    dataset: Any
    batch_size: int | None
    device: str | None
    arguments: dict[str, Any]

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> PlannedLoader:
        """Return what a plan takes from a FastLoader or a stock loader."""
        asked = access(loader)
        arguments = {name: getattr(loader, name) for name in _OF_BOTH}
        collate = loader.collate_fn
        if asked is not None:
            arguments |= {name: getattr(loader, name) for name in _OF_FAST_LOADERS}
            collate = collate.plain if isinstance(collate, CarryingCollate) else collate
        if asked.asks().depth_given if asked else loader.num_workers:
            arguments["prefetch_factor"] = loader.prefetch_factor
        if collate is not default_collate and loader.batch_sampler is not None:
            arguments["collate_fn"] = collate
        if loader.batch_size is None and loader.batch_sampler is not None:
            arguments["batch_sampler"] = loader.batch_sampler
            del arguments["drop_last"]
        elif not isinstance(loader.sampler, SequentialSampler) and not isinstance(loader.dataset, IterableDataset):
            arguments["sampler"] = loader.sampler
        batch_size = loader.batch_size or (None if "batch_sampler" in arguments else 1)
        device = getattr(loader, "device", None) if asked else None
        named = f"cuda:{device}" if isinstance(device, int) else device
        given = {name: value for name, value in arguments.items() if value is not None and value is not False}
        return cls(loader.dataset, batch_size, None if named is None else str(named), given)

    def but(self, batch_size: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the batch size and the arguments with others in place of those of the loader."""
        replaced = set()
        if batch_size is not None or not given.keys().isdisjoint(("shuffle", "sampler")):
            replaced.add("batch_sampler")
        if not given.keys().isdisjoint(("shuffle", "batch_sampler")):
            replaced.add("sampler")
        if "batch_sampler" in given:
            replaced.add("drop_last")
        if given.get("num_workers") == 0:
            replaced |= {"prefetch_factor", "persistent_workers"}
        if "options" in given:
            replaced |= {"threads", "depth"}
        if not given.keys().isdisjoint(("threads", "depth")):
            replaced.add("options")
        kept = {name: value for name, value in self.arguments.items() if name not in replaced}
        own = None if "batch_sampler" in given else self.batch_size
        return (own if batch_size is None else batch_size), {**kept, **given}
