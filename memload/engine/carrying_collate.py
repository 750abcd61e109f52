"""A collate function that casts and transforms, for loaders that others build from the attributes of this one.

accelerate and Ray Train build a stock DataLoader of the attributes of the one they are given, and among these is no
cast. So a loader with a cast, or with a transform, shows a collate function that does all of it. The loader itself goes
on with the function inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader, default_collate

from memload.casts.rule import Cast
from memload.engine.cast_batches import cast_batch, draws_of
from memload.engine.gathered import GatheredRows


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

    def taken_apart(self, cast: Any, transform: Any) -> tuple[Any, Any, Any]:
        """Return the arguments of a loader that is made with this collate function, and with the others or without."""
        if cast not in (None, self.casts) or transform not in (None, self.transform):
            return self, cast, transform  # another cast behind it
        return self.plain, self.casts or None, self.transform

    def _cast(self, samples: list[Any]) -> Any:
        if self.plain is default_collate and isinstance(samples, GatheredRows):
            fetcher = samples.fetcher
            casting = fetcher.with_casts(self.casts) if fetcher is not None and not fetcher.source.casts else None
            if casting is not None and not (casting.source.late_casts or draws_of(self.casts)):  # part of the gather
                return default_collate(samples.through(casting))
        return cast_batch(self.plain(samples), self.casts, self._names, self._grouped)


@contextlib.contextmanager
def plainly(loader: DataLoader[Any]) -> Iterator[None]:
    """Within this context, torch's iterators of a loader only collate: the loader itself casts and transforms."""
    shown = loader.collate_fn
    if isinstance(shown, CarryingCollate):
        loader.collate_fn = shown.plain
    try:
        yield
    finally:
        loader.collate_fn = shown
