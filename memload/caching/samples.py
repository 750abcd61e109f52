"""The fields of one result on its way to a cache, in a type that collates to a batch of ragged fields.

`default_collate` looks up the type of the first sample in `default_collate_fn_map`, which torch documents as the place
to register new types. So a result gets a type of its own, whose rows may differ in length.
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
        layout: the layout of the row, as in a dataset; or "graphs".
        ragged: the forms of batches of ragged fields, where the row says them.
    """

    layout: Layout | Literal["graphs"] = "dict"
    ragged: Forms = NO_FORMS


def kept_sample(sample: Any) -> KeptSample:
    """Return the result of a function for a row as the fields to keep.

    Raises:
        TypeError: the result is no graph, and is not made of tensors, arrays, numbers and texts.
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
class FieldMismatch:
    """The outcome of a collation that failed because a row has other fields than the first.

    Attributes:
        number: the index of that row in the batch.
        fields, layout: the fields and the layout of that row.
    """

    number: int
    fields: list[str]
    layout: str

    def error(self, row: int, expected: Sequence[str], layout: str) -> ValueError:
        """Return the error to raise.

        Args:
            row: the number of the row in the dataset.
            expected, layout: the fields and the layout of the rows before.
        """
        return ValueError(
            f"row {row:,} has the fields {self.fields} ({self.layout}), expected {[*expected]} ({layout}) as in the "
            "rows before: return the same fields for all rows"
        )


def collated(samples: Sequence[KeptSample]) -> Batch | FieldMismatch:
    """Return the rows by field, as `Forms.take` expects them, or the row that has other fields than the first."""
    first = samples[0]
    for number, sample in enumerate(samples):
        if sample.keys() != first.keys() or sample.layout != first.layout:
            return FieldMismatch(number, [*sample], sample.layout)
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
                f"a mapped sample has {name!r}: {type(value).__name__}; a cache can store tensors, arrays, numbers and "
                "texts, and dicts or tuples of these"
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


def _collated(samples: Sequence[KeptSample], *, collate_fn_map: dict[Any, Any] | None = None) -> Batch | FieldMismatch:  # noqa: ARG001 - torch's
    return collated(samples)


default_collate_fn_map[KeptSample] = _collated
