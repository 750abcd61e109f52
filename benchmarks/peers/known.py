"""The peers: what pip installs for each, and what each can do beside what it does in this comparison."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """A data loader, or a library that reads rows of arrays.

    Attributes:
        title: its name in the table.
        packages: what pip installs beside torch and numpy.
        reads: the form that its data has here.
        beside: what it can do that memload cannot, or that this comparison does not show.
    """

    title: str
    packages: tuple[str, ...]
    reads: str
    beside: str


PEERS = {
    "memload": Peer(
        "memload.FastLoader",
        (),
        "shards of safetensors, mapped",
        "",
    ),
    "torch": Peer(
        "torch DataLoader",
        (),
        ".npy, mapped",
        "any dataset and any Python code in its workers; iterable datasets",
    ),
    "spdl": Peer(
        "SPDL",
        ("spdl-core", "spdl-io"),
        ".npy, mapped",
        "pipelines of any functions in threads; decodes images, audio and video, also on a GPU",
    ),
    "ffcv": Peer(
        "FFCV",
        ("ffcv", "pillow"),
        ".beton",
        "JPEG and raw images in one file, augmentation compiled by numba",
    ),
    "dali": Peer(
        "DALI (CPU)",
        ("nvidia-dali-cuda120",),
        ".npy, mapped, by its external source",
        "decodes images, audio and video on a GPU, a large library of augmentation",
    ),
    "grain": Peer(
        "Grain",
        ("grain",),
        ".npy, mapped",
        "transformations as a graph, exact states, sharding for JAX; any source with random access",
    ),
    "tensordict": Peer(
        "tensordict",
        ("tensordict",),
        "memory-mapped TensorDict",
        "nested tensors with one batch size, sent between processes and devices as one",
    ),
    "huggingface": Peer(
        "Hugging Face datasets",
        ("datasets",),
        "Arrow, mapped",
        "a hub of data sets, columns of texts and images, map and filter with a cache, streaming",
    ),
    "streaming": Peer(
        "MosaicML Streaming",
        ("mosaicml-streaming",),
        "MDS",
        "streams from object stores to many nodes, with elastic, deterministic order",
    ),
    "litdata": Peer(
        "LitData",
        ("litdata",),
        "chunks of its own",
        "streams from object stores, converts data on many machines",
    ),
    "webdataset": Peer(
        "WebDataset",
        ("webdataset",),
        "tar files",
        "streams tar files from anywhere in sequence; files of any kind",
    ),
    "turboloader": Peer(
        "TurboLoader",
        ("turboloader",),
        "its raw format",
        "decodes JPEG from tar files with transformations in C++",
    ),
    "lance": Peer(
        "Lance",
        ("pylance",),
        "Lance",
        "a table format with versions, filters and vector indices; reads object stores",
    ),
    "zarr": Peer(
        "zarr-python",
        ("zarr",),
        "Zarr 3, a chunk for each row, not compressed",
        "chunked and compressed arrays of any rank, also in object stores",
    ),
    "zarrs": Peer(
        "zarrs",
        ("zarr", "zarrs"),
        "Zarr 3, a chunk for each row, not compressed",
        "the same arrays, read by a pipeline of codecs in Rust",
    ),
    "h5py": Peer(
        "h5py",
        ("h5py",),
        "HDF5, contiguous",
        "all of HDF5: groups, attributes, filters, links",
    ),
    "tensorstore": Peer(
        "tensorstore",
        ("tensorstore",),
        "Zarr 3, a chunk for each row, not compressed",
        "arrays larger than any machine, transactions, object stores, asynchronous reads",
    ),
}
