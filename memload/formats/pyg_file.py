"""Files of PyTorch Geometric's InMemoryDataset: the attributes of all graphs, joined, and where each graph begins.

(data, slices) or (data, slices, class):   data["x"]     | nodes of graph 0 | of graph 1 | ...
                                           slices["x"]   | 0 | nodes of graph 0 | of both | ...
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from memload import _core
from memload.columns.fields import Field, check_equal_lengths, digest_of, row_nbytes
from memload.columns.graph_attributes import COUNTED, along_last
from memload.columns.ragged_fields import RaggedField
from memload.dtypes import code_of
from memload.errors import FormatError
from memload.formats.geometric import own_rule
from memload.formats.ragged_arrays import text_field
from memload.formats.torch_file import TorchFile, load_mapped, refuse_graph_list


def open_collated(path: Path, *, trust: bool) -> dict[str, Field]:
    """Return the attributes of the graphs as fields, read in place from the file.

    Raises:
        FormatError: the file is no InMemoryDataset, or damaged, or has an attribute of an unsupported kind.
        ImportError: it has classes of torch_geometric, which is not installed.
    """
    return collated_fields(load_mapped(path, trust=trust))


def holds_collated(file: TorchFile) -> bool:
    """Return whether a loaded file is a saved InMemoryDataset.

    The class in it must say so, or a `Data` with the attributes. A pair of plain dicts does not count, whatever it has:
    ({"y": ...}, {"y": ...}) may as well be labels for training and for testing.
    """
    value = file.value
    if not (isinstance(value, tuple) and len(value) in (2, 3) and isinstance(value[1], Mapping) and value[1]):
        return False
    if isinstance(value[0], Mapping) and not (len(value) == 3 and isinstance(value[2], type)):
        return False
    data = _attributes(value[0])
    return data is not None and all(name in data and _are_slices(ends) for name, ends in value[1].items())


def collated_fields(file: TorchFile) -> dict[str, Field]:
    """Return the fields of a loaded file; see `open_collated`."""
    path, (data, slices) = file.path, _parts(file)
    fields: dict[str, Field] = {}
    for name, ends in slices.items():
        if name in data:
            fields[name] = _field(file, name, data[name], ends)
    if "_num_nodes" in data:
        fields[COUNTED] = _number_field(file, data["_num_nodes"])
    if not fields:
        raise FormatError(f"{path}: its graphs have no attributes")
    try:
        check_equal_lengths({name: field.rows for name, field in fields.items()}, "the attributes")
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None
    return fields


def _parts(file: TorchFile) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    value = file.value
    if not (isinstance(value, tuple) and len(value) in (2, 3)):
        refuse_graph_list(file.path, value)
        raise FormatError(f"{file.path}: {_EXPECTED}, found {_kind(value)}; {_OTHERWISE}")
    data, slices = value[:2]
    attributes = _attributes(data)
    if attributes is None:
        raise FormatError(f"{file.path}: {_EXPECTED}, found a tuple of {_kind(data)} and {_kind(slices)}; {_OTHERWISE}")
    if slices is None:
        raise FormatError(
            f"{file.path}: has a single graph, whose attributes are not joined with others: give it to "
            "memload.from_graphs([...])"
        )
    if not isinstance(slices, Mapping) or any(isinstance(ends, Mapping) for ends in slices.values()):
        raise FormatError(f"{file.path}: holds graphs of several kinds of nodes or edges; read are those of one kind")
    _check_rules(file.path, value)
    return attributes, slices


def _check_rules(path: Path, value: tuple[Any, ...]) -> None:
    """Raise FormatError if the class in the file, or that of the data, joins graphs by rules of its own."""
    kind = value[2] if len(value) > 2 else type(value[0])
    if isinstance(kind, type) and hasattr(kind, "__inc__") and (name := own_rule(kind)):
        raise FormatError(
            f"{path}: its graphs are of the class {kind.__name__}, which overrides {name}; only graphs whose "
            "attributes join by the rules of torch_geometric.data.Data can be read: use the loader of PyG for these"
        )


def _attributes(data: Any) -> Mapping[str, Any] | None:
    """Return the attributes of all graphs, also from the `Data` of older files; None if there are none."""
    found = data.to_dict() if hasattr(data, "to_dict") and not isinstance(data, torch.Tensor) else data
    return found if isinstance(found, Mapping) else None


def _are_slices(ends: Any) -> bool:
    return isinstance(ends, torch.Tensor) and ends.dtype == torch.int64 and ends.ndim == 1 and ends.is_contiguous()


def _field(file: TorchFile, name: str, values: Any, ends: Any) -> Field:
    if isinstance(values, list) and all(isinstance(text, str) for text in values):
        return _text_field(file, name, values)
    if not _are_slices(ends) or not len(ends):
        raise FormatError(f"{file.path}: the slices of {name!r} are {_kind(ends)}; expected int64 (graphs + 1,)")
    if not (type(values) is torch.Tensor and values.layout == torch.strided and values.ndim and values.is_contiguous()):
        raise FormatError(
            f"{file.path}: the attribute {name!r} is {_kind(values)}, not a plain tensor, number or text. Leave "
            "it out, or convert it, and save the graphs again"
        )
    if values.is_conj() or values.is_neg() or ends.is_neg():
        raise FormatError(
            f"{file.path}: the attribute {name!r} is a lazily conjugated tensor, whose bytes do not show its values. "
            "Save the graphs again with tensor.resolve_conj().resolve_neg()"
        )
    try:
        code_of(values.dtype)
    except TypeError as error:
        raise FormatError(f"{file.path}: the attribute {name!r}: {error}") from None
    axis = values.ndim - 1 if along_last(name) else 0
    shape = (*values.shape[:axis], None, *values.shape[axis + 1 :])
    planes, item = math.prod(values.shape[:axis]), row_nbytes(values.dtype, values.shape[axis + 1 :])
    items = values.shape[axis]
    storage, at = _place(file, name, values)
    numbers, numbers_at = _place(file, f"the slices of {name}", ends)
    try:
        segment = (numbers, numbers_at, storage, at, len(ends) - 1, items, items * item)
        column = _core.Ragged(item, planes, [segment])
    except ValueError as error:
        raise FormatError(f"{file.path}: the attribute {name!r}: {error}") from None
    digest = digest_of([str(file.storage.nbytes), xxhash.xxh3_64_hexdigest(ends.numpy().data)])
    return RaggedField(values.dtype, shape, column, digest=digest)


def _text_field(file: TorchFile, name: str, texts: list[str]) -> Field:
    try:
        return text_field(name, texts)
    except ValueError as error:
        raise FormatError(f"{file.path}: {error}") from None


def _number_field(file: TorchFile, numbers: Any) -> Field:
    try:
        counts = np.array([int(number) for number in numbers], dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{file.path}: its numbers of nodes are damaged: {error}") from None
    held = _core.Storage.borrow(counts, counts.ctypes.data, counts.nbytes, f"{COUNTED} of {file.path}")
    return Field(torch.int64, (), _core.Column(8, [(held, 0, len(counts), 8)]))


def _place(file: TorchFile, name: str, tensor: torch.Tensor) -> tuple[_core.Storage, int]:
    """Return the storage and the place of a tensor: in the file, or in memory if torch has read it."""
    offset = file.offset(tensor)
    if offset is not None:
        return file.storage, offset
    return _core.Storage.borrow(tensor, tensor.data_ptr(), tensor.nbytes, f"{name} of {file.path}"), 0


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"


_EXPECTED = "expected (data, slices), as torch_geometric's InMemoryDataset saves it"
_OTHERWISE = "graphs that you have as Data are written one by one: memload.write_graphs(DIRECTORY, graphs)"
