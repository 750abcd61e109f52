"""What a loader's collate function makes of a batch that was gathered as a whole: itself, or nothing native at all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, default_collate, default_convert

from memload.batches.collate_rules import default_collate_fn_map
from memload.batches.layout import Graphs
from memload.engine.source import NotNative, Source
from memload.frameworks.carried import plain_collate
from memload.graphs.collating import graph_collate, graphs_joined
from memload.transforms.recipe import Outcome

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


NO_BATCH = "A batch of graphs is for a collate_fn to make: give collate_fn=memload.graph_collate."
"""Why neither the native engine nor default_collate makes a batch."""


def collated(source: Source, loader: DataLoader[Any]) -> Source:
    """Return the source whose batches are those that the loader's collate function makes.

    Raises:
        NotNative: that function needs samples, or the loader has no batches; the message says what to change.
    """
    if loader.batch_sampler is None:
        return _as_lists(source, loader)
    collate = plain_collate(loader)
    if collate is graph_collate:
        return graphs_joined(source)
    if isinstance(source.layout, Graphs):
        pyg = sys.modules.get("torch_geometric.data")
        if collate is default_collate and (pyg is None or not _known(pyg.Data)):
            raise NotNative(NO_BATCH)
        raise NotNative("A collate_fn of your own is called with lists of graphs: give memload.graph_collate.")
    if collate is default_collate:
        _check_default(source)
        return source
    if source.whole and not getattr(loader, "_casts", None):
        return replace(source, collate=_never_none(collate))
    if source.whole:
        raise NotNative("cast= follows a collate_fn of your own: leave one of them out, or cast in that function.")
    raise NotNative("A collate_fn of your own is called with lists of samples: leave collate_fn out.")


def _never_none(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What returns an empty `Outcome` for a batch of which a function makes None: None would be the end of the pass."""

    def collated(batch: Any) -> Any:
        made = collate(batch)
        return Outcome() if made is None else made

    return collated


def _as_lists(source: Source, loader: DataLoader[Any]) -> Source:
    """Without automatic batching, a BatchSampler as sampler makes the stock loader index the dataset with lists."""
    if type(loader.sampler) is not BatchSampler:
        raise NotNative("batch_size=None switches batching off: give a batch_size, or a BatchSampler as sampler.")
    if not source.takes_lists:
        raise NotNative(
            "batch_size=None indexes the dataset with the lists of the BatchSampler, which this one does not take as "
            "batches: give the BatchSampler as batch_sampler."
        )
    if plain_collate(loader) is not default_convert:
        raise NotNative("A collate_fn of your own is called with what the dataset gives: leave collate_fn out.")
    return source


def _check_default(source: Source) -> None:
    """Raise NotNative where default_collate does not know what to do with a batch that is whole."""
    if source.whole and not _known(sys.modules["tensordict"].TensorDict):
        raise NotNative(
            "This version of tensordict does not teach default_collate to batch TensorDicts: "
            "give collate_fn=lambda batch: batch, or install a newer one."
        )


def _known(kind: type) -> bool:
    return any(issubclass(kind, kinds) for kinds in default_collate_fn_map)
