"""Random crops and flips: the draws for each row, and the pixels that they select."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from memload.columns.numbers import is_whole

Draws = NDArray[np.int64]
"""(rows, 3): the top and left edge of each row's crop, and 1 if the row is flipped."""

_BITS = 32  # of each drawn number


@dataclass(frozen=True)
class Augment:
    """A random crop and a random horizontal flip of images, one draw for each row.

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

    Raises:
        TypeError: ``crop`` is neither a whole number nor a pair of them, ``flip`` no number, or ``stream`` no int.
        ValueError: a side of ``crop`` is below 1, ``flip`` is outside [0, 1], or ``stream`` outside [0, 2^63).

    Example:
        >>> Augment(crop=(2, 2), flip=0.5).draws([7, 8], height=4, width=6).tolist()
        [[1, 2, 0], [1, 2, 1]]
    """

    crop: tuple[int, int] | None = None
    flip: float = 0.0
    stream: int = 0

    def __post_init__(self) -> None:
        if self.crop is not None:
            object.__setattr__(self, "crop", _pair(self.crop))
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

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of images of this size after the crop.

        Raises:
            ValueError: the crop is larger than the image.
        """
        if self.crop is None:
            return height, width
        if self.crop[0] > height or self.crop[1] > width:
            raise ValueError(
                f"a crop of {self.crop[0]} x {self.crop[1]} does not fit into images of {height} x {width} pixels "
                "(is channels= the axis of the channels, counted from the end?)"
            )
        return self.crop

    def draws(self, seeds: Sequence[int], height: int, width: int) -> Draws:
        """Return the crop positions and flips of rows with these seeds, whose images have this size.

        Of the 96 bits that xxh3 makes of a row's seed, 32 choose the top edge among (height - crop height + 1), 32 the
        left edge, and 32 the flip.

        Args:
            seeds: one for each row, 64 bits.
            height, width: the size of the images in pixels.

        Returns:
            int64 (rows, 3): top, left, and 1 where the row is flipped.

        Raises:
            ValueError: the crop is larger than the image.
        """
        high, wide = self.size(height, width)
        key = b"augment" + self.stream.to_bytes(8, "little")
        drawn = [xxhash.xxh3_128_intdigest(key, seed=seed) for seed in seeds]
        numbers = np.array([[d & _MASK, d >> _BITS & _MASK, d >> 2 * _BITS & _MASK] for d in drawn], dtype=np.int64)
        places: Draws = numbers.reshape(-1, 3) * np.array([height - high + 1, width - wide + 1, 0]) >> _BITS
        places[:, 2] = numbers.reshape(-1, 3)[:, 2] < self.flip * 2**_BITS
        return places


_MASK = 2**_BITS - 1

_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _pair(crop: Any) -> tuple[int, int]:
    sides = (crop, crop) if is_whole(crop) else crop
    if not isinstance(sides, tuple | list) or len(sides) != 2 or not all(map(is_whole, sides)):
        raise TypeError(f"crop is (height, width) in pixels, such as (224, 224); got {crop!r}")
    crop = sides
    if min(crop) < 1:
        raise ValueError(f"crop is at least (1, 1); got {crop!r}")
    return int(crop[0]), int(crop[1])


def placed(images: torch.Tensor, draws: Draws, axes: tuple[int, int], size: tuple[int, int]) -> torch.Tensor:
    """Return a batch of images cropped and flipped as drawn, by plain torch operations: the definition.

    Args:
        images: (rows, ...), of any dtype and on any device.
        draws: the draws of each row.
        axes: the axes of height and width, counted from the end.
        size: the (height, width) of the result.
    """
    if images.dtype in _AS_SIGNED:  # torch cannot flip these dtypes
        return placed(images.view(_AS_SIGNED[images.dtype]), draws, axes, size).view(images.dtype)
    rows = [
        _cut(image, top, left, axes, size).flip(axes[1]) if flipped else _cut(image, top, left, axes, size)
        for image, (top, left, flipped) in zip(images, draws.tolist(), strict=True)
    ]
    if not rows:
        return _cut(images, 0, 0, axes, size)
    return torch.stack(rows)


def _cut(image: torch.Tensor, top: int, left: int, axes: tuple[int, int], size: tuple[int, int]) -> torch.Tensor:
    return image.narrow(axes[0], top, size[0]).narrow(axes[1], left, size[1])
