"""Are the batches on a device those of the CPU, bit for bit?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import torch
from gpu_common import finish

Batch = Mapping[str, torch.Tensor]
SAMPLED = 3  # batches that a benchmark compares before it times


class OtherDataError(AssertionError):
    """A batch on the device is not the one of the CPU."""


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes (n,) in RAM."""
    return x.cpu().contiguous().view(-1).view(torch.uint8)


def difference(got: Batch, expected: Batch, device: torch.device) -> str | None:
    """What tells a batch on the device from the CPU's: the first field that is unlike; None if there is none."""
    if got.keys() != expected.keys():
        return f"the fields are {sorted(got)}, not {sorted(expected)}"
    for name, wanted in expected.items():
        found = got[name]
        mine = (found.device.type, found.dtype, tuple(found.shape))
        theirs = (device.type, wanted.dtype, tuple(wanted.shape))
        if mine != theirs:
            return f"{name} is {mine}, not {theirs}"
        here, there = bytes_of(found), bytes_of(wanted)
        if not torch.equal(here, there):
            wrong = (here != there).nonzero().view(-1)
            first, last = int(wrong[0]), int(wrong[-1])
            return (
                f"{name}: {len(wrong)} of {len(here)} bytes differ, from byte {first} ({int(here[first])}, "
                f"not {int(there[first])}) to byte {last}"
            )
    return None


def compare(got: Iterable[Batch], expected: Iterable[Batch], device: torch.device, group: int = 1) -> int:
    """Compares batch by batch, and returns how many there were.

    Args:
        got: batches on the device.
        expected: the same from a loader without a device.
        device: where `got` lies.
        group: batches that are taken before any of them is compared. Nothing waits for the device meanwhile, so the
            loader gets as far ahead as it can.

    Raises:
        OtherDataError: a bit, a shape, a dtype or the number of batches is unlike; says which batch and byte.
    """
    ours, theirs = iter(got), iter(expected)
    count = 0
    while True:
        taken, wanted = list(itertools.islice(ours, group)), list(itertools.islice(theirs, group))
        finish(device)
        for here, there in zip(taken, wanted, strict=False):
            unlike = difference(here, there, device)
            if unlike is not None:
                raise OtherDataError(f"batch {count}: {unlike}")
            count += 1
        if len(taken) != len(wanted):
            raise OtherDataError(
                f"after {count} batches, the {'device' if len(taken) > len(wanted) else 'CPU'}'s loader has more"
            )
        if len(taken) < group:
            return count


def compare_some(got: Iterable[Batch], expected: Iterable[Batch], device: torch.device) -> int:
    """Compares the first batches of two passes; see `compare`."""
    return compare(itertools.islice(got, SAMPLED), itertools.islice(expected, SAMPLED), device)
