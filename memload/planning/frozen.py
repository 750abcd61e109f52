"""The parts of models that train nothing, and the layers in which such parts are copied to a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from memload.planning.allocations import nbytes_of

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def trains_nothing(module: torch.nn.Module) -> bool:
    """Return whether all parameters of a model are frozen."""
    return not any(p.requires_grad for p in module.parameters())


def frozen_parts(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the largest parts of models whose parameters are all frozen; parts without parameters are left out."""
    found: list[torch.nn.Module] = []
    for module in modules:
        if next(module.parameters(), None) is None:
            continue
        found += [module] if trains_nothing(module) else frozen_parts(module.children())
    return found


def weights_of(modules: Iterable[torch.nn.Module]) -> int:
    """Return the bytes of parameters and buffers; shared ones count once."""
    return nbytes_of(tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))


def window_of(frozen: Sequence[torch.nn.Module]) -> int:
    """Return the bytes of two layers as large as the largest: one computes while the next one is copied."""
    return 2 * max((weights_of([layer]) for module in frozen for layer in _layers(module)), default=0)


def _layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules that are copied to the GPU one after the other: children, also those of containers."""
    parts = list(module.children())
    if not parts:
        return [module]
    return [layer for part in parts for layer in (_layers(part) if isinstance(part, _CONTAINERS) else [part])]
