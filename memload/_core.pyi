"""The native core, as agreed; regenerated from the built module."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

version: str

class ShardReadError(Exception): ...

class Storage:
    """One readable run of bytes: a mapped file, or memory that somebody else owns."""

    @staticmethod
    def map_file(path: str) -> Storage: ...
    @staticmethod
    def borrow(owner: object, address: int, nbytes: int, name: str) -> Storage: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def name(self) -> str: ...

class Column:
    """Where the rows of one field lie. Immutable."""

    def __init__(self, row_bytes: int, segments: Sequence[tuple[Storage, int, int, int]]) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def storages(self) -> list[Storage]: ...
    def select(self, rows: NDArray[np.int64]) -> Column: ...
    @staticmethod
    def concat(columns: Sequence[Column]) -> Column: ...
    def gather(self, rows: NDArray[np.int64], address: int, nbytes: int) -> None: ...

def cast(
    src_address: int,
    dst_address: int,
    n: int,
    from_code: str,
    to_code: str,
    norm_removed: bool = False,
    isa: str = "",
    streaming: bool = False,
    threads: int = 1,
) -> None: ...
def copy(src_address: int, dst_address: int, nbytes: int, isa: str = "", streaming: bool = False) -> None: ...
def isas() -> list[str]: ...
