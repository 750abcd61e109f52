"""Read files of torch.save: torch finds the tensors, which are then read in place from a mapping of the file."""

from __future__ import annotations

import importlib
import pickle
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memload._core import Column, Storage
from memload.columns.fields import Field
from memload.errors import FormatError, first_line
from memload.formats.arrays import borrow_array
from memload.formats.graph_list import begins_with_graphs
from memload.formats.members import Key, check_lengths, choose
from memload.formats.memory_maps import Mapping as Mapped
from memload.formats.memory_maps import mapping_of, was_written
from memload.formats.paths import cut_short
from memload.formats.signatures import TORCH_LEGACY_MAGIC
from memload.nested import all_tensors_of, leaves_with_paths

_MOST_IN_A_LIST = 64

# What PyTorch Geometric pickles of its own: containers of tensors, whose unpickling runs nothing but their own code.
GEOMETRIC = {
    f"torch_geometric.{name}"
    for name in (
        "data.data.Data",
        "data.data.DataEdgeAttr",
        "data.data.DataTensorAttr",
        "data.feature_store.TensorAttr",
        "data.graph_store.EdgeAttr",
        "data.graph_store.EdgeLayout",
        "data.hetero_data.HeteroData",
        "data.storage.BaseStorage",
        "data.storage.EdgeStorage",
        "data.storage.GlobalStorage",
        "data.storage.NodeStorage",
        "data.temporal.TemporalData",
        "edge_index.CatMetadata",
        "edge_index.EdgeIndex",
        "edge_index.SortOrder",
        "index.CatMetadata",
        "index.Index",
        "typing.EdgeTypeStr",
    )
}


@dataclass(frozen=True)
class TorchFile:
    """An object that torch.load returned, and memload's own mapping of its file, from which its tensors are read.

    Attributes:
        path: the path of the file.
        value: the object; its tensors are in torch's mapping of the file as long as they live.
        storage: memload's mapping.
        begin, end: the addresses of torch's mapping; both 0 if no tensor is in it.
    """

    path: Path
    value: Any
    storage: Storage
    begin: int
    end: int

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Return the place of the tensor's first element in the file; None if it is not in the file."""
        address = tensor.data_ptr()
        inside = self.begin <= address and address + _span(tensor) <= self.end
        return address - self.begin if inside else None

    def field(self, name: str, tensor: torch.Tensor | np.ndarray[Any, Any]) -> Field:
        """Return the field with the rows of the tensor, read from the file if the tensor is in it.

        Raises:
            FormatError: a row is not one run of bytes, or there are none; dtypes and layouts as in `borrow_array`.
        """
        plain = tensor.detach() if isinstance(tensor, torch.Tensor) else tensor
        try:
            field = borrow_array(name, plain)
        except (TypeError, ValueError) as error:
            raise FormatError(f"{self.path}: {error}") from None
        offset = self.offset(plain) if isinstance(plain, torch.Tensor) else None
        if offset is None or not field.rows:
            return field
        assert isinstance(field.column, Column)
        ((_, _, rows, stride),) = field.column.segments
        return Field(field.dtype, field.shape, Column(field.row_bytes, [(self.storage, offset, rows, stride)]))


def load_mapped(path: Path, *, trust: bool = False) -> TorchFile:
    """Return the object that torch.save wrote to `path`, with its tensors mapped, not read.

    Args:
        path: the path of the file.
        trust: unpickle any class, which runs any code that the file names; otherwise tensors, Python's containers,
            PyTorch Geometric's own classes, and what `torch.serialization.add_safe_globals` allows.

    Raises:
        FormatError: the file is not one of torch.save, is damaged, has the old format or another byte order, or has a
            class that is not allowed; the message names the class.
        ImportError: the file has classes of torch_geometric, which is not installed.
    """
    path = path.absolute()
    _refuse_list_that_begins_with_graphs(path)
    check_archive(path)
    with _allowed(path, trust):
        value = _load(path, trust)
    storage = Storage.map_file(str(path))
    mapping = _mapping(path, value)
    if mapping and (trust or torch.serialization.get_safe_globals()) and was_written(mapping):
        mapping = None  # a class of the file's may have changed numbers while it was loaded
    begin = mapping.begin - mapping.offset if mapping else 0
    return TorchFile(path, value, storage, begin, begin + storage.nbytes if mapping else 0)


def _mapping(path: Path, value: Any) -> Mapped | None:
    """Return torch's mapping of the file; None if no tensor can be in one."""
    looked_at: set[int] = set()
    for tensor in all_tensors_of(value):
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            continue
        memory = tensor.untyped_storage()
        if tensor.numel() and memory.data_ptr() not in looked_at:
            looked_at.add(memory.data_ptr())
            mapping = mapping_of(tensor.data_ptr())
            if mapping and mapping.shows(path):
                return mapping
    return None


def _refuse_list_that_begins_with_graphs(path: Path) -> None:
    """Raise FormatError for a list of PyTorch Geometric's graphs before all of them are loaded."""
    if begins_with_graphs(path):
        raise _graph_list(path)


def refuse_graph_list(path: Path, value: Any) -> None:
    """Return the FormatError, with a remedy, for a list of PyTorch Geometric's graphs."""
    if isinstance(value, list) and any(map(_is_graph, value)):
        raise _graph_list(path)


def _graph_list(path: Path) -> FormatError:
    return FormatError(
        f"{path}: a list of PyTorch Geometric's graphs, saved one by one, which cannot be read in place; write them as "
        f"a set once: memload.write_graphs(directory, {path.name!r}), which takes the memory of a few; or keep them in "
        f"memory: memload.from_graphs({path.name!r})"
    )


def _is_graph(value: Any) -> bool:
    return type(value).__module__.startswith("torch_geometric.data") and hasattr(value, "num_nodes")


def _refuse_samples(path: Path, value: Any) -> None:
    """Raise FormatError, with a remedy, for a list that is too long to be one of fields."""
    if not isinstance(value, list | tuple) or len(value) <= _MOST_IN_A_LIST:
        return
    if not all(isinstance(one, torch.Tensor | Mapping | list | tuple) for one in value):
        return
    rows = f"torch.load({path.name!r})"
    if isinstance(value[0], torch.Tensor):
        rows = f"({{'x': x}} for x in {rows})"
    elif not isinstance(value[0], Mapping):
        rows = f"({{'x': x, 'y': y}} for x, y in {rows})"
    raise FormatError(
        f"{path}: a list of {len(value):,}, which looks like samples one by one; expected tensors whose first axis "
        f"counts the rows. Write the samples as a set once: memload.write(directory, {rows}), with ragged=['x'] if "
        "they differ in length. If they are fields, name those that are meant by key=[...]"
    )


def fields_of(file: TorchFile, key: Key, field: str | None) -> dict[str, Field]:
    """Return the tensors of a file as fields: a single tensor, or those in dicts, lists and tuples.

    Raises:
        FormatError: there are no tensors, or the rows of one are not runs of bytes; or a list is one of samples.
        KeyError, TypeError, ValueError: as `choose` and `check_lengths`.
    """
    path = file.path
    if isinstance(file.value, torch.Tensor) and key is None:
        members = {field or "data": file.value}
    else:
        refuse_graph_list(path, file.value)
        if key is None:
            _refuse_samples(path, file.value)
        members = choose(path, named_tensors(path, file.value), key, field)
    check_lengths(path, {name: len(tensor) if tensor.ndim else None for name, tensor in members.items()}, key)
    return {name: file.field(name, tensor) for name, tensor in members.items()}


def named_tensors(path: Path, value: Any) -> dict[str, Any]:
    """Return the tensors and arrays in nested dicts, lists and tuples by their paths, such as "train/x" or "0".

    Other values, such as numbers and texts, are left out.

    Raises:
        FormatError: a container contains itself, or two tensors have the same path.
    """
    try:
        found = list(_walk(value, ()))
    except RecursionError:
        raise FormatError(f"{path}: its containers are nested too deeply, or hold themselves") from None
    members = {"/".join(names): tensor for names, tensor in found}
    if len(members) != len(found):
        raise FormatError(f"{path}: two tensors have the same path; convert it to a dict of tensors with plain names")
    return members


def check_archive(path: Path) -> None:
    """Raise FormatError unless this is a file of torch.save whose records can be read in place.

    Torch stores every record uncompressed; a compressed record, or one larger than the file, shows damage.
    """
    with path.open("rb") as file:
        if file.read(len(TORCH_LEGACY_MAGIC)) == TORCH_LEGACY_MAGIC:
            raise FormatError(
                f"{path}: has the format that torch.save wrote before torch 1.6, whose tensors cannot be mapped; "
                "save it again: torch.save(torch.load(path), path)"
            )
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
                    raise FormatError(f"{path}: its record {info.filename!r} is not stored as torch.save stores it")
            byte_order = next((info for info in archive.infolist() if info.filename.endswith("/byteorder")), None)
            stated = "little" if byte_order is None else archive.read(byte_order).decode(errors="replace")
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, FormatError | FileNotFoundError | PermissionError):
            raise
        cut = cut_short(path) if isinstance(error, zipfile.BadZipFile) else ""
        raise FormatError(f"{path}: not a valid file of torch.save: {error}{cut}") from None
    if stated != sys.byteorder:
        raise FormatError(
            f"{path}: its numbers are {stated}-endian, but this machine is {sys.byteorder}-endian; "
            "save it again: torch.save(torch.load(path), path)"
        )


def _allowed(path: Path, trust: bool) -> torch.serialization.safe_globals:
    """Return the context in which torch loads the file; importing torch_geometric allows most of its own classes."""
    if trust:
        return torch.serialization.safe_globals([])
    refused = _refused(path)
    if refused - GEOMETRIC:
        raise FormatError(
            f"{path}: holds {', '.join(sorted(refused - GEOMETRIC))}, whose unpickling may run any code; allow it by "
            "torch.serialization.add_safe_globals([...]), or, if you trust whoever wrote the file, give trust=True"
        )
    classes = {name: _resolved(path, name) for name in sorted(refused)}
    return torch.serialization.safe_globals([classes[name] for name in _refused(path) & classes.keys()])


def _refused(path: Path) -> set[str]:
    try:
        return set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception as error:  # what a damaged pickle raises depends on the damage
        raise FormatError(f"{path}: not a valid file of torch.save: {first_line(error)}") from None


def _resolved(path: Path, name: str) -> Any:
    module, _, cls = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), cls)
    except ModuleNotFoundError as error:
        raise ImportError(f"{path}: holds {name}: pip install torch_geometric ({error})") from error


def _load(path: Path, trust: bool) -> Any:
    try:
        return torch.load(path, mmap=True, weights_only=not trust, map_location="cpu")
    except (MemoryError, KeyboardInterrupt):
        raise
    except pickle.UnpicklingError as error:
        raise FormatError(f"{path}: {first_line(error)}") from None
    except Exception as error:  # what a damaged pickle raises depends on the damage
        raise FormatError(f"{path}: not a valid file of torch.save: {first_line(error)}") from error


def _walk(value: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, leaf in leaves_with_paths(value, lambda one: is_dataclass(one) and not isinstance(one, Mapping)):
        there = (*names, *map(str, path))
        if isinstance(leaf, torch.Tensor | np.ndarray):
            yield there or ("data",), leaf
        elif isinstance(leaf, torch.utils.data.TensorDataset):
            yield from _walk(leaf.tensors, there)


def _span(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((side - 1) * stride for side, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize
