"""The checked arguments of memload.plan: data, tier, loader, models and machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from memload.casts.rule import Cast, casts_by_field
from memload.columns.numbers import is_whole
from memload.device.devices import named_device
from memload.engine.tiers.placing import as_tier
from memload.engine.tiers.tier import ON_GPU, Tier
from memload.planning.distributed import Strategy
from memload.planning.model_bytes import Modules, modules_of
from memload.planning.precisions import WEIGHTS, precision_named
from memload.planning.sets import Sets, sets_of
from memload.planning.shape import DatasetShape
from memload.sizes import parse_size


@dataclass(frozen=True)
class Request:
    """The arguments of `memload.plan`, which documents them.

    Raises:
        ValueError: a number is below 1, there is no such tier, device or precision, or they contradict each other.
    """

    data: Any
    batch_size: Any
    tier: Any = None
    ram_dtype: Mapping[str, Any] | None = None
    cache_bytes: Any = None
    device_bytes: int | str | None = None
    share_rows: bool = False
    device: str | None = None
    model: Modules | None = None
    optimizer: Any = None
    loss: Callable[[Any], torch.Tensor] | None = None
    sample: Any = None
    precision: str = "float32"
    accumulate: int = 1
    offload: bool = False
    weights: str = "ram"
    processes: int = 1
    strategy: str | None = None
    world_size: int | None = None
    ram: int | str | None = None
    gpu: int | str | None = None
    disk: int | str | None = None
    loader: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        several = self.sets is not None
        if isinstance(self.data, DatasetShape):
            for name, value in self.data._placed.items():
                if getattr(self, name) is None and (name == "tier" or self.tier in (None, self.data._placed["tier"])):
                    object.__setattr__(self, name, value)
        if not several:
            self._check_for_one()
        if self.tier is not None and not isinstance(self.tier, Mapping):
            object.__setattr__(self, "tier", as_tier(self.tier))
        if self.device_bytes is not None:
            object.__setattr__(self, "device_bytes", parse_size(self.device_bytes))
            if several:
                raise ValueError("device_bytes= is for one data set: plan each of these by itself")
        if self.device is not None and named_device(self.device).type == "cpu":
            object.__setattr__(self, "device", "cpu")
        if not several:
            object.__setattr__(self, "ram_dtype", casts_by_field(self.ram_dtype, "ram_dtype"))
        for name in ("batch_size", "accumulate", "processes"):
            value = getattr(self, name)
            if several and isinstance(value, Mapping):
                continue  # checked for each data set
            if not is_whole(value) or value < 1:
                raise ValueError(f"{name} is a whole number from 1, not {value!r}")
            object.__setattr__(self, name, int(value))
        object.__setattr__(self, "precision", precision_named(self.precision))
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights is one of {', '.join(WEIGHTS)}; got {self.weights!r}")
        if self.trains_on_cpu and (self.gpu is not None or self.offload):
            given = "gpu=" if self.gpu is not None else "offload=True"
            raise ValueError(f'device="cpu" trains the model on the CPU, {given} is for a GPU: leave one of them out')
        if self.model is None and (self.optimizer is not None or self.loss is not None):
            raise ValueError("optimizer= and loss= need a model: give model=")
        self._check_ranks()
        self._check_sharing()

    def _check_for_one(self) -> None:
        for name in ("batch_size", "tier", "cache_bytes"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                given = ", ".join(map(str, value))
                raise ValueError(f"{name} is given by data set, for {given}, and there is one only: leave names out")

    def _check_ranks(self) -> None:
        if self.model is None and (self.strategy is not None or self.world_size is not None):
            raise ValueError("strategy= and world_size= spread a model over ranks: give model=")
        spread = self.over_ranks
        if spread is not None and spread.world_size < self.processes:
            raise ValueError(
                f"processes={self.processes} on this machine are more than all {spread.world_size} ranks: give as "
                "world_size= the ranks of all machines together"
            )

    def _check_sharing(self) -> None:
        if not self.share_rows:
            return
        if self.sets is not None:
            raise ValueError("share_rows= is for one data set: plan each of these by itself")
        if self.tier not in (Tier.DEVICE, Tier.SPLIT):
            tier = None if self.tier is None else str(self.tier)
            raise ValueError(f'share_rows=True lays rows on several GPUs: give tier="device" or "split", not {tier!r}')
        if self.processes == 1:
            raise ValueError("share_rows=True is for several processes: give their number on one machine, processes=")

    @property
    def over_ranks(self) -> Strategy | None:
        """How training is spread over ranks; None if it is not."""
        return None if self.model is None else Strategy.of(self.strategy, self.world_size, modules_of(self.model))

    @property
    def sets(self) -> Sets | None:
        """The data sets; None if the data are a single one."""
        return sets_of(self.data, self.loader.get("collate_fn"))

    @property
    def ram_casts(self) -> Mapping[str, Cast]:
        """The casts of fields that are cast when they are loaded into RAM."""
        return self.ram_dtype or {}

    @property
    def uses_gpu(self) -> bool:
        """Whether the run uses a GPU."""
        trains = self.model is not None and not self.trains_on_cpu
        return trains or self.copies_batches or self.gpu is not None or self.tier in ON_GPU

    @property
    def copies_batches(self) -> bool:
        """Whether the loader copies its batches to a GPU."""
        return self.device not in (None, "cpu")

    @property
    def trains_on_cpu(self) -> bool:
        """Whether models are trained on the CPU."""
        return self.model is not None and self.device == "cpu"
