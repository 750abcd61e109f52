"""What a FastLoader does to its batches beyond collating them, carried by its `collate_fn`.

accelerate and Ray Train build a stock DataLoader of the attributes of the one they are given, and among these is no
cast. So a loader with a cast, or with a transform, shows a collate function that does all of it. The loader itself goes
on with the function inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader, default_collate

from memload.batches.gathered import GatheredRows
from memload.casts.batches import cast_batch
from memload.casts.rule import Cast


class CarryingCollate:
    """Collates samples, casts fields of the batch, and transforms it.

    Args:
        plain: the collate function alone.
        casts: by field.
        names: of the fields, where a dataset has any.
        grouped: whether batches are lists with one part for each dataset.
        transform: what is done to the batch in the end; None: nothing.
    """

    def __init__(
        self,
        plain: Callable[[list[Any]], Any],
        casts: Mapping[Any, Cast],
        names: Sequence[str],
        *,
        grouped: bool = False,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self.plain, self.casts, self.transform = plain, casts, transform
        self._names, self._grouped = names, grouped

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch as the loop is to have it."""
        batch = self._cast(samples) if self.casts else self.plain(samples)
        return batch if self.transform is None else self.transform(batch)

    def _cast(self, samples: list[Any]) -> Any:
        if self.plain is default_collate and isinstance(samples, GatheredRows):
            door = samples.door
            in_gather = not any(cast.places for cast in self.casts.values())
            if door is not None and in_gather and not door.source.casts:  # part of the gather
                return default_collate(samples.through(door.with_casts(self.casts)))
        return cast_batch(self.plain(samples), self.casts, self._names, self._grouped)


def plain_collate(loader: DataLoader[Any]) -> Any:
    """Return the collate function of a loader without what it may carry."""
    return loader.collate_fn.plain if isinstance(loader.collate_fn, CarryingCollate) else loader.collate_fn


@contextlib.contextmanager
def plainly(loader: DataLoader[Any]) -> Iterator[None]:
    """Within this context, torch's iterators of a loader only collate: the loader itself casts and transforms."""
    shown = loader.collate_fn
    loader.collate_fn = plain_collate(loader)
    try:
        yield
    finally:
        loader.collate_fn = shown


def unpacked(collate_fn: Any, cast: Any, transform: Any) -> tuple[Any, Any, Any]:
    """Return the arguments of a loader that is made with the `collate_fn` of another, and with its others or not."""
    if not isinstance(collate_fn, CarryingCollate):
        return collate_fn, cast, transform
    if cast not in (None, collate_fn.casts) or transform not in (None, collate_fn.transform):
        return collate_fn, cast, transform  # another cast behind it
    return collate_fn.plain, collate_fn.casts or None, collate_fn.transform
