"""Checkpointing put on models from outside, for as long as its effect is looked at."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.utils.checkpoint import checkpoint


def blocks_of(models: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the blocks that checkpointing is usually put on: members of the outermost ModuleLists and Sequentials.

    Only those that are made of further modules count: recomputing a single layer saves nothing.
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
    """Keep, inside, only what goes into each block, and compute the rest again in the backward pass.

    Yields the number of blocks; 0: there are none, and nothing changes.
    """
    blocks = [block for block in blocks_of(models) if any(p.requires_grad for p in block.parameters())]
    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield len(blocks)
    finally:
        for block in blocks:
            del block.forward
