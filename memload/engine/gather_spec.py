"""What the native engine reads: fields, casts, and the structure of a batch. Which datasets give
it: those of memload by `__memload_source__`, others by readers.py."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from memload._core import Column, EventCounts, Slices, Windows
from memload.casts.augment import DrawRule, draw_rule
from memload.casts.native import (
    CASTABLE,
    ImageShape,
    ResizeMethod,
    cast_tensor,
    fits,
    image_shape,
    image_sides,
    resize_method,
)  # fmt: skip
from memload.casts.rule import Affine, Cast, native_arithmetic, warn_of_scale
from memload.columns.fields import AnyColumn, Field
from memload.columns.ragged_fields import RaggedField, forms_of_fields
from memload.columns.ragged_samples import Forms
from memload.dtypes import code_of
from memload.engine.layout import DictOf, Layout, ListOf, Only, paths
from memload.engine.mutation_guards import MutationGuard
from memload.kept_errors import level_outside

if TYPE_CHECKING:
    from memload.formats.remote.block_cache import BlockCache

Key = str | int | tuple[str | int, ...]
"""Names a field of a batch: a name, a position, or, where containers lie in containers, the path of both."""

Take = Callable[[Any], torch.Tensor]
"""Makes a tensor of an array of the pipeline."""

Converts = Callable[[torch.Tensor, Cast], torch.Tensor]
"""Does a cast that the gather has left over."""

Images = tuple[ImageShape, DrawRule | None, ResizeMethod | None]
"""The shapes of an image, what the draws of a row depend on, if there are any, and how images are resized, if so."""

PipelineField = tuple[AnyColumn, tuple[str, str, bool | Affine] | None, int, int, list[int], Images | None]
"""Column, cast, DLPack code, bits, shape of a row, and its images, if their pixels change places."""

_CAST_TARGETS = {"F16", "BF16", "F32", "F64"}

# DLPack's type codes for the dtypes that torch takes through it; others travel as unsigned integers of their width.
_DLPACK_CODES = {torch.bool: 6, torch.bfloat16: 4, torch.complex64: 5}
_DLPACK_UINT = 1


class NotNative(Exception):  # noqa: N818 - an answer, not an error: the loader goes on with stock machinery
    """Why a dataset cannot be read natively, as one sentence that also says how to change that."""


@dataclass(frozen=True)
class ImpliedCast(Cast):
    """The conversion of a field from its stored dtype that a dataset's own format implies; to any dtype.

    Args:
        then: the loader's cast of the converted field.
    """

    then: Cast | None = None

    def __post_init__(self) -> None:
        pass  # any dtype

    def apply(self, x: torch.Tensor, seeds: Sequence[int] | None = None) -> torch.Tensor:
        """Return `x` after both."""
        y = x.to(self.dtype)
        return y if self.then is None else self.then.apply(y, seeds)


@dataclass(frozen=True)
class GatherSpec:
    """A dataset as the engine sees it.

    Attributes:
        fields: by key, in the order of a batch.
        layout: the containers in which they lie there.
        casts: casts of fields, applied while gathering; fields without an entry stay as they are.
        takes_lists: whether ``dataset[[3, 1]]`` is the batch of these rows.
        whole: whether a stock loader's collate function gets a batch, rather than a list of samples.
        collate: that function, which is called with each gathered batch; None: none is called.
        guards: detect whether the data is changed during a pass.
        maps: functions that each sample goes through after the gather, in this order.
        late_casts: casts of fields that are applied after the gather: to batches of mapped samples, and to images whose
            pixels change places where the gather cannot do it.
        tags: fields that are ints in a sample of the dataset.
        raw: whether batches are gathered uncast, since they are cast on a device.
        uncastable: fields that cannot be cast, each with the reason as the end of a sentence about it.
    """

    fields: Mapping[Key, Field]
    layout: Layout
    casts: Mapping[Key, Cast]
    takes_lists: bool = False
    whole: bool = False
    collate: Callable[[Any], Any] | None = None
    guards: tuple[MutationGuard, ...] = ()
    maps: tuple[Callable[..., Any], ...] = ()
    late_casts: Mapping[Any, Cast] | None = None
    tags: tuple[Key, ...] = ()
    raw: bool = False
    uncastable: Mapping[str, str] | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return next(iter(self.fields.values())).rows

    @property
    def is_ragged(self) -> bool:
        """Whether the rows of a field differ in length."""
        return any(isinstance(field, RaggedField) for field in self.fields.values())

    def behind(self) -> tuple[bool, list[BlockCache]]:
        """Return whether a cache of the hybrid tier is in front of a field, and `caches`."""
        storages = [storage for field in self.fields.values() for storage in field.column.storages]
        origins = {storage.origin: None for storage in storages if storage.origin is not None}
        return any(storage.cache is not None for storage in storages), list(origins)

    @functools.cached_property
    def caches(self) -> list[BlockCache]:
        """What fetches the rows of sets in stores; none for rows of files and of memory."""
        return self.behind()[1]

    @property
    def selection_bytes(self) -> int:
        """Bytes of the row selections of all fields."""
        return sum(field.column.selection_bytes for field in self.fields.values())

    @property
    def forms(self) -> Forms:
        """Of the fields whose rows differ in length, by their name, position or path in a batch."""
        places = paths(self.layout)
        if len(places) != len(self.fields):  # a batch of graphs
            return {}
        keys = [place[0] if len(place) == 1 else place for place in places]
        return forms_of_fields(dict(zip(keys, self.fields.values(), strict=True)))

    def check_in_place(self) -> None:
        """Raise RuntimeError if the memory of a tensor was moved since its field was made."""
        for field in self.fields.values():
            for owner in field.owners:
                owner.check()

    def warn_of_longer_files(self) -> None:
        """Warn if a file has become longer since it was opened: one that was written anew has rows elsewhere."""
        for storage in {storage for field in self.fields.values() for storage in field.column.storages}:
            now = storage.size_now
            if now is not None and now > storage.nbytes:
                warnings.warn(
                    f"{storage.name}: had {storage.nbytes:,} bytes when it was opened and has more now. Unless bytes "
                    "were only added at its end, rows are read where they no longer are: open the data set again",
                    RuntimeWarning,
                    stacklevel=level_outside(),
                )

    def with_casts(self, casts: Mapping[Any, Cast]) -> GatherSpec:
        """Return this source with casts for some fields.

        Raises:
            KeyError: a cast names a field that is not there.
            ValueError: a field is cast already, or cannot be cast so.
        """
        if self.maps:  # which fields there are is for the functions to say
            return replace(self, late_casts=dict(casts))
        early, late = dict(self.casts), dict(self.late_casts or {})
        for key, cast in casts.items():
            self._check_cast(key, cast)
            held = self.casts.get(key)
            if cast.places and not self._gathers_images(key, cast):
                late[key] = cast
            else:
                early[key] = replace(held, then=cast) if isinstance(held, ImpliedCast) else cast
        return replace(self, casts=early, late_casts=late)

    def _check_cast(self, key: Any, cast: Cast) -> None:
        if key not in self.fields:
            raise KeyError(f"cast= names the field {key!r}; the dataset has {', '.join(map(repr, self.fields))}")
        field, held = self.fields[key], self.casts.get(key)
        kind, item_shape = field.kind, field.item_shape
        if kind == "text":
            raise ValueError(f"the field {key!r} is text, which cannot be cast: leave it out of cast=")
        if refusal := (self.uncastable or {}).get(str(key)):
            raise ValueError(f"the field {key!r} {refusal}")
        if held is not None and not (isinstance(held, ImpliedCast) and held.then is None):
            raise ValueError(f"the field {key!r} is cast by the dataset already: leave it out of cast=")
        if isinstance(field, RaggedField) and (cast.layout is not None or cast.augment is not None):
            raise ValueError(
                f"the rows of the field {key!r} differ in length and are no images: leave out layout= and augment="
            )
        warn_of_scale(key, cast, field.meant)
        try:
            cast.row_shape(item_shape)
            if cast.augment is not None:
                cast.augment.check_dtype(field.dtype if held is None else held.dtype)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the field {key!r}: {error}{_of_items(field)}") from None

    def as_raw(self) -> GatherSpec:
        """Return this source for batches that are gathered as they are stored; images are laid out anew behind that."""
        placed = {key: cast for key, cast in self.casts.items() if cast.places}
        rest = {key: cast for key, cast in self.casts.items() if key not in placed}
        return replace(self, raw=True, casts=rest, late_casts={**(self.late_casts or {}), **placed})

    @property
    def late_row_bytes(self) -> int:
        """Bytes per row of the fields that are cast after the gather."""
        late = {} if self.maps else self.late_casts or {}
        return sum(
            math.prod(cast.row_shape(self.fields[key].shape)) * cast.dtype.itemsize for key, cast in late.items()
        )

    def pipeline_fields(self) -> list[PipelineField]:
        """Return the fields as the native pipeline takes them; with `raw`, those that a device makes more of first."""
        return [_pipeline_field(self.fields[key], self._fused(key)) for key in self._order]

    def made_there(self) -> list[torch.dtype]:
        """Return the dtypes of what a device makes, with `raw`, of the first fields of the pipeline."""
        return [self.fields[key].built or self.casts[key].dtype for key in self._order if self.is_made(key)]

    @property
    def makes_plain_containers(self) -> bool:
        """Whether batches are tensors, dicts, lists and rows that differ in length, wherever their memory is."""
        texts = any(field.kind == "text" for field in self.fields.values())
        return not texts and _plain_containers(self.layout)

    def below(self, name: str | int) -> GatherSpec:
        """Return this source with the keys that its fields have as those of a member of that name."""
        if self.layout == Only():
            keys: dict[Key, Key] = dict.fromkeys(self.fields, name)
        else:
            keys = {key: (name, *key) if isinstance(key, tuple) else (name, key) for key in self.fields}
        fields = {keys[key]: field for key, field in self.fields.items()}
        return replace(self, fields=fields, casts={keys[key]: cast for key, cast in self.casts.items()})

    def unpacker(self, take: Take = from_dlpack, cast: Converts = cast_tensor) -> Callable[[list[Any]], Any]:
        """Return the function that makes a batch of the pipeline's arrays, as default_collate would shape it.

        Args:
            take: makes a tensor of an array of the pipeline, a DLPack capsule unless the pipeline was told otherwise.
            cast: does the casts that the gather leaves over.
        """
        if self.collate is not None:
            collate, unpack = self.collate, replace(self, collate=None).unpacker(take, cast)
            return lambda capsules: collate(unpack(capsules))
        tensors, layout = self._tensors(take, cast), self.layout
        if layout == Only():
            return lambda capsules: tensors(capsules)[0]
        if layout == ListOf((Only(),) * len(self.fields)):
            return tensors
        if isinstance(layout, DictOf) and all(member == Only() for _, member in layout.members):
            names = [name for name, _ in layout.members]
            return lambda capsules: dict(zip(names, tensors(capsules), strict=True))
        return lambda capsules: layout.build(iter(tensors(capsules)))

    def _tensors(self, take: Take, cast: Converts) -> Callable[[list[Any]], list[Any]]:
        order = self._order
        fields = [self.fields[key] for key in order]
        finish = [_finisher(self.fields[key], self._fused(key), self.casts.get(key), cast) for key in order]
        if any(isinstance(field, RaggedField) or field.built for field in fields):
            late = [self.is_made(key) and self._fused(key) is None for key in order]
            return self._in_place(_assembler(fields, finish, late, take))
        if not any(finish):
            return self._in_place(lambda capsules: [take(capsule) for capsule in capsules])
        steps = [step or as_it_is for step in finish]
        return self._in_place(lambda capsules: [step(take(c)) for step, c in zip(steps, capsules, strict=True)])

    def _in_place(self, tensors: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        """What makes the fields in their own order, of what makes them in that of the pipeline."""
        order = self._order
        if order == list(self.fields):
            return tensors
        places = [order.index(key) for key in self.fields]

        def reordered(capsules: list[Any]) -> list[Any]:
            made = tensors(capsules)
            return [made[place] for place in places]

        return reordered

    @property
    def _order(self) -> list[Key]:
        return sorted(self.fields, key=lambda key: not self.is_made(key)) if self.raw else list(self.fields)

    def is_made(self, key: Key) -> bool:
        """Whether a cast, a conversion or windows are left to be made of a field of a batch that is gathered raw."""
        cast, field = self.casts.get(key), self.fields[key]
        return field.built is not None or (cast is not None and not (cast.is_plain and cast.dtype == field.dtype))

    def _fused(self, key: Key) -> Cast | None:
        """The cast of a field if the gather can do it."""
        cast = self.casts.get(key)
        dtype = self.fields[key].dtype
        if isinstance(cast, ImpliedCast) and cast.then is not None:
            return None
        if self.raw or cast is None:
            return None
        if cast.dtype == dtype and not (cast.norm_removed or cast.computes or cast.places):
            return None
        known = code_of(dtype) in CASTABLE and code_of(cast.dtype) in _CAST_TARGETS
        return cast if known and (not cast.computes or _is_fused(cast, self.fields[key])) else None

    def _gathers_images(self, key: Key, cast: Cast) -> bool:
        """Whether the gather can crop, resize, mirror and lay out the images of a field."""
        field = self.fields[key]
        known = code_of(field.dtype) in CASTABLE and self.collate is None and key not in self.casts
        alone = field.built is None and not isinstance(field, RaggedField)
        return known and alone and fits(cast, field.shape) and _is_fused(cast, field)


def _of_items(field: Field) -> str:
    """What a cast sees of rows that differ in length, for messages."""
    if not isinstance(field, RaggedField):
        return ""
    remedy = f": {field.remedy}" if field.axis else ""
    channels = ", and give channels=-1" if field.axis and len(field.shape) == 2 else ""
    return f"; a cast sees single items of the rows {field.shape}, behind the axis None{remedy}{channels}"


def _is_fused(cast: Cast, field: Field) -> bool:
    """Whether the gather knows of which channel the elements are: in rows that are one run of bytes, or such frames.

    Images that are laid out anew lie whole in such a row or frame.
    """
    column: AnyColumn = field.column
    if isinstance(field, RaggedField):
        return False
    elements = math.prod(field.shape)
    if isinstance(column, EventCounts) or (isinstance(column, Slices) and column.blends):
        return not cast.places  # they are computed, and then cast as one run
    if isinstance(column, Windows | Slices):
        elements //= max(1, len(column.steps) if isinstance(column, Windows) else column.grid[0])
        column = column.frames
    if not isinstance(column, Column):
        return False
    along = field.shape[cast.channels :] if cast.channel_count and cast.channels is not None else ()
    if cast.places:
        along = tuple(image_sides(cast, field.shape))
    return bool(elements > 0 and elements % math.prod(along) == 0)


def _pipeline_field(field: Field, cast: Cast | None) -> PipelineField:
    code = code_of(field.dtype)
    dtype = field.dtype if cast is None else cast.dtype
    dlpack, fused = _dlpack_code(dtype), None
    if cast is not None:
        fused = code, code_of(dtype), native_arithmetic(cast, field.dtype, field.shape)
    shape: list[int] = list(field.item_shape)
    images: Images | None = None
    if cast is not None and cast.places:
        images = image_shape(cast, shape), _draw_rule(cast, shape), resize_method(cast, shape)
        shape = list(cast.row_shape(shape)) if cast.layout != "channels_last" else _as_in_memory(cast, shape)
    return field.pipeline_column_as(dtype), fused, dlpack, dtype.itemsize * 8, shape, images


def _draw_rule(cast: Cast, shape: Sequence[int]) -> DrawRule | None:
    high, wide = cast.image_axes
    return None if cast.augment is None else draw_rule(cast.augment, shape[high], shape[wide])


def _as_in_memory(cast: Cast, shape: Sequence[int]) -> list[int]:
    """The shape of a row whose channels stay last in memory."""
    *before, channels, height, width = cast.row_shape(shape)
    return [*before, height, width, channels]


def _plain_containers(layout: Layout) -> bool:
    if isinstance(layout, DictOf):
        return all(_plain_containers(member) for _, member in layout.members)
    return all(map(_plain_containers, layout.members)) if isinstance(layout, ListOf) else layout == Only()


def _assembler(
    fields: list[Field], finish: list[Callable[[torch.Tensor], torch.Tensor] | None], late: list[bool], take: Take
) -> Callable[[list[Any]], list[Any]]:
    """What makes the fields of a batch of capsules of which some fields have several; `late` ones are cast here."""
    steps = [(field, step or as_it_is, cast) for field, step, cast in zip(fields, finish, late, strict=True)]

    def assemble(capsules: list[Any]) -> list[Any]:
        outputs = map(take, capsules)
        made = []
        for field, step, cast in steps:
            values = field.assembled(step(next(outputs)), outputs)
            made.append(field.padded_again(values) if cast and isinstance(field, RaggedField) else values)
        return made

    return assemble


def _dlpack_code(dtype: torch.dtype) -> int:
    if dtype in _DLPACK_CODES:
        return _DLPACK_CODES[dtype]
    if dtype in (torch.float16, torch.float32, torch.float64):
        return 2
    return 0 if dtype in (torch.int8, torch.int16, torch.int32, torch.int64) else _DLPACK_UINT


def as_it_is(x: Any) -> Any:
    """Return this."""
    return x


def _finisher(
    field: Field,
    fused: Cast | None,
    wanted: Cast | None,
    cast: Converts,
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What is left to do to a tensor that comes out of the pipeline; None: nothing."""
    dtype = field.dtype if fused is None else fused.dtype
    if wanted is not None and fused is None and not (wanted.is_plain and wanted.dtype == dtype):
        return lambda x: cast(x.view(dtype), wanted)
    if wanted is not None and wanted.layout == "channels_last":
        return lambda x: x.movedim(-1, -3)
    if _dlpack_code(dtype) == _DLPACK_UINT and dtype != torch.uint8:
        return lambda x: x.view(dtype)
    return None
