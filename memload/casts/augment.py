"""Random crops, resizing and flips: the draws for each row, and the pixels that they select."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core
from memload.casts.resize import as_signed, check_dtype, inner_of, part_of_nothing_drawn, resized, whole_box
from memload.columns.numbers import is_whole

Draws = NDArray[np.int64]
"""(rows, 3): the top and left edge of each row's crop, and 1 if the row is flipped; with ``resize`` (rows, 5), with the
height and width of the part that is resized behind them."""

Part = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image."""

DrawRule = tuple[int, float, tuple[Part, tuple[float, float, float, float] | None] | None]
"""``stream`` and ``flip``; for images that are resized also the part where nothing is drawn, or none that is drawn
fits, and ``scale`` and ``ratio``, if an area is drawn. Native code takes it so."""

_RATIO = (3 / 4, 4 / 3)  # as in torchvision
_FITS = ("stretch", "crop", "pad")
_INTERPOLATIONS = ("bilinear", "nearest")


@dataclass(frozen=True, repr=False)
class Augment:
    """A random crop, or a random part that is resized, and a random horizontal flip of images; one draw for each row.

    The draw of a row follows from (base seed, epoch, row) and ``stream`` alone: it is the same on any number of
    threads, on the CPU and on a GPU, and after a resume. Fields of one batch whose ``Augment`` has the same ``stream``
    share the draw: an image and its mask are cropped at the same place, even where the mask has half the size of the
    image and its crop is half as large. The stock machinery does not know row numbers, and uses the number of the batch
    and the position in it instead.

    Args:
        crop: (height, width) of the crop in pixels, or a number for squares, at a uniformly random position; None: the
            whole image.
        flip: the probability that a row's images are mirrored left to right, 0 to 1.
        stream: fields with other numbers draw independently of each other.
        resize: (height, width) in pixels to which images are resized, or a number for squares; not with ``crop``.
        scale: (least, greatest) fraction of the image's area, in (0, 1]: a part of random area, proportions and
            position is resized, as by torchvision's RandomResizedCrop. None: nothing is drawn but the flip.
        ratio: (least, greatest) width / height of that part; None: (3 / 4, 4 / 3).
        fit: what is resized without ``scale``: "stretch" takes the whole image, "crop" the largest part in its middle
            that has the proportions of the result, "pad" the whole image in its own proportions, with a border.
        pad_value: the pixels of that border, before the cast.
        interpolation: "bilinear", or "nearest" for masks. Of uint8 images the result is uint8, rounded as torch and
            Pillow do; int8, int16, uint16, float16, bfloat16 and float32 become float32, which the cast then rounds
            once. "nearest" takes images of any dtype.
        antialias: whether bilinear weights average over all pixels where an image becomes smaller. False is faster for
            large reductions, and gives other pixels: what a network was trained with should stay.

    Raises:
        TypeError: ``crop`` or ``resize`` is neither a whole number nor a pair of them, ``flip`` or ``pad_value`` no
            number, ``scale`` or ``ratio`` no pair of numbers, ``antialias`` no bool, or ``stream`` no int.
        ValueError: a side is below 1, ``flip`` is outside [0, 1], ``stream`` outside [0, 2^63), ``scale`` or ``ratio``
            no range of what is allowed, or arguments exclude each other.

    Example:
        >>> Augment(crop=(2, 2), flip=0.5).draws([7, 8], height=4, width=6).tolist()
        [[1, 2, 0], [1, 2, 1]]
        >>> image = Augment(resize=(224, 224), scale=(0.08, 1), flip=0.5)
        >>> from dataclasses import replace
        >>> mask = replace(image, interpolation="nearest")  # for the images' masks: the same parts
        >>> image.draws([7], height=480, width=640).tolist() == mask.draws([7], height=480, width=640).tolist()
        True
    """

    crop: tuple[int, int] | None = None
    flip: float = 0.0
    stream: int = 0
    _: KW_ONLY
    resize: tuple[int, int] | None = None
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] | None = None
    fit: str = "stretch"
    pad_value: float = 0.0
    interpolation: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        for name in ("crop", "resize"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _pair(name, getattr(self, name)))
        if not isinstance(self.flip, numbers.Real) or isinstance(self.flip, bool):
            raise TypeError(f"flip is a probability, such as 0.5; got {self.flip!r}")
        if not 0 <= self.flip <= 1:
            raise ValueError(f"flip is a probability from 0 to 1; got {self.flip!r}")
        object.__setattr__(self, "flip", float(self.flip))
        if not is_whole(self.stream):
            raise TypeError(f"stream is an int; got {self.stream!r}")
        object.__setattr__(self, "stream", int(self.stream))
        if not 0 <= self.stream < 2**63:
            raise ValueError(f"stream is an int from 0 to 2^63 - 1; got {self.stream}")
        object.__setattr__(self, "pad_value", _number("pad_value", self.pad_value))
        for name in ("scale", "ratio"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _range(name, getattr(self, name)))
        self._check_resize()
        self._check_part()

    def _check_resize(self) -> None:
        given = [one.name for one in fields(self)[4:] if getattr(self, one.name) != one.default]
        if self.resize is None and given:
            raise ValueError(f"{given[0]}= is of images that are resized: give resize= too, such as resize=(224, 224)")
        if self.resize is not None and self.crop is not None:
            raise ValueError(
                f"crop={self.crop} and resize={self.resize} exclude each other: scale= takes a random part that is "
                'resized, fit="crop" the largest part in the middle'
            )
        for name, known in (("fit", _FITS), ("interpolation", _INTERPOLATIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(map(repr, known))}; got {getattr(self, name)!r}")
        if not isinstance(self.antialias, bool | np.bool_):
            raise TypeError(f"antialias is True or False; got {self.antialias!r}")
        object.__setattr__(self, "antialias", bool(self.antialias))
        if self.pad_value and self.fit != "pad":
            raise ValueError(f'pad_value={self.pad_value} is of the border that fit="pad" makes; got fit={self.fit!r}')

    def _check_part(self) -> None:
        if self.scale is None and self.ratio is not None:
            raise ValueError("ratio= is of the random part that scale= asks for: give scale= too, such as (0.08, 1)")
        if self.scale is not None and self.scale[1] > 1:
            raise ValueError(f"scale has fractions of the image's area, in (0, 1]; got {self.scale}")
        if self.scale is not None and self.fit != "stretch":
            raise ValueError(f"fit={self.fit!r} and scale= exclude each other: the random part has its own proportions")

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of images of this size after the crop or resizing.

        Raises:
            ValueError: the crop is larger than the image, or an image without pixels is to be resized.
        """
        if self.resize is not None:
            if min(height, width) < 1:
                raise ValueError(f"images of {height} x {width} pixels have none to resize")
            return self.resize
        if self.crop is None:
            return height, width
        if self.crop[0] > height or self.crop[1] > width:
            raise ValueError(
                f"a crop of {self.crop[0]} x {self.crop[1]} does not fit into images of {height} x {width} pixels "
                "(is channels= the axis of the channels, counted from the end?)"
            )
        return self.crop

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise TypeError or ValueError if images of this dtype cannot be resized so; the message says which can."""
        if self.resize is not None:
            check_dtype(dtype, self.interpolation, self.pad_value)

    def draws(self, seeds: Sequence[int], height: int, width: int) -> Draws:
        """Return the crop positions and flips of rows with these seeds, whose images have this size.

        Of the 96 bits that xxh3 makes of a row's seed, 32 choose the top edge among (height - crop height + 1), 32 the
        left edge, and 32 the flip. Each attempt at a part of ``scale`` and ``ratio`` has a hash of its own, of which 32
        bits choose the area and 32 the proportions. `csrc/cast/draws.h` is the definition, which the gather shares.

        Args:
            seeds: one for each row, 64 bits.
            height, width: the size of the images in pixels.

        Returns:
            int64 (rows, 3): top, left, and 1 where the row is flipped; with ``resize`` (rows, 5), with height and
            width of the part that is resized.

        Raises:
            ValueError: as for `size`.
        """
        shape = (height, width, 1, *self.size(height, width), True, True)
        return _core.image_draws(list(seeds), shape, draw_rule(self, height, width))

    def __repr__(self) -> str:
        given = [one for one in fields(self) if one.name in _ALWAYS or getattr(self, one.name) != one.default]
        return f"Augment({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in given)})"


_ALWAYS = ("crop", "flip", "stream")


def draw_rule(augment: Augment, height: int, width: int) -> DrawRule:
    """Return what the draws for images of this size depend on beside seeds."""
    if augment.resize is None:
        return augment.stream, augment.flip, None
    if augment.scale is None:
        return augment.stream, augment.flip, (whole_box((height, width), augment.resize, augment.fit), None)
    ratio = augment.ratio or _RATIO
    sides = part_of_nothing_drawn((height, width), ratio)
    return augment.stream, augment.flip, ((0, 0, *sides), (*augment.scale, *ratio))


def _pair(name: str, given: Any) -> tuple[int, int]:
    sides = (given, given) if is_whole(given) else given
    if not isinstance(sides, tuple | list) or len(sides) != 2 or not all(map(is_whole, sides)):
        raise TypeError(f"{name} is (height, width) in pixels, such as (224, 224); got {given!r}")
    if min(sides) < 1:
        raise ValueError(f"{name} is at least (1, 1); got {sides!r}")
    if max(sides) >= 2**31:
        raise ValueError(f"{name} is below 2^31 pixels; got {sides!r}")
    return int(sides[0]), int(sides[1])


def _number(name: str, given: Any) -> float:
    if not isinstance(given, numbers.Real) or isinstance(given, bool):
        raise TypeError(f"{name} is a number; got {given!r}")
    if not math.isfinite(given):
        raise ValueError(f"{name} is a finite number; got {given!r}")
    return float(given)


def _range(name: str, given: Any) -> tuple[float, float]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(
            f"{name} is (least, greatest), such as {'(0.08, 1)' if name == 'scale' else '(3 / 4, 4 / 3)'}; "
            f"got {given!r}"
        )
    low, high = (_number(name, one) for one in given)
    if not 0 < low <= high:
        raise ValueError(f"{name} is (least, greatest), both above 0; got {given!r}")
    return low, high


def placed(images: torch.Tensor, draws: Draws, axes: tuple[int, int], augment: Augment) -> torch.Tensor:
    """Return a batch of images cropped or resized, and flipped, by plain torch operations: the definition.

    Args:
        images: (rows, ...), of any dtype and on any device; resized by bilinear weights, of those that `Augment` names.
        draws: the draws of each row.
        axes: the axes of height and width, counted from the end.
        augment: what is done.
    """
    augment.check_dtype(images.dtype)
    size = augment.size(images.shape[axes[0]], images.shape[axes[1]])
    if not len(images):
        return _one(images, [0, 0, 0, 1, 1], axes, size, augment)
    return torch.stack(
        [_one(image, draw, axes, size, augment) for image, draw in zip(images, draws.tolist(), strict=True)]
    )


def _one(
    image: torch.Tensor, draw: Sequence[int], axes: tuple[int, int], size: tuple[int, int], augment: Augment
) -> torch.Tensor:
    top, left, flipped = draw[:3]
    if augment.resize is None:
        made = _cut(image, top, left, axes, size)
    else:
        inner = inner_of((image.shape[axes[0]], image.shape[axes[1]]), size, augment.fit)
        part = _cut(image, top, left, axes, (draw[3], draw[4]))
        made = resized(part, axes, inner[2:], (augment.interpolation, augment.antialias))
        if inner[2:] != size:
            whole = [
                size[axes.index(k - image.ndim)] if k - image.ndim in axes else n for k, n in enumerate(made.shape)
            ]
            border = made.new_full(whole, augment.pad_value)
            _cut(border, inner.top, inner.left, axes, inner[2:]).copy_(made)
            made = border
    return as_signed(made).flip(axes[1]).view(made.dtype) if flipped else made


def _cut(image: torch.Tensor, top: int, left: int, axes: tuple[int, int], size: Sequence[int]) -> torch.Tensor:
    return image.narrow(axes[0], top, size[0]).narrow(axes[1], left, size[1])
