"""Streams that each user of a device has alone, and what one user's wait holds up."""

import gc
import time

import pytest
import torch
from device_cases import CAST, loader
from late_reading import LATE, assert_same, on_cpu, read_all
from simulated import Pairs, SimulatedInterface

from memload.device.streams import StreamPairs
from memload.nested import tensors_of


def numbered():
    made = []

    def create(urgent):
        made.append(urgent)
        return len(made)

    return StreamPairs(create), made


def test_forty_users_at_once_have_eighty_streams():
    pairs, made = numbered()
    leased = [pairs.lease() for _ in range(40)]
    assert len({stream for one in leased for stream in (one.copies, one.work)}) == 80
    assert made == [False, True] * 40  # casts go first


def test_streams_outlive_their_users_and_serve_the_next():
    pairs, made = numbered()
    first, second = pairs.lease(), pairs.lease()
    streams = first.copies, first.work
    del first
    gc.collect()
    third = pairs.lease()
    assert (third.copies, third.work) == streams
    assert {third.copies, third.work}.isdisjoint({second.copies, second.work})
    assert len(made) == 4


def test_passes_at_one_time_have_pairs_of_their_own_and_later_ones_use_them_again():
    device = Pairs()
    batches = loader(device=device)
    for _ in range(2):
        passes = [iter(batches), iter(batches), iter(loader(device=device))]
        for one in passes:
            next(one)
        del passes, one
        gc.collect()
    assert len(set(device.pairs[:3])) == 3
    assert set(device.pairs[3:]) == set(device.pairs[:3])


def test_a_loader_that_keeps_its_slots_keeps_their_streams():
    device = Pairs(copies=LATE)
    batches = loader(cast=CAST, device=device, num_workers=1, persistent_workers=True)
    expected = on_cpu(loader(cast=CAST, num_workers=1, persistent_workers=True))
    assert_same(read_all(device, batches)[0], expected)
    pinned = device.simulated.counts["register"]
    for _ in range(3):
        read_all(device, batches)
    assert device.simulated.counts["register"] == pinned
    assert len(device.pairs) == 1  # torch's allocator keeps memory by streams: others would have none of it
    assert device.simulated.violations == []


def waits_for_a_copy(device, shared):
    """Two loaders in turn, of which the first one's copies are held up: whether those of the second are, too."""
    expected = on_cpu(loader())
    held, free = iter(loader(device=device)), iter(loader(device=device))
    pair, gate = ((device.copies,) if shared else device.pairs[0]), device.simulated.gate()
    device.wait(pair[0], gate)
    other = device.simulated.add_stream(0, 0)
    with device.on(other):  # so that the loop's stream, which waits for the first loader, is not waited for
        read = [[device.read(tensor) for tensor in tensors_of(next(free))] for _ in range(2)]
        come = device.record(other)
    deadline = time.monotonic() + (0.3 if shared else 60)
    while not device.done(come) and time.monotonic() < deadline:
        time.sleep(0.001)
    waits = not device.done(come)
    device.simulated.open(gate)
    assert_same([[one() for one in late] for late in read], expected[:2])
    assert_same(read_all(device, held)[0], expected)
    return waits


@pytest.mark.parametrize("shared", [False, True])
def test_loaders_in_turn_do_not_wait_for_each_other(shared):
    torch.manual_seed(0)
    device = SimulatedInterface() if shared else Pairs()
    assert waits_for_a_copy(device, shared) == shared
