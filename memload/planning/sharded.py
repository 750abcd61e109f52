"""The bytes of one rank: what stays from step to step, and what exchanges add at each moment of a backward pass.

The moments follow from the bytes of gradients that the pass has made, since groups give up their parameters, and
reduce their gradients, in the reverse order of the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload.planning.account import Line
from memload.planning.allocations import Timeline
from memload.planning.distributed import PREFETCH_BUCKET, REDUCE_BUCKET, Strategy, stays_gathered
from memload.planning.model_bytes import ModelBytes
from memload.planning.optimizer_bytes import OptimizerBytes, optimizer_bytes, twin_over

Bytes = NDArray[np.int64]


@dataclass
class Group:
    """The parameters that fully_shard gathers together.

    Attributes:
        gathered: bytes of the gathered parameters, padded to whole shares.
        made: bytes of the gradients that autograd makes of them.
        reduced: bytes of the input of their reduce-scatter, padded.
        kept: bytes of the gradients that stay on a rank.
        stays: whether the parameters stay gathered from the forward pass until their gradients are reduced.
    """

    gathered: int = 0
    made: int = 0
    reduced: int = 0
    kept: int = 0
    stays: bool = False


@dataclass
class Groups:
    """The groups of models: blocks in the order of the forward pass, and roots, which stay gathered.

    Attributes:
        blocks: one for each block.
        early: parameters of roots whose gradients come before those of the blocks, such as of a head.
        late: parameters of roots whose gradients come after, such as of embeddings.
    """

    blocks: list[Group] = field(default_factory=list)
    early: Group = field(default_factory=Group)
    late: Group = field(default_factory=Group)


class Sharded:
    """The bytes of one rank, the largest of all.

    Args:
        strategy: how training is spread.
        modules: models in the precision in which they compute; models that train nothing stay whole on each rank.
        precision: the precision of training.
        accumulate: whether gradients exist from the batch before.
    """

    def __init__(
        self, strategy: Strategy, modules: Sequence[torch.nn.Module], precision: str, *, accumulate: bool = False
    ) -> None:
        self.strategy = strategy
        self._mixed = precision.endswith("-mixed")
        self._accumulate = accumulate
        trained = [m for m in modules if any(p.requires_grad for p in m.parameters())]
        self._parameters = list({id(p): p for m in trained for p in m.parameters()}.values())
        self._learnt = [p for p in self._parameters if p.requires_grad]
        self._groups = self._grouped(trained) if strategy.is_fsdp2 else Groups()
        self._layer = max((_whole(part.parameters(recurse=False)) for m in trained for part in m.modules()), default=0)

    @property
    def gradients(self) -> int:
        """Bytes of gradients that stay until the optimizer's step."""
        if self.strategy.shards_gradients:
            return sum(self._share(p) for p in self._learnt)
        return _whole(self._learnt)

    @property
    def buckets(self) -> int:
        """Bytes of buckets that are there all the time: copies of DDP's gradients, or DeepSpeed's reduce bucket."""
        if self.strategy.name.startswith("zero"):
            return REDUCE_BUCKET * max((p.element_size() for p in self._learnt), default=0)
        if self.strategy.name.startswith("ddp") and not self.strategy.bucket_views:
            return _whole(self._learnt)
        return 0

    @property
    def gathered(self) -> int:
        """Bytes of gathered parameters at their largest: of a group, of the one fetched ahead, and of roots."""
        if self.strategy.name == "zero3":
            size = max((p.element_size() for p in self._parameters), default=0)
            return self._layer + min(PREFETCH_BUCKET * size, _whole(self._parameters))
        return self._root + max(self._gathered_from(k) for k in range(len(self._groups.blocks) + 1))

    @property
    def reducing(self) -> int:
        """Bytes of unsharded gradients and reduce-scatter buffers at their largest."""
        if not self.strategy.is_fsdp2:
            return 0
        blocks, early = self._groups.blocks, self._groups.early.made
        after = [0, *(block.reduced for block in reversed(blocks))]
        of_blocks = [early + one.made + held for one, held in zip(reversed(blocks), after, strict=False)]
        return max([*of_blocks, early + self._groups.late.made + after[-1]], default=0)

    @property
    def made(self) -> int:
        """Bytes of gradients that the backward pass makes."""
        return _whole(self._learnt)

    @property
    def note(self) -> str:
        """The strategy in words, such as "zero3, the largest of 8 ranks"."""
        which = f"the largest of {self.strategy.world_size} ranks"
        whole = "whole" if not self.strategy.shards_parameters else ""
        return ", ".join(filter(None, [self.strategy.name, which, whole]))

    @property
    def bucket_note(self) -> str:
        """The origin of `buckets`, in words."""
        if self.strategy.name.startswith("zero"):
            return "estimate: DeepSpeed's reduce_bucket_size of 5e8 numbers"
        return "of DDP; none with gradient_as_bucket_view=True"

    def lines(self, temporary: int) -> tuple[Line, ...]:
        """Return the lines of gathered parameters and of reductions, which are at most `temporary` bytes together."""
        found = []
        estimate = "estimate: the largest layer, and DeepSpeed's stage3_prefetch_bucket_size"
        some, every = "the largest group, the next one, and the model's own", "all groups, until they are reduced"
        of_groups = every if any(block.stays for block in self._groups.blocks) else some
        notes = (estimate if self.strategy.name == "zero3" else of_groups, "gradients of a group, and their buffer")
        for name, nbytes, note in zip(
            ("gathered parameters", "reduce-scatters"), (self.gathered, self.reducing), notes, strict=True
        ):
            taken = min(nbytes, temporary)
            temporary -= taken
            found += [Line(name, taken, note)] if taken else []
        return tuple(found)

    def kept(self, whole: ModelBytes) -> ModelBytes:
        """Return the bytes that stay, of models whose unsharded bytes are given; without the optimizer's."""
        held = sum(self._share(p) for p in self._parameters) if self.strategy.shards_parameters else 0
        saved = _whole(self._parameters) - held if self.strategy.shards_parameters else 0
        return replace(
            whole,
            params=whole.params + whole.embeddings - saved,
            embeddings=0,
            gradients=self.gradients,
            buckets=self.buckets,
        )

    def optimizer(self, twin: torch.optim.Optimizer, device_type: str) -> OptimizerBytes:
        """Return the bytes of an optimizer on the rank that has most; `twin` has whole parameters without memory.

        Raises:
            ValueError: its state cannot be computed beforehand.
        """
        name, ranks = self.strategy.name, self.strategy.world_size
        if type(twin).__name__ == "ZeroRedundancyOptimizer":
            name, twin = "ddp-zero1", _inner(twin)
        if name == "ddp-zero1":
            shares = [optimizer_bytes(one, device_type=device_type) for one in _dealt(twin, ranks)]
            return OptimizerBytes(max(one.state for one in shares), max(one.temporary for one in shares))
        if name == "ddp":
            return optimizer_bytes(twin, device_type=device_type)
        if self.strategy.is_fsdp2:
            return optimizer_bytes(_over(twin, self._shards), device_type=device_type)
        found = optimizer_bytes(_over(twin, self._flat), device_type=device_type)
        # DeepSpeed keeps float32 copies of the rank's parameters, of float32 ones, too; in the step also of gradients.
        copies = sum(4 * self._numbers(group) for group in twin.param_groups)
        return OptimizerBytes(found.state + copies, found.temporary + copies)

    def most(self, timeline: Timeline | None = None, temporary: int = 0) -> int:
        """Return the most bytes of a step: activations, gradients, gathered parameters and reduce buffers.

        Args:
            timeline: the allocations of a step on whole parameters; None: those of the exchanges alone.
            temporary: the bytes of activations, where there is no timeline.
        """
        if timeline is None:
            made = np.array(self._moments(), dtype=np.int64)
            return int((temporary + self._added(made)).max(initial=0))
        made = np.cumsum(np.where(timeline.gradient, timeline.nbytes, 0))
        return int((timeline.live(gradients=False) + self._added(made)).max(initial=self.most()))

    def _moments(self) -> list[int]:
        """Return the bytes of gradients made, just before and at the end of each group."""
        ends = np.cumsum([self._groups.early.made, *(block.made for block in reversed(self._groups.blocks))])
        whole = _whole(self._learnt)
        return sorted({0, whole, *(int(end) + more for end in ends for more in (0, 1) if end + more <= whole)})

    def _added(self, made: Bytes) -> Bytes:
        """Return the bytes beside activations when so many bytes of gradients have been made."""
        if not self.strategy.is_fsdp2:
            largest = max((p.numel() * p.element_size() for p in self._learnt), default=0)
            if self._accumulate or self.strategy.bucket_views:
                return np.full(len(made), self.gathered + self.gradients + largest)
            share = self.gradients / max(1, _whole(self._learnt))
            kept: Bytes = np.ceil(made * share).astype(np.int64)
            return self.gathered + kept
        groups = self._groups
        blocks = groups.blocks[::-1]
        ends = np.cumsum([groups.early.made, *(block.made for block in blocks)])
        return np.array([self._at(int(one), int(np.searchsorted(ends, one)), ends) for one in made], dtype=np.int64)

    def _at(self, made: int, number: int, ends: Bytes) -> int:
        """Return the bytes beside activations; `number` counts the groups whose gradients are complete."""
        groups, blocks = self._groups, self._groups.blocks[::-1]
        kept = self.gradients if self._accumulate else sum(one.kept for one in blocks[: max(0, number - 1)])
        begun = min(made, groups.early.made)
        if number == 0:
            return self._root + self._gathered_from(0) + begun + (self.gradients if self._accumulate else 0)
        own = made - int(ends[number - 1])
        before = blocks[number - 2].reduced if number > 1 else 0
        if number > len(blocks):
            return self._root + begun + own + before + kept
        return self._root + self._gathered_from(number - 1) + begun + own + before + kept

    def _gathered_from(self, number: int) -> int:
        """Return the bytes of gathered blocks when `number` of them, the last first, have reduced their gradients.

        These are the block that computes, the one that is fetched ahead, and all others that stay gathered.
        """
        blocks = self._groups.blocks[::-1][number:]
        return sum(one.gathered for k, one in enumerate(blocks) if k < 2 or one.stays)

    @property
    def _root(self) -> int:
        return self._groups.early.gathered + self._groups.late.gathered

    def _share(self, parameter: torch.Tensor) -> int:
        size = self._kept_size(parameter) if self.strategy.is_fsdp2 else parameter.element_size()
        return math.prod(self.strategy.shard(parameter.shape)) * size

    def _kept_size(self, parameter: torch.Tensor) -> int:
        """Return the bytes of a number of the parameter that the optimizer updates."""
        return 4 if self._mixed and parameter.is_floating_point() else parameter.element_size()

    def _grouped(self, modules: Iterable[torch.nn.Module]) -> Groups:
        groups, seen = Groups(), set[int]()
        for module in modules:
            blocks = blocks_of(module)
            of_blocks = {id(p) for block in blocks for p in block.parameters()}
            groups.blocks += [
                replace(self._group(block.parameters(), seen), stays=self._stays(block)) for block in blocks
            ]
            named = [p for _, p in module.named_parameters(remove_duplicate=False)]
            last = max((k for k, p in enumerate(named) if id(p) in of_blocks), default=-1)
            first = {id(p): p for p in named[last + 1 :]}
            _add(groups.early, self._group(first.values(), seen))
            _add(groups.late, self._group(named, seen))
        return groups

    def _stays(self, block: torch.nn.Module) -> bool:
        return self.strategy.name == "fsdp2-zero2" or stays_gathered(block)

    def _group(self, parameters: Iterable[torch.nn.Parameter], seen: set[int]) -> Group:
        found = Group()
        for p in parameters:
            if id(p) in seen:
                continue
            seen.add(id(p))
            padded = math.prod(self.strategy.shard(p.shape)) * self.strategy.world_size * p.element_size()
            trains = int(p.requires_grad)
            whole = p.numel() * p.element_size()
            _add(found, Group(padded, trains * whole, trains * padded, trains * self._share(p)))
        return found

    def _shards(self, group: dict[str, Any]) -> list[torch.nn.Parameter]:
        return [
            _on_meta(self.strategy.shard(p.shape), torch.float32 if self._kept_size(p) != p.element_size() else p.dtype)
            for p in group["params"]
        ]

    def _flat(self, group: dict[str, Any]) -> list[torch.nn.Parameter]:
        return [_on_meta((self._numbers(group),), torch.float32)]

    def _numbers(self, group: dict[str, Any]) -> int:
        """Return the numbers of a group of parameters on one rank, of flat shares."""
        numbers: int = sum(p.numel() for p in group["params"])
        return -(-numbers // self.strategy.world_size)


def blocks_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules to which fully_shard is applied beside the model: those that are sharded, else its blocks.

    Blocks are the elements of the outermost lists and sequences of modules, as in torch's examples of fully_shard.
    """
    sharded = [part for part in module.modules() if hasattr(part, "set_reshard_after_forward") and part is not module]
    if sharded:
        return sharded
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return [part for part in module.children() if next(part.parameters(), None) is not None]
    return [block for part in module.children() for block in blocks_of(part)]


def _inner(twin: Any) -> torch.optim.Optimizer:
    """Return the optimizer inside a ZeroRedundancyOptimizer, over the parameters of all ranks."""
    found: torch.optim.Optimizer = twin_over(twin.optim, lambda _: [dict(group) for group in twin.param_groups])
    return found


def _dealt(twin: torch.optim.Optimizer, ranks: int) -> list[torch.optim.Optimizer]:
    """Return the optimizers of the ranks with most numbers, as torch's ZeroRedundancyOptimizer deals parameters out.

    Of each group of parameters, the largest goes first, each to the rank that has the fewest numbers.
    """
    sizes = [0] * ranks
    shares: list[list[list[torch.nn.Parameter]]] = [[[] for _ in twin.param_groups] for _ in range(ranks)]
    for k, group in enumerate(twin.param_groups):
        for p in sorted(group["params"], key=lambda p: p.numel(), reverse=True):
            rank = sizes.index(min(sizes))
            shares[rank][k].append(p)
            sizes[rank] += p.numel()
    largest = [shares[rank] for rank in range(ranks) if sizes[rank] == max(sizes)]
    return [_with_groups(twin, share) for share in largest]


def _with_groups(twin: torch.optim.Optimizer, share: list[list[torch.nn.Parameter]]) -> torch.optim.Optimizer:
    groups = iter(share)
    return _over(twin, lambda _: next(groups))


def _over(twin: torch.optim.Optimizer, parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer of the same class over other parameters of each group."""
    found: torch.optim.Optimizer = twin_over(
        twin, lambda one: [{**group, "params": parameters(group)} for group in one.param_groups]
    )
    return found


def _on_meta(shape: Sequence[int], dtype: torch.dtype) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(tuple(shape), dtype=dtype, device="meta"))


def _add(group: Group, other: Group) -> None:
    group.gathered += other.gathered
    group.made += other.made
    group.reduced += other.reduced
    group.kept += other.kept


def _whole(parameters: Iterable[torch.Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in {id(p): p for p in parameters}.values())
