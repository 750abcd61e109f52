"""memload.zip: the fields of several datasets side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import torch

from memload.columns.borders import Borders, of_zipped
from memload.columns.fields import TAG, Field, check_equal_lengths
from memload.columns.graph_attributes import along_last, attributes_of, node_attribute
from memload.columns.numbers import kind
from memload.columns.ragged_fields import RaggedField
from memload.dataset.dataset import Dataset


def zip(*unnamed: NoReturn, **members: Dataset) -> Dataset:  # noqa: A001 - users call it memload.zip, for what it does
    """Return the fields of several datasets of equal length side by side; nothing is copied.

    Row i of the result has the fields of row i of each dataset. If rows have keys, such as session and trial,
    `memload.join` pairs them by key instead.

    Args:
        members: the datasets. The keyword of a dataset with one field becomes the name of that field. The fields of a
            dataset with several keep their names, and its keyword only labels it in messages. Rows of the result are
            dicts.

    Beside graphs, the fields of other datasets become attributes of graphs, by the rules of PyTorch Geometric. Rows of
    one length belong to a whole graph: rows (2,) become (1, 2), and (graphs, 2) in a batch of `memload.graph_collate`.
    Rows that differ in length, such as one value for each node, are joined along their first axis. The result is a
    `GraphDataset` if one of the members is; its attributes keep their names.

    Raises:
        ValueError: the lengths differ (the message lists all of them), a name occurs twice, no dataset is given, or a
            field beside graphs has a name that PyTorch Geometric reserves for numbers of nodes.
        TypeError: a dataset comes without a keyword, or an argument is not a dataset.

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
            raise TypeError(f"{label} is {kind(member)}, expected a dataset; {_remedy(label, member)}")
    check_equal_lengths({label: len(member) for label, member in members.items()}, "datasets zipped together")
    named = {
        label: {label if len(member.fields) == 1 and not holds_graphs(member) else name: field for name, field in own}
        for label, member in members.items()
        for own in [member.fields.items()]
    }
    return side_by_side(members, named, of_zipped(member.borders for member in members.values()))


def _remedy(label: str, member: object) -> str:
    if isinstance(member, torch.utils.data.Dataset):
        return (
            "functions and views of samples come after: memload.zip(...).map(fn); datasets that memload.concat joined "
            "by name and that differ are put side by side one by one, before"
        )
    return f"memload.from_arrays({label}=...) makes one of arrays"


def side_by_side(
    members: Mapping[str, Dataset], fields: Mapping[str, Mapping[str, Field]], borders: Borders
) -> Dataset:
    """Return the fields of all members, given by their labels, as one `Dataset` or `GraphDataset`.

    Raises:
        ValueError: a name occurs twice, or a field beside graphs cannot be an attribute of them.
    """
    made: dict[str, Field] = {}
    origin: dict[str, str] = {}
    for label, own in fields.items():
        for name, field in own.items():
            if name in made:
                raise ValueError(
                    f"both {origin[name]!r} and {label!r} bring a field {name!r}; give one of them another name by "
                    "rename({...}), or take other fields by as_tuple(...)"
                )
            made[name], origin[name] = field, label
    graphs = [label for label, member in members.items() if holds_graphs(member)]
    if graphs:
        made = {name: field if origin[name] in graphs else _of_a_graph(name, field) for name, field in made.items()}
        _check_nodes(made, origin, graphs)
    tagged = [member.names for label, member in members.items() if member.names and TAG in fields[label]]
    names = tagged[0] if len(tagged) == 1 else ()
    of_graphs = next((member for member in members.values() if member._of_graphs), None)
    return Dataset(made, names=names, borders=borders) if of_graphs is None else of_graphs._with(made, names, borders)


def holds_graphs(dataset: Dataset) -> bool:
    """Return whether rows are graphs: by the class of the dataset, or because dicts have a field of edges."""
    return dataset._of_graphs or any(
        isinstance(field, RaggedField) and field.axis == 1 and along_last(name) and not field.dtype.is_floating_point
        for name, field in dataset.fields.items()
    )


def _of_a_graph(name: str, field: Field) -> Field:
    """Return a field as an attribute of a whole graph: with a first axis of length 1, along which graphs are joined."""
    if isinstance(field, RaggedField):
        return field
    if along_last(name):
        raise ValueError(
            f"the field {name!r} beside graphs: by this name, PyTorch Geometric adds numbers of nodes to its values; "
            f'give it another one, as by rename({{{name!r}: "row"}})'
        )
    return replace(field, shape=(1, *field.shape), blocks=None) if field.shape else field  # blocks have a row's axes


def _check_nodes(fields: Mapping[str, Field], origin: Mapping[str, str], graphs: list[str]) -> None:
    """Raise ValueError if PyTorch Geometric would take a field beside graphs for their numbers of nodes."""
    nodes = node_attribute(attributes_of(fields))
    if nodes is not None and origin[nodes] not in graphs:
        raise ValueError(
            f"the field {nodes!r} of {origin[nodes]!r}: by this name, it would say how many nodes a graph has; give it "
            f'another one, as by rename({{{nodes!r}: "values"}})'
        )
