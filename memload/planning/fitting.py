"""memload.fit: ways to train a model with a given effective batch on devices of several sizes.

each precision, with and without checkpointing -> the curve of a step
each curve, with and without offloading frozen weights, for each size of device -> the largest batch -> an option
the options that fit -> the one with the least cost
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memload.planning.batch_size import BatchSizeRequest, largest, peak_of, setting_of
from memload.planning.compiling import CompiledStep, compiled_step
from memload.planning.gpus import GpuModel, parse_gpu
from memload.planning.measuring import Measured, measured, without_memory
from memload.planning.model_bytes import Modules, Optimizers, checked_loss
from memload.planning.recomputing import blocks_of, checkpointed
from memload.planning.steps import LossOf, left_as_they_were
from memload.planning.variants import Kind, PlainBatches
from memload.sizes import format_size

_TIMED = 3  # steps; the fastest counts
_PLAIN = ("fp32", "float32")
_WORTH_IT = 0.95  # of the time of a plain step: compilation pays below that


@dataclass(frozen=True)
class FitOption:
    """One way to train on a device of one size.

    Attributes:
        memory: bytes of the device's memory.
        precision: "bf16", "fp16" or "fp32".
        checkpointing: whether blocks are computed again in the backward pass.
        offload: whether frozen weights stay in RAM and are copied to the device one layer at a time.
        batch_size: rows of a physical batch; 0 if not even one fits.
        accumulation: the number of physical batches in an effective batch.
        nbytes: bytes in use at the peak of a step; if nothing fits, the bytes that one row would take.
        relative_time: the time of a step with the sample on the model's device, divided by that of "fp32" without
            checkpointing; None if not measured. Times on a CPU say little about a GPU.
        gpu: the name of the GPU, if the size was given by its name; otherwise empty.
    """

    memory: int
    precision: str
    checkpointing: bool
    offload: bool
    batch_size: int
    accumulation: int
    nbytes: int
    relative_time: float | None = None
    gpu: str = ""

    @property
    def fits(self) -> bool:
        """Whether at least one row fits."""
        return self.batch_size > 0

    @property
    def device(self) -> str:
        """The device as it was given: the name of a GPU, or its size."""
        return self.gpu or format_size(self.memory)

    def __str__(self) -> str:
        measures = [name for name, on in (("checkpointing", self.checkpointing), ("offloading", self.offload)) if on]
        scaled = "fp16 with torch.amp.GradScaler" if self.precision == "fp16" else self.precision
        how = ", ".join([scaled, *measures])
        if not self.fits:
            return f"{self.device:>9}  does not fit: {format_size(self.nbytes)} even with {how}"
        took = "" if self.relative_time is None else f", {self.relative_time:.2f} of the time of fp32"
        return f"{self.device:>9}  {self.batch_size:,} x {self.accumulation} in {how}: {format_size(self.nbytes)}{took}"


@dataclass(frozen=True, repr=False)
class FitAdvice:
    """How a model can be trained on devices of several sizes.

    Attributes:
        effective_batch: rows of a step.
        options: all options that were considered; for each device, cheaper options come first.
        compile: whether ``torch.compile`` is worth it, or worth trying if that was not measured.
        why_compile: the reason, in a sentence.
        compiled_time: the time of a compiled step with the sample, divided by that of a step without compilation, in
            the preferred precision and on the model's device; None if not measured.
        timed_on: the kind of device on which all times were measured; "" if nothing was timed.
    """

    effective_batch: int
    options: tuple[FitOption, ...]
    compile: bool
    why_compile: str
    compiled_time: float | None = None
    timed_on: str = ""

    @property
    def best(self) -> tuple[FitOption, ...]:
        """For each device the first option that fits; if none does, the option that lacks the fewest bytes."""
        devices = dict.fromkeys(option.gpu or option.memory for option in self.options)
        return tuple(self.for_memory(device) for device in devices)

    def for_memory(self, memory: int | str) -> FitOption:
        """Return the best option for a device of this size or name, which must be among those given to `memload.fit`.

        Raises:
            KeyError: it is not among them.
        """
        nbytes, model = parse_gpu(memory)
        wanted = (nbytes, model.name if model else "")
        own = [option for option in self.options if (option.memory, option.gpu) == wanted]
        if not own:
            asked = ", ".join(dict.fromkeys(option.device for option in self.options))
            raise KeyError(f"{wanted[1] or format_size(nbytes)} was not asked for; there is advice for {asked}")
        return next((option for option in own if option.fits), min(own, key=lambda option: option.nbytes))

    def __repr__(self) -> str:
        rows = [f"  {option}" for option in self.best]
        if self.timed_on == "cpu":
            rows.append("  Times are those of the CPU, where the model is, and tell little of a GPU's.")
        return "\n".join([f"FitAdvice: effective batch {self.effective_batch:,}", *rows, f"  {self.why_compile}"])


def fit(
    model: Modules,
    sample: Any,
    memory: int | str | Sequence[int | str] = ("8GB", "16GB", "24GB", "80GB"),
    *,
    effective_batch: int,
    loss: LossOf | Sequence[LossOf] | None = None,
    optimizer: Optimizers = None,
    teacher: Modules | None = None,
    precisions: Sequence[str] = ("bf16", "fp32"),
    min_batch_size: int = 1,
    target_utilization: float = 0.9,
    device: torch.device | str = "cuda",
    mode: str = "measured",
    compile_within: float | None = None,
) -> FitAdvice:
    """Return how a model can be trained with an effective batch size on devices of these sizes, with predicted bytes.

    It tries these measures in the order of their cost: accumulation alone; checkpointing of the model's blocks; frozen
    weights (a teacher's, and parameters without ``requires_grad``) kept in RAM; both. The best option is the first with
    room for `min_batch_size` rows, with the largest batch that fits.

    Args:
        model, sample, loss, optimizer, teacher, target_utilization: as in ``memload.compute_batch_size``.
        memory: sizes of one or several devices, in bytes or as texts such as "24GB", or names of GPUs such as "T4",
            "A100-40GB" or "RTX 4090".
        effective_batch: the number of rows in one step of the optimizer.
        precisions: the precisions to try, the preferred first; "bf16" and "fp16" run under autocast. For a GPU that is
            given by name and has no bf16 (compute capability below 8), "fp16" is tried instead of it.
        min_batch_size: the smallest physical batch that is worth a step.
        device: the kind of the devices; on "cuda" 512 MiB are set aside for the context.
        mode: "measured" runs steps with 2 to 5 rows where the model is, and times them; "static" runs shapes only.
        compile_within: the time limit, in seconds, for compiling the models and timing a step of them; compilers take
            from ten seconds to some minutes. None: do not compile.

    Raises:
        ValueError: an argument is out of range, a GPU unknown, or the step cannot be run.
        TypeError: the sample is not a batch, or there are several models and no loss.

    Example:
        >>> import memload, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(1000, 4000), torch.nn.ReLU(), torch.nn.Linear(4000, 10))
        >>> advice = memload.fit(model, torch.rand(1, 1000), ["1GB", "8GB"], effective_batch=4096, mode="static")
        >>> advice.for_memory("8GB").batch_size
        4096
    """
    if mode not in ("measured", "static"):
        raise ValueError(f'mode must be "measured" or "static", got {mode!r}')
    if effective_batch < min_batch_size or min_batch_size < 1:
        raise ValueError(f"effective_batch is {effective_batch}: at least min_batch_size, {min_batch_size}, from 1 on")
    devices = [parse_gpu(size) for size in ([memory] if isinstance(memory, (int, str)) else memory)]
    if not devices:
        raise ValueError('memory is the size of a device, such as "24GB", or of several in a list; got none')
    precisions = [precisions] if isinstance(precisions, str) else list(precisions)
    if not precisions:
        raise ValueError('precisions are those to compute in, such as ["bf16", "fp32"], the preferred first; got none')
    common: dict[str, Any] = {
        "loss": loss,
        "optimizer": optimizer,
        "teacher": teacher,
        "target_utilization": target_utilization,
    }
    tried = [_precisions_of(gpu, precisions) for _, gpu in devices]
    settings = {
        precision: setting_of(model, sample, device, precision=precision, limit=1, **common)
        for precision in dict.fromkeys(itertools.chain(precisions, *tried))
    }
    first = settings[precisions[0]]
    ways = (False, True) if blocks_of(first.models) else (False,)
    variants = {(way, p): _Variant(settings[p], p, way, mode) for way in ways for p in settings}
    plain = next((variants[False, p] for p in settings if p in _PLAIN), None)
    plain = plain or _Variant(setting_of(model, sample, device, limit=1, **common), "fp32", False, mode)
    frozen, window = frozen_bytes([*first.models, *first.teachers])
    options = [
        replace(
            variants[way, p].option(nbytes, effective_batch, min_batch_size, saved, plain.seconds),
            gpu=gpu.name if gpu else "",
        )
        for (nbytes, gpu), own in zip(devices, tried, strict=True)
        for saved in ([0, frozen - window] if frozen > window else [0])
        for way in ways
        for p in own
    ]
    timed_on = _device(first.models) if plain.runs else ""
    return FitAdvice(
        effective_batch,
        tuple(options),
        *_compiling(first.kind, variants[False, precisions[0]], compile_within),
        timed_on,
    )


def _precisions_of(gpu: GpuModel | None, precisions: Sequence[str]) -> list[str]:
    """Return the precisions to try on a GPU: "fp16" instead of "bf16" where bf16 is emulated."""
    if gpu is None or gpu.has_bf16:
        return list(precisions)
    return list(dict.fromkeys("fp16" if precision in ("bf16", "bfloat16") else precision for precision in precisions))


class _Variant:
    """A precision with or without checkpointing, and its curves, which are computed at their first use."""

    def __init__(self, setting: BatchSizeRequest, precision: str, checkpointing: bool, mode: str) -> None:
        self.setting, self.precision, self.checkpointing, self.mode = setting, precision, checkpointing, mode

    @contextlib.contextmanager
    def _applied(self) -> Iterator[None]:
        with checkpointed(self.setting.models) if self.checkpointing else contextlib.nullcontext():
            yield

    @functools.cached_property
    def found(self) -> Measured:
        """The curves of a step."""
        setting = self.setting
        with self._applied():
            run = measured if self.mode == "measured" else without_memory
            return run(setting.kind, setting.losses, setting.models, setting.teachers)

    @functools.cached_property
    def seconds(self) -> float | None:
        """The time of a step with the sample; None if steps are not run."""
        if not self.runs:
            return None
        with self._left_as_it_was():
            return self._timed()

    @property
    def runs(self) -> bool:
        """Whether steps are run: not in the mode "static", and not for models on "meta"."""
        return self.mode == "measured" and not any(
            p.is_meta for model in self.setting.models for p in model.parameters()
        )

    def compiled(self, limit: float) -> CompiledStep:
        """Return the time of a step of the compiled models with the sample, measured within `limit` seconds."""
        with self._left_as_it_was():
            return compiled_step(self.setting.models, self._step, self._timed, limit)

    @contextlib.contextmanager
    def _left_as_it_was(self) -> Iterator[None]:
        modules = [*self.setting.models, *self.setting.teachers]
        with self._applied(), left_as_they_were(modules), torch.enable_grad():
            yield

    def _timed(self) -> float:
        return min(self._step() for _ in range(_TIMED))

    def _step(self) -> float:
        """Make one step; return its seconds."""
        setting = self.setting
        _wait(setting.models)
        begin = time.perf_counter()
        for loss in setting.losses:
            checked_loss(loss(setting.kind.sample)).backward()  # type: ignore[no-untyped-call]
        _wait(setting.models)
        return time.perf_counter() - begin

    def option(self, memory: int, effective: int, least: int, saved: int, plain: float | None) -> FitOption:
        """Return the option with the largest batch on a device of this size, with `saved` bytes of weights in RAM."""
        setting = replace(self.setting, total=memory + int(saved / self.setting.target_utilization))
        whole, parts = replace(setting, accumulate=1), replace(setting, accumulate=2)
        size = effective if _fits(whole, self.found, effective) else 0
        chosen = whole if size else parts
        peak = peak_of(chosen, self.found)
        if not size:
            size = largest(lambda rows: peak(rows) <= chosen.room, least, effective)
        count = -(-effective // size) if size else 0
        size = -(-effective // count) if count else 0
        nbytes = chosen.static.total - chosen.own.gradients + peak(size or least) - saved
        relative = self.seconds / plain if self.seconds and plain else None
        return FitOption(memory, self.precision, self.checkpointing, saved > 0, size, count, nbytes, relative)


def _fits(setting: BatchSizeRequest, found: Measured, rows: int) -> bool:
    return peak_of(setting, found)(rows) <= setting.room


def frozen_bytes(modules: Sequence[torch.nn.Module]) -> tuple[int, int]:
    """Return the bytes of frozen weights, and of two layers as large as the largest one.

    With layers streamed one by one, one layer computes while the next one is copied.
    """
    counted = {id(p): p.numel() * p.element_size() for m in modules for p in m.parameters() if not p.requires_grad}
    layers = [
        sum(counted.get(id(p), 0) for p in part.parameters(recurse=False)) for m in modules for part in m.modules()
    ]
    return sum(counted.values()), 2 * max(layers, default=0)


def _device(models: Sequence[torch.nn.Module]) -> str:
    """Return the kind of device of the models; "cpu" if they have no parameters."""
    return next((p.device.type for model in models for p in model.parameters()), "cpu")


def _wait(models: Sequence[torch.nn.Module]) -> None:
    device = next((p.device for model in models for p in model.parameters()), None)
    if device is not None and device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _compiling(kind: Kind, variant: _Variant, limit: float | None) -> tuple[bool, str, float | None]:
    """Return whether to compile, the reason, and the time of a compiled step divided by that of a plain one."""
    if not isinstance(kind, PlainBatches):
        why = "no, since batches differ in shape from step to step, and each shape is compiled."
        return False, f"torch.compile: {why}", None
    one_shape = "drop_last=True gives all batches the one shape that it needs"
    if limit is None or not variant.runs:
        how = "compile_within=60 measures it" if variant.runs else 'mode="measured" and compile_within=60 measure it'
        return True, f"torch.compile: worth trying, not measured ({how}); {one_shape}.", None
    found = variant.compiled(limit)
    if found.seconds is None:
        return False, f"torch.compile: not measured, since {found.why_not}.", None
    relative = found.seconds / found.plain
    took = f"a step takes {relative:.2f} of the time in {variant.precision}, compiling took {found.compiling:.0f} s"
    worth = relative < _WORTH_IT
    return worth, f"torch.compile: {'yes' if worth else 'no'}: {took}{'; ' + one_shape if worth else ''}.", relative
