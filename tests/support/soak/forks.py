"""Processes that are forked, or started afresh, in the middle of a pass: both go on with the right batches."""

import multiprocessing
import threading
from collections import Counter

from soak.forked import forked, status_of
from soak.loops import KINDS, in_order, plainly

METHODS = ["fork"] * 30 + ["forkserver"] * 3 + ["spawn"]


def attack(rng, folder):
    """Begin a pass, take some batches, start one or several processes, and go on in all of them."""
    kind, method = rng.choice(KINDS), rng.choice(METHODS)
    if method != "fork":
        kind = in_order  # torch cannot send a generator
    loader = kind(rng, folder)
    own = getattr(loader, "generator", None)
    state = None if own is None else own.get_state()
    first = [plainly(batch) for batch in loader]
    if own is not None:
        own.set_state(state)
    iterator = iter(loader)
    begun = [plainly(next(iterator)) for _ in range(rng.randint(1, 4))]
    after = None if own is None else own.get_state()
    if own is not None:
        own.set_state(state)
    children = [started(method, loader, first, iterator) for _ in range(rng.randint(1, 2))]
    if own is not None:
        own.set_state(after)
    taken = [plainly(batch) for batch in iterator]
    assert begun + taken == first, "the parent's pass has other batches"
    for child in children:
        assert child() == 0, f"{kind.__name__} by {method}"
    return Counter({f"{method} amid a pass": len(children), "batches compared": len(first) * (1 + len(children))})


def started(method, loader, expected, iterator):
    """Start a process that makes a whole pass; returns what waits for its status."""
    if method == "fork":
        child = forked(lambda: in_fork(loader, expected, iterator))
        return lambda: status_of(child)
    process = multiprocessing.get_context(method).Process(target=whole_pass, args=(loader, expected))
    process.start()
    return lambda: process.join(240) or process.exitcode


def in_fork(loader, expected, iterator):
    """A whole pass of its own; the parent's iterator says that it is none of the child's, and can be dropped."""
    try:
        next(iterator)
        crossed = False
    except RuntimeError as error:
        crossed = "forked" in str(error)
    assert crossed or loader.engine == "torch", "the parent's iterator gave a batch"
    del iterator
    whole_pass(loader, expected)
    thread = threading.Thread(target=whole_pass, args=(loader, None))
    thread.start()
    thread.join()


def whole_pass(loader, expected):
    found = [plainly(batch) for batch in loader]
    assert expected is None or found == expected, "other batches"
