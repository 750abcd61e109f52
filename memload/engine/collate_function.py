"""Whose batches the native engine gathers: those of default_collate, and of collate functions that say so.

A collate function says by `gathered_as` how its batches are gathered. Those of default_collate are gathered as long as
nobody has changed its rules for tensors, dicts, lists and tuples.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, default_collate, default_convert

from memload.columns.collate_rules import collate_tensor_fn, default_collate_fn_map
from memload.engine.gather_spec import GatherSpec, NotNative
from memload.engine.gatherer import BatchResult
from memload.engine.layout import Graphs
from memload.engine.request import PassRequest

F = TypeVar("F", bound=Callable[..., Any])

NO_BATCH = "A batch of graphs is for a collate_fn to make: give collate_fn=memload.graph_collate."
"""Why neither the native engine nor default_collate makes a batch."""


_SAMPLES = (dict, tuple, list, torch.Tensor)
_judged: tuple[Mapping[Any, Any], bool] = ({}, False)  # the latest rules, and whether they are as shipped


def as_shipped(rules: Mapping[Any, Any] = default_collate_fn_map) -> bool:
    """Return whether these rules treat samples of tensors as unmodified torch does: users may add to its map."""
    global _judged
    known, answer = _judged
    if known != rules:
        answer = _treats_tensors_as_shipped(rules)
        _judged = dict(rules), answer
    return answer


def _treats_tensors_as_shipped(rules: Mapping[Any, Any]) -> bool:
    if rules.get(torch.Tensor) is not collate_tensor_fn:
        return False
    kinds = (kind for key in rules for kind in (key if isinstance(key, tuple) else (key,)))
    return not any(issubclass(sample, kind) for kind in kinds if kind is not torch.Tensor for sample in _SAMPLES)


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
