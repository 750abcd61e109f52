"""Files of torch.save: tensors are found by torch itself, then read in place from a mapping of the file."""

from __future__ import annotations

import importlib
import pickle
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memload._core import Column, Storage
from memload.errors import FormatError, first_line
from memload.fields import Field
from memload.sources.arrays import borrow_array
from memload.sources.members import Key, check_lengths, choose
from memload.sources.memory_maps import mapping_of
from memload.sources.paths import cut_short

LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How files of torch.save begin that were written before torch 1.6, or by its old format on request."""

_MOST_IN_A_LIST = 64

# What PyTorch Geometric pickles of its own: containers of tensors, whose unpickling runs nothing but their own code.
_GEOMETRIC = {
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
    """What torch.load made of a file, and how to read its tensors from memload's own mapping of that file.

    Attributes:
        path: the file.
        value: the object; its tensors lie in torch's mapping of the file as long as they live.
        storage: memload's mapping.
        begin, end: the addresses of torch's mapping; both 0 if no tensor lies in it.
    """

    path: Path
    value: Any
    storage: Storage
    begin: int
    end: int

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Return where in the file the first element of the tensor lies; None if it does not lie there."""
        address = tensor.data_ptr()
        inside = self.begin <= address and address + _span(tensor) <= self.end
        return address - self.begin if inside else None

    def field(self, name: str, tensor: torch.Tensor | np.ndarray[Any, Any]) -> Field:
        """Return the field whose rows are those of the tensor, read from the file if it lies there.

        Raises:
            FormatError: its rows are not runs of bytes, or it has none; dtypes and layouts as `borrow_array` says.
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
    """Return what torch.save wrote to `path`, with its tensors mapped, not read.

    Args:
        path: of the file.
        trust: unpickle any class, which runs whatever code the file names; else tensors, Python's containers, PyTorch
            Geometric's own classes, and what `torch.serialization.add_safe_globals` allows.

    Raises:
        FormatError: it is no such file, is damaged, has the old format or another byte order, or holds a class that is
            not allowed, which the message names.
        ImportError: it holds classes of torch_geometric, which is not installed.
    """
    path = path.absolute()
    check_archive(path)
    with _allowed(path, trust):
        value = _load(path, trust)
    storage = Storage.map_file(str(path))
    tensor = next((tensor for tensor in _tensors(value) if tensor.numel()), None)
    mapping = None if tensor is None else mapping_of(tensor.data_ptr())
    if mapping is None or not mapping.shows(path):
        return TorchFile(path, value, storage, 0, 0)
    begin = mapping.begin - mapping.offset
    return TorchFile(path, value, storage, begin, begin + storage.nbytes)


def refuse_graph_list(path: Path, value: Any) -> None:
    """Raise FormatError, which says what to do, for a list of PyTorch Geometric's graphs."""
    first = value[0] if isinstance(value, list) and value else None
    if type(first).__module__.startswith("torch_geometric.data") and hasattr(first, "num_nodes"):
        raise FormatError(
            f"{path}: {len(value):,} graphs of PyTorch Geometric, saved one by one, which cannot be read in place; "
            "write them as a set once: "
            f"memload.write_graphs(directory, torch.load({path.name!r}, weights_only=False))"
        )


def _refuse_samples(path: Path, value: Any) -> None:
    """Raise FormatError, which says what to do, for a list that is too long to be one of fields."""
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
    """Return the tensors of a file as fields: of a single tensor, or of dicts, lists and tuples of these.

    Raises:
        FormatError: there are no tensors, or one whose rows are not runs of bytes; or a list is of samples.
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
    check_lengths(path, {name: len(one) if one.ndim else None for name, one in members.items()}, key)
    return {name: file.field(name, tensor) for name, tensor in members.items()}


def named_tensors(path: Path, value: Any) -> dict[str, Any]:
    """Return the tensors and arrays in nested dicts, lists and tuples by their paths, such as "train/x" or "0".

    What is no tensor, such as a number or a text, is left out.

    Raises:
        FormatError: containers hold themselves, or two tensors have one path.
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

    Torch stores every record as it is; one that claims to be compressed, or larger than the file, is damaged.
    """
    with path.open("rb") as file:
        if file.read(len(LEGACY_MAGIC)) == LEGACY_MAGIC:
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
        raise FormatError(f"{path}: not a sound file of torch.save: {error}{cut}") from None
    if stated != sys.byteorder:
        raise FormatError(
            f"{path}: its numbers are {stated}-endian, those of this machine {sys.byteorder}-endian; "
            "save it again: torch.save(torch.load(path), path)"
        )


def _allowed(path: Path, trust: bool) -> torch.serialization.safe_globals:
    """The context in which torch loads the file; torch_geometric allows most of its own classes when it is imported."""
    if trust:
        return torch.serialization.safe_globals([])
    refused = _refused(path)
    if refused - _GEOMETRIC:
        raise FormatError(
            f"{path}: holds {', '.join(sorted(refused - _GEOMETRIC))}, whose unpickling may run any code; allow it by "
            "torch.serialization.add_safe_globals([...]), or, if you trust whoever wrote the file, give trust=True"
        )
    classes = {name: _resolved(path, name) for name in sorted(refused)}
    return torch.serialization.safe_globals([classes[name] for name in _refused(path) & classes.keys()])


def _refused(path: Path) -> set[str]:
    try:
        return set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception as error:  # what a damaged pickle raises depends on the damage
        raise FormatError(f"{path}: not a sound file of torch.save: {first_line(error)}") from None


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
        raise FormatError(f"{path}: not a sound file of torch.save: {first_line(error)}") from error


def _walk(value: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, torch.Tensor | np.ndarray):
        yield names or ("data",), value
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from _walk(member, (*names, str(name)))
    elif isinstance(value, list | tuple):
        for position, member in enumerate(value):
            yield from _walk(member, (*names, str(position)))
    elif isinstance(value, torch.utils.data.TensorDataset):
        yield from _walk(value.tensors, names)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All plain tensors in an object, however it holds them: containers, and objects by their attributes."""
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if one.layout == torch.strided and one.device.type == "cpu":
                yield one
        elif isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple | set):
            waiting.extend(one)
        elif hasattr(one, "__dict__"):
            waiting.extend(vars(one).values())


def _span(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((side - 1) * stride for side, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize
