"""Applies a `Cast` to tensors on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from memload.casts.native import ImageJob, cast_tensor
from memload.casts.rule import Cast, as_cast
from memload.device.cast_stim import cast_pixels, check_out
from memload.device.kernels import augment_images, cast_all, has_kernel, kernels_serve
from memload.dtypes import DTypeLike


def cast_on_device(
    x: torch.Tensor, rule: Cast | DTypeLike, out: torch.Tensor | None = None, seeds: Sequence[int] | None = None
) -> torch.Tensor:
    """Return ``rule.apply(x, seeds)`` on the device of ``x``, queued on the current stream of that device.

    The result is bit-identical to the CPU's, except for the bits of a NaN. Without a kernel for it (see `cuda_state`)
    the cast runs through torch operations.

    Args:
        x: a batch on any device, contiguous.
        rule: the cast; a dtype stands for the plain cast to it.
        out: memory for the result: of ``rule.row_shape(x.shape)``, ``rule.dtype`` and the device of ``x``, with no
            memory in common; fastest with the strides that the result would have.
        seeds: for a random rule, one seed for each row: ``PassSeed.of_samples``.

    Returns:
        The result; ``out`` if it was given.

    Raises:
        TypeError, ValueError: as `Cast.apply`; or ``out`` does not fit.
    """
    rule = as_cast(rule)
    if out is not None:
        shapes = tuple(out.shape), tuple(rule.row_shape(x.shape))
        check_out(("shape", *shapes), ("dtype", out.dtype, rule.dtype), ("device", out.device, x.device))
    if type(rule) is Cast and rule.is_plain and x.dtype == torch.uint8:
        return cast_pixels(x, rule, out)
    made = _cast_on_cuda(x, rule, out, seeds) if x.device.type == "cuda" else cast_tensor(x, rule, seeds)
    return made if out is None or made is out else out.copy_(made)


def _cast_on_cuda(x: torch.Tensor, rule: Cast, out: torch.Tensor | None, seeds: Sequence[int] | None) -> torch.Tensor:
    row_shape = _row_shape(x, rule)
    dense = type(x) is torch.Tensor and x.is_contiguous() and x.numel() > 0 and not x.requires_grad
    if not dense or x.is_neg() or not has_kernel(rule, x.dtype, row_shape) or not kernels_serve(x.device):
        return rule.apply(x, seeds)
    if rule.places:
        return _placed(x, rule, out, seeds)
    rule.row_shape(x.shape)
    stored = out if out is None or rule.layout is None else out.movedim(-3, -1)  # in the order of the result's memory
    made = stored if stored is not None and stored.is_contiguous() else torch.empty_like(x, dtype=rule.dtype)
    cast_all(x, made, rule, row_shape)
    if made is stored and out is not None:
        return out
    return made if rule.layout is None else made.movedim(-1, -3)


def _row_shape(x: torch.Tensor, rule: Cast) -> tuple[int, ...]:
    """Return the shape of a row: without the first axis, unless that is the axis of the channels."""
    alone = x.ndim == 0 or (rule.channel_count > 0 and rule.channels == -x.ndim)
    return tuple(x.shape) if alone else tuple(x.shape[1:])


def _placed(x: torch.Tensor, rule: Cast, out: torch.Tensor | None, seeds: Sequence[int] | None) -> torch.Tensor:
    if rule.augment is not None and seeds is None:
        return rule.apply(x, seeds)  # raises an error that says what is missing
    job = ImageJob.of(rule, x.shape, x.dtype, seeds)
    if job is None:
        return rule.apply(x, seeds)
    last = rule.layout == "channels_last"
    stored = out if out is None or not last else out.movedim(-3, -1)
    if stored is None or not stored.is_contiguous():
        elements = job.images * math.prod(job.out_shape)
        stored, out = x.new_empty(elements, dtype=rule.dtype).view(*job.leading, *job.out_shape), None
    augment_images(x, stored, rule, job)
    if out is not None:
        return out
    return stored.movedim(-1, -3) if last else stored
