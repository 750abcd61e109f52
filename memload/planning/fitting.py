"""memload.fit: ways to train a model with a given effective batch on devices of several sizes.

each precision, with and without checkpointing and offloading -> a way, the one with the least cost first
each way, for each size of device -> the largest batch that fits into the account of `memload.plan` -> an option
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memload.planning.batch_size_request import BatchSizeRequest, Target, Trained, setting_of
from memload.planning.compiling import CompiledStep, compiled_step
from memload.planning.fit_bytes import Way, largest_within
from memload.planning.frozen import frozen_parts, weights_of, window_of
from memload.planning.gpus import GpuModel, parse_gpu
from memload.planning.model_bytes import Modules, Optimizers, checked_loss
from memload.planning.precisions import precision_named
from memload.planning.recomputing import blocks_of
from memload.planning.relative_times import RelativeTime, relative_times
from memload.planning.steps import LossOf, left_as_they_were
from memload.planning.variants import Kind, PlainBatches
from memload.progress import bar
from memload.sizes import format_size, parse_size

_TIMED = 3  # steps; the fastest counts
_PLAIN = "float32"
_WORTH_IT = 0.95  # of the time of a plain step: compilation pays below that

Ways = dict[tuple[bool, str], Way]
"""Ways to compute a step, by checkpointing and precision."""


@dataclass(frozen=True)
class FitOption:
    """One way to train on a device of one size.

    Attributes:
        memory: bytes of the device's memory.
        precision: "bf16-mixed", "fp16-mixed" or "float32".
        checkpointing: whether blocks are computed again in the backward pass.
        offload: whether frozen weights stay in RAM and are copied to the device one layer at a time.
        batch_size: rows of a physical batch; 0 if not even one fits.
        accumulation: the number of physical batches in an effective batch.
        nbytes: bytes in use at the peak of a step, as the account of `memload.plan` has them; if nothing fits, those of
            a batch of `min_batch_size` rows.
        relative_time: the time of a step with the sample, divided by that in float32 without checkpointing: the median
            of rounds in which both ran. None if it was not measured, or if rounds differed too much to say anything.
        gpu: the name of the GPU, if the size was given by its name; otherwise empty.
        relative_spread: the least and the greatest `relative_time` of a round; None without that.
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
    relative_spread: tuple[float, float] | None = None

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
        scaled = self.precision + " with torch.amp.GradScaler" * (self.precision == "fp16-mixed")
        how = ", ".join([scaled, *measures])
        if not self.fits:
            return f"{self.device:>9}  does not fit: {format_size(self.nbytes)} even with {how}"
        took = ""
        if self.relative_time is not None and self.relative_spread is not None:
            low, high = self.relative_spread
            took = f", {self.relative_time:.2f} ({low:.2f} to {high:.2f}) of the time of float32"
        return f"{self.device:>9}  {self.batch_size:,} x {self.accumulation} in {how}: {format_size(self.nbytes)}{took}"


@dataclass(frozen=True, repr=False)
class FitAdvice:
    """How a model can be trained on devices of several sizes.

    Attributes:
        effective_batch: rows of a step.
        options: all options that were considered: for each device, cheaper options first, up to one that fits.
        compile: whether ``torch.compile`` is worth it, or worth trying if that was not measured.
        why_compile: the reason, in a sentence.
        compiled_time: the time of a compiled step with the sample, divided by that of a step without compilation, in
            the preferred precision and on the model's device; None if not measured.
        timed_on: the kind of device on which all times were measured, which is that of the devices; "" if nothing was
            timed.
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
    precisions: Sequence[str] = ("bf16-mixed", "float32"),
    min_batch_size: int = 1,
    target_utilization: float = 1.0,
    device: torch.device | str = "cuda",
    device_bytes: int | str | None = None,
    mode: str = "measured",
    compile_within: float | None = None,
    progress: bool | None = None,
) -> FitAdvice:
    """Return how a model can be trained with an effective batch size on devices of these sizes, with predicted bytes.

    It tries these measures in the order of their cost: accumulation alone; checkpointing of the model's blocks; frozen
    weights (teachers, and the parts of models whose parameters are all frozen) kept in RAM; both. For each device, it
    ends with the first that has room for `min_batch_size` rows, and takes the largest batch that fits.

    Bytes and verdict are those of `memload.plan` for the same model, batch and GPU, where the loop copies batches
    itself: context, two batches, weights, gradients, optimizer states, activations and fragmentation.

    Args:
        model, sample, loss, optimizer, teacher: as in ``memload.compute_batch_size``.
        memory: sizes of one or several devices, in bytes or as texts such as "24GB", or names of GPUs such as "T4",
            "A100-40GB" or "RTX 4090".
        effective_batch: the number of rows in one step of the optimizer.
        precisions: the precisions to try, the preferred first: "float32", and under autocast "bf16-mixed" and
            "fp16-mixed"; "bf16" and "fp16" mean the same. For a GPU that is given by name and has no bf16 (compute
            capability below 8), "fp16-mixed" is tried instead of it.
        min_batch_size: the smallest physical batch that is worth a step.
        target_utilization: the share of each device's memory that may be used, above 0 and up to 1.
        device: the kind of the devices; on "cuda" 512 MiB are set aside for the context. On "cpu", the memory is that
            beside the process itself.
        device_bytes: the bytes of rows that lie in the memory of each GPU, as by ``memload.to_device``. Batches are
            then counted as by ``memload.plan`` for tier="split": those that the GPU gathers, and rows that arrive out
            of pinned RAM, stored as the sample is.
        mode: bytes are those of steps on shapes alone. "measured" runs steps with a few rows for real if a step reads
            values, and measures times if the models are on a device of that kind; "static" does neither.
        compile_within: the time limit, in seconds, for compiling the models and timing a step of them; compilers take
            from ten seconds to some minutes. None: do not compile.
        progress: whether to show a progress bar after a second; None shows it if standard error is a terminal.

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
    asked = _Asked.of(memory, precisions, device, device_bytes, mode)
    search = _Search(effective_batch, min_batch_size, target_utilization)
    trained, here = Trained(model, loss, optimizer, teacher), Target(device, 1, target_utilization)
    settings = {one: setting_of(replace(trained, precision=one), sample, here) for one in asked.precisions}
    preferred = settings[asked.wanted[0]]
    with bar("fit", None, progress, unit=" steps") as shown:

        def told() -> None:
            shown.update(1)

        ways = _ways(settings, preferred, asked, loss, told)
        found = list(search.all_options(asked, ways, _offloads(preferred)))
        is_timed = _is_timed(preferred, mode)
        return FitAdvice(
            effective_batch,
            tuple(_timed(found, ways, told) if is_timed else found),
            *_compiling(preferred.kind, ways[False, asked.wanted[0]], compile_within, mode),
            preferred.device.type if is_timed else "",
        )


@dataclass(frozen=True)
class _Asked:
    """The checked arguments of `fit` that say on what and how models may be trained.

    Attributes:
        devices: bytes and model of each device.
        wanted: the precisions, the preferred first.
        rows: bytes of rows in the memory of each GPU.
        mode: "measured" or "static".
    """

    devices: Sequence[tuple[int, GpuModel | None]]
    wanted: Sequence[str]
    rows: int
    mode: str

    @classmethod
    def of(
        cls,
        memory: int | str | Sequence[int | str],
        precisions: str | Sequence[str],
        device: torch.device | str,
        device_bytes: int | str | None,
        mode: str,
    ) -> _Asked:
        if mode not in ("measured", "static"):
            raise ValueError(f'mode must be "measured" or "static", got {mode!r}')
        rows = _rows_on_gpu(device_bytes, device)
        devices = [parse_gpu(size) for size in ([memory] if isinstance(memory, (int, str)) else memory)]
        if not devices:
            raise ValueError('memory is the size of a device, such as "24GB", or of several in a list; got none')
        given = [precisions] if isinstance(precisions, (str, torch.dtype)) else precisions
        wanted = list(dict.fromkeys(precision_named(one, converts=False) for one in given))
        if not wanted:
            raise ValueError(
                'precisions are those to compute in, such as ["bf16-mixed", "float32"], the preferred first; got none'
            )
        return cls(devices, wanted, rows, mode)

    @property
    def precisions(self) -> tuple[str, ...]:
        """All precisions of which steps are looked at, each once: those of the devices, and the plain one."""
        tried = itertools.chain.from_iterable(_precisions_of(gpu, self.wanted) for _, gpu in self.devices)
        return tuple(dict.fromkeys([*self.wanted, *tried, _PLAIN]))


def _ways(
    settings: Mapping[str, BatchSizeRequest],
    preferred: BatchSizeRequest,
    asked: _Asked,
    loss: LossOf | Sequence[LossOf] | None,
    told: Callable[[], object],
) -> Ways:
    """Return the ways to compute a step, by checkpointing and precision; `told` is called at each step of them."""
    losses = None if loss is None else [loss] if callable(loss) else list(loss)
    return {
        (checkpointing, precision): Way(
            setting,
            precision,
            losses,
            checkpointing=checkpointing,
            may_run=_may_run(setting, asked.mode),
            told=told,
            device_bytes=asked.rows,
        )
        for checkpointing in ((False, True) if blocks_of(preferred.models) else (False,))
        for precision, setting in settings.items()
    }


def _offloads(setting: BatchSizeRequest) -> tuple[bool, ...]:
    """Return whether frozen weights may stay in RAM, as the values to try in turn: not where that saves nothing."""
    frozen = [*frozen_parts(setting.models), *setting.teachers]
    return (False, True) if weights_of(frozen) > window_of(frozen) else (False,)


def _rows_on_gpu(device_bytes: int | str | None, device: torch.device | str) -> int:
    """Return the bytes of rows on each GPU. Raises ValueError if the models train on the CPU."""
    if device_bytes is not None and torch.device(device).type == "cpu":
        raise ValueError('device_bytes= are of rows on a GPU, and device="cpu" trains on the CPU: leave one out')
    return 0 if device_bytes is None else parse_size(device_bytes)


@dataclass(frozen=True)
class _Search:
    """Finds the largest batch of each way.

    Attributes:
        effective: rows of a step of the optimizer.
        least: rows of the smallest physical batch.
        share: the share of each device's memory that may be used.
    """

    effective: int
    least: int
    share: float

    def __post_init__(self) -> None:
        if self.effective < self.least or self.least < 1:
            raise ValueError(f"effective_batch is {self.effective}: at least min_batch_size, {self.least}, from 1 on")

    def all_options(self, asked: _Asked, ways: Ways, offloads: Sequence[bool]) -> Iterator[FitOption]:
        """Yield the options for all devices, in their order."""
        for nbytes, gpu in asked.devices:
            yield from self.options(nbytes, gpu, _precisions_of(gpu, asked.wanted), ways, offloads)

    def options(
        self, memory: int, gpu: GpuModel | None, precisions: Sequence[str], ways: Ways, offloads: Sequence[bool]
    ) -> Iterator[FitOption]:
        """Yield the options for a device, in the order of their cost, up to the first that fits."""
        ways_here = dict.fromkeys(checkpointing for checkpointing, _ in ways)
        for offload, checkpointing, precision in itertools.product(offloads, ways_here, precisions):
            option = self._option(memory, ways[checkpointing, precision], gpu, offload=offload)
            yield replace(option, gpu=gpu.name if gpu else "")
            if option.fits:
                return

    def _option(self, memory: int, way: Way, gpu: GpuModel | None, *, offload: bool) -> FitOption:
        room, effective, least = int(memory * self.share), self.effective, self.least
        capability = gpu.capability if gpu else None

        def nbytes(rows: int, accumulate: int = 2) -> int:
            return sum(line.predicted for line in way.lines(rows, accumulate, offload=offload, capability=capability))

        size = effective if nbytes(effective, 1) <= room else largest_within(nbytes, room, least, effective)
        count = -(-effective // size) if size else 0
        size = -(-effective // count) if count else 0
        taken = nbytes(size or least, 1 if count == 1 else 2)
        return FitOption(memory, way.precision, way.checkpointing, offload, size, count, taken)


def _may_run(setting: BatchSizeRequest, mode: str) -> bool:
    """Return whether steps may be run for real: not in the mode "static", and not for models on "meta"."""
    return mode == "measured" and not any(p.is_meta for model in setting.models for p in model.parameters())


def _is_timed(setting: BatchSizeRequest, mode: str) -> bool:
    """Return whether times are measured: where steps may run, on a device of the kind that is planned for."""
    return _may_run(setting, mode) and _device(setting.models) == setting.device.type


def _timed(options: Sequence[FitOption], ways: Ways, told: Callable[[], object]) -> list[FitOption]:
    """Return the options with the times of their ways."""
    keys = list(dict.fromkeys([(False, _PLAIN), *((one.checkpointing, one.precision) for one in options)]))
    times = dict(zip(keys, relative_times([_stepping(ways[key]) for key in keys], told), strict=True))
    return [_with_time(option, times[option.checkpointing, option.precision]) for option in options]


def _with_time(option: FitOption, found: RelativeTime) -> FitOption:
    if found.is_noise:
        return option
    return replace(option, relative_time=found.median, relative_spread=(found.low, found.high))


def _stepping(way: Way) -> Callable[[], float]:
    """Return a function that makes a step with the sample, leaves the models as they were, and returns its seconds."""
    setting = way.setting

    def step() -> float:
        modules = [*setting.models, *setting.teachers]
        with way.applied(), left_as_they_were(modules), torch.enable_grad():
            return _seconds(setting)

    return step


def _seconds(setting: BatchSizeRequest) -> float:
    """Make one step; return its seconds."""
    _wait(setting.models)
    begin = time.perf_counter()
    for loss in setting.losses:
        checked_loss(loss(setting.kind.sample)).backward()  # type: ignore[no-untyped-call]
    _wait(setting.models)
    return time.perf_counter() - begin


def _compiled(way: Way, limit: float) -> CompiledStep:
    """Return the time of a step of the compiled models with the sample, measured within `limit` seconds."""
    setting = way.setting
    modules = [*setting.models, *setting.teachers]
    with way.applied(), left_as_they_were(modules), torch.enable_grad():
        return compiled_step(
            setting.models,
            lambda: _seconds(setting),
            lambda: min(_seconds(setting) for _ in range(_TIMED)),
            limit,
        )


def _precisions_of(gpu: GpuModel | None, precisions: Sequence[str]) -> list[str]:
    """Return the precisions to try on a GPU: "fp16-mixed" instead of "bf16-mixed" where bf16 is emulated."""
    if gpu is None or gpu.has_bf16:
        return list(precisions)
    return list(dict.fromkeys(precision.replace("bf16", "fp16") for precision in precisions))


def _device(models: Sequence[torch.nn.Module]) -> str:
    """Return the kind of device of the models; "cpu" if they have no parameters."""
    return next((p.device.type for model in models for p in model.parameters()), "cpu")


def _wait(models: Sequence[torch.nn.Module]) -> None:
    device = next((p.device for model in models for p in model.parameters()), None)
    if device is not None and device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _compiling(kind: Kind, way: Way, limit: float | None, mode: str) -> tuple[bool, str, float | None]:
    """Return whether to compile, the reason, and the time of a compiled step divided by that of a plain one."""
    if not isinstance(kind, PlainBatches):
        why = "no, since batches differ in shape from step to step, and each shape is compiled."
        return False, f"torch.compile: {why}", None
    one_shape = "drop_last=True gives all batches the one shape that it needs"
    if limit is None or not _is_timed(way.setting, mode):
        how = 'mode="measured" and compile_within=60 measure it'
        if _is_timed(way.setting, mode):
            how = "compile_within=60 measures it"
        elif mode == "measured":
            how = f"compile_within=60 measures it where the model is on {way.setting.device.type}"
        return True, f"torch.compile: worth trying, not measured ({how}); {one_shape}.", None
    found = _compiled(way, limit)
    if found.seconds is None:
        return False, f"torch.compile: not measured, since {found.why_not}.", None
    relative = found.seconds / found.plain
    took = f"a step takes {relative:.2f} of the time in {way.precision}, compiling took {found.compiling:.0f} s"
    worth = relative < _WORTH_IT
    return worth, f"torch.compile: {'yes' if worth else 'no'}: {took}{'; ' + one_shape if worth else ''}.", relative
