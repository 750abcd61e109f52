"""Which datasets the native engine can read, and how: dataset -> fields and the structure of a batch.

Native means equal: whatever a subclass, a patch or an odd tensor would make differ from the stock loader's batches is
left to the stock machinery, for the reason that the message gives.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from memload.batches.layout import DictOf, Graphs, Layout, ListOf, Only, TensorDictOf, flat
from memload.casts.float32_view import Float32View
from memload.dataset import TAG, Dataset
from memload.engine.source import Key, NotNative, Source
from memload.engine.unaltered import Unaltered
from memload.engine.watches import PartsWatch, Watch, watched_tensors
from memload.fields import Field
from memload.frameworks.hugging_face import source_of
from memload.graphs.datasets import GraphDataset
from memload.groups.datasets import GroupedDataset, with_int_tag
from memload.ragged_rows.fields import RaggedField
from memload.sampling.row_plan import Indices, as_indices, from_end
from memload.sources.arrays import borrow_array
from memload.sources.hugging_face import is_hugging_face
from memload.transforms.mapped import MappedDataset

_ITEMS = ("__getitem__", "__getitems__", "__len__")


def resolve(dataset: Any) -> Source:
    """Find out how the engine reads ``dataset``.

    It reads memload's own datasets, TensorDataset, StackDataset, Subset, ConcatDataset, Float32View, TensorDict,
    datasets of Hugging Face with the torch format, and datasets that offer ``__memload__()``: a method that returns the
    memload dataset with the same rows.

    Raises:
        NotNative: it cannot; the message says why, and how to change that.
        TypeError: ``__memload__`` returned something else than a memload dataset.
        ValueError: ``__memload__`` returned a dataset of another length.
    """
    if getattr(type(dataset), "__memload__", None) is not None:
        return _of_offer(dataset)
    for cls in type(dataset).__mro__:
        if cls in _READERS:
            _check_unaltered(dataset, *_READERS[cls][1:])
            return _READERS[cls][0](dataset)
    if _is_tensordict(dataset):
        return _of_tensordict(dataset)
    if is_hugging_face(dataset):
        return source_of(dataset)
    raise NotNative(
        f"{type(dataset).__name__} is not a dataset that memload reads natively: give it memload.open(...) or "
        "memload.from_arrays(...), a TensorDataset, or a StackDataset, Subset or ConcatDataset of these, or give your "
        "class a method __memload__ that returns such a memload dataset."
    )


def _check_unaltered(dataset: Any, unaltered: Unaltered) -> None:
    name = unaltered.difference(dataset)
    if name is None:
        return
    kind, cls = unaltered.kind.__name__, type(dataset).__name__
    whose = f"{cls} overrides {name} of {kind}" if cls != kind else f"{name} of this {kind} was replaced"
    raise NotNative(
        f"{whose}, so that its samples may be others than those stored: leave {name} as it is, "
        "or give the class a method __memload__ that returns a memload dataset of the same samples."
    )


def _of_offer(dataset: Any) -> Source:
    owner = next(cls for cls in type(dataset).__mro__ if "__memload__" in vars(cls))
    for cls in itertools.takewhile(lambda cls: cls is not owner, type(dataset).__mro__):
        for name in vars(cls).keys() & set(_ITEMS):
            raise NotNative(
                f"{cls.__name__} overrides {name}, but not the __memload__ of {owner.__name__}: "
                "override both, or neither."
            )
    offered = dataset.__memload__()
    if not isinstance(offered, Dataset):
        raise TypeError(
            f"{owner.__name__}.__memload__() must return a memload dataset, as memload.open and memload.from_arrays "
            f"make them; it returned {type(offered).__name__}"
        )
    if len(offered) != len(dataset):
        raise ValueError(
            f"{owner.__name__}.__memload__() returned a dataset of {len(offered):,} rows; "
            f"len() of the dataset itself is {len(dataset):,}"
        )
    return resolve(offered)


def check_unaltered(dataset: Any) -> None:
    """Raise NotNative if a subclass or a patch may make a dataset of a known kind answer differently."""
    for cls in type(dataset).__mro__:
        if cls in _READERS:
            _check_unaltered(dataset, _READERS[cls][1])
            return


def _of_groups(dataset: GroupedDataset) -> Source:
    raise NotNative(
        f"The datasets {', '.join(map(repr, dataset.names))} differ in fields, dtypes or shapes, so that no batch can "
        "hold rows of several: give collate_fn=memload.group_collate."
    )


def _of_dataset(dataset: Dataset) -> Source:
    fields: dict[Key, Field] = dict(dataset.fields.items())
    lent = [lender.tensor for field in dataset.fields.values() for lender in field.lenders if lender.watched]
    tags = (TAG,) if dataset.names else ()
    return Source(fields, flat(dataset.layout, list(dataset.fields)), {}, watches=watched_tensors(lent), tags=tags)


def _of_graphs(dataset: GraphDataset) -> Source:
    return replace(_of_dataset(dataset), layout=Graphs())


def _of_tensors(dataset: TensorDataset) -> Source:
    if not dataset.tensors:
        raise NotNative("The TensorDataset has no tensors: give it some.")
    fields: dict[Key, Field] = {}
    for k, tensor in enumerate(dataset.tensors):
        fields[k] = _of_tensor(f"tensor {k} of the TensorDataset", tensor)
    _check_lengths("the tensors of the TensorDataset", [field.rows for field in fields.values()])
    watches = (PartsWatch.of(lambda: dataset.tensors), *watched_tensors(dataset.tensors))
    return Source(fields, ListOf((Only(),) * len(fields)), {}, takes_lists=True, watches=watches)


def _of_tensor(what: str, tensor: Any) -> Field:
    oddity = _oddity(tensor)
    if oddity:
        raise NotNative(f"{what} {oddity}.")
    try:
        return borrow_array(what, tensor)
    except (TypeError, ValueError) as error:
        raise NotNative(f"{what} cannot be read in place: {str(error).partition(': ')[2]}.") from error


def _oddity(tensor: Any) -> str | None:
    """What makes this other than a plain tensor on the CPU, and what to do about it; None if nothing does."""
    if type(tensor) is not torch.Tensor:
        return f"is of the type {type(tensor).__name__}, which may answer differently: give a plain torch.Tensor"
    if tensor.requires_grad:
        return "requires grad, which batches carry on: give tensor.detach()"
    if tensor.device.type == "meta":
        return "is a meta tensor, which has no data: give one on the CPU"
    if tensor.device.type != "cpu":
        return f"lies on {tensor.device}: there is nothing left to load; index it in the loop"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "is sparse or nested, of which default_collate makes no batch: give a dense one, or a collate_fn"
    if tensor.is_quantized:
        return "is quantised: give tensor.int_repr(), or tensor.dequantize()"
    if tensor.is_inference():
        return "was made in inference mode, where writing to it goes unnoticed: clone() it outside"
    if any(getattr(tensor, "names", ())):  # which newer torch no longer has
        return "has named dimensions, of which torch makes no batch: give tensor.rename(None)"
    return None


def _of_stack(dataset: StackDataset[Any]) -> Source:
    sources = {name: resolve(member) for name, member in _members(dataset).items()}
    if any(isinstance(source.layout, Graphs) for source in sources.values()):
        raise NotNative("A member of the StackDataset has graphs: give the graphs alone, or as_plain() of them.")
    if any(source.maps for source in sources.values()):
        raise NotNative("A member of the StackDataset is mapped: map the StackDataset instead.")
    _check_lengths("the members of the StackDataset", [len(dataset), *(source.rows for source in sources.values())])
    fields: dict[Key, Field] = {}
    casts: dict[Key, Any] = {}
    for name, source in sources.items():
        below = source.below(name)
        fields.update(below.fields)
        casts.update(below.casts)
    layout: Layout = ListOf(tuple(source.layout for source in sources.values()))
    if isinstance(dataset.datasets, dict):
        layout = DictOf(tuple((name, source.layout) for name, source in sources.items()))
    watches = [PartsWatch.of(lambda: _members(dataset).values())]
    takes_lists = all(source.takes_lists for source in sources.values())
    tags = tuple((name, str(tag)) for name, source in sources.items() for tag in source.tags)
    return Source(fields, layout, casts, takes_lists, watches=_all_watches(sources.values(), watches), tags=tags)


def _members(dataset: StackDataset[Any]) -> dict[Any, Any]:
    held = dataset.datasets
    return held if isinstance(held, dict) else dict(enumerate(held))


def _all_watches(sources: Iterable[Source], more: Iterable[Watch]) -> tuple[Watch, ...]:
    return (*more, *itertools.chain.from_iterable(source.watches for source in sources))


def _of_subset(dataset: Subset[Any]) -> Source:
    base = resolve(dataset.dataset)
    rows = rows_of_subset(dataset, base.rows)
    fields = {key: replace(field, column=field.column.select(rows)) for key, field in base.fields.items()}
    # A list of tensors, which is what a tensor of indices gives, indexes one dimension by each.
    as_lists = base.takes_lists and not (len(rows) and isinstance(dataset.indices[0], torch.Tensor))
    own = (PartsWatch.of(lambda: (dataset.dataset, dataset.indices)), *watched_tensors([dataset.indices]))
    return replace(base, fields=fields, takes_lists=as_lists, watches=_all_watches([base], own))


def rows_of_subset(dataset: Subset[Any], n: int) -> Indices:
    """Return the rows of a Subset, as numbers in [0, n).

    Raises:
        NotNative: its indices are not all such rows, or negative ones that count from the end.
    """
    try:
        rows = from_end(_row_indices(dataset.indices), n)
    except (TypeError, ValueError) as error:
        raise NotNative(f"The indices of the Subset are not row indices: {error}.") from error
    bad = (rows < 0) | (rows >= n)
    if bad.any():
        raise NotNative(f"The indices of the Subset are not row indices: {rows[bad.argmax()]} is not below {n}.")
    return rows


def _row_indices(indices: Any) -> Indices:
    if type(indices) not in _SEQUENCES:
        raise TypeError(f"what a {type(indices).__name__} gives for an index is for itself to say; give list(indices)")
    kinds = set(map(type, indices)) if isinstance(indices, list | tuple) else {getattr(indices, "dtype", int)}
    if kinds & {bool, torch.bool, np.bool_, np.dtype(bool)}:
        raise TypeError("they are bools; give the numbers of the rows, such as mask.nonzero()[:, 0]")
    return as_indices(indices)


def _of_concat(dataset: ConcatDataset[Any]) -> Source:
    parts = [resolve(part) for part in dataset.datasets]
    first = parts[0]
    if any(_signature(part) != _signature(first) for part in parts):
        raise NotNative(
            "The parts of the ConcatDataset differ in fields, dtypes, shapes, casts or functions: make them alike, or "
            "join memload datasets by memload.concat({...}) and give collate_fn=memload.group_collate."
        )
    if first.layout == Only() and any(isinstance(field, RaggedField) for field in first.fields.values()):
        raise NotNative(
            "The samples of the ConcatDataset are tensors of different length, which default_collate does not stack: "
            "join the memload datasets by memload.concat, or leave only(...) out."
        )
    if [*itertools.accumulate(part.rows for part in parts)] != list(dataset.cumulative_sizes):
        raise NotNative("The ConcatDataset has parts whose length changed: make it anew.")
    fields = {key: Field.concat([part.fields[key] for part in parts]) for key in first.fields}
    watches = _all_watches(parts, [PartsWatch.of(lambda: dataset.datasets)])
    return replace(first, fields=fields, takes_lists=False, whole=False, watches=watches)


def _signature(source: Source) -> Any:
    return (
        source.layout,
        source.casts,
        source.maps,
        source.tags,
        [(key, field.signature) for key, field in source.fields.items()],
    )


def _check_lengths(what: str, lengths: Sequence[int]) -> None:
    if len(set(lengths)) > 1:
        raise NotNative(f"The lengths of {what} differ: {', '.join(map(str, lengths))}; make them equal.")


def _of_view(view: Float32View) -> Source:
    base = resolve(view.base)
    if base.casts:
        raise NotNative("A Float32View of a Float32View converts twice: one view, or cast=, is enough.")
    if base.maps:
        raise NotNative("A Float32View of mapped samples converts what a function returns: map the view instead.")
    if not isinstance(base.layout, DictOf) or any(member != Only() for _, member in base.layout.members):
        raise NotNative("A Float32View needs samples that are dicts of tensors; its base yields something else.")
    source = base.with_casts(view.rules({str(name): field for name, field in base.fields.items()}))
    return replace(source, takes_lists=False, watches=_all_watches([base], [PartsWatch.of(lambda: (view.base,))]))


def _of_mapped(mapped: MappedDataset) -> Source:
    if mapped.in_processes:
        raise NotNative(
            "map(..., in_processes=True) asks for the num_workers processes of the stock machinery: "
            "leave it out to have the function called in threads."
        )
    if isinstance(mapped.base, GroupedDataset):
        raise NotNative(
            "Datasets that differ in fields, dtypes or shapes are mapped row by row: leave the map out, and give "
            "collate_fn=memload.group_collate and batch_transform=, whose function gets the list of groups."
        )
    base = resolve(mapped.base)
    if isinstance(base.layout, Graphs):
        raise NotNative("Functions of single graphs are called by the stock machinery: give batch_transform= instead.")
    if base.tags not in ((), (TAG,)):
        raise NotNative(f"A member of what is mapped has a {TAG!r} of its own: map that member alone.")
    first = (with_int_tag,) if base.tags and not base.maps else ()
    watches = _all_watches([base], [PartsWatch.of(lambda: (mapped.base, mapped.fn))])
    return replace(base, maps=(*first, *base.maps, mapped.fn), takes_lists=False, whole=False, watches=watches)


def _is_tensordict(dataset: Any) -> bool:
    module = sys.modules.get("tensordict")  # of somebody who has not imported it, there is none
    return type(dataset) is getattr(module, "TensorDict", ())


def _of_tensordict(dataset: Any) -> Source:
    if not dataset.batch_size:
        raise NotNative("The TensorDict has no batch size, so that it has no rows: give it batch_size=[rows].")
    fields: dict[Key, Field] = {}
    watches: list[Watch] = []
    layout = _tensordict_layout(dataset, (), fields, watches)
    return Source(fields, layout, {}, whole=True, watches=tuple(watches))


def _tensordict_layout(
    node: Any, path: tuple[str, ...], fields: dict[Key, Field], watches: list[Watch]
) -> TensorDictOf:
    """Return the layout of a TensorDict, and add its tensors to the fields, and what shows changes to the watches."""
    if any(node.names or ()):
        raise NotNative("The TensorDict has named dimensions: leave the names out.")
    members: list[tuple[str, Layout]] = []
    for name in node.keys():  # noqa: SIM118 - iterating a TensorDict gives its rows
        value, place = node.get(name), (*path, name)
        if _is_tensordict(value):
            members.append((name, _tensordict_layout(value, place, fields, watches)))
            continue
        key = name if len(place) == 1 else place
        tensor = _plain(value)
        fields[key] = _of_tensor(f"the entry {key!r} of the TensorDict", tensor)
        watches += watched_tensors([tensor])
        members.append((name, Only()))
    if not members:
        raise NotNative("The TensorDict, or one inside it, has no entries.")
    watches.append(PartsWatch.of(node.values))
    return TensorDictOf(tuple(members), tuple(node.batch_size[1:]), node.device)


def _plain(value: Any) -> Any:
    """A memory-mapped tensor as the plain tensor on the same memory; anything else as it is."""
    memory_mapped = type(value) is sys.modules["tensordict"].MemoryMappedTensor
    return value.as_subclass(torch.Tensor) if memory_mapped else value


_SEQUENCES = (list, tuple, range, np.ndarray, torch.Tensor)

_READERS: Mapping[type, tuple[Callable[[Any], Source], Unaltered]] = {
    GroupedDataset: (_of_groups, Unaltered(GroupedDataset, (*_ITEMS, "locate"), ["members"])),
    GraphDataset: (_of_graphs, Unaltered(GraphDataset, (*_ITEMS, "_arranged"))),
    Dataset: (_of_dataset, Unaltered(Dataset, (*_ITEMS, "_arranged"))),
    TensorDataset: (_of_tensors, Unaltered(TensorDataset, _ITEMS, ["tensors"])),
    StackDataset: (_of_stack, Unaltered(StackDataset, _ITEMS, ["datasets"])),
    Subset: (_of_subset, Unaltered(Subset, _ITEMS, ["dataset", "indices"])),
    ConcatDataset: (_of_concat, Unaltered(ConcatDataset, _ITEMS, ["datasets", "cumulative_sizes"])),
    Float32View: (_of_view, Unaltered(Float32View, (*_ITEMS, "rules"), ["base", "norm_removed", "float16"])),
    MappedDataset: (_of_mapped, Unaltered(MappedDataset, (*_ITEMS, "fn"), ["base", "in_processes"])),
}
