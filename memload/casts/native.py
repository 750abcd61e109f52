"""Cast whole tensors by native code, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from memload import _core
from memload.casts.augment import Augment, Draws, Part
from memload.casts.resize import inner_of
from memload.casts.rule import Cast, native_arithmetic
from memload.dtypes import code_of

Memory = Callable[[int], torch.Tensor]
"""A function that lends memory of a given size: a uint8 tensor with one axis, aligned to 64 bytes."""

CASTABLE = frozenset({"U8", "I8", "I16", "U16", "I32", "I64", "F16", "BF16", "F32", "F64"})
"""The codes of the dtypes that native code casts from."""

ImageShape = tuple[int, int, int, int, int, bool, bool]
"""Height, width and channels of an image as it is stored, height and width of the result, whether it is stored with the
channels last, and whether the result has them first."""

ResizeMethod = tuple[Part, bool, bool, float]
"""Where the resized pixels lie in the result, whether by "nearest", antialias, and the value of padding."""

_MOST_ELEMENTS = 2**32  # of one image


def image_sides(rule: Cast, shape: Sequence[int]) -> Sequence[int]:
    """Return the last axes of this shape, those of an image: (H, W), (H, W, C) or (C, H, W)."""
    return shape[-2 if rule.channels is None else -3 :]


def fits(rule: Cast, shape: Sequence[int]) -> bool:
    """Return whether images of this shape are small enough for native code."""
    return math.prod(image_sides(rule, shape)) < _MOST_ELEMENTS


def image_shape(rule: Cast, shape: Sequence[int]) -> ImageShape:
    """Return the shape of the images of rows of this shape, and of their results, as native code takes it."""
    height, width = (shape[axis] for axis in rule.image_axes)
    channels = 1 if rule.channels is None else shape[rule.channels]
    high, wide = (rule.augment or Augment()).size(height, width)
    return height, width, channels, high, wide, rule.channels == -1, rule.channels != -1 or rule.layout == "NCHW"


def resize_method(rule: Cast, shape: Sequence[int]) -> ResizeMethod | None:
    """Return how the images of rows of this shape are resized, as native code takes it; None if they are not."""
    augment = rule.augment
    if augment is None or augment.resize is None:
        return None
    height, width = (shape[axis] for axis in rule.image_axes)
    inner = inner_of((height, width), augment.resize, augment.fit)
    place = inner.top, inner.left, inner.height, inner.width
    return place, augment.interpolation == "nearest", augment.antialias, augment.pad_value


def cast_tensor(
    x: torch.Tensor,
    rule: Cast,
    seeds: Sequence[int] | None = None,
    memory: Memory | None = None,
    isa: str = "",
) -> torch.Tensor:
    """Return ``rule.apply(x, seeds)``, with up to ``torch.get_num_threads()`` threads.

    Args:
        x: a batch; without ``augment`` also a single row.
        rule: the cast.
        seeds: one for each row, if the rule has ``augment``.
        memory: lends the result's memory if pixels change their places; None: it is fresh.
        isa: instruction set; "": the best.

    Raises:
        TypeError, ValueError: as for `Cast.apply`.
    """
    if not _is_native(x, rule) or (rule.augment is not None and seeds is None):
        return rule.apply(x, seeds)
    if rule.places:
        return _placed(x, rule, seeds, memory, isa)
    rule.row_shape(x.shape)
    out = torch.empty(x.shape, dtype=rule.dtype, device="cpu")
    codes = code_of(x.dtype), code_of(rule.dtype)
    how = native_arithmetic(rule, x.dtype, x.shape)
    _core.cast(x.data_ptr(), out.data_ptr(), x.numel(), *codes, how, isa, False, torch.get_num_threads())
    return out if rule.layout is None else out.movedim(-1, -3)


def _is_native(x: torch.Tensor, rule: Cast) -> bool:
    plain = type(x) is torch.Tensor and x.device.type == "cpu" and x.layout == torch.strided and x.is_contiguous()
    own = plain and not x.requires_grad and not x.is_neg()  # the bytes of z.conj().imag have the other sign
    fits = own and x.dtype.is_complex is False and not rule.is_plain and x.numel() > 0
    return fits and type(rule) is Cast and x.dtype.itemsize <= 8 and x.dtype in _DTYPES


_DTYPES = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)


def _placed(x: torch.Tensor, rule: Cast, seeds: Sequence[int] | None, memory: Memory | None, isa: str) -> torch.Tensor:
    job = ImageJob.of(rule, x.shape, x.dtype, seeds)
    if job is None:
        return rule.apply(x, seeds)
    elements = job.images * math.prod(job.out_shape)
    if memory is None or not elements:
        out = torch.empty(elements, dtype=rule.dtype, device="cpu")
    else:
        out = memory(elements * rule.dtype.itemsize).view(rule.dtype)
    cast = (code_of(x.dtype), code_of(rule.dtype), native_arithmetic(rule, x.dtype, x.shape))
    given = x.data_ptr(), out.data_ptr(), job.images, job.images_per_draw, job.draws, job.shape
    method = resize_method(rule, x.shape)
    if method is None:
        _core.augment_images(*given, cast, isa, torch.get_num_threads())
    else:
        _core.resize_images(*given, method, cast, isa, torch.get_num_threads())
    made = out.view(*job.leading, *job.out_shape)
    return made.movedim(-1, -3) if rule.layout == "channels_last" else made


class ImageJob:
    """A batch of images to be cropped, resized, flipped or laid out anew, as native code takes it.

    Attributes:
        leading: the axes before those of an image.
        stored_shape: the axes of an image as it is stored.
        shape: see `ImageShape`.
        out_shape: the shape of the result in the order of memory.
        draws: those of `Augment.draws`.
        images: the number of images.
        images_per_draw: the number of images in one row.
    """

    def __init__(self, rule: Cast, shape: Sequence[int], draws: Draws | None) -> None:
        self.stored_shape = tuple(image_sides(rule, shape))
        self.leading = tuple(shape[: len(shape) - len(self.stored_shape)])
        self.shape = image_shape(rule, shape)
        _, _, channels, high, wide, _, planes = self.shape
        self.out_shape = (
            (high, wide) if rule.channels is None else (channels, high, wide) if planes else (high, wide, channels)
        )
        self.images = math.prod(self.leading)
        self.draws = np.zeros((1, 3), dtype=np.int64) if draws is None else draws
        self.images_per_draw = max(1, self.images if draws is None else self.images // max(1, len(draws)))

    @classmethod
    def of(cls, rule: Cast, shape: Sequence[int], dtype: torch.dtype, seeds: Sequence[int] | None) -> ImageJob | None:
        """Return the job for a batch of this shape and dtype; None if native code does not support such images.

        Raises:
            TypeError: images of this dtype cannot be resized so.
            ValueError: the rule is not for images of this shape, or the number of seeds is not that of rows.
        """
        if rule.augment is None:
            rule.row_shape(shape)
            draws = None
        else:
            rule.row_shape(shape[1:])
            if seeds is None or len(seeds) != shape[0]:
                raise ValueError(f"a batch of {shape[0]} rows needs as many seeds, got {len(seeds or ())}")
            rule.augment.check_dtype(dtype)
            draws = rule.augment.draws(seeds, *(shape[axis] for axis in rule.image_axes))
        return cls(rule, shape, draws) if fits(rule, shape) else None
