"""compute_batch_size: the largest batch that a device has memory for.

total x utilisation - weights, optimizer, context = room for gradients, activations and the loader's slots
a step's curve over the batch size                -> the largest batch whose peak fits into the room
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from memload.memory import budget
from memload.planning.allocations import Told
from memload.planning.batch_size_request import (
    BatchSizeRequest,
    Target,
    Trained,
    bounds_of,
    device_of,
    memory_of,
    setting_of,
)
from memload.planning.curves import Curve
from memload.planning.graph_spread import SURE
from memload.planning.heap import bound_of_curve
from memload.planning.heap_surplus import heap_times
from memload.planning.measuring import Measured, measured, without_memory
from memload.planning.memory_budget import MemoryBudget
from memload.planning.model_bytes import Modules, Optimizers
from memload.planning.steps import LossOf, telling_models
from memload.planning.trials import Trials, least_of_ranks
from memload.planning.variants import PlainBatches
from memload.progress import bar
from memload.sizes import format_size

Mode = Literal["static", "measured", "trial"]


def compute_batch_size(
    model: Modules,
    sample: Any,
    device: torch.device | str | None = None,
    *,
    mode: Mode = "measured",
    loss: LossOf | Sequence[LossOf] | None = None,
    optimizer: Optimizers = None,
    teacher: Modules | None = None,
    limit: int | str | None = None,
    target_utilization: float = 0.9,
    min_batch_size: int = 1,
    max_batch_size: int | None = None,
    precision: torch.dtype | str | None = None,
    accumulate: int = 1,
    loader: Any = None,
    progress: bool | None = None,
) -> MemoryBudget:
    """Return the largest batch size whose training step fits into a device's memory, and where the memory goes.

    Parameters, gradients and optimizers are counted. The allocations of a step are observed one by one at a few small
    batch sizes, and each moment of the step is extended to larger sizes. Models, optimizers, gradients and the global
    random generators are unchanged afterwards. Under torch.distributed all ranks get the least of their batch sizes;
    all must call this function.

    Args:
        model: a module on the device and in the mode (``train()``) in which it will be trained, or several in a list
            or dict: all that the loss trains. Measures of the model itself, such as checkpointing, are observed, too.
        sample: a batch of the loader, of any size: tensors in dicts, tuples and lists; `memload.Ragged` or jagged
            tensors; graphs. It must be on the model's device. Pad rows to the greatest length that occurs. Of graphs
            and ragged rows, steps with the first few are run, and larger ones only where they fit by prediction.
        device: the device whose memory is planned; default: the model's device. "cuda" with `limit` plans for a GPU
            that need not be in this machine, and assumes 512 MiB for its context.
        mode: "measured" runs forward and backward passes with 2 to 5 rows where the model is; "static" computes shapes
            only, for models too large to run here; "trial" runs whole steps, optimizers included, of doubled sizes
            until memory runs out, then by bisection.
        loss: a function of a batch that returns the loss as the loop computes it, or a tuple of the loss and of other
            objects that the loop holds while backward runs, such as outputs; or a list of such functions, each with a
            backward pass of its own. Default: the ``loss`` that the model returns, or the mean of its result for the
            batch (of a dict the fields that its ``forward`` names, else the first; of a tuple the first). Give the real
            criterion, since it takes memory, too.
        optimizer: a torch optimizer, its class, or its name in `torch.optim`, or several; a class, or a function of
            parameters, is called with the trained parameters. Classes and settings determine the bytes of their states.
            Parameters of an optimizer that belong to no model, such as those of a loss, count too.
        teacher: a module, or several, that are only run forward; their weights count.
        limit: bytes to plan for, such as "24GB"; for "cuda" also the name of a GPU, such as "T4". Default: the memory
            of the device; on a CPU: the bytes that this process may still take, divided among the processes of the
            machine (LOCAL_WORLD_SIZE). What glibc's heap takes beyond tensors that are alive counts there, as
            series of steps with about 48 MB alive (of a GRU up to 400 MB) show it with mode "measured", else as a
            bound: twice the tensors below 32 MB; and part of those of an epoch's short last batch once more. With
            MALLOC_MMAP_THRESHOLD_=262144 and MALLOC_TRIM_THRESHOLD_=262144 in the environment, it takes hardly more.
        target_utilization: the share of `limit` that may be used, above 0 and up to 1. The rest is for workspaces of
            libraries and fragmentation, which cannot be observed.
        min_batch_size, max_batch_size: bounds of the answer; without the latter, it is at most the rows of an epoch of
            `loader`, and 1,048,576.
        precision: "bf16-mixed" or "fp16-mixed": the step runs under autocast. "bf16", "fp16" and dtypes mean the same.
            Models that are converted to half precision are given as they are, without `precision`.
        accumulate: the number of batches in one step. With more than one, gradients stay beside all activations.
        loader: a FastLoader, whose slots are counted at each batch size; or torch's DataLoader, whose batches in RAM
            are counted: those that its workers make ahead, and the memory that workers need to make them. Of graphs,
            the sizes of all in its dataset tell the mean graph. Without it, the sample does, and the batch is as small
            as the upper bound of that mean asks for (97.5 %), so that a sample of small graphs does no harm.
        progress: whether to show a bar of the operations that ran, after a second; None shows it if standard error is a
            terminal.

    Raises:
        MemoryError: not even `min_batch_size` fits; the message says how many bytes are missing.
        ValueError: an argument is out of range, there is no GPU to ask, the step cannot run in this `mode`, or (with
            "measured") the loss trains parameters of other models.
        TypeError: the sample is not a batch, or there are several models and no loss.

    Example:
        >>> import memload, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 10))
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> found = memload.compute_batch_size(model, torch.rand(1, 1000), optimizer=optimizer, limit="100MB")
        >>> found.batch_size > 1000, found.static.optimizer
        (True, 8088096)
    """
    if mode not in ("static", "measured", "trial"):
        raise ValueError(f'mode must be "static", "measured" or "trial", got {mode!r}')
    bounds = bounds_of(min_batch_size, max_batch_size, loader)
    trained = Trained(model, loss, optimizer, teacher, precision, accumulate)
    setting = setting_of(trained, sample, Target(device, limit, target_utilization), bounds, loader)
    with bar("batch size", None, progress, unit=" operations") as shown:
        told = functools.partial(shown.update, 1)
        return _by_trial(setting, told) if mode == "trial" else _predicted(setting, mode, limit, told)


def _predicted(setting: BatchSizeRequest, mode: Mode, limit: int | str | None, told: Told) -> MemoryBudget:
    found = _ran(setting, told) if mode == "measured" else _without_memory(setting, told)
    if setting.device.type == "cpu":  # torch's first step allocated memory that it keeps
        weights = setting.own.weights + setting.static.teacher
        now, _ = memory_of(setting.device, device_of(setting.models), limit, weights)
        setting = replace(setting, total=min(setting.total, now))
    if setting.heap > 1:
        setting = replace(setting, heap=_heap_of(setting, found, told, runs=mode == "measured"))
    return budget_of(setting, found, mode)


def _heap_of(setting: BatchSizeRequest, found: Measured, told: Told, *, runs: bool) -> float:
    """Return how many times bytes count in the heap, as steps of these models show it here, or as a bound."""
    if not runs or device_of(setting.models).type != "cpu":
        return bound_of_curve(found.step, setting.kind.counts, setting.heap)
    batch = found.inputs.lines.max(axis=0)
    return heap_times(
        setting.kind,
        setting.losses,
        setting.models,
        setting.teachers,
        found.step.plus(*batch) if setting.counts_inputs else found.step,
        found.inputs,
        room=max(1, setting.room),
        batches_in_heap=setting.counts_inputs,
        told=told,
    )


def _without_memory(setting: BatchSizeRequest, told: Told) -> Measured:
    on_cpu = setting.device.type == "cpu"
    return without_memory(setting.kind, setting.losses, setting.models, setting.teachers, on_cpu=on_cpu, told=told)


def _ran(setting: BatchSizeRequest, told: Told) -> Measured:
    """Return the bytes of steps that were run.

    Raises:
        MemoryError: not even the least of them fits into the memory of this machine.
    """
    if setting.room < setting.own.gradients:  # the first step would end the process
        least_of_ranks(0)
        raise MemoryError(_too_little(setting, setting.own.gradients, elsewhere=False))
    known = [p for module in (*setting.models, *setting.teachers) for p in module.parameters()]
    try:
        return measured(
            setting.kind,
            [telling_models(loss, known) for loss in setting.losses],
            setting.models,
            setting.teachers,
            on_cpu=setting.device.type == "cpu",
            room=max(1, setting.room),
            times=setting.heap,
            told=told,
        )
    except MemoryError as error:
        least_of_ranks(0)  # the other ranks wait for an answer
        raise MemoryError(f"{_too_little(setting, None, elsewhere=False)}; {error}") from error


def budget_of(setting: BatchSizeRequest, found: Measured, mode: str) -> MemoryBudget:
    """Return the budget that follows from the measured bytes of a step.

    Raises:
        MemoryError: not even the least batch fits.
    """
    peak = peak_of(setting, found)

    def most(probability: float = SURE) -> int:
        taken = peak_of(setting, found, probability)
        return largest(lambda size: taken(size) + setting.slots(size) <= setting.room, setting.least, setting.most)

    own = most()
    size = least_of_ranks(own)
    if size < setting.least:
        raise MemoryError(_too_little(setting, peak(setting.least) + setting.slots(setting.least), elsewhere=own > 0))
    curve = _step_curve(setting, found)
    upper = curve.upper()
    room = setting.room - setting.slots(size) - (setting.own.gradients if setting.accumulate > 1 else 0)
    alive = peak_of(replace(setting, heap=1.0, threshold=0), found)
    whole = peak_of(replace(setting, last_batch=lambda _: 0), found)
    heap = peak(size) / max(1, alive(size))
    return MemoryBudget(
        batch_size=size,
        mode=mode,
        total=setting.total,
        target_utilization=setting.target_utilization,
        static=setting.static,
        available=max(0, setting.room - setting.own.gradients),
        activation=max(0, peak(size) - setting.own.gradients),
        per_sample=whole(size + 1) - whole(size),
        saved=found.saved.at(*setting.counts(size)),
        loader=setting.slots(size),
        units=setting.kind.units,
        lines=tuple(tuple(line[1:].tolist()) for line in upper) if setting.kind.varies else (),
        cost_budget=max(0, int(room / heap) - math.ceil(float(upper[:, 0].max()))),
        exact=found.step.exact,
        heap=heap if setting.heap > 1 else 1.0,
        between=(size, most(1 - SURE)) if setting.graphs is not None and setting.graphs.seen else None,
    )


def peak_of(setting: BatchSizeRequest, found: Measured, probability: float = SURE) -> Callable[[int], int]:
    """Return a function from the number of samples to the peak of a step, including gradients and the batch.

    Args:
        setting: the arguments.
        found: the measured bytes of a step.
        probability: that graphs are no larger, in the mean, than those that are assumed, if a sample tells them.
    """
    curve = _step_curve(setting, found)
    kept = setting.own.gradients if setting.accumulate > 1 else 0
    stepping = setting.own.gradients + setting.own.optimizer_temporary

    def peak(size: int) -> int:
        counts = setting.counts(size, probability)
        held = found.held.at(*counts) + (found.inputs.at(*counts) if setting.counts_inputs else 0)
        rest = setting.last_batch(size) if setting.heap > 1 else 0
        # Tensors of a full batch may be too large for the heap, and those of the short last one not. The heap has
        # these without holes, since they are made once an epoch: of an MLP 267 MB stayed for the next full batch.
        left = curve.kept_in_heap(1, *setting.counts(rest, probability)) if rest else 0
        passes = curve.in_heap(setting.heap, *counts, threshold=setting.threshold, kept=left)
        return math.ceil(max(passes + setting.heap * kept, setting.heap * (stepping + held)))

    return peak


def _step_curve(setting: BatchSizeRequest, found: Measured) -> Curve:
    curve = found.accumulating if setting.accumulate > 1 else found.step
    return curve.plus(*found.inputs.lines.max(axis=0)) if setting.counts_inputs else curve


def largest(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest size from `least` to `most` that fits, by doubling and bisection; 0 if `least` does not."""
    if not fits(least):
        return 0
    good, bad = least, most + 1
    while good < most:
        size = min(2 * good, most)
        if not fits(size):
            bad = size
            break
        good = size
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _by_trial(setting: BatchSizeRequest, told: Told) -> MemoryBudget:
    if not isinstance(setting.kind, PlainBatches):
        raise ValueError(
            "a trial needs batches that are counted in rows, and these are counted in "
            f'{" and ".join(setting.kind.units)}: give mode="measured"'
        )
    trials = Trials(
        setting.kind,
        setting.losses,
        setting.models,
        setting.teachers,
        setting.optimizers,
        limit=lambda size: int((setting.room - setting.slots(size)) / setting.heap) + setting.own.optimizer,
        optimizer_state=setting.own.optimizer,
        accumulating=setting.accumulate > 1,
        counts_inputs=setting.counts_inputs,
        told=told,
    )
    size = largest(lambda size: bool(least_of_ranks(int(trials.fits(size)))), setting.least, setting.most)
    if size < setting.least:
        raise MemoryError(_too_little(setting, None, elsewhere=setting.least in trials.peaks))
    fresh = setting.own.gradients + setting.own.optimizer
    activations = {rows: max(0, peak - fresh) for rows, peak in trials.peaks.items()}
    lower = max((rows for rows in activations if rows < size), default=0)
    slope = (trials.peaks[size] - trials.peaks[lower]) // (size - lower) if lower else trials.peaks[size] // size
    return MemoryBudget(
        batch_size=size,
        mode="trial",
        total=setting.total,
        target_utilization=setting.target_utilization,
        static=setting.static,
        available=max(0, setting.room - setting.own.gradients),
        activation=activations[size],
        per_sample=slope,
        loader=setting.slots(size),
        heap=setting.heap,
    )


def _too_little(setting: BatchSizeRequest, needed: int | None, *, elsewhere: bool) -> str:
    planned = int(setting.total * setting.target_utilization)
    if elsewhere:
        return f"another rank has no memory for a batch of {setting.least}; this one has: look at that rank's message"
    need = "" if needed is None else f" beside {format_size(needed)} for gradients and activations"
    always = replace(setting.static, gradients=0)
    limits = f"; {budget.memory().described}" if setting.is_free_here else ""
    seen = setting.graphs.seen if setting.graphs is not None else None
    unsure = f"; graphs may be larger than the {seen:,} of the sample, which counts: give loader=" if seen else ""
    graphs = f" graph{'s' * (setting.least > 1)}" if setting.kind.units[0] == "graphs" else ""
    return (
        f"a batch of {setting.least}{graphs} does not fit into {format_size(planned)} "
        f"({setting.target_utilization:.0%} of {format_size(setting.total)}{limits}): "
        f"{format_size(always.total)} are taken at any batch size "
        f'({always}){need}. What helps: precision="{setting.half}", checkpointing in the model, an optimizer that '
        f"keeps less, offloading frozen models; memload.fit says how much each saves{unsure}"
    )
