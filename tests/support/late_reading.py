"""How tests read batches on a simulated device: in the loop's stream, late."""

import torch

from memload.nested import map_tensors, tensors_of

LATE = (400, 1200)  # microseconds
SLOW = (10_000, 20_000)  # what is left out shows although batches are prepared ahead


def on_cpu(batches):
    return [map_tensors(batch, torch.clone) for batch in batches]


def read_all(device, batches, *, keeps=0, each=None):
    """What the loop's stream reads of each batch, late; it keeps so many batches, and drops the others at once."""
    readings, kept = [], []
    for batch in batches:
        if each is not None:
            each()
        late = [device.read(tensor) for tensor in tensors_of(batch)]
        kept = [*kept, batch][-keeps:] if keeps else []
        readings.append(late)
        del batch
    read = [[one() for one in late] for late in readings]
    kept = [list(map(torch.clone, tensors_of(batch))) for batch in kept]
    return read, kept


def shows(is_caught, late):
    """Whether what is left out shows with streams as late as that, or some times later.

    A busy machine reads late as well: then too little of it shows at first.
    """
    return any(
        is_caught({stream: (times * least, times * most) for stream, (least, most) in late.items()})
        for times in (1, 4, 16, 64)
    )


def assert_same(read, expected):
    assert len(read) == len(expected)
    for got, batch in zip(read, expected, strict=True):
        for x, want in zip(got, tensors_of(batch), strict=True):
            assert x.dtype == want.dtype
            assert torch.equal(x, want)


def is_caught(device, batches, expected):
    """Whether what the loop reads is wrong, or the device has seen something amiss."""
    read, _ = read_all(device, batches)
    same = all(
        torch.equal(x, want)
        for got, batch in zip(read, expected, strict=True)
        for x, want in zip(got, tensors_of(batch), strict=True)
    )
    return not same or bool(device.simulated.violations)
