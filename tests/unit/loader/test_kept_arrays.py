"""A loop that keeps small arrays of its batches, such as labels, keeps no images with them."""

import gc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import SimulatedInterface
from torch.utils.data import DataLoader, TensorDataset

import memload
from memload.device.destinations import PinnedCPU

ROWS = 640
X = torch.arange(ROWS * 512, dtype=torch.int32).view(ROWS, 512)
Y = torch.arange(ROWS)


class Pinning(memload.FastLoader):
    """A loader whose pinned memory is that of a simulated device."""

    def _destination(self):
        return PinnedCPU(SimulatedInterface(), "", warned=False)


LOADERS = {
    "TensorDataset": lambda: memload.FastLoader(TensorDataset(X, Y), 32, shuffle=True),
    "cast": lambda: memload.FastLoader(TensorDataset(X, Y), 32, cast={0: torch.float32}),
    "batch_transform": lambda: memload.FastLoader(TensorDataset(X, Y), 32, batch_transform=lambda batch: batch),
    "pinned": lambda: Pinning(TensorDataset(X, Y), 32),
    "stock": lambda: DataLoader(memload.from_arrays(x=X, y=Y).as_tuple("x", "y"), 32),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_labels_of_all_batches_keep_no_slot(kind):
    loader = LOADERS[kind]()
    kept = [(x[:, 0].clone(), y) for _ in range(2) for x, y in loader]
    assert all(torch.equal(first.long() // 512, labels) for first, labels in kept)
    assert all(labels.untyped_storage().nbytes() < X[:32].nbytes for _, labels in kept)  # of pinned memory
    if isinstance(loader, memload.FastLoader):
        assert loader.engine == "native"
        assert loader.stats().fresh_batches < 10  # of 40; threads of functions may hold a batch a moment longer


def test_images_that_are_kept_have_memory_of_their_own_and_stay_as_they_are():
    loader = memload.FastLoader(TensorDataset(X, Y), 32)
    kept = [x for x, _ in loader]
    assert loader.stats().fresh_batches > 10
    assert torch.equal(torch.cat(kept), X)


def test_the_offsets_of_ragged_rows_keep_no_slot():
    rows = [np.full(100 + n % 7, n, np.int64) for n in range(200)]
    loader = memload.FastLoader(memload.from_arrays(x=memload.ragged(rows)), 10)
    offsets = [batch["x"].offsets for batch in loader]
    gc.collect()
    assert loader.stats().fresh_batches < 5  # of 20
    assert [int(one[1]) for one in offsets] == [100 + n % 7 for n in range(0, 200, 10)]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40), st.integers(1, 9))
def test_the_smallest_arrays_are_copied_and_little_in_all(widths, batch_size):
    arrays = {
        f"f{place}": torch.arange(9 * width, dtype=torch.int16).view(9, width) + place
        for place, width in enumerate(widths)
    }
    batch = next(iter(memload.FastLoader(memload.from_arrays(**arrays), batch_size)))
    assert all(torch.equal(value, arrays[name][:batch_size]) for name, value in batch.items())
    values = sorted((value for value in batch.values() if value.nbytes), key=lambda value: value.nbytes)
    total = sum(value.nbytes for value in values)
    left, expected = total // 16, 0
    for value in values:
        if value.nbytes > left:
            break
        left, expected = left - value.nbytes, expected + value.nbytes
    slot = values[-1].data_ptr() if values else 0  # the largest array lies there
    apart = sum(value.nbytes for value in values if abs(value.data_ptr() - slot) > total + 64 * len(values))
    assert apart == expected
