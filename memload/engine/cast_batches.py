"""Casts behind the stock machinery: what the native engine does while it gathers, done to finished batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from memload.casts.native import Memory, cast_tensor
from memload.casts.rule import Cast
from memload.columns.graph_attributes import GraphBatch
from memload.columns.ragged_forms import Padded, Ragged, is_ragged, with_values
from memload.engine.iterators import AroundBatches
from memload.engine.transforms.seeding import PassSeed
from memload.formats.geometric import is_data
from memload.nested import refilled
from memload.sampling.draws import Indices
from memload.sampling.torch_draws import drawn_seed


def draws_of(casts: Mapping[Any, Cast]) -> bool:
    """Whether a cast crops or flips at random."""
    return any(cast.augment is not None for cast in casts.values())


@dataclass
class Casting:
    """How the fields of one batch are cast.

    Args:
        seed: what the randomness of the pass follows from; None: a number drawn from torch's default generator.
        batch: the rows of the batch; or where they are not known its number.
        memory: lends that of the results; called with the number of the field, from 0, and bytes. None: it is fresh.
        batched: whether the first axis of a field counts rows; False: there is one row, without an axis for it; None:
            that is not known.
    """

    seed: PassSeed | None = None
    batch: Indices | int = 0
    memory: Callable[[int, int], torch.Tensor] | None = None
    batched: bool | None = None
    _fields: int = field(init=False, default=0)

    def of(self, cast: Cast, values: Any) -> Any:
        """Return a field of the batch after its cast.

        Raises:
            TypeError: the field is no tensor.
            ValueError: its rows are not those that the cast is for.
        """
        if is_ragged(values):
            if cast.layout is not None or cast.augment is not None:
                raise ValueError("rows that differ in length are no images: leave out layout= and augment=")
            return with_values(values, cast.apply)
        if not isinstance(values, torch.Tensor):
            raise TypeError(f"cast= is for tensors, and the batch has a {type(values).__name__} there")
        number, self._fields = self._fields, self._fields + 1
        if self.batched and values.ndim:  # a rule for more axes than a row has would take the rows for one of them
            cast.row_shape(values.shape[1:])
        if self.batched is False and cast.augment is not None:
            return self._made(cast, values[None], self.seeds(cast, 1), number)[0]
        seeds = None if cast.augment is None else self.seeds(cast, len(values))
        return self._made(cast, values, seeds, number)

    def _made(self, cast: Cast, values: torch.Tensor, seeds: Sequence[int] | None, number: int, /) -> torch.Tensor:
        return cast_tensor(values, cast, seeds, self._memory(number))

    def seeds(self, cast: Cast, count: int) -> list[int] | None:
        """Return the seeds of so many rows of the batch; None for a cast that draws nothing."""
        if cast.augment is None:
            return None
        if self.seed is None:
            self.seed = PassSeed(drawn_seed(None))
        return self.seed.of_samples(self.batch, count)

    def _memory(self, number: int) -> Memory | None:
        lend = self.memory
        return None if lend is None else lambda nbytes: lend(number, nbytes)


class CastBatches(AroundBatches):
    """The batches of an iterator with some of their fields cast.

    Args:
        batches: an iterator with a length.
        casts: by key of a mapping, or by position in a sequence.
        names: names of the positions, where the dataset has any.
        grouped: whether a batch is a list of groups, each with the fields of its dataset.
        seed: what the randomness of the pass follows from.
        number: of the first of these batches, counted from the beginning of the pass.
        batched: see `Casting`.
    """

    def __init__(
        self,
        batches: Any,
        casts: Mapping[Any, Cast],
        names: Sequence[str] = (),
        grouped: bool = False,
        *,
        seed: PassSeed | None = None,
        number: int = 0,
        batched: bool | None = None,
    ) -> None:
        super().__init__(batches)
        self._casts = casts
        self._names = list(names)
        self._grouped = grouped
        self._seed, self._number, self._batched = seed, number, batched

    def __next__(self) -> Any:
        batch = next(self._batches)
        number, self._number = self._number, self._number + 1
        casting = Casting(self._seed, number, batched=self._batched)
        return cast_batch(batch, self._casts, self._names, self._grouped, casting)


def cast_batch(
    batch: Any,
    casts: Mapping[Any, Cast],
    names: Sequence[Any] = (),
    grouped: bool = False,
    casting: Casting | None = None,
) -> Any:
    """Return a batch like this one, with its fields cast; the arguments are those of `CastBatches`.

    Raises:
        KeyError: a cast is for a field that the batch does not have.
        TypeError: the batch has no fields.
        ValueError: a field is not what its cast is for.
    """
    casting = casting or Casting()
    if grouped:  # not every dataset has every field
        check_groups(casts)
        return [
            cast_batch(group, {key: casts[key] for key in casts if key in group}, casting=casting) for group in batch
        ]
    paths = [key for key in casts if isinstance(key, tuple)]
    for path in paths:
        batch = _inside(batch, path, casts[path], casting)
    if paths:
        casts = {key: cast for key, cast in casts.items() if key not in paths}
    if not casts:
        return batch
    if isinstance(batch, GraphBatch):
        return GraphBatch.of(cast_batch(batch.attributes, casts, casting=casting))
    if isinstance(batch, Mapping) or is_data(batch):
        done: Any = copy.copy(batch)
        for key, cast in casts.items():
            if key not in batch:
                there = batch if isinstance(batch, Mapping) else batch.to_dict()
                raise KeyError(f"cast= names the field {key!r}; batches have {', '.join(map(repr, there))}")
            done[key] = _named(key, casting, cast, batch[key])
        return done
    if isinstance(batch, torch.Tensor | Ragged | Padded) and list(casts) == list(names):
        return _named(names[0], casting, casts[names[0]], batch)
    if isinstance(batch, list | tuple):
        return _rebuilt(batch, {_position(key, names, len(batch)): cast for key, cast in casts.items()}, casting)
    raise TypeError(
        f"cast= needs batches with fields, that is dicts, lists or tuples; got {type(batch).__name__}. "
        "Cast in the loop instead, by memload.cast_stim"
    )


def check_groups(casts: Mapping[Any, Cast]) -> None:
    """Raise ValueError if a cast is none that can be done to batches by groups."""
    for key, cast in casts.items():
        if cast.augment is not None:
            raise ValueError(
                f"the field {key!r}: batches by groups are neither cropped, resized nor flipped: do what augment= "
                "would in batch_transform=, which gets the list of groups"
            )


def _inside(batch: Any, path: tuple[Any, ...], cast: Cast, casting: Casting) -> Any:
    """A batch like this one, with what lies at the end of the path cast."""
    if len(path) == 1:
        return cast_batch(batch, {path[0]: cast}, casting=casting)
    if isinstance(batch, Mapping) and path[0] in batch:
        done: Any = copy.copy(batch)
        done[path[0]] = _inside(batch[path[0]], path[1:], cast, casting)
        return done
    if isinstance(batch, list) and isinstance(path[0], int) and 0 <= path[0] < len(batch):
        return [_inside(value, path[1:], cast, casting) if k == path[0] else value for k, value in enumerate(batch)]
    raise KeyError(f"cast= names the field {path!r}; there is no {path[0]!r} in a batch of it")


def _position(key: Any, names: Sequence[str], length: int) -> int:
    if key in names:
        return names.index(key)
    if not isinstance(key, int) or not 0 <= key < length:
        raise KeyError(
            f"cast= names the field {key!r}; batches have the positions 0 to {length - 1}, and no names where "
            ".map(fn) returns tuples: give a position, as in cast={0: torch.float32}"
        )
    return key


def _rebuilt(batch: list[Any] | tuple[Any, ...], casts: Mapping[int, Cast], casting: Casting) -> Any:
    return refilled(
        batch, [_named(k, casting, casts[k], value) if k in casts else value for k, value in enumerate(batch)]
    )


def _named(key: Any, casting: Casting, cast: Cast, values: Any) -> Any:
    """Return a field after its cast; an error names the field."""
    try:
        return casting.of(cast, values)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the field {key!r}: {error}") from error
