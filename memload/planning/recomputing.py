"""Applies checkpointing to models temporarily, to observe its effect."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.utils.checkpoint import checkpoint


def blocks_of(models: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the usual blocks for checkpointing: members of the outermost ModuleLists and Sequentials.

    Only blocks that contain further modules count, since recomputing a single layer saves nothing.
    """
    found: list[torch.nn.Module] = []
    for model in models:
        for child in model.children():
            if isinstance(child, torch.nn.ModuleList):
                found += [member for member in child if next(member.children(), None) is not None]
            elif not isinstance(child, torch.nn.Sequential):
                found += blocks_of([child])
        if isinstance(model, torch.nn.Sequential):
            found += [member for member in model if next(member.children(), None) is not None]
            continue
        for child in model.children():
            if isinstance(child, torch.nn.Sequential):
                found += blocks_of([child])
    return list({id(block): block for block in found}.values())


@contextlib.contextmanager
def checkpointed(models: Sequence[torch.nn.Module]) -> Iterator[int]:
    """Keep only the inputs of each block inside the ``with`` block, and recompute the rest in the backward pass.

    Yields the number of blocks; with 0 nothing changes.
    """
    blocks = [block for block in blocks_of(models) if any(p.requires_grad for p in block.parameters())]
    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield len(blocks)
    finally:
        for block in blocks:
            del block.forward
