"""Read files in which torch.save stored a list of PyTorch Geometric's graphs, a few graphs at a time.

The pickle of such a file holds the graphs without the values of their tensors, which lie in records beside it. It is
read twice: first to see which of its objects are used again, since an unpickler keeps all that it has made; then graph
by graph, of which each is forgotten once it was taken. Values are read when a graph is taken.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import pickletools
import struct
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch

from memload.errors import FormatError, first_line
from memload.formats.torch_records import TorchRecords

_LOOK = 1 << 12  # bytes at the start of a pickle that show the type of its object
_WINDOW = 1 << 20  # bytes of a pickle that are scanned at once
_CONTAINERS = {"builtins.set", "builtins.frozenset", "builtins.dict", "builtins.list", "__builtin__.set"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a pickle, whose values are in another record.

    Attributes:
        key: the key of its storage.
        dtype, size, stride: the dtype, shape and strides of the tensor.
        offset: the place of its first element in the storage, in elements.
        views: the lazy operations, of "conj" and "neg", that lie between the stored values and those of the tensor.
    """

    key: str
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    views: frozenset[str] = frozenset()

    def read(self, records: TorchRecords) -> torch.Tensor:
        """Return the tensor, in newly allocated memory."""
        if not math.prod(self.size):
            return torch.empty(self.size, dtype=self.dtype, device="cpu")
        span = sum((side - 1) * step for side, step in zip(self.size, self.stride, strict=True)) + 1
        item = self.dtype.itemsize
        raw = records.read(self.key, self.offset * item, span * item)
        tensor = torch.frombuffer(raw, dtype=self.dtype).as_strided(self.size, self.stride)
        tensor = tensor.conj().resolve_conj() if "conj" in self.views else tensor
        return -tensor if "neg" in self.views else tensor


def begins_with_graphs(path: Path) -> bool:
    """Return whether a file of torch.save has a list whose first item is a graph of PyTorch Geometric.

    Its pickle must be the first record of the archive.
    """
    with path.open("rb") as file:
        head = file.read(_LOOK)
    if head[:4] != b"PK\3\4" or len(head) < 30:
        return False
    named, more = struct.unpack_from("<HH", head, 26)
    return head[30 : 30 + named].endswith(b"/data.pkl") and _starts(head[30 + named + more :])


def _starts(head: bytes) -> bool:
    names: list[str] = []
    with contextlib.suppress(ValueError), _odd_escapes_ignored():  # the pickle continues after `head`
        for op, argument, _ in pickletools.genops(head):
            if op.name == "GLOBAL":
                return names[:1] == ["EMPTY_LIST"] and str(argument).startswith("torch_geometric.data.")
            if op.name not in ("PROTO", "FRAME"):
                names.append(op.name)
    return False


@contextlib.contextmanager
def _odd_escapes_ignored() -> Iterator[None]:
    """Inside, Python does not warn of a backslash in a damaged text of a pickle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def each_graph(path: Path, take: Callable[[Any], None], allowed: Iterable[str], *, trust: bool) -> int:
    """Call a function with the graphs of a file one by one, and return the number of graphs.

    Args:
        path: the path of the file.
        take: is called with each graph and its tensors.
        allowed: the classes that may be unpickled, by their full names, beside those of tensors and containers.
        trust: unpickle any class.

    Raises:
        FormatError: the file is no list by torch.save, or is damaged, or has a class that is not allowed.
        ImportError: the file has classes of torch_geometric, which is not installed.
    """
    records = TorchRecords(path)
    try:
        with records.opened() as file:
            uses = _uses(path, file)
        with records.opened() as file:
            reader = _Reader(path, file, records, uses, take, None if trust else frozenset(allowed))
            return reader.read_all()
    except _TakenError as error:
        raise error.release_cause() from None
    finally:
        records.close()


def _uses(path: Path, file: BinaryIO) -> Counter[int]:
    """Return how often the pickle refers to each object again, by the object's number."""
    try:
        scan = _Scan(file)
        if scan.first() != "EMPTY_LIST":
            raise FormatError(f"{path}: has no list of graphs; memload.open_graphs reads what InMemoryDataset saves")
        return scan.uses()
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: not a valid file of torch.save: {first_line(error)}") from None


class _Scan:
    """Scans the operations of a pickle, ten times as fast as `pickletools`, from which it has their lengths."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._data, self._at = file, file.read(_WINDOW), 0

    def first(self) -> str:
        """Return the name of the first operation that makes an object."""
        with _odd_escapes_ignored():
            names = (op.name for op, _, _ in pickletools.genops(self._data[:_LOOK]))
            return next(name for name in names if name not in ("PROTO", "FRAME"))

    def uses(self) -> Counter[int]:
        """Return how often the pickle fetches each object, by the object's number."""
        found: Counter[int] = Counter()
        while True:
            if self._at + _WIDEST > len(self._data):
                self._refill()
            data, at = self._data, self._at
            code = data[at]
            size = _SIZES[code]
            if code == _BINGET:
                found[data[at + 1]] += 1
            elif code == _LONG_BINGET:
                found[int.from_bytes(data[at + 1 : at + 5], "little")] += 1
            elif code == _STOP:
                return found
            if size >= 0:
                self._at = at + 1 + size
            elif size == pickletools.UP_TO_NEWLINE:
                line = self._lines(2 if code in _PAIRS else 1)
                if code == _GET:
                    found[int(line)] += 1
            else:
                width = _WIDTHS[size]
                self._at = at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")

    def _lines(self, count: int) -> bytes:
        """Skip `count` lines; return the last."""
        self._at += 1
        line = b""
        for _ in range(count):
            end = self._data.find(b"\n", self._at)
            if end < 0:
                self._refill()
                end = self._data.index(b"\n", self._at)
            line, self._at = self._data[self._at : end], end + 1
        return line

    def _refill(self) -> None:
        beyond = self._at - len(self._data)
        if beyond > 0:
            self._file.seek(beyond, os.SEEK_CUR)
        self._data, self._at = self._data[self._at :] + self._file.read(_WINDOW), 0
        if not self._data:
            raise ValueError("its pickle is cut short")


_SIZES = {ord(op.code): 0 if op.arg is None else op.arg.n for op in pickletools.opcodes}
_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_PAIRS = {ord(op.code) for op in pickletools.opcodes if op.arg is pickletools.stringnl_noescape_pair}
_BINGET, _LONG_BINGET, _GET, _STOP = (code[0] for code in (pickle.BINGET, pickle.LONG_BINGET, pickle.GET, pickle.STOP))
_WIDEST = 9  # bytes of the widest operation without its data


class _Memo(dict[int, Any]):
    """The unpickled objects that are needed again, until their last use."""

    def __init__(self, uses: Counter[int]) -> None:
        super().__init__()
        self._uses, self._made = uses, 0

    def __setitem__(self, number: int, value: Any) -> None:
        self._made += 1
        if self._uses[number]:
            super().__setitem__(number, value)

    def __getitem__(self, number: int) -> Any:
        value = super().__getitem__(number)
        self._uses[number] -= 1
        if not self._uses[number]:
            del self[number]
        return value

    def __len__(self) -> int:
        return self._made  # the number of the next object


class _Reader(pickle._Unpickler):
    """Unpickles a list and hands its items over one by one. Python's unpickler in C would keep them all.

    Args:
        path: the path of the file, for messages.
        file: the file, at the start of the pickle.
        records: the records with the values of tensors.
        uses: how often each object is used again.
        take: is called with each item.
        allowed: the names of allowed classes; None: all.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**pickle._Unpickler.dispatch}
    stack: list[Any]
    metastack: list[list[Any]]
    pop_mark: Callable[[], list[Any]]

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        records: TorchRecords,
        uses: Counter[int],
        take: Callable[[Any], None],
        allowed: frozenset[str] | None,
    ) -> None:
        super().__init__(file)
        self._path, self._records, self._take, self._allowed = path, records, take, allowed
        self.memo = _Memo(uses)
        self._taken = 0

    def read_all(self) -> int:
        """Read the file; return the number of items."""
        try:
            self.load()
        except (FormatError, ImportError, MemoryError, _TakenError):
            raise
        except Exception as error:  # the type of the error depends on the damage
            raise FormatError(f"{self._path}: not a valid file of torch.save: {first_line(error)}") from error
        return self._taken

    def persistent_load(self, pid: Any) -> Any:
        """Return the dtype and the key of a storage, from which a tensor is rebuilt."""
        kind, storage, key, *_ = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"a persistent object of the kind {kind!r}")
        return storage, str(key)

    def find_class(self, module: str, name: str) -> Any:
        """Return the object with a name in the pickle, if it is allowed."""
        full = f"{module}.{name}"
        if full in _REBUILDS:
            return _REBUILDS[full]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if full == "collections.OrderedDict":
            return OrderedDict
        if module == "torch._utils" or full == "torch.serialization._get_layout":
            raise FormatError(f"{self._path}: has tensors that are not dense ({name}): make them dense")
        if self._allowed is not None and full not in self._allowed | _CONTAINERS:
            raise FormatError(
                f"{self._path}: holds {full}, whose unpickling may run any code; if you trust whoever wrote the file, "
                "give trust=True"
            )
        try:
            return super().find_class(module, name)
        except ModuleNotFoundError as error:
            raise ImportError(f"{self._path}: has {full}, which is not installed ({error})") from error

    def load_appends(self) -> None:
        if len(self.metastack) == 1 and len(self.metastack[0]) == 1:
            self._hand_over(self.pop_mark())
        else:
            pickle._Unpickler.dispatch[pickle.APPENDS[0]](self)  # type: ignore[arg-type]

    def load_append(self) -> None:
        if not self.metastack and len(self.stack) == 2:
            self._hand_over([self.stack.pop()])
        else:
            pickle._Unpickler.dispatch[pickle.APPEND[0]](self)  # type: ignore[arg-type]

    dispatch[pickle.APPENDS[0]] = load_appends
    dispatch[pickle.APPEND[0]] = load_append

    def _hand_over(self, items: list[Any]) -> None:
        items.reverse()
        while items:  # popped one by one, to free the values of items that were handed over
            item = items.pop()
            for store in getattr(item, "stores", ()):
                for name, value in list(store.items()):
                    if isinstance(value, StoredTensor):
                        store[name] = value.read(self._records)
            try:
                self._take(item)
            except Exception as error:
                raise _TakenError from error
            self._taken += 1


class _TakenError(Exception):
    """The function that takes graphs raised an error; the file has no fault."""

    def release_cause(self) -> BaseException:
        """Return the error of the function and drop the reference to it, because it refers to this one too."""
        reason, self.__cause__, self.__context__ = self.__cause__, None, None
        assert reason is not None
        return reason


def _tensor(storage: tuple[torch.dtype, str], offset: int, size: Any, stride: Any, *more: Any) -> StoredTensor:
    views = _views(more[2]) if len(more) > 2 else frozenset[str]()  # behind requires_grad and hooks
    return StoredTensor(storage[1], storage[0], tuple(size), tuple(stride), int(offset), views)


def _typed(storage: tuple[Any, str], offset: int, size: Any, stride: Any, *more: Any) -> StoredTensor:
    return _tensor((more[2], storage[1]), offset, size, stride, *more[:2], *more[3:])


def _views(metadata: Any) -> frozenset[str]:
    """Return the lazy operations in what torch stores beside a tensor. Raises UnpicklingError for anything else."""
    if not isinstance(metadata, dict) or not metadata.keys() <= {"conj", "neg"}:
        raise pickle.UnpicklingError(f"a tensor with {metadata!r:.80} beside it")
    return frozenset(name for name, holds in metadata.items() if holds)


def _parameter(tensor: StoredTensor, *_: Any) -> StoredTensor:
    return tensor


_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,  # the tensor says which dtype it has
}

_REBUILDS: dict[str, Callable[..., StoredTensor]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed,
    "torch._utils._rebuild_parameter": _parameter,
}
