"""The shares of one rank under DDP, FSDP2 and ZeRO: parameters, gradients, optimizer states, and buffers of exchanges.

| strategy | parameters | gradients | optimizer | buffers |
| --- | --- | --- | --- | --- |
| ddp | whole | whole | whole | buckets, as large as the gradients |
| ddp-zero1 | whole | whole | whole parameters, dealt out by size | buckets, as large as the gradients |
| fsdp2 | 1/N of the rows of each | as parameters | as parameters | gathered groups, reduce-scatters |
| fsdp2-zero2 | as fsdp2 | as fsdp2 | as fsdp2 | all groups gathered until they are reduced |
| zero1 | whole | whole | 1/N of all numbers | a reduce bucket |
| zero2 | whole | 1/N | 1/N of all numbers | a reduce bucket |
| zero3 | 1/N | 1/N | 1/N of all numbers | a reduce bucket, gathered layers |

Sources: Li et al., "PyTorch Distributed", VLDB 2020, https://arxiv.org/abs/2006.15704 (buckets of DDP);
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (chunks of dim 0, as ``torch.chunk``);
Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
https://arxiv.org/abs/1910.02054, figure 1 and table 1 (stages); https://deepspeed.readthedocs.io/en/latest/memory.html
and https://www.deepspeed.ai/docs/config-json/ (the largest layer, buckets).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from memload.columns.numbers import is_whole
from memload.planning.precisions import STRATEGIES

REDUCE_BUCKET = 500_000_000
"""Numbers in DeepSpeed's ``reduce_bucket_size`` by default, allocated at once whatever the model's size."""

PREFETCH_BUCKET = 50_000_000
"""Numbers that ZeRO-3 gathers ahead: DeepSpeed's ``stage3_prefetch_bucket_size`` by default."""


@dataclass(frozen=True)
class Strategy:
    """How a training run is spread over ranks.

    Attributes:
        name: one of `STRATEGIES`.
        world_size: the number of ranks.
        bucket_views: of DDP, whether gradients are views of its buckets (``gradient_as_bucket_view=True``).

    Raises:
        ValueError: there is no such strategy, or the world size is below 1.
    """

    name: str
    world_size: int
    bucket_views: bool = False

    def __post_init__(self) -> None:
        if self.name not in STRATEGIES:
            raise ValueError(f"strategy is one of {', '.join(STRATEGIES)}; got {self.name!r}")
        if not is_whole(self.world_size) or self.world_size < 1:
            raise ValueError(f"world_size is the number of ranks, a whole number from 1, not {self.world_size!r}")

    @classmethod
    def of(cls, name: str | None, world_size: int | None, modules: Iterable[torch.nn.Module]) -> Strategy | None:
        """Return the given strategy, or the one in which modules are wrapped already; None without any.

        Raises:
            ValueError: both are there, or a world size without a strategy.
        """
        wrapped = _wrapped(list(modules))
        if wrapped is not None and (name is not None or world_size is not None):
            raise ValueError(
                f"the model is wrapped already ({wrapped.name}, {wrapped.world_size} ranks): leave strategy= and "
                "world_size= out, or give the model without its wrapper"
            )
        if name is None and world_size is not None:
            raise ValueError(f"world_size= needs strategy=, one of {', '.join(STRATEGIES)}")
        return wrapped if name is None else cls(name, _world_size() if world_size is None else world_size)

    @property
    def is_fsdp2(self) -> bool:
        """Whether fully_shard shards the model."""
        return self.name.startswith("fsdp2")

    @property
    def shards_parameters(self) -> bool:
        """Whether a rank keeps a share of the parameters."""
        return self.is_fsdp2 or self.name == "zero3"

    @property
    def shards_gradients(self) -> bool:
        """Whether a rank keeps a share of the gradients."""
        return self.is_fsdp2 or self.name in ("zero2", "zero3")

    def computing(self, precision: str) -> str:
        """Return the precision of parameters while they compute.

        Mixed precision of FSDP2 (``MixedPrecisionPolicy(param_dtype=...)``) and of ZeRO is no autocast: the parameters
        that compute are converted.
        """
        return precision if self.name.startswith("ddp") else precision.replace("-mixed", "-true")

    def shard(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the largest rank's share of a parameter, padding included.

        FSDP2 cuts dim 0 into chunks of ceil(rows / N) rows, and pads the last ranks' memory to it; ZeRO cuts flat
        numbers.

        Example:
            >>> Strategy("fsdp2", 4).shard((10, 7)), Strategy("zero3", 4).shard((10, 7))
            ((3, 7), (18,))
        """
        if self.is_fsdp2:
            rows, *others = shape or (1,)
            return (math.ceil(rows / self.world_size), *others)
        return (math.ceil(math.prod(shape) / self.world_size),)


def _world_size() -> int:
    """Return the ranks of torch.distributed, or those that torchrun tells; 1 without both."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"the environment says WORLD_SIZE={text!r}, which is no number of ranks: give world_size=")
    return int(text)


def _wrapped(modules: Sequence[torch.nn.Module]) -> Strategy | None:
    parts = [part for module in modules for part in module.modules()]
    for parameter in (p for module in modules for p in module.parameters()):
        ranks = _ranks_of(parameter)
        if ranks is not None:
            return Strategy("fsdp2", ranks)
    for part in parts:
        if isinstance(part, DistributedDataParallel):
            return Strategy("ddp", part.process_group.size(), part.gradient_as_bucket_view)
    return None


def _ranks_of(parameter: Any) -> int | None:
    """Return the ranks that share the rows of a DTensor; None for another tensor.

    Raises:
        ValueError: its shares are not of dim 0 alone.
    """
    if not hasattr(parameter, "placements") or not hasattr(parameter, "device_mesh"):
        return None
    dims = [(k, getattr(one, "dim", None)) for k, one in enumerate(parameter.placements) if not one.is_replicate()]
    if any(dim != 0 for _, dim in dims) or len(dims) > 1:
        raise ValueError(
            f"a parameter is placed as {tuple(parameter.placements)}: only fully_shard over one dim of a mesh, with "
            "replicas or without, is planned; give the model before it is sharded, and strategy="
        )
    return parameter.device_mesh.size(dims[0][0]) if dims else 1


def stays_gathered(block: torch.nn.Module) -> bool:
    """Return whether a block was sharded with ``reshard_after_forward=False``, which torch keeps in a private place."""
    state = getattr(block, "_get_fsdp_state", lambda: None)()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    return any(not getattr(group, "_reshard_after_forward", True) for group in groups)


@contextlib.contextmanager
def without_exchange(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Remove the hooks of fully_shard inside, so that modules run on whole parameters, without any exchange."""
    removed: list[tuple[Any, Any, Any]] = []
    for part in (part for module in modules for part in module.modules()):
        for hooks in (part._forward_pre_hooks, part._forward_hooks):
            for key, hook in list(hooks.items()):
                if str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp"):
                    removed.append((hooks, list(hooks.items()), key))
                    del hooks[key]
    try:
        yield
    finally:
        for hooks, before, _ in reversed(removed):
            hooks.clear()
            hooks.update(before)
