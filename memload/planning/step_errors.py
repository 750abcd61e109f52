"""Say why a step cannot be run to find the bytes of activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memload.errors import first_line
from memload.planning.graph_steps import needs_values


def why_no_step(sample: Any, error: Exception) -> str:
    """Return why a loss cannot be run on tensors without numbers, or for graphs on the CPU, and what to do."""
    said = f"{type(error).__name__}: {first_line(error)}"
    if needs_values(sample):
        return (
            f"the step with a batch of graphs fails on the CPU ({said}): give a loss= that runs there, or as sample= "
            "the batch that it takes, or leave loss= out"
        )
    if isinstance(error, KeyError) and isinstance(sample, Mapping):
        return f"the loss asks the batch for {error}; its fields are {', '.join(map(repr, sample))}"
    if isinstance(error, NameError):
        return f"the loss raises {said}"
    asks = "it, or the model, asks for one, as x.item(), float(x) and `if x > 0` do; "
    return (
        f"the loss cannot be run on tensors without numbers ({said}): "
        f"{asks if type(error).__name__ == 'DataDependentOutputException' else ''}"
        "leave loss= out, and measure activations by a step on the real batch (memload.probe)"
    )
