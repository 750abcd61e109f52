"""The kernels of `memload._cuda` for rows and pictures, called with tensors: rules and constants as they take them.

They have not run on a GPU yet.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from memload.casts.native import PictureJob, how_of
from memload.casts.rule import Cast
from memload.dtypes import code_of
from memload.gpu.cuda_module import cuda_module, kernels_run_on
from memload.gpu.remembered import Remembered

_FROM = frozenset({torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.float32})
_TO = frozenset({torch.bfloat16, torch.float16, torch.float32})
_MOST_ELEMENTS = 2**31  # of a row; of one that is copied, bytes

KernelRule = tuple[str, str, str, float, float, int, int, int]
"""From, to, how, scale, offset, address of means and deviations, channels, and elements from one to the next."""


def kernels_serve(device: torch.device) -> bool:
    """Whether the kernels run on a device; warns once where torch operations stand in."""
    if device.type != "cuda":
        return False
    return kernels_run_on(device.index if device.index is not None else torch.cuda.current_device())


def has_kernel(rule: Cast, dtype: torch.dtype, row_shape: Sequence[int]) -> bool:
    """Whether a kernel casts rows of this dtype and shape by this rule, pixels that change their places apart."""
    known = type(rule) is Cast and dtype in _FROM and rule.dtype in _TO
    return known and math.prod(row_shape) < _MOST_ELEMENTS


def copies_rows(stored: torch.Tensor) -> bool:
    """Whether a kernel copies rows as long as these."""
    return math.prod(stored.shape[1:]) * stored.element_size() < _MOST_ELEMENTS


def kernel_rule(rule: Cast, dtype: torch.dtype, row_shape: Sequence[int], device: torch.device) -> KernelRule:
    """Return a rule for rows of this shape as the kernels take it; its constants lie on the device from then on.

    For one rule, which a pass has from its beginning to its end, that is worked out once.
    """
    key = (dtype, tuple(row_shape), device)
    return _RULES.of(rule, key, lambda: _worked_out(rule, dtype, row_shape, device))[0]


_RULES = Remembered()


def _worked_out(
    rule: Cast, dtype: torch.dtype, row_shape: Sequence[int], device: torch.device
) -> tuple[KernelRule, torch.Tensor | None]:
    """The rule, and what lies at its address."""
    codes, how = (code_of(dtype), code_of(rule.dtype)), how_of(rule, dtype, row_shape)
    if isinstance(how, bool):
        return (*codes, "norm_removed" if how else "plain", 1.0, -0.0, 0, 1, 1), None
    inner, scale, offset, means, deviations = how
    if rule.mean is None and rule.std is None:
        return (*codes, "scaled", scale, offset, 0, 1, 1), None
    constants = _constants(tuple(means), tuple(deviations), device)
    return (*codes, "computed", scale, offset, constants.data_ptr(), len(means), inner), constants


@functools.lru_cache(maxsize=1024)
def _constants(means: tuple[float, ...], deviations: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Means and deviations on a device, where any stream may read them: they are there when this returns."""
    made = torch.tensor([*means, *deviations], dtype=torch.float32).to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return made


def cast_rows(
    stored: torch.Tensor,
    out: torch.Tensor,
    rule: Cast | None,
    row_shape: Sequence[int],
    *,
    address: int | None = None,
    choice: tuple[int, int, int] = (0, 0, 1),
) -> None:
    """Launch the kernel that gathers and casts rows, on the current stream of the device of `out`.

    Args:
        stored: (rows, ...), contiguous.
        out: (rows of the result, *row), contiguous.
        rule: the cast; None: bytes are copied.
        row_shape: of a row of `stored` as the rule counts its channels.
        address: where the device reads `stored`; None: where it lies.
        choice: addresses of the rows' numbers and of the steps of windows, and how many steps; 0: there are none.
            Without numbers all rows are cast, as they lie.
    """
    elements = math.prod(row_shape)
    rows = out.numel() // max(1, elements)
    source = stored.data_ptr() if address is None else address
    where = (out.device.index, torch.cuda.current_stream(out.device).cuda_stream)
    if rule is None:
        nbytes = elements * stored.element_size()
        cuda_module().copy_rows(source, len(stored), out.data_ptr(), rows, nbytes, choice, *where)
        return
    known = kernel_rule(rule, stored.dtype, row_shape, out.device)
    if not choice[0] and out.numel() < _MOST_ELEMENTS:
        rows, elements = 1, out.numel()  # all rows as one, whose channels repeat: short rows would leave warps idle
    stored_rows = stored.numel() // max(1, elements)
    cuda_module().cast_rows(source, stored_rows, out.data_ptr(), rows, elements, known, choice, *where)


def place_pictures(x: torch.Tensor, out: torch.Tensor, rule: Cast, job: PictureJob) -> None:
    """Launch the kernel that cuts, flips, lays out and casts pictures, on the current stream of the device of `out`.

    Args:
        x: contiguous.
        out: contiguous, of ``job.out_shape`` for each picture.
        rule: the cast.
        job: what becomes of the pictures.
    """
    cuda_module().place_pictures(
        x.data_ptr(),
        out.data_ptr(),
        job.pictures,
        job.pictures_per_draw,
        job.draws,
        job.shape,
        kernel_rule(rule, x.dtype, job.stored_shape, x.device),
        x.device.index,
        torch.cuda.current_stream(x.device).cuda_stream,
    )
