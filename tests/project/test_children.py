"""Forks that tests start come to an end, whatever happens in them, and what they inherit ends with them."""

import gc
import signal

import pytest
from children import in_fork
from simulated import SimulatedInterface


def fails():
    raise ValueError("of the fork")


@pytest.mark.parametrize(("body", "code"), [(lambda: None, 99), (fails, 98), (signal.pause, -signal.SIGALRM)])
def test_a_fork_neither_goes_on_as_its_parent_nor_keeps_it_waiting(body, code):
    assert in_fork(body, longest=5 if code > 0 else 1) == code


def test_a_simulated_device_ends_in_a_fork_which_does_not_have_its_threads():
    device = SimulatedInterface()
    memory = device.empty(100, device.work)

    def ends():
        nonlocal device, memory
        with pytest.raises(RuntimeError, match="stayed with the process that forked"):
            device.record(device.work)
        del device, memory
        gc.collect()

    assert in_fork(ends) == 99
    device.synchronise(device.record(device.work))
