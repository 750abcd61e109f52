"""Rows that are to be the same wherever they lie: a movie, what is done to datasets, and comparisons to the bit."""

import numpy as np
import torch
from hypothesis import strategies as st
from strategies import as_bytes, random_tensor
from torch.utils.data import Dataset

import memload


def movie(frames=40, seed=0):
    return {
        "stim": random_tensor(torch.uint8, (frames, 3, 2), seed),
        "robs": torch.rand(frames, 4, generator=torch.Generator().manual_seed(seed)),
    }


def same(one, other):
    """Equal in structure, dtypes, shapes and bytes."""
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape, as_bytes(one)) == (other.dtype, other.shape, as_bytes(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(same, one, other))


def batches(ds, *, seed=3, **arguments):
    torch.default_generator.manual_seed(seed)
    loader = memload.FastLoader(ds, **{"batch_size": 4, **arguments})
    assert loader.engine == "native"
    return [*loader]


def read_from(interface, loader):
    """The batches of a loader as a device has them."""
    found = []
    for batch in loader:
        reading = {name: interface.read(tensor) for name, tensor in batch.items()}
        found.append({name: read() for name, read in reading.items()})
    return found


class OneByOne(Dataset):
    """The same samples, asked for one by one: a dataset that is not read natively."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


@st.composite
def reorderings(draw):
    """What is done to a dataset with rows before or after it is brought nearer."""
    steps = []
    for kind in draw(st.lists(st.sampled_from(["select", "split", "twice", "mask"]), max_size=3)):
        if kind == "select":
            picks = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=12))
            steps.append(lambda ds, picks=picks: ds.select([pick % len(ds) for pick in picks]))
        elif kind == "split":
            steps.append(lambda ds: ds.split(0.5, seed=1)[0] if len(ds) > 3 else ds)
        elif kind == "twice":
            steps.append(lambda ds: ds.concat(ds.select([0])))
        else:
            steps.append(lambda ds: ds.select(np.arange(len(ds)) % 2 == 0))
    return steps
