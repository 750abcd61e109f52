"""Calls the kernels of `memload._cuda` for rows and images with tensors, rules and constants."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from memload.casts.native import ImageJob
from memload.casts.rule import Cast, native_arithmetic
from memload.device.cuda_module import cuda_module, kernels_run_on
from memload.device.fused_constants import fused_constants
from memload.device.split_rows import Stored, parts_of
from memload.dtypes import code_of

T = TypeVar("T")


class OwnerCache:
    """A cache of results by object and key, for as long as the object lives. Any thread may call it.

    An ordinary cache hashes and compares its keys, which for 100,000 channels would cost time in each batch.

    Example:
        >>> class Rule: ...
        >>> rules, rule = OwnerCache(), Rule()
        >>> rules.of(rule, "a", lambda: [1]) is rules.of(rule, "a", lambda: [2])
        True
        >>> rules.of(Rule(), "a", lambda: [3])
        [3]
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], dict[Hashable, Any]]] = {}

    def of(self, owner: Any, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make` at the first call with this object and an equal key; None is not kept."""
        ref, results = self._found.get(id(owner), (None, {}))
        if ref is None or ref() is not owner:
            ref, results = weakref.ref(owner, self._remover(id(owner))), {}
            self._found[id(owner)] = ref, results
        if (found := results.get(key)) is None:
            found = results[key] = make()
        result: T = found
        return result

    def _remover(self, number: int) -> Callable[[weakref.ref[Any]], None]:
        found = self._found

        def forget(ref: weakref.ref[Any]) -> None:
            if found.get(number, (None,))[0] is ref:  # another object may have its number by now
                del found[number]

        return forget


_FROM = frozenset({torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.float32})
_TO = frozenset({torch.bfloat16, torch.float16, torch.float32})
_MOST_ELEMENTS = 2**31  # of a row that is cast; bytes of a row that is copied
_ALIGNED = 128  # rows after which the next one begins at an address as well aligned as the first

KernelRule = tuple[str, str, str, float, float, int, int, int]
"""From, to, how, scale, offset, address of constants (csrc/cuda/rule.h), channels, elements of one in a run."""


def kernels_serve(device: torch.device) -> bool:
    """Return whether the kernels run on a device; warn once if torch operations replace them."""
    if device.type != "cuda":
        return False
    return kernels_run_on(device.index if device.index is not None else torch.cuda.current_device())


def has_kernel(rule: Cast, dtype: torch.dtype, row_shape: Sequence[int]) -> bool:
    """Return whether a kernel casts rows of this dtype and shape by this rule, without moving pixels."""
    resized = rule.augment is not None and rule.augment.resize is not None  # torch operations do that
    known = type(rule) is Cast and dtype in _FROM and rule.dtype in _TO and not resized
    return known and math.prod(row_shape) < _MOST_ELEMENTS


def copies_rows(stored: Stored) -> bool:
    """Return whether a kernel copies rows of this length."""
    return math.prod(stored.shape[1:]) * stored.dtype.itemsize < _MOST_ELEMENTS


def kernel_rule(rule: Cast, dtype: torch.dtype, row_shape: Sequence[int], device: torch.device) -> KernelRule:
    """Return a rule for rows of this shape in the form of the kernels; its constants stay on the device.

    The result is computed once for each rule, and a pass uses the same rules from its beginning to its end.
    """
    key = (dtype, tuple(row_shape), device)
    return _RULES.of(rule, key, lambda: _computed_rule(rule, dtype, row_shape, device))[0]


_RULES = OwnerCache()


def _computed_rule(
    rule: Cast, dtype: torch.dtype, row_shape: Sequence[int], device: torch.device
) -> tuple[KernelRule, torch.Tensor | None]:
    """Return the rule, and the tensor at its address."""
    codes, how = (code_of(dtype), code_of(rule.dtype)), native_arithmetic(rule, dtype, row_shape)
    if isinstance(how, bool):
        return (*codes, "norm_removed" if how else "plain", 1.0, -0.0, 0, 1, 1), None
    inner, scale, offset, means, deviations = how
    if rule.mean is None and rule.std is None:
        return (*codes, "scaled", scale, offset, 0, 1, 1), None
    fused = fused_constants(dtype, rule.dtype, scale, offset, means, deviations)
    if fused is not None:
        kind, constants = "fused", _kept_on(np.concatenate(fused).tobytes(), device)
    else:
        kind = "by_reciprocal" if multiplies(dtype, scale, (offset, *means), deviations) else "computed"
        constants = _constants(means, deviations, device)
    return (*codes, kind, scale, offset, constants.data_ptr(), len(means), inner), constants


_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.uint16})
_FAR, _DEVIATION = 60, 30  # powers of two: the terms of csrc/cuda/rule.h


def multiplies(dtype: torch.dtype, scale: float, terms: Sequence[float], deviations: Sequence[float]) -> bool:
    """Return whether products with the reciprocals of deviations give the bits of divisions.

    They do where no step leaves the range of normal numbers, and no numerator is a negative zero.

    Args:
        dtype: the stored dtype.
        scale, terms, deviations: the constants; terms are added or subtracted.

    Example:
        >>> multiplies(torch.uint8, 1 / 255, [0.485], [0.229])
        True
        >>> multiplies(torch.float32, 1 / 255, [0.485], [0.229])
        False
    """
    summed = np.abs(np.asarray(terms, dtype=np.float32))
    near = _within(np.asarray(scale, dtype=np.float32), _FAR) and _within(summed[summed != 0], _FAR)
    return dtype in _INTEGERS and near and _within(np.abs(np.asarray(deviations, dtype=np.float32)), _DEVIATION)


def _within(values: NDArray[np.float32], power: int) -> bool:
    return bool(((values >= 2.0**-power) & (values <= 2.0**power)).all())


def _constants(means: Sequence[float], deviations: Sequence[float], device: torch.device) -> torch.Tensor:
    """Return means, deviations and their reciprocals on a device."""
    given = torch.tensor([means, deviations], dtype=torch.float32, device="cpu")
    every = torch.cat([given.view(-1), given[1].double().reciprocal().float()])
    return _kept_on(every.numpy().tobytes(), device)


def _kept_on(values: bytes, device: torch.device) -> torch.Tensor:
    """Return float32 values on a device. Any stream may read them after this call.

    They belong to the stream that is current now, which may write to their memory once they are dropped, while kernels
    of other streams still read it. So those of a few channels stay when their rule is gone.
    """
    return _kept_few_on(values, device) if len(values) <= _FEW_BYTES else _on_device(values, device)


_FEW_BYTES = 1 << 16


@functools.lru_cache(maxsize=1024)
def _kept_few_on(values: bytes, device: torch.device) -> torch.Tensor:
    return _on_device(values, device)


def _on_device(values: bytes, device: torch.device) -> torch.Tensor:
    constants = torch.frombuffer(bytearray(values), dtype=torch.float32).to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return constants


@dataclass(frozen=True)
class RowKernel:
    """A kernel that gathers and casts rows out of some memories: all that is the same for each batch of them.

    Attributes:
        parts: the address at which the device reads each memory, and its rows.
        length: elements of a row that is cast, bytes of one that is copied.
        rule: the cast; None: rows are copied.
    """

    parts: Sequence[tuple[int, int]]
    length: int
    rule: KernelRule | None

    @classmethod
    def of(
        cls, stored: Stored, rule: Cast | None, row_shape: Sequence[int], addresses: Sequence[int], device: torch.device
    ) -> RowKernel:
        """Return the kernel for stored rows and a rule, which counts its channels by the shape of a row.

        Args:
            stored: (rows, ...), contiguous, or in several parts.
            rule: the cast; None: bytes are copied.
            row_shape: the shape of a row of `stored`.
            addresses: the addresses at which the device reads the parts of `stored`.
            device: the device.
        """
        elements = math.prod(row_shape)
        counts = [part.numel() // max(1, elements) for part in parts_of(stored)]
        parts = [*zip(addresses, counts, strict=True)]
        if rule is None:
            return cls(parts, elements * stored.dtype.itemsize, None)
        return cls(parts, elements, kernel_rule(rule, stored.dtype, row_shape, device))

    @functools.cached_property
    def native(self) -> Any:
        """The kernel as `memload._cuda` launches it."""
        return cuda_module().RowKernel(self.parts, self.length, self.rule)

    def launch(self, out: torch.Tensor, rows: int, choice: Choice, *, beside: bool = False) -> None:
        """Launch it on the current stream of the device of `out`.

        Args:
            out: (rows, *row), contiguous.
            rows: the rows of the result.
            choice: which stored rows they are.
            beside: whether rows cross a bus, so that the kernel leaves most of the device to those of the loop.
        """
        launch_all([(self.native, out.data_ptr(), rows, choice, None, beside)], out.device)


Choice: TypeAlias = tuple[int, int, int]
"""The addresses of the row numbers and of the steps of windows, and the number of steps. An address of 0: there are
none. Without row numbers all rows are cast, in their stored order."""

Launch: TypeAlias = tuple[Any, int, int, Choice, tuple[int, int] | None, bool]
"""`RowKernel.native`; the address and the rows of the result; the choice; the address and the rows of a memory that
stands for the last of the kernel's parts, or None; and `beside`."""


def launch_all(launches: Sequence[Launch], device: torch.device) -> None:
    """Launch kernels on the current stream of a device by one native call, since each call costs time of its own."""
    cuda_module().launch_rows(launches, device.index, torch.cuda.current_stream(device).cuda_stream)


def cast_all(stored: torch.Tensor, out: torch.Tensor, rule: Cast, row_shape: Sequence[int]) -> None:
    """Launch the kernel that casts all of some rows, on the current stream of their device.

    Args:
        stored: (rows, ...), contiguous.
        out: of the same shape, contiguous.
        rule: the cast.
        row_shape: the shape of a row of `stored`, by which the rule counts its channels.
    """
    kernel = RowKernel.of(stored, rule, row_shape, [stored.data_ptr()], out.device)
    row, flat = max(1, kernel.length), out.view(-1)
    rows = max(1, (_MOST_ELEMENTS - 1) // row)  # as one with repeated channels, since short rows leave warps idle
    joined = row * (rows - rows % _ALIGNED if rows > _ALIGNED else rows)
    for begin in range(0, len(flat), joined):
        part, address = flat[begin : begin + joined], stored.data_ptr() + begin * stored.itemsize
        replace(kernel, parts=[(address, 1)], length=len(part)).launch(part, 1, (0, 0, 1))


def augment_images(x: torch.Tensor, out: torch.Tensor, rule: Cast, job: ImageJob) -> None:
    """Launch the kernel that crops, flips, lays out and casts images, on the current stream of the device of `out`.

    Args:
        x: contiguous.
        out: contiguous, of ``job.out_shape`` for each image.
        rule: the cast.
        job: what becomes of the images.
    """
    cuda_module().augment_images(
        x.data_ptr(),
        out.data_ptr(),
        job.images,
        job.images_per_draw,
        job.draws,
        job.shape,
        kernel_rule(rule, x.dtype, job.stored_shape, x.device),
        x.device.index,
        torch.cuda.current_stream(x.device).cuda_stream,
    )
