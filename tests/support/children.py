"""Processes that tests start: forks, and what fresh ones run, which find this module by its name, not a test's file."""

import contextlib
import os
import warnings

import torch

import memload


def in_fork(body):
    """Return the exit code of a fork that runs a function, 99 where it comes to its end; -k where signal k ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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
