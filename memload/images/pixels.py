"""Decodes images to arrays: rotated as EXIF says, converted to one mode and resized to one size.

image   (channels, height, width)  uint8, or uint16 of 16-bit grey
mask    (height, width)            uint8 or uint16, with the numbers of the file
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.errors import FormatError
from memload.images.files import FORMATS, ImageFile, Pair, pillow, reason_of
from memload.images.forms import Fit, Mode


@dataclass(frozen=True)
class Pixels:
    """The common form of all images of a set.

    Args:
        mode: the mode of the images.
        size: height and width to which images and masks are resized.
        fit: for images of another shape, "stretch" takes the whole image, "crop" the largest central part with the
            proportions of `size`, "pad" the whole image in its own proportions, with a border around it.
        pad_value: the value of the border of images, for each channel.
        mask_pad_value: the value of the border of masks.
        crop: height and width of the central part that is kept of what was resized; None: all of it.
    """

    mode: Mode
    size: tuple[int, int]
    fit: Fit
    pad_value: tuple[int, ...] = ()
    mask_pad_value: int = 0
    crop: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of images and masks in the rows."""
        return self.crop or self.size

    def of(self, pair: Pair) -> dict[str, NDArray[Any]]:
        """Return the arrays of an image and of its mask. Raises FormatError, which names the file."""
        arrays = {"image": self.image(pair.image)}
        return arrays if pair.mask is None else arrays | {"mask": self.mask(pair.mask)}

    def image(self, file: ImageFile) -> NDArray[Any]:
        """Return uint8 (channels, height, width), or uint16 (1, height, width) for mode "I;16".

        Images are resized by Pillow's bicubic filter, which averages when it reduces the size; 16-bit images are
        resized in float32 and rounded to the nearest.
        """
        opened = _decoded(file)
        array = _rotated(np.asarray(_in_mode(opened, self.mode)), file.orientation)
        if file.size != (size := self._inner(file.size)):
            array = self._resized(array, file.size, size)
        array = self._central(self._bordered(array, self.pad_value if array.ndim == 3 else self.pad_value[:1]))
        planes = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        return np.ascontiguousarray(planes)

    def mask(self, file: ImageFile) -> NDArray[Any]:
        """Return uint8 (height, width), or uint16 for 16-bit masks; resized by the nearest pixel.

        A mask with a palette gives the palette's indices; black and white give 0 and 1. Colours count as grey if their
        channels are equal.
        """
        array = _rotated(_mask_numbers(file, _decoded(file)), file.orientation)
        if file.size != (size := self._inner(file.size)):
            rows, columns = map(_nearest, file.size, size, self._scales(file.size, size))
            array = array[rows[:, None], columns]
        return np.ascontiguousarray(self._central(self._bordered(array, (self.mask_pad_value,))))

    def _inner(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of an image of this size in the row, without its border.

        With "pad", the side that is longer relative to the row's fills the row; the other is rounded to the nearest
        whole number, halves up.
        """
        if self.fit != "pad":
            return self.size
        scale = max(Fraction(size[0], self.size[0]), Fraction(size[1], self.size[1]))
        height, width = (max(1, math.floor(side / scale + Fraction(1, 2))) for side in size)
        return height, width

    def _bordered(self, array: NDArray[Any], values: Sequence[int]) -> NDArray[Any]:
        """Return the array in the middle of one of the row's size; of an odd border, the smaller part is before it."""
        if array.shape[:2] == self.size:
            return array
        top, left = ((side - own) // 2 for side, own in zip(self.size, array.shape, strict=False))
        bordered = np.empty((*self.size, *array.shape[2:]), array.dtype)
        bordered[...] = values if array.ndim == 3 else values[0]
        bordered[top : top + array.shape[0], left : left + array.shape[1]] = array
        return bordered

    def _central(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the central part that is kept; where the rest is odd, cut as torchvision's CenterCrop cuts."""
        top, left = (round((side - kept) / 2) for side, kept in zip(self.size, self.shape, strict=True))
        return array[top : top + self.shape[0], left : left + self.shape[1]]

    def _scales(self, size: tuple[int, int], to: tuple[int, int]) -> tuple[Fraction, Fraction]:
        """Return the pixels of the image for one of the row, down and across."""
        down, across = Fraction(size[0], to[0]), Fraction(size[1], to[1])
        return (min(down, across),) * 2 if self.fit == "crop" else (down, across)

    def _box(self, size: tuple[int, int], to: tuple[int, int]) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of the part of the image that is used."""
        height, width = (side * scale for side, scale in zip(to, self._scales(size, to), strict=True))
        box = (size[1] - width, size[0] - height, size[1] + width, size[0] + height)
        left, top, right, bottom = (float(edge / 2) for edge in box)
        return left, top, right, bottom

    def _resized(self, array: NDArray[Any], size: tuple[int, int], to: tuple[int, int]) -> NDArray[Any]:
        image = pillow()
        wide = array.dtype == np.uint16
        source = image.fromarray(np.ascontiguousarray(array, np.float32 if wide else np.uint8))
        resized = np.asarray(source.resize(to[::-1], image.Resampling.BICUBIC, box=self._box(size, to)))
        return np.rint(resized).clip(0, 65535).astype(np.uint16) if wide else resized


def _decoded(file: ImageFile) -> Any:
    try:
        with pillow().open(file.path, formats=FORMATS) as opened:
            opened.load()
    except Exception as error:  # Pillow raises many types
        raise FormatError(f"{file.path}: a damaged image ({reason_of(error)})") from error
    height, width = file.size if file.orientation < 5 else file.size[::-1]
    if (opened.mode, opened.size) != (file.mode, (width, height)):
        raise FormatError(f"{file.path}: changed while it was read: now {opened.mode} {opened.size}")
    return opened


def _in_mode(opened: Any, mode: Mode) -> Any:
    """Return the image in a mode; only RGBA keeps transparency."""
    if opened.mode == mode or mode == "I;16":
        return opened
    if opened.mode in ("P", "PA") or mode == "RGBA":
        opened = opened.convert("RGBA")
    return opened if opened.mode == mode else opened.convert(mode)


def _mask_numbers(file: ImageFile, opened: Any) -> NDArray[Any]:
    """Return the number of each pixel of a mask."""
    if opened.mode == "1":
        return np.asarray(opened).astype(np.uint8)
    array = np.asarray(opened)
    if opened.mode.startswith("I"):
        return array.astype(np.uint16)
    if array.ndim == 2:
        return array
    colours, alpha = (array[..., :-1], array[..., -1]) if opened.mode in ("LA", "RGBA") else (array, None)
    if (alpha is not None and (alpha != 255).any()) or (colours != colours[..., :1]).any():
        raise FormatError(
            f"{file.path}: a mask has one number for each pixel, and this one has {opened.mode} colours"
            f"{' with transparency' if alpha is not None else ''}; write it as grey or with a palette"
        )
    return colours[..., 0]


def _rotated(array: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return (height, width, ...) rotated and mirrored as EXIF's orientation says."""
    if orientation >= 5:
        array = array.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    return array[:, ::-1] if orientation in (2, 3, 6, 7) else array


def _nearest(length: int, count: int, scale: Fraction) -> NDArray[np.int64]:
    """Return for each of `count` new pixels, centred over `length` old ones, the old pixel under its middle.

    The middle of new pixel k is at (length + (2 k + 1 - count) scale) / 2. It is computed in whole numbers, so rounding
    errors cannot decide between two pixels.
    """
    middles = length * scale.denominator + (2 * np.arange(count) + 1 - count) * scale.numerator
    return np.asarray(middles // (2 * scale.denominator), dtype=np.int64)
