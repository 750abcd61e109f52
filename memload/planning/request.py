"""What memload.plan is asked: data, where they lie, how they are loaded, what is trained, and on which machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from memload.casts.rule import Cast
from memload.dtypes import as_torch_dtype
from memload.gpu.devices import named_device
from memload.tiers.placing import as_tier
from memload.tiers.tier import Tier
from memload.training.model_bytes import Modules
from memload.training.weightless import checked_precision


@dataclass(frozen=True)
class Request:
    """The arguments of `memload.plan`, which documents them.

    Raises:
        ValueError: a number is below 1, or there is no such tier, device or precision.
    """

    data: Any
    batch_size: int
    tier: Tier | str | None = None
    ram_dtype: Mapping[str, Any] | None = None
    cache_bytes: int | str | None = None
    device: str | None = None
    model: Modules | None = None
    optimizer: Any = None
    loss: Callable[[Any], torch.Tensor] | None = None
    sample: Any = None
    precision: str = "float32"
    accumulate: int = 1
    offload: bool = False
    processes: int = 1
    ram: int | str | None = None
    gpu: int | str | None = None
    disk: int | str | None = None
    loader: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tier is not None:
            object.__setattr__(self, "tier", as_tier(self.tier))
        if self.device is not None and named_device(self.device).type == "cpu":
            object.__setattr__(self, "device", None)
        object.__setattr__(self, "ram_dtype", _casts(self.ram_dtype))
        for name in ("batch_size", "accumulate", "processes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is a whole number from 1, not {value!r}")
        checked_precision(self.precision)
        if self.model is None and (self.optimizer is not None or self.loss is not None):
            raise ValueError("optimizer= and loss= are of a model: give model=")

    @property
    def ram_casts(self) -> Mapping[str, Cast]:
        """What becomes of fields that are cast when they are loaded into RAM."""
        return self.ram_dtype or {}

    @property
    def uses_gpu(self) -> bool:
        """Whether anything is put on a GPU."""
        asked = self.model is not None or self.device is not None or self.gpu is not None
        return asked or self.tier in (Tier.DEVICE, Tier.PINNED)


def _casts(given: Mapping[str, Any] | None) -> dict[str, Cast]:
    return {
        name: wanted if isinstance(wanted, Cast) else Cast(as_torch_dtype(wanted))
        for name, wanted in (given or {}).items()
    }
