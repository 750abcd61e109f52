"""Rows on their way into a device's memory, through pinned memory and asynchronously, on the simulated device."""

import pytest
import torch
from simulated import SimulatedInterface

import memload
from memload.device import loading
from memload.progress import byte_bar

LATE = (500, 3000)


def filled(x, rows, device, monkeypatch, chunk=4096):
    """The table that these rows are loaded into, as it is when the call returns."""
    monkeypatch.setattr(loading, "_PINNED_BYTES", chunk)
    field = memload.from_arrays(x=x).fields["x"]
    table = device.empty(len(rows) * field.row_bytes, device.current()).view(len(rows), field.row_bytes)
    with byte_bar("device", table.nbytes, False) as shown:
        loading.fill_asynchronously(table, field, rows, shown, device)
    return table


@pytest.mark.parametrize("rows", [range(1), range(100), torch.arange(99, -1, -3).numpy()], ids=["one", "all", "some"])
def test_every_row_has_arrived_when_the_call_returns(rows, monkeypatch):
    x = torch.randint(0, 256, (100, 700), dtype=torch.uint8)
    device = SimulatedInterface(copies=LATE)
    table = filled(x, rows, device, monkeypatch)
    assert torch.equal(table, x[torch.as_tensor(rows)])
    assert device.simulated.violations == []


def test_a_wait_that_is_left_out_is_detected(monkeypatch):
    class Impatient(SimulatedInterface):
        def synchronise(self, event):
            pass

    x = torch.randint(0, 256, (100, 700), dtype=torch.uint8)
    table = filled(x, range(100), Impatient(copies=(20_000, 30_000)), monkeypatch)
    assert not torch.equal(table, x)
