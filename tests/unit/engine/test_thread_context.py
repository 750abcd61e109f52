"""What a thread has for itself (context variables, autocast) is in functions ahead of the loop as it is in the loop."""

import contextlib
import contextvars
import threading

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

import memload

WHO = contextvars.ContextVar("who", default="nobody")


def rows():
    return memload.from_arrays(x=torch.arange(24.0).view(12, 2))


def told(sample):
    told = f"{WHO.get()} {threading.current_thread() is threading.main_thread()}"
    WHO.set("somebody else")
    return {"told": told}


def told_of_batch(batch):
    return told(batch)["told"]


def in_threads(who):
    return f"{who} False"


def test_functions_see_the_context_variables_of_the_loop_and_what_they_set_ends_with_the_batch():
    def batches(loader):
        return [told for batch in loader for told in (batch["told"] if isinstance(batch, dict) else [batch])]

    WHO.set("the loop")
    of_samples = memload.FastLoader(rows().map(told), 1)
    of_batches = memload.FastLoader(rows(), 1, batch_transform=told_of_batch)
    assert batches(of_samples) == batches(of_batches) == [in_threads("the loop")] * 12
    assert WHO.get() == "the loop"
    other = contextvars.copy_context()
    other.run(WHO.set, "another loop")
    assert other.run(batches, of_samples) == other.run(batches, of_batches) == [in_threads("another loop")] * 12


def test_a_collate_function_of_whole_batches_sees_them_wherever_it_is_called():
    WHO.set("the loop")
    seen = []

    def collate(batch):
        seen.append(told_of_batch(batch))
        return batch

    data = TensorDict({"x": torch.arange(4)}, [4])
    loader = memload.FastLoader(data, 2, collate_fn=collate, batch_transform=lambda batch: batch)
    assert loader.engine == "native"
    assert len(list(loader)) == 2
    assert seen == [in_threads("the loop")] * 2


@pytest.mark.parametrize("around", [contextlib.nullcontext, lambda: torch.autocast("cpu", torch.float16)])
def test_functions_compute_under_the_autocast_of_the_loop(around):
    weights = torch.eye(2)

    def product(sample):
        return sample["x"].view(-1, 2) @ weights

    stock = DataLoader(rows().map(product), 3)
    of_samples = memload.FastLoader(rows().map(product), 3)
    of_batches = memload.FastLoader(rows(), 3, batch_transform=product)
    with around():
        expected = list(stock)
        given = list(of_samples), list(of_batches)
    assert of_samples.engine == "native"
    for batches in given:
        for batch, as_stock in zip(batches, expected, strict=True):
            torch.testing.assert_close(batch.view(-1), as_stock.view(-1), rtol=0, atol=0)


def test_functions_handle_floating_point_errors_as_numpy_was_told_to_in_the_loop():
    def divided(batch):
        return batch["x"].numpy() / np.zeros(2, np.float32)

    loader = memload.FastLoader(rows(), 3, batch_transform=divided)
    with np.errstate(divide="raise", invalid="raise"), pytest.raises(FloatingPointError):
        next(iter(loader))
    with np.errstate(all="ignore"):
        assert np.isinf(next(iter(loader))[1]).all()
