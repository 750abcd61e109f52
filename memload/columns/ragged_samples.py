"""Samples with rows of different length, which torch's default_collate turns into the same batches as memload gathers.

`default_collate` looks up the type of the first sample in `default_collate_fn_map`, which torch documents as the way to
support new types. So samples that would not stack have types of their own, which otherwise are a dict and a tuple.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, SupportsIndex

import torch

from memload.columns.collate_rules import collate, default_collate_fn_map
from memload.columns.fields import TAG
from memload.columns.ragged_forms import Form, Padded, Ragged, is_ragged, joined, pad_value_of

Forms = Mapping[Any, tuple[Form | None, int, Any]]
"""For fields whose rows differ in length, by name or position: the form of a batch (None for text), the axis, and the
pad value."""

NO_FORMS: Forms = MappingProxyType({})


class RaggedDict(dict[str, Any]):
    """A sample of named fields."""

    forms: Forms = NO_FORMS

    @classmethod
    def of(cls, sample: Mapping[str, Any], forms: Forms) -> RaggedDict:
        """Return a sample whose fields of these names are collated in these forms."""
        made = cls(sample)
        made.forms = forms
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return RaggedDict.of, (dict(self), dict(self.forms))


class RaggedTuple(tuple[Any, ...]):
    """A sample of fields by position."""

    forms: Forms = NO_FORMS

    @classmethod
    def of(cls, sample: Iterable[Any], forms: Forms) -> RaggedTuple:
        """Return a sample whose fields at these positions are collated in these forms."""
        made = cls(sample)
        made.forms = forms
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return RaggedTuple.of, (tuple(self), dict(self.forms))


def forms_of(batch: Mapping[Any, Any], known: Forms = NO_FORMS) -> Forms:
    """Return the forms of the fields of a batch, by key, that hold rows of different length.

    Args:
        batch: the fields by name or position.
        known: the forms of its fields, where the caller knows them. A batch does not show its pad value if all of its
            rows are equally long.
    """
    return {key: known.get(key) or _form_of(values) for key, values in batch.items() if is_ragged(values)}


def forms_below(forms: Forms, name: Any) -> Forms:
    """Return the forms of the fields of a container within a batch, selected from forms by the paths of fields."""
    found = {key[1:]: form for key, form in forms.items() if isinstance(key, tuple) and key[0] == name}
    return {key if len(key) > 1 else key[0]: form for key, form in found.items()}


def sample_of(sample: Any, forms: Forms) -> Any:
    """Return a dict or tuple unchanged if all its fields have rows of one length, else as a sample of its own type."""
    if not forms:
        return sample
    return RaggedDict.of(sample, forms) if isinstance(sample, Mapping) else RaggedTuple.of(sample, forms)


def tagged(sample: Mapping[str, Any], tag: int) -> Any:
    """Return a sample of several joined datasets, with the number of its dataset."""
    return sample_of({**sample, TAG: tag}, getattr(sample, "forms", NO_FORMS))


def _form_of(values: Any) -> tuple[Form | None, int, Any]:
    if isinstance(values, Ragged):
        return "offsets", values.axis, 0
    if isinstance(values, Padded):
        return "padded", 0, pad_value_of(values)
    return ("jagged", 0, 0) if isinstance(values, torch.Tensor) else (None, 0, 0)


def _collate(samples: Sequence[Any], *, collate_fn_map: dict[Any, Any] | None = None) -> Any:
    first = samples[0]

    def field(key: Any, values: Sequence[Any]) -> Any:
        form, axis, pad_value = first.forms.get(key, (None, 0, 0))
        if form is not None and all(isinstance(value, torch.Tensor) and value.ndim > axis for value in values):
            return joined(values, form, axis, pad_value)
        return collate(list(values), collate_fn_map=collate_fn_map)

    if isinstance(first, Mapping):
        return {name: field(name, [sample[name] for sample in samples]) for name in first}
    return [field(position, values) for position, values in enumerate(zip(*samples, strict=True))]


default_collate_fn_map.update(dict.fromkeys((RaggedDict, RaggedTuple), _collate))
