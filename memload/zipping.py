"""memload.zip: the fields of several datasets side by side."""

from __future__ import annotations

from typing import Any

from memload.dataset import Dataset
from memload.fields import Field, check_equal_lengths
from memload.rows.borders import of_zipped
from memload.rows.numbers import kind


def zip(*unnamed: Any, **members: Dataset) -> Dataset:  # noqa: A001 - users call it memload.zip, for what it does
    """Return the fields of several datasets of equal length side by side; nothing is copied.

    Args:
        members: each keyword names the field of a dataset that has one; a dataset of several fields brings them under
            their own names, and its keyword is only a label for messages. Rows are dicts, whatever they were.

    Raises:
        ValueError: the lengths differ (the message has them all), a name occurs twice, or no dataset is given.
        TypeError: a dataset comes without a keyword, or what comes is no dataset.

    Example:
        >>> import memload, torch
        >>> betas = memload.from_arrays(betas=torch.zeros(4, 100))
        >>> images = memload.from_arrays(image=torch.arange(3))
        >>> trials = memload.zip(betas=betas, stim=images.select([2, 0, 0, 1]))
        >>> trials[0]["stim"]
        tensor(2)
    """
    if unnamed:
        raise TypeError("zip takes each dataset by a keyword, which names its field: memload.zip(betas=a, stim=b)")
    for label, member in members.items():
        if not isinstance(member, Dataset):
            raise TypeError(
                f"{label} is {kind(member)}, expected a dataset; memload.from_arrays({label}=...) makes one of arrays"
            )
    check_equal_lengths({label: len(member) for label, member in members.items()}, "datasets zipped together")
    fields: dict[str, Field] = {}
    origin: dict[str, str] = {}
    for label, member in members.items():
        for own_name, field in member.fields.items():
            name = label if len(member.fields) == 1 else own_name
            if name in fields:
                raise ValueError(
                    f"both {origin[name]!r} and {label!r} bring a field {name!r}; take other fields of one of them by "
                    "as_tuple(...), or give it one field and another keyword"
                )
            fields[name], origin[name] = field, label
    return Dataset(fields, borders=of_zipped(member.borders for member in members.values()))
