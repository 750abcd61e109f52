"""Graphs on disk: written as shards, and opened from shards or, in place, from a file of PyTorch Geometric's."""

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

_CHUNK_BYTES = 2**24  # of graphs that are joined and written at once


def open_graphs(path: str | os.PathLike[str], *, trust: bool = False) -> GraphDataset:
    """Return the graphs at `path` as a dataset; they are mapped, not read.

    Args:
        path: a directory of shards that `memload.write_graphs` or `memload.write` made; or a file in which PyTorch
            Geometric keeps the graphs of an ``InMemoryDataset``, such as ``processed/data.pt``, which is read in place.
        trust: for such a file, unpickle any class, which runs any code that the file names; otherwise only tensors,
            Python's containers and PyTorch Geometric's own classes are unpickled.

    Raises:
        FileNotFoundError, PermissionError: the path is missing or cannot be read.
        FormatError: it is none of these, or damaged, or what is there cannot be the attributes of graphs.
        ImportError: the file holds classes of torch_geometric, which is not installed.

    Example:
        >>> import memload, tempfile, torch
        >>> from torch_geometric.data import Data, InMemoryDataset
        >>> path = tempfile.mkdtemp() + "/data.pt"
        >>> InMemoryDataset.save([Data(x=torch.rand(n, 4)) for n in (2, 5)], path)
        >>> memload.open_graphs(path)[1]
        Data(x=[5, 4])
    """
    place = Path(path)
    fields = open_dataset(place).fields if is_directory(place) else open_collated(place, trust=trust)
    try:
        return GraphDataset(fields)
    except ValueError as error:
        raise FormatError(f"{place}: {error}") from None


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
    """Write graphs as a directory of shards and return it opened; what is interrupted leaves nothing that opens.

    Graphs are taken one by one and written about 16 MB at a time, so any number of them can be written.

    Args:
        path: the directory to make.
        graphs: PyTorch Geometric's ``Data`` with the same attributes: a list, a dataset of its, or any iterable; or the
            path of a file in which ``torch.save`` put a list of them, of which a thousand are in memory at once.
        trust: of such a file, unpickle any class, as `open_graphs` does.
        shard_bytes: about how large a shard file may grow, in bytes or as "512MB".
        append: add shards to the set if it exists; the attributes must match.
        codec: how to compress, as in `memload.ShardWriter`.
        progress: whether to show a bar once it takes longer than a second; None shows it on a terminal.

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
