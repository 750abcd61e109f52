"""Loops that end early, by a break, an error, close() or neglect: memory, threads and descriptors stay as they were.

Python's garbage collector is off meanwhile: nothing may depend on it.
"""

import gc
import threading
from collections import Counter

from soak.loops import KINDS
from soak.rounds import held

WARM, LOOPS = 40, 200
MOST_GROWTH = 12 << 20  # bytes; what 200 passes would leave behind is more, even of small ones


class OfTheLoopError(Exception):
    """What a loop raises."""


def attack(rng, folder):
    """End some hundreds of passes of one kind of loader early."""
    kind = rng.choice(KINDS)
    loader = kind(rng, folder)
    held()  # collects
    gc.disable()
    try:
        for _ in range(WARM):
            ended_early(rng, kind(rng, folder) if rng.random() < 0.5 else loader)
        before = held_by_none(loader)
        for _ in range(LOOPS):
            ended_early(rng, kind(rng, folder) if rng.random() < 0.5 else loader)
        after = held_by_none(loader)
    finally:
        gc.enable()
    assert after[0] - before[0] < MOST_GROWTH, f"{kind.__name__}: memory {before[0]} became {after[0]} bytes"
    assert after[1:] == before[1:], f"{kind.__name__}: descriptors, threads {before[1:]} became {after[1:]}"
    return Counter({f"early ends: {kind.__name__}": WARM + LOOPS, "early ends": WARM + LOOPS})


def held_by_none(loader):
    """What is held once the loader keeps nothing for its next pass, as one with persistent workers does."""
    getattr(loader, "close", lambda: None)()
    return held(collect=False)


def ended_early(rng, loader):
    """Begin a pass, and end it after some batches."""
    how, after = rng.choice([broken, broken, failed, closed, dropped, dropped_elsewhere]), rng.randint(0, 3)
    how(loader, after)


def broken(loader, after):
    for number, _batch in enumerate(loader):
        if number == after:
            break


def failed(loader, after):
    try:
        for number, _batch in enumerate(loader):
            if number == after:
                raise OfTheLoopError
    except OfTheLoopError:
        pass


def closed(loader, after):
    iterator = iter(loader)
    for _ in range(after):
        next(iterator)
    getattr(iterator, "close", lambda: None)()


def dropped(loader, after):
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(after)]
    del iterator
    del kept


def dropped_elsewhere(loader, after):
    thread = threading.Thread(target=dropped, args=(loader, after))
    thread.start()
    thread.join()
