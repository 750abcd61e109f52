"""Graphs on disk: `write_graphs` writes shards; `open_graphs` opens shards, or a file of PyTorch Geometric in place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memload.dataset.opening import open as open_dataset
from memload.errors import FormatError
from memload.formats.codecs.by_field import Codecs
from memload.formats.formats import is_directory
from memload.formats.geometric import geometric
from memload.formats.pyg_file import open_collated
from memload.graphs.datasets import GraphDataset
from memload.graphs.lists import JoinedGraphs
from memload.progress import byte_bar
from memload.writing.writer import ShardWriter

_CHUNK_BYTES = 2**24  # bytes of graphs that are joined and written at once


def open_graphs(path: str | os.PathLike[str], *, trust: bool = False) -> GraphDataset:
    """Return the graphs at `path` as a dataset; they are mapped, not read.

    Args:
        path: a directory of shards that `memload.write_graphs` or `memload.write` made; or a file in which PyTorch
            Geometric keeps the graphs of an ``InMemoryDataset``, such as ``processed/data.pt``, which is read in place.
        trust: for such a file, unpickle any class, which runs any code that the file names; otherwise only tensors,
            Python's containers and PyTorch Geometric's own classes are unpickled.

    Raises:
        FileNotFoundError, PermissionError: the path is missing or cannot be read.
        FormatError: it is none of these, or damaged, or its fields cannot be attributes of graphs.
        ImportError: the file holds classes of torch_geometric, which is not installed.

    Example:
        >>> import memload, tempfile, torch
        >>> from torch_geometric.data import Data, InMemoryDataset
        >>> path = tempfile.mkdtemp() + "/data.pt"
        >>> InMemoryDataset.save([Data(x=torch.rand(n, 4)) for n in (2, 5)], path)
        >>> memload.open_graphs(path)[1]
        Data(x=[5, 4])
    """
    path = Path(path)
    fields = open_dataset(path).fields if is_directory(path) else open_collated(path, trust=trust)
    try:
        return GraphDataset(fields)
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None


def write_graphs(
    path: str | Path,
    graphs: Iterable[Any] | str | os.PathLike[str],
    *,
    trust: bool = False,
    shard_bytes: int | str = "512MB",
    append: bool = False,
    codec: Codecs = None,
    progress: bool | None = None,
) -> GraphDataset:
    """Write graphs as a directory of shards and return the dataset; an interrupted call leaves nothing that opens.

    Graphs are taken one by one and written about 16 MB at a time, so any number of them can be written.

    Args:
        path: the directory to make.
        graphs: PyTorch Geometric's ``Data`` with the same attributes: a list, one of its datasets, or any iterable; or
            the path of a file to which ``torch.save`` wrote a list of them; a thousand of these are in memory at once.
        trust: for such a file, unpickle any class, as `open_graphs` does.
        shard_bytes: about how large a shard file may grow, in bytes or as "512MB".
        append: add shards to the set if it exists; the attributes must match.
        codec: how to compress, as in `memload.ShardWriter`.
        progress: whether to show a bar after one second; None shows it on a terminal.

    Raises:
        ImportError: torch_geometric is not installed.
        FileExistsError: `path` exists, and `append` is not set.
        TypeError, ValueError, FormatError: as `memload.from_graphs`.
        DiskSpaceError: the disk is full.

    Example:
        >>> import memload, tempfile, torch
        >>> from torch_geometric.data import Data
        >>> graphs = (Data(x=torch.rand(n, 4), y=float(n)) for n in (2, 5))
        >>> len(memload.write_graphs(tempfile.mkdtemp() + "/shards", graphs))
        2
    """
    with (
        ShardWriter(path, shard_bytes=shard_bytes, append=append, codec=codec) as writer,
        byte_bar("write", None, progress) as bar,
    ):

        def write(attributes: dict[str, Any]) -> None:
            writer.extend(**attributes)
            bar.update(_CHUNK_BYTES)

        joined = JoinedGraphs(geometric().Data, _CHUNK_BYTES, write)
        joined.add_all(graphs, trust=trust)
        joined.finish()
        if not joined.count:
            raise ValueError(f"{path}: there are no graphs to write")
    return open_graphs(path)
