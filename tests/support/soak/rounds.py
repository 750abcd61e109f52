"""Rounds of one attack, in a process of its own, which a crash ends: the last seed that was printed tells of which.

    PYTHONPATH=.:tests python tests/faults/test_soak.py/rounds.py ATTACK SECONDS [SEED [LEAST]]

An attack is a module of this folder with a function `attack(rng, folder)`, which tries one thing that follows from the
random numbers, and returns how often it tried what, by name. What must not happen raises, or ends the process. Round k
has the seed SEED + k, so that a round that failed is the first of a run with its own seed. There are LEAST rounds at
least, however long they take.
"""

import ctypes
import gc
import importlib
import itertools
import json
import random
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from blocked import threads_left

WARM = 20  # rounds after which memory, threads and descriptors are to stay as they are
MOST_GROWTH = 96 << 20  # bytes of anonymous memory; a pass or a file that stays behind each time is more, soon
FEW = 8
FLAT = ("random_loaders", "random_files", "cut_files", "early_breaks")  # those that stay in this process


def held(collect=True):
    """Bytes of memory that no file backs, descriptors and threads of memload's."""
    if collect:
        gc.collect()
    left = threads_left()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    anonymous = int(status.partition("RssAnon:")[2].split()[0]) << 10
    transforming = sum(thread.name.startswith("memload") for thread in threading.enumerate())
    return anonymous, len(list(Path("/proc/self/fd").iterdir())), left + transforming


def seeded(seed):
    """Python's generator of a round; numpy's and torch's begin with the same number."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what users' code draws from
    return random.Random(seed)


def attacked(name, seconds, seed, least):
    """Make rounds until the time is over; return how many there were, and how often they tried what."""
    attack = importlib.import_module(f"soak.{name}").attack
    until, tried, after_warming = time.monotonic() + seconds, Counter(), None
    for number in itertools.count():
        if number >= least and time.monotonic() > until:
            break
        print(seed + number, flush=True)
        with tempfile.TemporaryDirectory(prefix="memload-soak-") as folder:
            tried.update(attack(seeded(seed + number), Path(folder)))
        tried["rounds"] += 1
        if number == WARM:
            after_warming = held()
    if after_warming is not None and name in FLAT:
        assert_flat(after_warming, held())
    return tried


def assert_flat(before, after):
    """Memory has not grown by more than allocators keep, and no descriptor or thread is left."""
    assert after[0] - before[0] < MOST_GROWTH, f"anonymous memory grew from {before[0]} to {after[0]} bytes"
    assert after[1] < before[1] + FEW, f"descriptors: {before[1]} became {after[1]}"  # stock workers keep some open
    assert after[2] == 0, f"{after[2]} threads of memload's are left"


def main(name, seconds, seed=None, least=1):
    """Print the seed of each round, and at last what was tried."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seed = random.SystemRandom().randrange(10**9) if seed is None else int(seed)
    tried = attacked(name, float(seconds), seed, int(least))
    print(json.dumps(tried))


if __name__ == "__main__":
    main(*sys.argv[1:])
