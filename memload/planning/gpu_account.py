"""The account of a GPU: batches, models, optimizers, activations, and the overhead of CUDA and the allocator.

    at the start of a step   context | data | batches | weights | optimizer states
    in the backward pass     ... and activations, which are freed while gradients are made
    in the optimizer's step  ... and gradients, and temporaries of the step

The last two do not coincide, so the larger one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memload.device.memory import CONTEXT
from memload.errors import first_line
from memload.nested import leaves
from memload.planning.account import Line
from memload.planning.allocations import Timeline, nbytes_of
from memload.planning.distributed import Strategy, without_exchange
from memload.planning.frozen import frozen_parts, trains_nothing, weights_of, window_of
from memload.planning.gpu_libraries import cublas_workspaces, kernels_of
from memload.planning.graph_spread import GraphSpread
from memload.planning.graph_steps import GraphStep, LargestStep, needs_values
from memload.planning.group_samples import batches_in, others_of
from memload.planning.heap import Surplus, heap_bound, peak_on_cpu
from memload.planning.model_bytes import ModelBytes, Modules, activation_bytes, model_bytes, modules_of
from memload.planning.optimizer_bytes import OptimizerBytes, kept_bytes, optimizer_bytes, optimizer_over
from memload.planning.request import Request
from memload.planning.sharded import Sharded
from memload.planning.step_errors import why_no_step
from memload.planning.steps import (
    LossOf,
    SampleDtypeError,
    each_rank_by_itself,
    list_of_losses,
    losses_of,
    telling_dtypes,
)
from memload.planning.variants import is_graphs, is_of_pyg
from memload.planning.weightless import Weightless
from memload.planning.weights_in_ram import coming_lines, file_lines
from memload.sizes import format_size

FRAGMENTATION = 0.15
"""The share of temporary memory that the caching allocator loses: the mean over eight language models on an A100.

Source: Guo et al., "GMLake: Efficient and Transparent GPU Memory Defragmentation for Large-scale DNN Training with
Virtual Memory Stitching", ASPLOS 2024, https://arxiv.org/abs/2401.08156, abstract: 15 % on average, up to 33 %.
"""

TEMPORARY = (
    "batches",
    "arriving rows",
    "transformed batches",
    "activations",
    "gathered parameters",
    "reduce-scatters",
    "optimizer's step",
)
"""The lines of temporary memory."""

OPTIMIZER_LIBRARIES = 75_000_000
"""Private memory of what the first optimizer of a process imports (torch._dynamo and sympy): RssAnon of a process with
an optimizer of a small model beyond that of its plan without, 73 to 75 MB with Python 3.11 and torch 2.13."""

GRAPH_LIBRARIES = 137_000_000
"""Private memory of what torch_geometric imports, torch._dynamo included: RssAnon of a process after ``import
torch_geometric.data`` beyond that before, 137 MB with torch_geometric 2.8, Python 3.11 and torch 2.13."""

Steps = dict[tuple[str, bool], list[Timeline]]
"""The allocations of steps, by the precision in which they compute, and whether gradients exist before them."""

LIBRARIES = ("torch._dynamo", "torch_geometric")
"""Modules of libraries whose memory is counted, if they are not imported yet."""


@dataclass(frozen=True)
class Counted:
    """The bytes of training.

    Attributes:
        kept: memory of models and optimizers, which stays from step to step.
        temporary: the most temporary bytes of the forward and backward pass, without gradients.
        no_optimizer: the reason why an optimizer's state is not known; empty if it is.
        no_temporary: the reason why `temporary` is not known; empty if it is.
        of_batch: the batch whose step was run, in words; empty for one of the loader's form.
        shares: the bytes of one rank; None if nothing is spread over ranks.
        heap: how the C library's heap counts; None: by the bound.
    """

    kept: ModelBytes
    temporary: int
    no_optimizer: str = ""
    no_temporary: str = ""
    of_batch: str = ""
    shares: Sharded | None = None
    heap: Surplus | None = None


@dataclass(frozen=True)
class Training:
    """The models of a plan, and how they are trained.

    Attributes:
        models: one module, or several.
        optimizers: instances or classes. A class gets the trained parameters of all models; as many classes as models
            get those of one model each.
        loss: a function of a batch that returns the loss, or several, each with a backward pass of its own; None: the
            ``loss`` that the one trained model returns for a batch of the loader, or the mean of its result.
        sample: a batch, whose tensors need no memory; or the reason why there is none.
        precision: one of `memload.planning.precisions.PRECISIONS`.
        accumulate: batches whose gradients are added up before the optimizer's step.
        offload: whether frozen models stay in pinned RAM, and are copied layer by layer.
        on_cpu: whether all of it happens on the CPU.
        graphs: the graphs of a batch, if they are not those of `sample`.
        spread: the sizes of the batches of graphs; None if they are not known.
        strategy: how training is spread over ranks; None: it is not.
        teachers: further models that only run forward, whether their parameters are frozen or not.
        weights: one of `memload.planning.weights_in_ram.WEIGHTS`.
        heap: what steps showed of the C library's heap for another setting; None: nothing.
    """

    models: Modules
    optimizers: Any
    loss: LossOf | Sequence[LossOf] | None
    sample: Any
    precision: str
    accumulate: int
    offload: bool
    on_cpu: bool = False
    graphs: int | None = None
    spread: GraphSpread | None = None
    strategy: Strategy | None = None
    teachers: Sequence[torch.nn.Module] = ()
    weights: str = "ram"
    heap: Surplus | None = None

    @classmethod
    def of(cls, request: Request, sample: Any, spread: GraphSpread | None = None) -> Training | None:
        """Return the training of a request; None without a model."""
        if request.model is None:
            return None
        return cls(
            request.model,
            request.optimizer,
            request.loss,
            sample,
            request.precision,
            request.accumulate,
            request.offload,
            request.trains_on_cpu,
            None if request.sample is None or "batch_sampler" in request.loader else request.batch_size,
            spread,
            request.over_ranks,
            weights=request.weights,
        )

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of the models that stay in pinned RAM."""
        return weights_of(self.frozen) if self.offload else 0

    @property
    def frozen(self) -> list[torch.nn.Module]:
        """The largest modules that train nothing: whole models, teachers, and parts of models that train."""
        return [*frozen_parts(modules_of(self.models)), *self.teachers]

    @property
    def _computing(self) -> str:
        """The precision in which the models compute."""
        return self.strategy.computing(self.precision) if self.strategy else self.precision

    @property
    def _heap(self) -> Surplus:
        """How many times bytes count that the C library's heap keeps."""
        bound = Surplus(heap_bound(counts=self.on_cpu and self.strategy is None, varies=needs_values(self.sample)))
        return self.heap if self.heap and bound.times > 1 else bound

    @property
    def _modules(self) -> list[torch.nn.Module]:
        return [*modules_of(self.models), *self.teachers]

    def counted(self, before: Counted | None = None, steps: Steps | None = None) -> Counted:
        """Return the bytes of training, with frozen models on the GPU or not.

        Args:
            before: the bytes with another batch, whose models and optimizers are these.
            steps: those that were run with this batch and these models, for other settings; what runs here is added.

        Raises:
            ValueError: the loss cannot be run without numbers, or is no loss.
        """
        modules = self._modules
        outside = _outside(self._given, modules)
        precision = self._computing
        with without_exchange(modules), each_rank_by_itself(modules), Weightless(modules, precision) as light:
            shares = self._shares(modules)
            kept, no_optimizer = (before.kept, before.no_optimizer) if before else self._kept(light, outside, shares)
            if not needs_values(self.sample):
                known = {} if steps is None else steps
                return self._with_step(
                    kept, no_optimizer, shares, lambda losses: self._peak(light, losses, shares, known)
                )
        accumulating, others = self.accumulate > 1 and not shares, others_of(self.sample)
        of_graphs = [
            GraphStep(modules, precision, one, self.graphs, accumulating, self.spread, self._heap, others)
            for one in batches_in(self.sample)
        ]
        found = LargestStep(of_graphs)

        def peak(loss: LossOf) -> int:
            most = found.peak(loss)
            return shares.most(None, max(0, most - shares.made)) if shares else most

        return replace(self._with_step(kept, no_optimizer, shares, peak), of_batch=found.note, heap=found.heap)

    def _shares(self, modules: list[torch.nn.Module]) -> Sharded | None:
        if self.strategy is None:
            return None
        return Sharded(self.strategy, modules, self.precision, accumulate=self.accumulate > 1)

    def _with_step(
        self, kept: ModelBytes, no_optimizer: str, shares: Sharded | None, peak: Callable[[LossOf], int]
    ) -> Counted:
        """Return the bytes of training; `peak` returns the most bytes of a step with a loss."""
        least = max(0, shares.most() - kept.gradients) if shares else 0  # of exchanges alone
        try:
            return Counted(kept, self._temporary(peak, kept.gradients), no_optimizer, shares=shares)
        except SampleDtypeError as error:
            return Counted(kept, least, no_optimizer, str(error), shares=shares)
        except ValueError as error:
            if self.loss is not None:
                raise
            return Counted(kept, least, no_optimizer, f"give loss=: {error}", shares=shares)

    def ram_lines(self, lines: tuple[Line, ...], *, is_here: bool, imported: frozenset[str]) -> tuple[Line, ...]:
        """Return the lines of RAM for one process.

        Args:
            lines: those of `lines`.
            is_here: whether the process that trains is this one, whose bytes are counted already.
            imported: the modules of `LIBRARIES` that are among these bytes.
        """
        there = _weights_in_ram(self._modules) if is_here else 0
        if not self.on_cpu:
            pinned = self.offloaded_bytes
            offloaded = (Line("offloaded models", pinned, "pinned"),) if pinned else ()
            return (*offloaded, *coming_lines(self._modules, self.weights, max(there, pinned)))
        weights, *others = lines
        note = "in this process already" if there else weights.note
        libraries, importer = self._libraries(imported if is_here else frozenset())
        return (
            replace(weights, predicted=max(0, weights.predicted - there), note=note),
            *others,
            *([Line("libraries", libraries, f"what {importer} import")] if libraries else []),
            *file_lines(self._modules, self.weights, sum(line.predicted for line in lines[1:])),
        )

    def _libraries(self, imported: frozenset[str]) -> tuple[int, str]:
        """Return the bytes of libraries that a run imports beyond those of these modules, and what imports them."""
        has_graphs = any(map(is_of_pyg, leaves(self.sample, is_graphs)))
        optimizer = OPTIMIZER_LIBRARIES if self.optimizers is not None else 0
        there = OPTIMIZER_LIBRARIES if imported else 0
        if not has_graphs or "torch_geometric" in imported:
            return max(0, optimizer - there), "torch's optimizers"
        return GRAPH_LIBRARIES - there, "graphs of torch_geometric"

    def lines(self, counted: Counted) -> tuple[Line, ...]:
        """Return the lines of the account of the GPU, or of the CPU's RAM where all of it happens there."""
        kept, temporary, shares = counted.kept, counted.temporary, counted.shares
        beyond = kept.optimizer_temporary - temporary
        exchanged = shares.lines(temporary) if shares else ()
        temporary -= sum(line.predicted for line in exchanged)
        of_outputs = "of the mean of the model's result; a criterion takes more: give loss="
        return (
            *self._weight_lines(kept.weights, shares.note if shares else ""),
            Line("gradients", kept.gradients),
            *([Line("gradient buckets", kept.buckets, shares.bucket_note)] if shares and kept.buckets else []),
            Line("optimizer states", kept.optimizer, counted.no_optimizer, known=not counted.no_optimizer),
            Line(
                "activations",
                temporary,
                counted.no_temporary
                or "; ".join(filter(None, [counted.of_batch, of_outputs if self.loss is None else ""])),
                known=not counted.no_temporary,
                bound=(counted.heap or self._heap).is_bound and not counted.no_temporary,
            ),
            *exchanged,
            *([Line("optimizer's step", beyond, "beyond the bytes of activations")] if beyond > 0 else []),
        )

    def _kept(self, light: Weightless, outside: int, shares: Sharded | None) -> tuple[ModelBytes, str]:
        """Return the memory that stays, and the reason why an optimizer's state is not known; empty if it is."""
        modules, unknown = modules_of(self.models), ""
        kept = model_bytes(modules)
        kept = replace(kept, params=kept.params + outside + weights_of(self._modules) - weights_of(modules))
        kept = shares.kept(kept) if shares else kept
        find, state, temporary = shares.optimizer if shares else optimizer_bytes, 0, 0
        for given, twin in zip(*self._optimizers(light, modules), strict=True):
            try:
                found = find(twin, device_type="cpu" if self.on_cpu else "cuda")
            except ValueError as error:
                found = OptimizerBytes(kept_bytes(given) if isinstance(given, torch.optim.Optimizer) else 0)
                unknown = "" if found.state else first_line(error)
            state, temporary = state + found.state, max(temporary, found.temporary)
        return replace(kept, optimizer=state, optimizer_temporary=temporary), unknown

    def _weight_lines(self, weights: int, of_rank: str) -> list[Line]:
        frozen = self.frozen
        whole = weights_of(frozen)
        if not self.offload or not whole:
            in_frozen = f"{format_size(whole)} of them in frozen models" if whole else ""
            return [Line("parameters", weights, "; ".join(filter(None, [of_rank, in_frozen])))]
        return [
            Line("parameters", weights - whole, of_rank),
            Line("offloaded layers", window_of(frozen), "the largest of a frozen model, and the next one"),
        ]

    def _peak(self, light: Weightless, losses: LossOf | Sequence[LossOf], shares: Sharded | None, steps: Steps) -> int:
        """Return the most bytes of the forward and backward pass, with gradients, of tensors without memory."""
        accumulates = self.accumulate > 1 and not shares
        key = (self._computing, accumulates)
        with light.tensors(), kernels_of("cpu" if self.on_cpu else "cuda"):
            if key not in steps:
                steps[key] = self._run(light, losses, accumulates=accumulates)
            if shares:
                return max(map(shares.most, steps[key]))
            if not self.on_cpu:
                return max(step.peak for step in steps[key])
            return max(peak_on_cpu(step, self._heap.times) for step in steps[key])

    def _run(self, light: Weightless, losses: LossOf | Sequence[LossOf], *, accumulates: bool) -> list[Timeline]:
        """Return the allocations of a step with each batch of the sample."""
        several = [losses] if callable(losses) else losses
        runs = ([light.running(loss, one) for loss in several] for one in batches_in(self.sample))
        return [
            activation_bytes(run, self._modules, accumulating=accumulates, on_cpu=self.on_cpu).timeline for run in runs
        ]

    def _temporary(self, peak: Callable[[LossOf], int], gradients: int) -> int:
        """Return the most temporary bytes of the forward and backward pass, without gradients.

        Raises:
            ValueError: there is no loss, or no batch for it, or it cannot be run.
        """
        loss = self._loss()
        if isinstance(self.sample, str):
            raise ValueError(self.sample)
        try:
            most = peak(loss)
        except ValueError:
            raise
        except Exception as error:
            if self.loss is None:
                raise ValueError(f"the model does not take the loader's batch ({_short(error)})") from error
            raise ValueError(why_no_step(self.sample, error)) from error
        return max(0, most - (0 if self.accumulate > 1 and self.strategy is None else gradients))

    def _loss(self) -> Any:
        """Return the loss, or all losses."""
        modules = self._modules
        if self.loss is not None:
            telling = [telling_dtypes(one, modules) for one in list_of_losses(self.loss)]
            return telling[0] if callable(self.loss) else telling
        frozen = [module for module in modules if module in self.teachers or trains_nothing(module)]
        trained = [module for module in modules if module not in frozen]
        if len(trained) != 1:
            what = f"{len(trained)} models train" if trained else "no model trains"
            raise ValueError(f"{what}, so a step is not defined")
        return losses_of(trained, None, frozen, None, "cpu")[0]

    @property
    def _given(self) -> list[Any]:
        given = self.optimizers
        if isinstance(given, Mapping):
            given = list(given.values())
        return list(given) if isinstance(given, list | tuple) else [] if given is None else [given]

    def _optimizers(
        self, light: Weightless, modules: list[torch.nn.Module]
    ) -> tuple[list[Any], list[torch.optim.Optimizer]]:
        """Return the given optimizers, and their twins over parameters without memory."""
        several = self._given
        one_each = len(several) == len(modules)
        twins = [
            light.optimizer(one)
            if isinstance(one, torch.optim.Optimizer)
            else optimizer_over(one, light.trained([modules[k]] if one_each else modules))
            for k, one in enumerate(several)
        ]
        return several, twins


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)[:90]}"


def context_lines() -> tuple[Line, ...]:
    """Return the line of CUDA's context in a process."""
    return (Line("CUDA context", CONTEXT, "kernels and libraries of the process"),)


def fragmentation_line(lines: tuple[Line, ...]) -> Line:
    """Return the line of memory that the allocator loses between temporary blocks."""
    temporary = sum(line.predicted for line in lines if line.name in TEMPORARY)
    return Line("fragmentation", round(temporary * FRAGMENTATION), f"{FRAGMENTATION:.0%} of temporary memory")


def gpu_lines(
    rows: int, batches: tuple[Line, ...], training: tuple[Line, ...], capability: tuple[int, int] | None = None
) -> tuple[Line, ...]:
    """Return all lines of a GPU, of which `memload.plan` and `memload.fit` make their verdict.

    Args:
        rows: bytes of rows that a tier keeps on the GPU.
        batches: the lines of batches.
        training: the lines of models, optimizers and activations, as `Training.lines` returns them.
        capability: the compute capability of the GPU; None: not known.
    """
    resident = (Line("rows on the GPU", rows),) if rows else ()
    workspaces = (Line("cuBLAS", cublas_workspaces(capability), "workspaces of two threads"),) if training else ()
    lines = (*context_lines(), *workspaces, *resident, *batches, *training)
    return (*lines, fragmentation_line(lines))


def _outside(optimizers: Sequence[Any], modules: Sequence[torch.nn.Module]) -> int:
    """Return the bytes of parameters that optimizers train and that belong to no model, such as those of a loss."""
    known = {id(parameter) for module in modules for parameter in module.parameters()}
    made = (one for one in optimizers if isinstance(one, torch.optim.Optimizer))
    trained = (parameter for one in made for group in one.param_groups for parameter in group["params"])
    return nbytes_of(parameter for parameter in trained if id(parameter) not in known)


def _weights_in_ram(modules: Sequence[torch.nn.Module]) -> int:
    tensors = (tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
    return nbytes_of(tensor for tensor in tensors if tensor.device.type == "cpu")
