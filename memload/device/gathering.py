"""Rows and windows gathered by the device itself, and cast by the same kernel.

stored rows, on the device, in pinned memory or in both --numbers--> one kernel: gather + cast --> batch
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from memload.casts.rule import Cast, as_cast
from memload.device.cast_stim import check_out
from memload.device.casting import cast_on_device
from memload.device.cuda_module import cuda_module
from memload.device.kernels import OwnerCache, RowKernel, copies_rows, has_kernel, kernels_serve
from memload.device.split_rows import Stored, parts_of, viewed
from memload.dtypes import DTypeLike


def gather_rows(
    stored: Stored,
    numbers: torch.Tensor,
    rule: Cast | DTypeLike | None = None,
    out: torch.Tensor | None = None,
    *,
    seeds: Sequence[int] | None = None,
    device: torch.device | None = None,
    beside: bool = False,
) -> torch.Tensor:
    """Return ``rule.apply(stored[numbers], seeds)`` on a device, queued on its current stream, by one kernel.

    Without a kernel for it, torch operations do the same. Numbers on the device are not checked: a number out of range
    ends the kernel as in torch's own indexing, with an error that CUDA reports later.

    Args:
        stored: (N, *shape), contiguous: on the device, or in pinned memory, which the device then reads across the bus;
            or `SplitRows` of several memories.
        numbers: int64 (rows,), on the device or in pinned memory; kept and unchanged until the stream has come to it.
        rule: what becomes of the rows, a `Cast` or a dtype; None: they are copied.
        out: where to put the result: contiguous.
        seeds: where the rule draws, one for each row.
        device: where the result is to be; None: where ``stored`` or ``numbers`` lie.
        beside: whether the rows cross a bus, so that the kernel leaves most of the device to others.

    Raises:
        TypeError: ``numbers`` are no int64.
        IndexError: a number in the CPU's memory is out of range.
        ValueError: ``out`` does not fit, or the rule is not for such rows.

    Example:
        >>> gather_rows(torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.uint8), torch.tensor([2, 0])).tolist()
        [[5, 6], [1, 2]]
    """
    return _gathered(stored, numbers, None, None if rule is None else as_cast(rule), out, seeds, device, beside)


def expand_windows(
    frames: Stored,
    begins: torch.Tensor,
    steps: torch.Tensor,
    rule: Cast | DTypeLike | None = None,
    *,
    beside: bool = False,
) -> torch.Tensor:
    """Return windows of frames: ``rule.apply(frames[begins[:, None] + steps])``, by one kernel.

    Frames that several windows share cross the bus once, as rows of ``frames``.

    Args:
        frames: (F, *shape), contiguous: on the device, or in pinned memory; or `SplitRows`.
        begins: int64 (windows,): the number of the frame at which each begins.
        steps: int64 (T,): the frames of a window, counted from there; ``-torch.arange(32)`` for 32 lags.
        rule: what becomes of the windows, whose rows have the shape (T, *shape), a `Cast` or a dtype; None: they are
            copied.
        beside: as of `gather_rows`.

    Raises:
        TypeError, IndexError, ValueError: as `gather_rows`; or the rule draws.

    Example:
        >>> frames = torch.tensor([10, 11, 12, 13])
        >>> expand_windows(frames, torch.tensor([1, 3]), torch.tensor([0, -1])).tolist()
        [[11, 10], [13, 12]]
    """
    cast = None if rule is None else as_cast(rule)
    if cast is not None and cast.places:
        raise ValueError("windows are not cropped, flipped or laid out while they are built: cast them later")
    return _gathered(frames, begins, steps, cast, None, None, None, beside)


@functools.lru_cache(maxsize=256)
def steps_on(steps: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return the steps of windows on a device; any stream may read them after this call."""
    return torch.tensor(steps, dtype=torch.int64, device=device)


def _gathered(
    stored: Stored,
    numbers: torch.Tensor,
    steps: torch.Tensor | None,
    rule: Cast | None,
    out: torch.Tensor | None,
    seeds: Sequence[int] | None,
    device: torch.device | None,
    beside: bool,
) -> torch.Tensor:
    _check_numbers(stored, numbers, steps)
    device = device or (stored.device if stored.device.type == "cuda" else numbers.device)
    served = kernels_serve(device) and _readable(numbers, steps)
    way = _way_of(stored, rule, None if steps is None else len(steps), device) if served else None
    if way is None or (way.kernel is None and rule is None):
        return _by_torch(stored, numbers, steps, rule, out, seeds, device)
    if way.kernel is None:
        assert rule is not None
        made = _gathered(stored, numbers, steps, None, None, None, device, beside)
        return cast_on_device(made, rule, out, seeds)
    shape, dtype = (len(numbers), *way.shape), stored.dtype if rule is None else rule.dtype
    made = torch.empty(shape, dtype=dtype, device=device) if out is None else _checked(out, shape, dtype, device)
    if made.numel():
        along = (0, 1) if steps is None else (_address(steps, device), len(steps))
        rows = len(numbers) * along[1]
        way.kernel.launch(made, rows, (_address(numbers, device), *along), beside=beside)
    return made


def kernel_for(stored: Stored, rule: Cast | None, steps: int | None, device: torch.device) -> RowKernel | None:
    """Return the one kernel that gathers rows and casts them; None: it takes several, or torch operations.

    Args:
        stored, rule: as of `gather_rows`.
        steps: the number of frames of a window; None: rows are no windows.
        device: the device that gathers them.
    """
    way = _way_of(stored, rule, steps, device) if kernels_serve(device) else None
    return None if way is None else way.kernel


class _Way(NamedTuple):
    """How rows are gathered.

    Attributes:
        shape: the shape of a gathered row, before a cast that is not part of the gather.
        kernel: the kernel; None: there is none for the rule, or none that copies such rows.
    """

    shape: tuple[int, ...]
    kernel: RowKernel | None


def _way_of(stored: Stored, rule: Cast | None, steps: int | None, device: torch.device) -> _Way | None:
    """Return how rows are gathered, which is worked out once; None: a kernel cannot read them.

    That they cannot be read is asked each time, since memory may be pinned later.
    """
    key = (steps, device, *(part.data_ptr() for part in parts_of(stored)))
    by_rule: OwnerCache = _WAYS.of(stored, key, OwnerCache)
    return by_rule.of(_COPIED if rule is None else rule, None, lambda: _found_way(stored, rule, steps, device))


_WAYS = OwnerCache()


class _Copied:
    """Stands for a rule where rows are copied."""


_COPIED = _Copied()


def _found_way(stored: Stored, rule: Cast | None, steps: int | None, device: torch.device) -> _Way | None:
    parts, frame = parts_of(stored), tuple(stored.shape[1:])
    if not _readable(*parts):
        return None
    shape = frame if steps is None else (steps, *frame)
    if not (copies_rows(stored) if rule is None else _fused(rule, stored, steps)):
        return _Way(shape, None)
    if rule is not None:
        rule.row_shape(shape)  # raises what is wrong with it
    return _Way(shape, RowKernel.of(stored, rule, frame, [_address(part, device) for part in parts], device))


def _check_numbers(stored: Stored, numbers: torch.Tensor, steps: torch.Tensor | None) -> None:
    for name, given in (("numbers", numbers), ("steps", steps)):
        if given is not None and (given.dtype != torch.int64 or given.ndim != 1):
            raise TypeError(f"{name} are int64 with one axis, got {given.dtype} of the shape {tuple(given.shape)}")
    if steps is not None and not len(steps):
        raise ValueError("a window has at least one frame: steps are empty")
    known = numbers.device.type == "cpu" and (steps is None or steps.device.type == "cpu")
    if known and numbers.numel():
        lowest, highest = (0, 0) if steps is None else (int(steps.min()), int(steps.max()))
        first, last = int(numbers.min()) + lowest, int(numbers.max()) + highest
        if first < 0 or last >= len(stored):
            bad = first if first < 0 else last
            raise IndexError(f"row {bad} is not one of the {len(stored):,} stored rows")


def _readable(*tensors: torch.Tensor | None) -> bool:
    """Return whether a kernel can read these tensors: dense ones on a device or in pinned memory, or empty ones."""
    return all(
        one is None or not one.numel() or (one.is_contiguous() and (one.device.type == "cuda" or one.is_pinned()))
        for one in tensors
    )


def _fused(rule: Cast, stored: Stored, steps: int | None) -> bool:
    """Return whether one kernel gathers and casts: channels are within a stored row, and elements keep their order."""
    within = not rule.channel_count or rule.channels is None or -rule.channels < stored.ndim
    in_order = rule.layout is None and rule.augment is None and (steps is None or stored.numel() > 0)
    return within and in_order and has_kernel(rule, stored.dtype, stored.shape[1:])


def _address(tensor: torch.Tensor, device: torch.device) -> int:
    if tensor.device.type == "cuda" or not tensor.numel():
        return tensor.data_ptr()
    index = device.index if device.index is not None else torch.cuda.current_device()
    return int(cuda_module().mapped_address(tensor.data_ptr(), index))


def _by_torch(
    stored: Stored,
    numbers: torch.Tensor,
    steps: torch.Tensor | None,
    rule: Cast | None,
    out: torch.Tensor | None,
    seeds: Sequence[int] | None,
    device: torch.device,
) -> torch.Tensor:
    rows = numbers if steps is None else (numbers[:, None] + steps.to(numbers.device)).reshape(-1)
    bits = viewed(stored, torch.int16) if stored.dtype == torch.uint16 else stored  # torch cannot select uint16
    found = bits.index_select(0, rows.to(stored.device)).view(stored.dtype)
    shape = (len(numbers), *(() if steps is None else (len(steps),)), *stored.shape[1:])
    made = found.view(shape).to(device, non_blocking=True)
    if rule is not None:
        return cast_on_device(made, rule, out, seeds)
    return made if out is None else _checked(out, shape, stored.dtype, device).copy_(made)


def _checked(out: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    check_out(
        ("shape", tuple(out.shape), tuple(shape)),
        ("dtype", out.dtype, dtype),
        ("device", out.device.type, device.type),
        ("memory", out.is_contiguous(), True),
    )
    return out
