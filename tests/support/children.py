"""Processes that tests start: forks, and what fresh ones run, which find this module by its name, not a test's file."""

import contextlib
import os
import signal
import traceback
import warnings

import torch

import memload

LONGEST = 120
"""Seconds that a fork may take: without a bound, a test would wait for ever for one that hangs."""


def in_fork(body, longest=LONGEST):
    """Return the exit code of a fork that runs a function: 99 where it comes to its end, 98 where it raises an error.

    -k where signal k ended it; that is SIGALRM where it took too long.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        try:  # nothing leaves it: pytest would go on in both processes, and they would wait for each other
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(longest)
            body()
            os._exit(99)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(98)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused_in_fork(*reads):
    """Return how many of some reads tell a fork that the rows belong to the process that loaded them."""

    def body():
        refused = 0
        for read in reads:
            try:
                read()
            except memload.DeviceError as error:
                refused += "belong to the process that loaded them" in str(error)
        os._exit(refused)

    return in_fork(body)


def count_rows(loader, queue):
    queue.put(sum(len(batch["x"]) for batch in loader))


def count_all(loaders, queue):
    queue.put([sum(len(batch[0]) for batch in loader) for loader in loaders])


class LoadsInside(torch.utils.data.Dataset):
    """Each sample is made of a whole pass: of a loader from the parent, and of one made where it is used."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return 3

    def __getitem__(self, index):
        fresh = memload.FastLoader(memload.from_arrays(x=torch.arange(10) + index), batch_size=3)
        return sum(int(batch[0].sum()) for batch in self.loader) + sum(int(batch["x"].sum()) for batch in fresh)


def all_samples(ds):
    return [(row["tokens"].tolist(), row["text"]) for row in (ds[k] for k in range(len(ds)))]


def write_slowly(path, rows):
    with memload.ShardWriter(path, codec="zstd:rows=2", shard_bytes=20_000) as writer:
        while True:
            writer.extend(x=rows)


def write_parts_and_seal(path, rows_of, parts):
    """Writes the parts of a set that others write, too, as far as it is not sealed, and tries to seal it."""
    torch.set_num_threads(1)
    for part, rows in rows_of.items():
        with contextlib.suppress(FileExistsError, memload.WriterBusyError):  # sealed, or being sealed
            memload.write_part(path, rows, part=part, parts=parts)
    with contextlib.suppress(ValueError):  # parts are missing
        memload.seal(path)
