"""PyTorch Geometric: what memload makes of its objects and for it. Nothing else in memload imports it.

A `Batch` is made by copying an empty one, since its constructor costs as much as gathering a small batch. What PyG has
no public name for is here: the attributes `_num_graphs`, `_slice_dict`, `_inc_dict` and `_num_nodes`, which its own
`Batch.from_data_list` sets and `to_data_list` reads, and the argument `_base_cls`. A test fails when they change.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memload.graphs.layout import COUNTED, Joined

if TYPE_CHECKING:
    from types import ModuleType


def geometric() -> ModuleType:
    """Return torch_geometric.data. Raises ImportError, which says how to install it."""
    try:
        import torch_geometric.data
    except ModuleNotFoundError as error:
        raise ImportError(
            'samples and batches of PyTorch Geometric need torch_geometric: pip install "memload[graphs]"; without it, '
            "ds.as_plain() gives dicts of tensors, and batches as memload.GraphBatch"
        ) from error
    data: ModuleType = torch_geometric.data
    return data


def own_rule(kind: type) -> str | None:
    """Return which method, by which graphs are joined, a class has of its own; None if it joins them as `Data` does."""
    data = geometric().Data
    rules = ("__cat_dim__", "__inc__")
    return next((name for name in rules if getattr(kind, name, None) is not getattr(data, name)), None)


def data_of(attributes: Mapping[str, Any]) -> Any:
    """Return a `Data` with these attributes, in this order."""
    data = copy.copy(_empty_data())
    store = data.stores[0]
    for name, value in attributes.items():
        store[name] = int(value) if name == COUNTED else value
    return data


def batch_of(graphs: Joined) -> Any:
    """Return a `Batch`, as `Batch.from_data_list` makes it of the graphs that were joined."""
    batch = copy.copy(_empty_batch())
    store = batch.stores[0]
    for name, value in graphs.attributes.items():
        store[name] = value
    if graphs.num_nodes is not None:
        store._num_nodes = graphs.num_nodes
    store._num_graphs, store._slice_dict, store._inc_dict = graphs.graphs, graphs.slices, graphs.increments
    return batch


def joined(samples: list[Any]) -> Any:
    """Return the `Batch` that PyG itself makes of samples."""
    return geometric().Batch.from_data_list(samples)


def is_data(sample: object) -> bool:
    """Whether this is a graph of PyG's; without importing it, if nobody else has."""
    module = sys.modules.get("torch_geometric.data")
    return module is not None and isinstance(sample, module.Data)


@functools.cache
def _empty_data() -> Any:
    return geometric().Data()


@functools.cache
def _empty_batch() -> Any:
    return geometric().Batch(_base_cls=geometric().Data)
