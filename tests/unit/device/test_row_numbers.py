"""Numbers of a batch's rows on their way to a device: one copy for all fields, and equal ones once."""

import numpy as np
import pytest
import torch

import memload
from memload.device import row_numbers
from memload.device.frames import FrameIndex
from memload.device.row_numbers import RowNumbers

CPU = torch.device("cpu")


def on_cpu(**fields):
    return memload.to_device(memload.from_arrays(**fields), "cpu")


def test_each_index_gets_its_own_numbers():
    begins, places = np.array([4, 2, 0]), np.array([7, 5, 3, 1, 0])
    indices = [FrameIndex(range(3)), FrameIndex(begins), FrameIndex(begins, (0, 1)), FrameIndex(begins, (0,), places)]
    numbers = RowNumbers(indices, np.array([2, 0]), CPU)
    assert [numbers.of(index).tolist() for index in indices] == [[2, 0], [0, 4], [0, 4], [7, 0]]
    with pytest.raises(IndexError, match="row 3"):
        RowNumbers(indices, np.array([3]), CPU)


def test_indices_that_lead_to_the_same_rows_share_their_numbers(monkeypatch):
    sent = []
    to_device = row_numbers.to_device
    monkeypatch.setattr(
        row_numbers, "to_device", lambda arrays, device: sent.append(len(arrays)) or to_device(arrays, device)
    )
    ds = on_cpu(a=torch.arange(20).view(10, 2), b=torch.arange(10.0), c=torch.arange(30, dtype=torch.int16).view(10, 3))
    loader = memload.FastLoader(ds.select([7, 1, 4, 2]), batch_size=2)
    batches = [*loader]
    assert sent == [1, 1]  # one copy for the three fields of each batch
    assert [batch["b"].tolist() for batch in batches] == [[7.0, 1.0], [4.0, 2.0]]
    assert batches[1]["c"].tolist() == [[12, 13, 14], [6, 7, 8]]


def test_fields_of_a_batch_with_windows_and_casts_are_those_of_the_same_dataset_in_ram():
    frames = torch.randint(0, 256, (40, 3), dtype=torch.uint8)
    ds = memload.from_arrays(x=frames, y=torch.arange(40), z=torch.randn(40, 2, dtype=torch.float64)).with_lags(
        x=range(4)
    )
    there = memload.to_device(ds, "cpu")
    casts = {"z": torch.float32, "y": memload.Cast(torch.float32, scale=0.5)}
    for rows in (range(len(ds)), [5, 5, 30, 0]):
        expected = memload.FastLoader(ds.select(rows), batch_size=3, cast=casts)
        got = memload.FastLoader(there.select(rows), batch_size=3, cast=casts)
        for one, other in zip(expected, got, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in ("x", "y", "z"))
