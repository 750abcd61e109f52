"""What a function returned for a row, on its way to a cache: its fields by name, which make batches by themselves.

`default_collate` looks up the type of the first sample in `default_collate_fn_map`, which torch documents as the place
to teach it new types. So what is to be kept is of a type of its own, whose rows may differ in length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from memload.caching.forms import Batch, gathered
from memload.columns.collate_rules import default_collate_fn_map
from memload.columns.graph_attributes import AttributeKind, attribute
from memload.columns.ragged_samples import NO_FORMS, Forms
from memload.dataset.dataset import Layout
from memload.dtypes import from_numpy_dtype, refuse_masked
from memload.formats.geometric import attributes_in, is_data

_STORED = (torch.Tensor, np.ndarray, np.generic, bool, int, float, str)


class KeptSample(dict[str, Any]):
    """The fields of a row.

    Attributes:
        layout: of the row, as a dataset has it; or "graphs".
        ragged: the forms of batches of its fields whose rows differ in length, where the row tells them.
    """

    layout: Layout | Literal["graphs"] = "dict"
    ragged: Forms = NO_FORMS


def kept_sample(sample: Any) -> KeptSample:
    """Return what a function returned for a row as what is kept of it.

    Raises:
        TypeError: it is no graph, and not made of tensors, arrays, numbers and texts.
    """
    if is_data(sample):
        return _made({name: attribute(name, value) for name, value in attributes_in(sample).items()}, "graphs")
    ragged = getattr(sample, "forms", NO_FORMS)
    if isinstance(sample, Mapping):
        return _made(_checked(sample), "dict", ragged)
    if isinstance(sample, list | tuple) and not hasattr(sample, "_fields"):
        names = [str(number) for number in range(len(sample))]
        named = {names[key]: form for key, form in ragged.items()}
        return _made(_checked(dict(zip(names, sample, strict=True))), "tuple", named)
    return _made(_checked({"data": sample}), "only")


@dataclass(frozen=True)
class Unlike:
    """What stands for rows that make no batch, since one has other fields than the first.

    Attributes:
        number: of that row among them.
        fields, layout: of it.
    """

    number: int
    fields: list[str]
    layout: str

    def error(self, row: int, expected: Sequence[str], layout: str) -> ValueError:
        """Return the error for it, as a row of the dataset.

        Args:
            row: its number there.
            expected, layout: the fields and the layout of the rows before.
        """
        return ValueError(
            f"row {row:,} has the fields {self.fields} ({self.layout}), expected {[*expected]} ({layout}), which "
            "the rows before have: return the same fields for all rows"
        )


def collated(samples: Sequence[KeptSample]) -> Batch | Unlike:
    """Return the rows by field, as `Forms.take` takes them; or which row has other fields than the first."""
    first = samples[0]
    for number, sample in enumerate(samples):
        if sample.keys() != first.keys() or sample.layout != first.layout:
            return Unlike(number, [*sample], sample.layout)
    return {name: _field(first, name, [sample[name] for sample in samples]) for name in first}


def _made(fields: Mapping[str, Any], layout: Layout | Literal["graphs"], ragged: Forms = NO_FORMS) -> KeptSample:
    made = KeptSample(fields)
    made.layout, made.ragged = layout, {name: form for name, form in ragged.items() if form[0] is not None}
    return made


def _field(first: KeptSample, name: str, values: list[Any]) -> Any:
    if first.layout == "graphs":
        kinds = {AttributeKind.of(name, value) for value in values}
        (kind,) = kinds if len(kinds) == 1 else (None,)
        return list(values) if kind is None else gathered(values, kind.axis if kind.dtype and kind.shape else None)
    axis = first.ragged[name][1] if name in first.ragged else None
    return gathered(values, axis)


def _checked(sample: Mapping[Any, Any]) -> Mapping[str, Any]:
    for name, value in sample.items():
        if not isinstance(name, str) or not isinstance(value, _STORED):
            raise TypeError(
                f"a mapped sample has {name!r}: {type(value).__name__}; what can be cached is a tensor, an array, a "
                "number or a text, or a dict or tuple of these"
            )
        if isinstance(value, np.ndarray):
            _check_array(name, value)
    return sample


def _check_array(name: str, array: np.ndarray[Any, Any]) -> None:
    try:
        refuse_masked(array)
        from_numpy_dtype(array.dtype)
    except TypeError as error:
        raise TypeError(f"a mapped sample has {name!r}: {error}") from None


def _collated(samples: Sequence[KeptSample], *, collate_fn_map: dict[Any, Any] | None = None) -> Batch | Unlike:  # noqa: ARG001 - torch's
    return collated(samples)


default_collate_fn_map[KeptSample] = _collated
