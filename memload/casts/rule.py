"""The rule that converts a field's elements for a batch, and its definition in torch operations.

The steps have this order, and each is applied only where it is asked for:

    x = crop or resizing, and flip of each row, as drawn     # augment
    y = x.to(dtype); y = (y - 127) / 255.0                   # norm_removed and x is uint8; with none of the next three
    w = x.to(float32)                                        # float64 where x or dtype is float64
    w = w * scale                                            # each operation rounded to float32
    w = w + offset
    w = (w - mean[channel]) / std[channel]
    y = w.to(dtype)                                          # rounded once
    y = y.movedim(-1, -3)                                    # layout
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import numpy as np
import torch

from memload.casts.augment import Augment, placed
from memload.casts.constants import Constants, check_counts, check_deviations, constants, number, shown
from memload.columns.numbers import is_whole
from memload.dtypes import DTypeLike, as_torch_dtype, dtype_name
from memload.kept_errors import level_outside

_TARGETS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_LAYOUTS = ("NCHW", "channels_last")

Affine = tuple[int, float, float, list[float], list[float]]
"""Elements from one channel to the next, scale, offset, means and deviations by channel, as native code takes them."""


@dataclass(frozen=True, repr=False)
class Cast:
    """How a field is converted: its elements cast to ``dtype``, normalised; its images resized, cropped, flipped.

    Only ``dtype`` is required; nothing else is done unless asked for. With ``scale``, ``offset``, ``mean`` or ``std``
    an element x becomes ``(x * scale + offset - mean) / std``, from left to right, each operation rounded to float32
    (to float64 where x or ``dtype`` is float64), and the result is rounded once to ``dtype``.

    Args:
        dtype: torch.bfloat16, torch.float16, torch.float32 or torch.float64, or a name of one of them: a numpy dtype
            or scalar type, or a text such as "bfloat16". The first two need half the memory and time of float32;
            (x - 127) / 255 in bfloat16 is exact to 1 part in 256, in float16 to 1 in 2048.
        norm_removed: a uint8 element x becomes (x - 127) / 255, between -0.498 and 0.502, each operation rounded to
            ``dtype``. Elements of any other dtype are converted and never normalised. It cannot be combined with
            ``scale``, ``offset``, ``mean`` or ``std``.
        scale, offset: numbers for all elements, such as ``scale=1 / 300`` for betas stored as int16, or
            ``scale=1 / 255`` for pixels that are to lie in [0, 1].
        mean, std: a number for all elements, or one for each channel, such as those of the three colours.
        channels: the axis of a row that has the channels, counted from the end: -1 for images stored as (H, W, C), -3
            for (C, H, W), -2 for spectrograms (frequencies, time) with a mean for each frequency. None: rows have no
            such axis.
        layout: turns batches of images stored as (H, W, C), with ``channels=-1``, into the shape (B, C, H, W). "NCHW"
            moves each channel into a plane of its own; "channels_last" keeps the stored order in memory, at no cost.
        augment: random crops, resizing and flips of images, (H, W) with ``channels=None``, or with ``channels``
            -1 or -3.

    Raises:
        TypeError: ``dtype`` is none of these, ``norm_removed`` is no bool, or another argument has the wrong type.
        ValueError: a number is not finite, ``std`` is 0, or arguments exclude each other.

    Example:
        >>> Cast(torch.float32, norm_removed=True).apply(torch.tensor([127, 0], dtype=torch.uint8))
        tensor([ 0.0000, -0.4980])
        >>> rule = Cast(torch.float32, scale=1 / 2, mean=(1.0, 2.0), std=(1.0, 4.0), channels=-1)
        >>> rule.apply(torch.tensor([[4, 4], [8, 8]], dtype=torch.int16))
        tensor([[1.0000, 0.0000],
                [3.0000, 0.5000]])
    """

    dtype: torch.dtype
    norm_removed: bool = False
    _: KW_ONLY
    scale: float | None = None
    offset: float | None = None
    mean: Constants | None = None
    std: Constants | None = None
    channels: int | None = None
    layout: str | None = None
    augment: Augment | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _target(self.dtype))
        if not isinstance(self.norm_removed, bool | np.bool_):
            raise TypeError(f"norm_removed is True or False; got {self.norm_removed!r}")
        object.__setattr__(self, "norm_removed", bool(self.norm_removed))
        for name in ("scale", "offset"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(name, getattr(self, name), self.dtype))
        for name in ("mean", "std"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, constants(name, getattr(self, name), self.dtype))
        if self.computes:
            self._check_constants()
        self._check_images()

    def _check_constants(self) -> None:
        if self.norm_removed:
            raise ValueError(
                "norm_removed=True is (x - 127) / 255 and excludes scale=, offset=, mean= and std=; of uint8 elements "
                "mean=127, std=255 makes the same"
            )
        check_deviations(self.std)
        check_counts(self.mean, self.std)
        if self.channels is None and (isinstance(self.mean, tuple) or isinstance(self.std, tuple)):
            raise ValueError("mean= or std= by channel needs channels=, the axis of the channels counted from the end")

    def _check_images(self) -> None:
        if self.channels is not None:
            if not is_whole(self.channels):
                raise TypeError(f"channels is the axis of the channels, such as -1; got {self.channels!r}")
            object.__setattr__(self, "channels", int(self.channels))
            if self.channels >= 0:
                raise ValueError(f"channels is counted from the end, -1 being the last axis; got {self.channels}")
        if isinstance(self.layout, torch.memory_format) and self.layout == torch.channels_last:
            object.__setattr__(self, "layout", "channels_last")
        if self.layout is not None and self.layout not in _LAYOUTS:
            raise ValueError(f"layout is one of {', '.join(map(repr, _LAYOUTS))}, or None; got {self.layout!r}")
        if self.layout is not None and self.channels != -1:
            raise ValueError(
                f"layout={self.layout!r} is for images that are stored as (H, W, C), with channels=-1; "
                f"got channels={self.channels}"
            )
        if self.augment is not None and not isinstance(self.augment, Augment):
            raise TypeError(f"augment is a memload.Augment; got {self.augment!r}")
        if self.augment is not None and self.channels not in (None, -1, -3):
            raise ValueError(
                "images that are cropped or flipped are (H, W) with channels=None, (H, W, C) with channels=-1 or "
                f"(C, H, W) with channels=-3; got channels={self.channels}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes the rule, without what was computed from it."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @functools.cached_property
    def computes(self) -> bool:
        """Whether the rule has any of ``scale``, ``offset``, ``mean`` and ``std``."""
        return not (self.scale is None and self.offset is None and self.mean is None and self.std is None)

    @functools.cached_property
    def places(self) -> bool:
        """Whether pixels change their places in memory: a crop, resizing, a flip, or the layout "NCHW"."""
        return self.augment is not None or self.layout == "NCHW"

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether the rule has no options but ``dtype`` and ``norm_removed``."""
        return not self.computes and self.layout is None and self.augment is None

    @functools.cached_property
    def channel_count(self) -> int:
        """The number of channels in ``mean`` or ``std``; 0 if both are single numbers or missing."""
        return max((len(given) for given in (self.mean, self.std) if isinstance(given, tuple)), default=0)

    @property
    def image_axes(self) -> tuple[int, int]:
        """The axes of height and width of a stored image, counted from the end."""
        return (-3, -2) if self.channels == -1 else (-2, -1)

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a row of this shape after the cast.

        Raises:
            ValueError: the rule is not for rows of that shape; the message names the shapes that it accepts.
        """
        sides = list(shape)
        if self.channels is not None and -self.channels > len(sides):
            raise ValueError(f"channels={self.channels} is no axis of rows of the shape {tuple(shape)}")
        if self.channel_count and self.channels is not None and sides[self.channels] != self.channel_count:
            raise ValueError(
                f"mean= or std= has {self.channel_count} numbers, but rows of the shape {tuple(shape)} have "
                f"{sides[self.channels]} channels along the axis {self.channels}"
            )
        if self.augment is not None or self.layout is not None:
            if len(sides) < -self.image_axes[0]:
                raise ValueError(
                    f"rows of the shape {tuple(shape)} are no images "
                    f"{'(H, W, C)' if self.channels == -1 else '(C, H, W)' if self.channels else '(H, W)'}"
                )
            if self.augment is not None and self.channels is None and _ends_in_channels(sides):
                raise ValueError(
                    f"rows of the shape {tuple(shape)} seem to be images (H, W, C), of which channels=None takes "
                    "the last two axes for height and width: give channels=-1, or channels=-3 if they are (C, H, W)"
                )
            high, wide = self.image_axes
            if self.augment is not None:
                sides[high], sides[wide] = self.augment.size(sides[high], sides[wide])
        if self.layout is not None:
            sides.insert(len(sides) - 3, sides.pop())
        return tuple(sides)

    def apply(self, x: torch.Tensor, seeds: Sequence[int] | None = None) -> torch.Tensor:
        """Return ``x`` after the cast, by plain torch operations on any device: the definition of the rule.

        Gradients flow through a floating-point ``x`` as through the operations.

        Args:
            x: a batch; without ``augment`` also a single row.
            seeds: one for each row, 64 bits, if there is ``augment``.

        Raises:
            TypeError: ``x`` is complex, or seeds are missing.
            ValueError: the rule is not for a tensor of this shape, or there are more or fewer seeds than rows.
        """
        if x.is_complex():
            raise TypeError(f"no cast from {x.dtype} to {self.dtype}: take x.real, x.imag or x.abs() first")
        if self.is_plain:
            return self._converted(x)
        if self.augment is not None:
            x = self._augmented(x, self.augment, seeds)
        else:
            self.row_shape(x.shape)
        y = self._computed(x) if self.computes else self._converted(x)
        if self.layout is not None:
            y = y.movedim(-1, -3)
        return y if self.layout != "NCHW" else y.contiguous()

    def _converted(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(self.dtype)
        if self.norm_removed and x.dtype == torch.uint8:
            # A tensor as divisor: on CUDA, torch multiplies by the inverse of a number, which rounds differently.
            y = (y - 127) / y.new_full((), 255.0)
        return y

    def _computed(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(self.computes_in(x.dtype)).resolve_neg()  # new_tensor of torch refuses lazily negated ones
        if self.scale is not None:
            y = y * y.new_tensor(self.scale)
        if self.offset is not None:
            y = y + y.new_tensor(self.offset)
        if self.mean is not None:
            y = y - self._along(y, self.mean)
        if self.std is not None:
            y = y / self._along(y, self.std)
        return y.to(self.dtype)

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype to which the operations on elements of this one are rounded."""
        return torch.float64 if torch.float64 in (dtype, self.dtype) else torch.float32

    def _along(self, y: torch.Tensor, given: Constants) -> torch.Tensor:
        constants = y.new_tensor(given)
        if isinstance(given, tuple) and self.channels is not None:
            return constants.view(-1, *(1,) * (-self.channels - 1))
        return constants

    def _augmented(self, x: torch.Tensor, augment: Augment, seeds: Sequence[int] | None) -> torch.Tensor:
        if seeds is None:
            raise TypeError("a cast with augment= draws for each row: give apply() a batch, and the seeds of its rows")
        if len(seeds) != len(x):
            raise ValueError(f"a cast with augment= draws for each row: got {len(seeds)} seeds for {len(x)} rows")
        self.row_shape(x.shape[1:])
        high, wide = self.image_axes
        return placed(x, augment.draws(seeds, x.shape[high], x.shape[wide]), self.image_axes, augment)

    def __repr__(self) -> str:
        return self._text(shown)

    def _text(self, told: Callable[[Any], str]) -> str:
        given = [one for one in fields(self) if one.name == "norm_removed" or getattr(self, one.name) != one.default]
        return f"{type(self).__name__}({', '.join(f'{one.name}={told(getattr(self, one.name))}' for one in given)})"


_MOST_CHANNELS = 4


def _ends_in_channels(sides: Sequence[int]) -> bool:
    """Return whether the last axis of a row of images is one of channels, since no image is so narrow."""
    return len(sides) >= 3 and sides[-1] <= _MOST_CHANNELS < min(sides[-3:-1])


def native_arithmetic(rule: Cast, dtype: torch.dtype, row_shape: Sequence[int]) -> bool | Affine:
    """Return how native code converts elements of this dtype, in stored rows of this shape.

    Returns:
        Whether to normalise, or the constants.
    """
    if not rule.computes:
        return rule.norm_removed and dtype == torch.uint8
    channels = rule.channel_count
    inner = math.prod(row_shape[rule.channels :][1:]) if channels and rule.channels is not None else 1
    scale = 1.0 if rule.scale is None else rule.scale
    offset = -0.0 if rule.offset is None else rule.offset  # changes nothing, but 0.0 would change -0.0
    count = channels or 1
    return max(1, inner), scale, offset, _each(rule.mean, 0.0, count), _each(rule.std, 1.0, count)


def _each(given: Constants | None, otherwise: float, count: int) -> list[float]:
    if isinstance(given, tuple):
        return list(given)
    return [otherwise if given is None else given] * count


def exact_text(rule: Cast | None) -> str:
    """Return a text with all numbers of a rule, as keys of caches need it; `repr` tells many by a digest."""
    return rule._text(repr) if type(rule) is Cast else repr(rule)


def as_cast(given: Cast | DTypeLike) -> Cast:
    """Return a `Cast` unchanged, and for a dtype or its name the plain cast to it.

    Raises:
        TypeError: `given` is neither.
    """
    return given if isinstance(given, Cast) else Cast(_target(given))


def casts_by_field(given: Mapping[Any, Any] | None, option: str = "cast") -> dict[Any, Cast]:
    """Return the `Cast` of each field from the value of an option; None means no casts.

    Args:
        given: casts or dtypes by field, as `as_cast` takes them.
        option: the user's name of the option.

    Raises:
        TypeError: `given` is no mapping, or one of its values is neither a cast nor a dtype.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f'{option}= maps fields to casts or dtypes, such as {{"stim": torch.bfloat16}} or '
            f'{{"stim": Cast(torch.float32, norm_removed=True)}}; got {given!r}'
        )
    casts = {}
    for key, wanted in given.items():
        try:
            casts[key] = as_cast(wanted)
        except TypeError as error:
            raise TypeError(f"{option}= of the field {key!r}: {error}") from None
    return casts


def _target(given: Any) -> torch.dtype:
    try:
        dtype = as_torch_dtype(given)
    except TypeError:
        dtype = None
    if dtype not in _TARGETS:
        allowed = ", ".join(map(str, _TARGETS))
        raise TypeError(f"a cast is to one of the dtypes {allowed}, or their names; got {given!r}")
    return dtype


def warn_of_scale(key: Any, cast: Cast, meant: tuple[float, float] | None) -> None:
    """Warn where a cast to a dtype alone leaves out what a file means by the values of a field.

    Args:
        key: the field.
        cast: what becomes of it.
        meant: scale and offset that its file states; None: there are none.
    """
    if meant is not None and cast.is_plain:
        scale, offset = meant
        warnings.warn(
            f"field {key!r}: its file means {scale:g} times the stored values plus {offset:g}, which a cast to a dtype "
            f"leaves out; ds.casts has it, as float32. For another dtype give Cast({dtype_name(cast.dtype)!r}, "
            f"scale={scale!r}, offset={offset!r}), and scale=1 for the values as they are stored",
            RuntimeWarning,
            stacklevel=level_outside(),
        )
