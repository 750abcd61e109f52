"""Makes PyTorch Geometric's objects.

A `Batch` is made by copying an empty one, since its constructor costs as much as gathering a small batch. All private
names of PyG are here: the attributes `_num_graphs`, `_slice_dict`, `_inc_dict` and `_num_nodes`, which its own
`Batch.from_data_list` sets and `to_data_list` reads, and the argument `_base_cls`. A test fails when they change.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from memload.columns.graph_attributes import COUNTED
from memload.formats.geometric import geometric
from memload.graphs.layout import MergedGraph


def data_of(attributes: Mapping[str, Any]) -> Any:
    """Return a `Data` with these attributes, in this order."""
    data = copy.copy(_empty_data())
    store = data.stores[0]
    for name, value in attributes.items():
        store[name] = int(value) if name == COUNTED else value
    return data


def batch_of(graphs: MergedGraph) -> Any:
    """Return a `Batch` that equals the one of `Batch.from_data_list` for the same graphs."""
    batch = copy.copy(_empty_batch())
    store = batch.stores[0]
    for name, value in graphs.attributes.items():
        store[name] = value
    if graphs.num_nodes is not None:
        store._num_nodes = graphs.num_nodes
    store._num_graphs, store._slice_dict, store._inc_dict = graphs.graphs, graphs.slices, graphs.increments
    return batch


def joined(samples: list[Any], follow: Sequence[str] = (), exclude: Sequence[str] = ()) -> Any:
    """Return the `Batch` that PyG itself makes of samples."""
    return geometric().Batch.from_data_list(samples, follow_batch=list(follow), exclude_keys=list(exclude))


@functools.cache
def _empty_data() -> Any:
    return geometric().Data()


@functools.cache
def _empty_batch() -> Any:
    return geometric().Batch(_base_cls=geometric().Data)
