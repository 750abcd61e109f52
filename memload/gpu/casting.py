"""A `Cast` of what already lies on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memload.cast import cast_pixels
from memload.cast_native import cast_tensor
from memload.cast_rule import Cast


def cast_on_device(
    x: torch.Tensor, rule: Cast, out: torch.Tensor | None = None, seeds: Sequence[int] | None = None
) -> torch.Tensor:
    """Return ``rule.apply(x, seeds)`` on the device of ``x``, queued on the current stream of that device.

    Bit-identical to the CPU, but for the bits of a NaN. Without a kernel for it (see `memload.device.cuda_state`) the
    cast runs through torch operations.

    Args:
        x: a batch on any device, contiguous.
        rule: what becomes of it.
        out: where to put the result: contiguous in the order in which the result lies in memory, of
            ``rule.row_shape(x.shape)``, ``rule.dtype`` and the device of ``x``, no memory in common with it.
        seeds: where the rule draws, one for each row: ``PassSeed.of_samples``.

    Returns:
        The result; ``out`` if that was given.

    Raises:
        TypeError, ValueError: as `Cast.apply`; or ``out`` does not fit.
    """
    if out is not None:
        _check_out(out, x, rule)
    if type(rule) is Cast and rule.is_plain and x.dtype == torch.uint8:
        return cast_pixels(x, rule, out)
    made = cast_tensor(x, rule, seeds)
    return made if out is None else out.copy_(made)


def _check_out(out: torch.Tensor, x: torch.Tensor, rule: Cast) -> None:
    for what, got, expected in (
        ("shape", tuple(out.shape), tuple(rule.row_shape(x.shape))),
        ("dtype", out.dtype, rule.dtype),
        ("device", out.device, x.device),
    ):
        if got != expected:
            raise ValueError(f"out does not fit: its {what} is {got}, the result's is {expected}")
