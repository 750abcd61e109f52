"""Which datasets the native engine can read, and how: dataset -> fields and the structure of a batch.

A dataset of memload's says itself how it is read: by the private method ``__memload_source__()``, beside which its
class states by `answers_by` what it answers by. A dataset of a user's offers one of memload's by ``__memload__()``. The
table at the end is for torch's classes alone.

Native means equal: whatever a subclass, a patch or an odd tensor would make differ from the stock loader's batches is
left to the stock machinery, for the reason that the message gives.
"""

from __future__ import annotations

import glob
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from memload.columns.fields import Field, HasFields
from memload.columns.numbers import as_indices, from_end
from memload.columns.ragged_fields import holds_ragged
from memload.engine.gather_spec import GatherSpec, ImpliedCast, Key, NotNative
from memload.engine.layout import DictOf, Graphs, Layout, ListOf, Only, TensorDictOf, flat
from memload.engine.mutation_guards import MutationGuard, PartsGuard, guarded_tensors
from memload.errors import FormatError
from memload.formats.geometric import holds_graphs_of_pyg
from memload.formats.paths import nothing_at
from memload.sampling.draws import Indices
from memload.sizes import counted

_IMAGE_FOLDER = "torchvision.datasets.folder.ImageFolder"  # which need not be installed
ITEMS = ("__getitem__", "__getitems__", "__len__")
"""The methods that give the samples of any dataset."""

T = TypeVar("T")


class Unaltered:
    """What a class answers by, taken down when memload is imported.

    Args:
        kind: the class.
        methods: names of the methods that decide what an instance answers; one that the class lacks must stay lacking.
        attributes: what those methods read of an instance: plain attributes, which a subclass could make computed ones.
    """

    def __init__(self, kind: type, methods: Iterable[str], attributes: Iterable[str] = ()) -> None:
        self.kind = kind
        self._methods = {name: getattr(kind, name, None) for name in (*methods, "__getattribute__", "__getattr__")}
        self._attributes = tuple(attributes)
        self._patched = frozenset(name for name, method in self._methods.items() if self._is_patch(method))

    def difference(self, instance: Any) -> str | None:
        """Return the name of the first thing by which this instance of the class may answer differently, or None."""
        cls, own = type(instance), getattr(instance, "__dict__", {})
        for name, method in self._methods.items():
            if getattr(cls, name, None) is not method or name in own or name in self._patched:
                return name
        for name in self._attributes:
            if hasattr(cls, name) or name not in own:
                return name
        return None

    def _is_patch(self, method: Any) -> bool:
        """Whether the class had got this method from elsewhere before memload was imported."""
        home = getattr(method, "__globals__", None)
        return home is not None and all(home is not vars(sys.modules[cls.__module__]) for cls in self.kind.__mro__)


def answers_by(*methods: str, attributes: Iterable[str] = ()) -> Callable[[type[T]], type[T]]:
    """Return a decorator for a class of datasets that say by ``__memload_source__()`` how the engine reads them.

    It takes down what the class answers by, so that the engine asks no subclass that answers otherwise.

    Args:
        methods: the methods that decide what an instance answers, beside those that give samples.
        attributes: what the methods read of an instance; see `Unaltered`.
    """

    def taken_down(kind: type[T]) -> type[T]:
        kind.__memload_unaltered__ = Unaltered(kind, (*ITEMS, *methods), attributes)  # type: ignore[attr-defined]
        return kind

    return taken_down


def unaltered_of(kind: type) -> Unaltered | None:
    """Return what a class with `answers_by` of its own answers by; None for others, and for their subclasses."""
    found = vars(kind).get("__memload_unaltered__")
    return found if isinstance(found, Unaltered) else None


def resolve(dataset: Any) -> GatherSpec:
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
    known = _known(dataset)
    if known is not None:
        read, unaltered = known
        _check_unaltered(dataset, unaltered)
        return read(dataset)
    if _is_tensordict(dataset):
        return _of_tensordict(dataset)
    from memload.formats.hugging_face import is_hugging_face

    if is_hugging_face(dataset):
        return _of_hugging_face(dataset)
    if holds_graphs_of_pyg(dataset):
        raise NotNative(
            f"This {type(dataset).__name__} has graphs of PyTorch Geometric, which are joined one by one: give "
            "memload.from_graphs(dataset), which applies a transform= of the dataset once, or for the file of an "
            "InMemoryDataset memload.open_graphs(path), with collate_fn=memload.graph_collate."
        )
    raise NotNative(
        f"{type(dataset).__name__} is not a dataset that memload reads natively: give it memload.open(...) or "
        "memload.from_arrays(...), a TensorDataset, or a StackDataset, Subset or ConcatDataset of these, or give your "
        f"class a method __memload__ that returns such a memload dataset.{_of_image_files(dataset)}"
    )


def _of_image_files(dataset: Any) -> str:
    """Return a sentence on what to do with torchvision's dataset of a folder of images; "" for any other."""
    if not any(f"{cls.__module__}.{cls.__name__}" == _IMAGE_FOLDER for cls in type(dataset).__mro__):
        return ""
    folder = getattr(dataset, "root", "DIR")
    return f" `memload write --images {folder} --labels folders DST` makes a set of its images, which memload opens."


def check_dataset(dataset: Any, *, by_number: bool) -> None:
    """Raise TypeError if this is a path, a recording, or arrays by name where rows are asked for by number."""
    if isinstance(dataset, str | os.PathLike):
        path = Path(dataset)
        missing = "" if path.exists() or glob.has_magic(str(path)) else f"; but {nothing_at(path)}"
        raise TypeError(f"{str(dataset)!r} is a path, not a dataset: give memload.open({str(dataset)!r}){missing}")
    if by_number and isinstance(dataset, dict) and dataset and all(isinstance(name, str) for name in dataset):
        raise TypeError(
            f"a dict with the names {', '.join(map(repr, dataset))} has no rows by number: memload.from_arrays(arrays) "
            "makes a dataset of arrays by name"
        )
    if not hasattr(dataset, "__getitem__") and hasattr(dataset, "slices") and hasattr(dataset, "clocks"):
        raise TypeError(f"a {type(dataset).__name__} has no rows until it is cut: give its slices(2.0), of two seconds")


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


def _of_offer(dataset: Any) -> GatherSpec:
    owner = next(cls for cls in type(dataset).__mro__ if "__memload__" in vars(cls))
    for cls in itertools.takewhile(lambda cls: cls is not owner, type(dataset).__mro__):
        for name in vars(cls).keys() & set(ITEMS):
            raise NotNative(
                f"{cls.__name__} overrides {name}, but not the __memload__ of {owner.__name__}: "
                "override both, or neither."
            )
    offered = dataset.__memload__()
    if not isinstance(offered, HasFields):
        raise TypeError(
            f"{owner.__name__}.__memload__() must return a memload dataset, as memload.open and memload.from_arrays "
            f"make them; it returned {type(offered).__name__}"
        )
    if len(offered) != len(dataset):
        raise ValueError(
            f"{owner.__name__}.__memload__() returned a dataset of {counted(len(offered), 'row')}; "
            f"len() of the dataset itself is {len(dataset):,}"
        )
    return resolve(offered)


def check_unaltered(dataset: Any) -> None:
    """Raise NotNative if a subclass or a patch may make a dataset of a known kind answer differently."""
    known = _known(dataset)
    if known is not None:
        _check_unaltered(dataset, known[1])


def _known(dataset: Any) -> _Reader | None:
    """How a dataset is read, and what its class answers by: as it says itself, or as the table of torch's classes does.

    None if it is of no known class.
    """
    for cls in type(dataset).__mro__:
        if cls in _READERS:
            return _READERS[cls]
        if (unaltered := unaltered_of(cls)) is not None:
            return _as_it_says, unaltered
    return None


def _as_it_says(dataset: Any) -> GatherSpec:
    source: GatherSpec = dataset.__memload_source__()
    return source


def _of_tensors(dataset: TensorDataset) -> GatherSpec:
    if not dataset.tensors:
        raise NotNative("The TensorDataset has no tensors: give it some.")
    fields: dict[Key, Field] = {}
    for k, tensor in enumerate(dataset.tensors):
        fields[k] = _of_tensor(f"tensor {k} of the TensorDataset", tensor)
    _check_lengths("the tensors of the TensorDataset", [field.rows for field in fields.values()])
    guards = (PartsGuard.of(lambda: dataset.tensors), *guarded_tensors(dataset.tensors))
    return GatherSpec(fields, ListOf((Only(),) * len(fields)), {}, takes_lists=True, guards=guards)


def _of_tensor(what: str, tensor: Any) -> Field:
    from memload.formats.arrays import borrow_array

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


def _of_stack(dataset: StackDataset[Any]) -> GatherSpec:
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
    guards = [PartsGuard.of(lambda: _members(dataset).values())]
    takes_lists = all(source.takes_lists for source in sources.values())
    tags = tuple((name, str(tag)) for name, source in sources.items() for tag in source.tags)
    return GatherSpec(fields, layout, casts, takes_lists, guards=_all_guards(sources.values(), guards), tags=tags)


def _members(dataset: StackDataset[Any]) -> dict[Any, Any]:
    held = dataset.datasets
    return held if isinstance(held, dict) else dict(enumerate(held))


def _all_guards(sources: Iterable[GatherSpec], more: Iterable[MutationGuard]) -> tuple[MutationGuard, ...]:
    return (*more, *itertools.chain.from_iterable(source.guards for source in sources))


def _of_subset(dataset: Subset[Any]) -> GatherSpec:
    base = resolve(dataset.dataset)
    rows = rows_of_subset(dataset, base.rows)
    fields = {key: replace(field, column=field.column.select(rows)) for key, field in base.fields.items()}
    # A list with a tensor in it, which is what a tensor of indices gives, indexes one dimension by each member.
    as_lists = base.takes_lists and not any(isinstance(index, torch.Tensor) for index in dataset.indices)
    own = (PartsGuard.of(lambda: (dataset.dataset, dataset.indices)), *guarded_tensors([dataset.indices]))
    return replace(base, fields=fields, takes_lists=as_lists, guards=_all_guards([base], own))


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


def _of_concat(dataset: ConcatDataset[Any]) -> GatherSpec:
    parts = [resolve(part) for part in dataset.datasets]
    first = parts[0]
    if any(_signature(part) != _signature(first) for part in parts):
        raise NotNative(
            "The parts of the ConcatDataset differ in fields, dtypes, shapes, casts or functions: make them alike, or "
            "join memload datasets by memload.concat({...}) and give collate_fn=memload.group_collate."
        )
    if first.layout == Only() and holds_ragged(first.fields):
        raise NotNative(
            "The samples of the ConcatDataset are tensors of different length, which default_collate does not stack: "
            "join the memload datasets by memload.concat, or leave only(...) out."
        )
    if [*itertools.accumulate(part.rows for part in parts)] != list(dataset.cumulative_sizes):
        raise NotNative("The ConcatDataset has parts whose length changed: make it anew.")
    fields = {key: Field.concat([part.fields[key] for part in parts]) for key in first.fields}
    guards = _all_guards(parts, [PartsGuard.of(lambda: dataset.datasets)])
    return replace(first, fields=fields, takes_lists=False, whole=False, guards=guards)


def _signature(source: GatherSpec) -> Any:
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


def _is_tensordict(dataset: Any) -> bool:
    module = sys.modules.get("tensordict")  # of somebody who has not imported it, there is none
    return type(dataset) is getattr(module, "TensorDict", ())


def _of_tensordict(dataset: Any) -> GatherSpec:
    if not dataset.batch_size:
        raise NotNative("The TensorDict has no batch size, so that it has no rows: give it batch_size=[rows].")
    fields: dict[Key, Field] = {}
    guards: list[MutationGuard] = []
    layout = _tensordict_layout(dataset, (), fields, guards)
    return GatherSpec(fields, layout, {}, whole=True, guards=tuple(guards))


def _tensordict_layout(
    node: Any, path: tuple[str, ...], fields: dict[Key, Field], guards: list[MutationGuard]
) -> TensorDictOf:
    """Return the layout of a TensorDict, and add its tensors to the fields, and what shows changes to the guards."""
    if any(node.names or ()):
        raise NotNative("The TensorDict has named dimensions: leave the names out.")
    members: list[tuple[str, Layout]] = []
    for name in node.keys():  # noqa: SIM118 - iterating a TensorDict gives its rows
        value, place = node.get(name), (*path, name)
        if _is_tensordict(value):
            members.append((name, _tensordict_layout(value, place, fields, guards)))
            continue
        key = name if len(place) == 1 else place
        tensor = _plain(value)
        fields[key] = _of_tensor(f"the entry {key!r} of the TensorDict", tensor)
        guards += guarded_tensors([tensor])
        members.append((name, Only()))
    if not members:
        raise NotNative("The TensorDict, or one inside it, has no entries.")
    guards.append(PartsGuard.of(node.values))
    return TensorDictOf(tuple(members), tuple(node.batch_size[1:]), node.device)


def _plain(value: Any) -> Any:
    """A memory-mapped tensor as the plain tensor on the same memory; anything else as it is."""
    memory_mapped = type(value) is sys.modules["tensordict"].MemoryMappedTensor
    return value.as_subclass(torch.Tensor) if memory_mapped else value


def _of_hugging_face(dataset: Any) -> GatherSpec:
    from memload.formats.hugging_face import fields_of, parts_of, torch_format

    if "__getitems__" in vars(dataset):
        raise NotNative("The __getitems__ of the datasets.Dataset was replaced: leave it as it is.")
    try:
        wanted = torch_format(dataset)
        fields = fields_of(dataset, wanted.columns)
    except (FormatError, ValueError) as error:
        raise NotNative(f"The datasets.Dataset is not read natively, since {_reason(error)}.") from error
    casts: dict[Key, ImpliedCast] = {}
    for name, field in fields.items():
        made = wanted.dtype_of(field.dtype)
        if made is None or 0 in field.shape:
            raise NotNative(f"The column {name!r} of the datasets.Dataset has {_odd(field)}: leave it out.")
        if made != field.dtype:
            casts[name] = ImpliedCast(made)
    guard = PartsGuard.of(lambda: parts_of(dataset))
    return GatherSpec(dict(fields.items()), flat("dict", list(fields)), casts, guards=(guard,))


def _reason(error: Exception) -> str:
    return str(error).removeprefix("the dataset: ")


def _odd(field: Field) -> str:
    return "rows without elements" if 0 in field.shape else f"the dtype {field.dtype}, which torch takes only in part"


_SEQUENCES = (list, tuple, range, np.ndarray, torch.Tensor)

_Reader = tuple[Callable[[Any], GatherSpec], Unaltered]

_READERS: Mapping[type, _Reader] = {
    TensorDataset: (_of_tensors, Unaltered(TensorDataset, ITEMS, ["tensors"])),
    StackDataset: (_of_stack, Unaltered(StackDataset, ITEMS, ["datasets"])),
    Subset: (_of_subset, Unaltered(Subset, ITEMS, ["dataset", "indices"])),
    ConcatDataset: (_of_concat, Unaltered(ConcatDataset, ITEMS, ["datasets", "cumulative_sizes"])),
}
