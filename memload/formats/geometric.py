"""PyTorch Geometric: recognise its objects, and the rules by which a class joins graphs.

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
    """Return the name of a method by which a class joins graphs unlike `Data`; None if it has none."""
    data = geometric().Data
    rules = ("__cat_dim__", "__inc__")
    return next((name for name in rules if getattr(kind, name, None) is not getattr(data, name)), None)


def is_data(sample: object) -> bool:
    """Return whether a sample is a graph of PyG, without importing PyG."""
    module = sys.modules.get("torch_geometric.data")
    return module is not None and isinstance(sample, module.Data)


def holds_graphs_of_pyg(dataset: object) -> bool:
    """Return whether a dataset is one of PyG, or a list of graphs that join by the rules of `Data`.

    This takes no graph from the dataset, because its transform may draw random numbers.
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
        TypeError: its class joins graphs by rules of its own.
    """
    if name := own_rule(type(graph)):
        raise TypeError(
            f"a {type(graph).__name__} overrides {name}; only graphs whose attributes join by the rules of "
            "torch_geometric.data.Data can be stored"
        )
    return dict(graph.stores[0].items())
