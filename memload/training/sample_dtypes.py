"""What is said where a step fails since the sample has another dtype than the weights, such as pixels of uint8."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

# How torch speaks of such failures.
_OF_DTYPES = re.compile(r"dtype|scalar type|[Ii]nput type|same type|'(Byte|Char|Short|UInt16)'")
_UNUSUAL = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float64)  # in a model of other floating weights


class SampleDtypeError(ValueError):
    """The sample is not as the model gets it in the loop."""


def telling_dtypes(loss: Callable[[Any], Any], models: Sequence[torch.nn.Module]) -> Callable[[Any], Any]:
    """Return a function of a batch that does what this one does, and says what to do if dtypes make it fail."""

    def told(batch: Any) -> Any:
        try:
            return loss(batch)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            advice = _advice(batch, models) if _OF_DTYPES.search(str(error)) else ""
            if not advice:
                raise
            first = str(error).partition("\n")[0]
            raise SampleDtypeError(f"{advice} ({type(error).__name__}: {first})") from error

    return told


def _advice(batch: Any, models: Sequence[torch.nn.Module]) -> str:
    """What is unusual in the batch, and how it is given otherwise; empty where nothing is."""
    weights = next((p.dtype for model in models for p in model.parameters() if p.is_floating_point()), None)
    found = [(name, one.dtype) for name, one in _named(batch) if one.dtype in _UNUSUAL and one.dtype != weights]
    if weights is None or not found:
        return ""
    name, dtype = found[0]
    cast = f'cast={{"{name or "image"}": memload.Cast({weights})}}'
    what = f"{name!r} of the batch" if name else "the batch"
    return (
        f"{what} is {_word(dtype)}, the weights are {_word(weights)}: give it as the model gets it in the loop, as a "
        f"FastLoader with {cast} gives it (memload.plan takes this cast= itself), or a loss= that casts"
    )


def _named(batch: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors, each with its name if it has one."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from _named(part, str(key))
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _named(part, name)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
