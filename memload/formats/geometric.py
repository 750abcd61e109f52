"""PyTorch Geometric: whether an object is of its kind, and by which rules its graphs are joined.

The one place that imports it; what memload makes for it is in graphs/pyg.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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


def is_data(sample: object) -> bool:
    """Whether this is a graph of PyG's; without importing it, if nobody else has."""
    module = sys.modules.get("torch_geometric.data")
    return module is not None and isinstance(sample, module.Data)


def holds_graphs_of_pyg(dataset: object) -> bool:
    """Whether this is a dataset of PyG's, or a list of graphs that are joined by the rules of `Data`.

    No graph of a dataset is asked for: its transform may draw random numbers.
    """
    module = sys.modules.get("torch_geometric.data")
    if module is None:
        return False
    if not isinstance(dataset, list | tuple):
        return isinstance(dataset, module.Dataset)
    return bool(dataset) and all(isinstance(one, module.Data) and own_rule(type(one)) is None for one in dataset)


def attributes_in(graph: Any) -> Mapping[str, Any]:
    """Return the attributes of a `Data`, in its order.

    Raises:
        TypeError: its class has rules of its own by which graphs are joined.
    """
    if name := own_rule(type(graph)):
        raise TypeError(
            f"a {type(graph).__name__} overrides {name}; stored are graphs whose attributes are joined by the rules of "
            "torch_geometric.data.Data"
        )
    return dict(graph.stores[0].items())
