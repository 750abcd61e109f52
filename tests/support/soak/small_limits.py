"""Small limits for descriptors, address space, data and processes: the right result, or an error that says it.

Whoever is root is limited in its processes as another user, since root is not.
"""

import os
import random
import resource
import sys
import traceback
from collections import Counter
from pathlib import Path

import torch
from soak.forked import forked, status_of
from soak.jobs import Appending, Caching, Scoring, Writing
from soak.loops import KINDS, plainly

import memload

RIGHT, TOLD, WRONG = 0, 41, 42
NOBODY = 65534
TYPED = (memload.MemloadError, OSError, MemoryError)
# What torch and Python raise where the system gives no more threads or memory.
SAID = ("can't start new thread", "can't allocate memory", "Cannot allocate memory", "DataLoader worker", "Resource")


def attack(rng, folder):
    """Do something under a limit, in a process of its own."""
    folder.chmod(0o777)
    limit = rng.choice([descriptors, address_space, data, processes])
    action = rng.choice([*map(a_pass, KINDS), a_pass(rng.choice(KINDS)), many_files, in_ram, *map(a_job, JOBS)])
    seed = rng.randrange(2**32)
    if isinstance(action, Pass):
        action.prepare(seed, folder)
    status = status_of(forked(lambda: under(limit, rng, lambda: action(random.Random(seed), folder))))
    assert status in (RIGHT, TOLD), f"{limit.__name__}, {action.__name__}: status {status}"
    what = f"{limit.__name__}: {'told' if status == TOLD else 'right'}"
    return Counter({what: 1})


def under(limit, rng, action):
    """Set the limit, do it, and end the process with what came of it."""
    status = WRONG
    try:
        limit(rng)
        action()
        status = RIGHT
    except (*TYPED, RuntimeError) as error:
        status = TOLD if is_told(error) else WRONG
        if status == WRONG:
            resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def is_told(error):
    """Whether somebody who reads the error knows what is short: its type says so, or its text."""
    causes = [error, error.__cause__, error.__context__]
    return any(isinstance(one, TYPED) for one in causes) or any(word in str(error) for word in SAID)


def descriptors(rng):
    """As many as are open, and a few."""
    taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = [number for number in range(max(taken) + 100) if number not in taken]
    _lower(resource.RLIMIT_NOFILE, free[rng.choice([0, 1, 2, 3, 4, 6, 8, 16, 40])])


def address_space(rng):
    _lower(resource.RLIMIT_AS, _held("VmSize") + int(10 ** rng.uniform(5, 8.7)))


def data(rng):
    _lower(resource.RLIMIT_DATA, _held("VmData") + int(10 ** rng.uniform(5, 8.7)))


def processes(rng):
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    _lower(resource.RLIMIT_NPROC, rng.choice([0, 1, 2, 3, 6]))


def _lower(what, most):
    resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


def _held(name):
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) << 10


class Pass:
    """A whole pass of a loader of some kind, which gives what it gave without a limit."""

    def __init__(self, kind):
        self.kind, self.__name__ = kind, kind.__name__

    def prepare(self, seed, folder):
        self.expected = [plainly(batch) for batch in self.kind(random.Random(seed), folder)]

    def __call__(self, rng, folder):
        found = [plainly(batch) for batch in self.kind(rng, folder)]
        assert found == self.expected, "other batches than without a limit"


def a_pass(kind):
    return Pass(kind)


def a_job(kind):
    def job(rng, folder):
        made = kind(rng, folder)
        made.prepare()
        made.assert_rows(made.run(), made.rows)

    job.__name__ = kind.__name__
    return job


def many_files(rng, folder):
    """A set of a hundred shards, read on some tier."""
    memload.write(folder / "many", {"x": torch.arange(4000).view(100, 40)}, shard_bytes="400B", progress=False)
    ds = memload.open(folder / "many").with_tier(rng.choice(["mmap", "direct"]))
    found = torch.cat([batch["x"] for batch in memload.FastLoader(ds, 7)])
    assert torch.equal(found.view(-1), torch.arange(4000))


def in_ram(rng, folder):
    """Rows that are loaded into RAM."""
    x = torch.arange(10_000_000, dtype=torch.int32).view(100, -1)
    memload.write(folder / "large", {"x": x}, progress=False)
    ds = memload.open(folder / "large").with_tier("ram", progress=False, **rng.choice([{}, {"share": True}]))
    for number, batch in enumerate(memload.FastLoader(ds, 10)):
        assert torch.equal(batch["x"], x[10 * number : 10 * number + 10])


JOBS = [Writing, Appending, Caching, Scoring]
