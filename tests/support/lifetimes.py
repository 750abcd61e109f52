"""What passes leave behind while Python's garbage collector is off: objects, threads, descriptors and memory."""

import contextlib
import ctypes
import gc
import multiprocessing
import re
import threading
import time
import types
import warnings
from collections import Counter
from pathlib import Path

import torch
from pass_kinds import failing_kinds, sound_kinds
from waiting import MOST_SECONDS

import memload

_PACKAGE = str(Path(memload.__file__).parent)


# What ends a pass -----------------------------------------------------------------------------------------------------


def ended(loader):
    """To the end of the data; an error of a batch is caught, and the loop goes on."""
    batches = iter(loader)
    for _ in range(50):
        with contextlib.suppress(Exception):
            for _ in batches:
                pass
            return


def broken_off(loader):
    for _ in loader:
        break


def left_behind_two_batches(loader):
    batches = iter(loader)
    next(batches)
    next(batches)


def failed_in_the_loop(loader):
    for _ in loader:
        raise KeyError("the loop's own")


def dropped_before_it_began(loader):
    iter(loader)


def dropped_beside_another(loader):
    one, other = iter(loader), iter(loader)
    next(one)
    next(other)
    next(one)


def closed(loader):
    batches = iter(loader)
    next(batches)
    getattr(batches, "close", lambda: None)()


def abandoned_in_a_thread(loader):
    thread = threading.Thread(target=suppressed, args=(left_behind_two_batches, loader))
    thread.start()
    thread.join()


def suppressed(way, loader):
    with contextlib.suppress(Exception):
        way(loader)


WAYS = (
    *(ended, broken_off, left_behind_two_batches, failed_in_the_loop, dropped_before_it_began),
    *(dropped_beside_another, closed, abandoned_in_a_thread),
)


# What is left ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def collector_off():
    """Within it, nothing is freed but by reference counts, and `objects` sees only what is made there."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def leftovers(make, ways=WAYS):
    """What loaders leave behind whose passes end in these ways, as lines of text; none if nothing is left.

    Objects of a pass that are still there when it has ended and another one has, too, count, and all objects, threads
    and descriptors that are there when the loader itself is gone. What is loaded once in a process is there before.
    """
    with collector_off():
        before, found = threads_and_descriptors(), []
        loader = make()
        suppressed(ended, loader)
        suppressed(ended, loader)
        at_rest = objects()
        for way in ways:
            suppressed(way, loader)
            suppressed(ended, loader)
            more = settled(lambda: objects() - at_rest, lambda more: not more)
            if more:
                found.append(f"{way.__name__}: {dict(more)}")
                break
        del loader
        left = settled(objects, lambda left: not left)
        now = settled(threads_and_descriptors, lambda now: now[0] <= before[0] and now[1] <= before[1])
        if left:
            found.append(f"after the loader: {dict(left)}")
        if now[0] > before[0] or now[1] > before[1]:
            found.append(f"threads and descriptors: {before} before, {now} after")
    return found


def settled(look, is_fine):
    """Return what `look` gives as soon as it is fine, or when that does not come."""
    end = time.monotonic() + MOST_SECONDS
    while not is_fine(found := look()) and time.monotonic() < end:
        time.sleep(0.002)
    return found


def objects():
    """Count the objects made since the collector is off that belong to memload or a batch, by what they are."""
    return Counter(filter(None, map(_what, gc.get_objects())))


def _what(one):
    kind = type(one)
    if kind.__module__.split(".")[0] == "memload":
        return f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, torch.Tensor | torch.Generator | BaseException):
        return kind.__name__
    code = _code(one)
    return f"{kind.__name__} {code.co_name}" if code is not None and code.co_filename.startswith(_PACKAGE) else None


def _code(one):
    if isinstance(one, types.MethodType):
        one = one.__func__
    if isinstance(one, types.FunctionType):
        return one.__code__
    if isinstance(one, types.TracebackType):
        return one.tb_frame.f_code
    if isinstance(one, types.GeneratorType):
        return one.gi_code
    return one.f_code if isinstance(one, types.FrameType) else None


def threads_and_descriptors():
    return sum(1 for _ in Path("/proc/self/task").iterdir()), sum(1 for _ in Path("/proc/self/fd").iterdir())


# Memory ---------------------------------------------------------------------------------------------------------------


def hold_what_is_in_use():
    """Make this process, which is to run `growth` and nothing else, return each large block when it is freed.

    The C library keeps what threads freed: each thread allocates in one of up to eight arenas a core, passes start new
    threads, and over dozens of passes one arena after the other comes to hold some free batches. Memory rises by that,
    up to a limit that differs from run to run, although nothing is left behind; with torch's loader and a thread, too.
    """
    threshold_of_mmap = -3
    assert ctypes.CDLL(None).mallopt(threshold_of_mmap, 64 << 10) == 1
    multiprocessing.set_start_method("fork", force=True)  # that of stock workers, whatever started this process


def anonymous():
    """Bytes of this process that no file backs."""
    return int(re.search(r"^Anonymous: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)[1]) << 10


def growth(make, passes, ways, fine, warm=16):
    """Bytes by which anonymous memory grows over so many passes of one loader, after some to begin with.

    Threads that are about to end may hold some yet: until no more is left than is fine we wait, as `settled` says.
    """
    with collector_off():
        loader, before = make(), 0
        for number in range(warm + passes):
            if number == warm:
                before = anonymous()
            suppressed(ways[number % len(ways)], loader)
        return settled(lambda: anonymous() - before, lambda grown: grown < fine)


def growth_of_kind(name, folder, side, passes, fine):
    """The same of a kind of loader by its name, over files that are in the folder; its passes end in every way."""
    warnings.simplefilter("ignore")
    return growth({**sound_kinds(side, folder), **failing_kinds(side, folder)}[name], passes, WAYS, fine)


def growth_of_large_batches(passes, way, fine):
    """The same of batches of 4 MB, of which a function makes 14 MB."""
    return growth(widening_loader, passes, [way], fine, warm=4)


def widening_loader():
    ds = memload.from_arrays(image=torch.zeros(60, 3, 384, 384, dtype=torch.uint8))
    return memload.FastLoader(ds, batch_size=8, batch_transform=lambda batch: {"image": batch["image"].float()})
