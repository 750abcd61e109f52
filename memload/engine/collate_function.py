"""What a loader's collate function makes of a batch that was gathered as a whole: itself, or nothing native at all.

accelerate and Ray Train build a stock DataLoader of the attributes of the one they are given, and among these is no
cast. So a loader with a cast, or with a transform, shows a collate function that does all of it. The loader itself goes
on with the function inside.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, DataLoader, default_collate, default_convert

from memload.casts.rule import Cast
from memload.columns.collate_rules import default_collate_fn_map
from memload.engine.cast_batches import cast_batch, draws_of
from memload.engine.gather_spec import GatherSpec, NotNative
from memload.engine.gathered import GatheredRows
from memload.engine.gatherer import BatchResult
from memload.engine.layout import Graphs
from memload.engine.request import PassRequest

F = TypeVar("F", bound=Callable[..., Any])

NO_BATCH = "A batch of graphs is for a collate_fn to make: give collate_fn=memload.graph_collate."
"""Why neither the native engine nor default_collate makes a batch."""


@dataclass(frozen=True)
class Collation:
    """How batches of a collate function are gathered natively, as the function itself says.

    Attributes:
        function: that says so. One that has its attributes, as functools.wraps copies them, is another one.
        joined: makes of the source of the samples that of the batches. Its further arguments are those of the function.
    """

    function: Callable[..., Any]
    joined: Callable[..., GatherSpec]


def gathered_as(joined: Callable[..., GatherSpec]) -> Callable[[F], F]:
    """Return a decorator for a collate function whose batches the engine gathers; see `Collation`."""

    def telling(function: F) -> F:
        function.__memload_collation__ = Collation(function, joined)  # type: ignore[attr-defined]
        return function

    return telling


def joined_by(collate: Any) -> Callable[[GatherSpec], GatherSpec] | None:
    """Return what makes a source of the batches of a collate function, or of a partial of it, that says so itself."""
    given: dict[str, Any] = {}
    if isinstance(collate, functools.partial) and not collate.args:
        collate, given = collate.func, collate.keywords
    said = getattr(collate, "__memload_collation__", None)
    if not isinstance(said, Collation) or said.function is not collate:
        return None
    return functools.partial(said.joined, **given)


def collated(source: GatherSpec, request: PassRequest) -> GatherSpec:
    """Return the source whose batches are those that the collate function makes.

    Raises:
        NotNative: that function needs samples, or the loader has no batches; the message says what to change.
    """
    if not request.batched:
        return _as_lists(source, request)
    collate = request.collate
    joined = joined_by(collate)
    if joined is not None:
        return joined(source)
    if isinstance(source.layout, Graphs):
        pyg = sys.modules.get("torch_geometric.data")
        if collate is default_collate and (pyg is None or not _known(pyg.Data)):
            raise NotNative(NO_BATCH)
        raise NotNative("A collate_fn of your own is called with lists of graphs: give memload.graph_collate.")
    if collate is default_collate:
        _check_default(source)
        return source
    if source.whole and not request.casts:
        return replace(source, collate=_never_none(collate))
    if source.whole:
        raise NotNative("cast= follows a collate_fn of your own: leave one of them out, or cast in that function.")
    raise NotNative("A collate_fn of your own is called with lists of samples: leave collate_fn out.")


def _never_none(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What returns an empty `BatchResult` where a function makes None of a batch: None would be the end of the pass."""

    def collated(batch: Any) -> Any:
        made = collate(batch)
        return BatchResult() if made is None else made

    return collated


def _as_lists(source: GatherSpec, request: PassRequest) -> GatherSpec:
    """Without automatic batching, a BatchSampler as sampler makes the stock loader index the dataset with lists."""
    if type(request.batches) is not BatchSampler:
        raise NotNative("batch_size=None switches batching off: give a batch_size, or a BatchSampler as sampler.")
    if not source.takes_lists:
        raise NotNative(
            "batch_size=None indexes the dataset with the lists of the BatchSampler, which this one does not take as "
            "batches: give the BatchSampler as batch_sampler."
        )
    if request.collate is not default_convert:
        raise NotNative("A collate_fn of your own is called with what the dataset gives: leave collate_fn out.")
    return source


def _check_default(source: GatherSpec) -> None:
    """Raise NotNative where default_collate does not know what to do with a batch that is whole."""
    if source.whole and not _known(sys.modules["tensordict"].TensorDict):
        raise NotNative(
            "This version of tensordict does not teach default_collate to batch TensorDicts: "
            "give collate_fn=lambda batch: batch, or install a newer one."
        )


def _known(kind: type) -> bool:
    return any(issubclass(kind, kinds) for kinds in default_collate_fn_map)


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
