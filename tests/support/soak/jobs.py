"""What writes to a disk, within a second: what it begins with, what it leaves, and what may be there meanwhile.

Whatever ends it in between, by `unharmed` nothing half is there, and doing it once more gives what it should.
"""

import contextlib
from pathlib import Path

import numpy as np
import torch

import memload

ROWS, WIDTH = 4000, 300


def numbers(rows, width=WIDTH, first=0):
    """Rows that tell which they are: (rows, width) int32."""
    return (torch.arange(first, first + rows)[:, None] * 7 + torch.arange(width)).to(torch.int32)


class Job:
    """A way to write, drawn at random."""

    rows = ROWS

    def __init__(self, rng, folder):
        self.target = Path(folder) / "target"
        self.folder = Path(folder)
        self.how = {"shard_bytes": rng.choice(["100KB", "1MB", "512MB"]), "progress": False}
        if rng.random() < 0.4:
            self.how["codec"] = rng.choice(["zstd", "lz4"])

    def prepare(self):
        """Write what is there before."""

    def run(self):
        """Write; may be done again wherever it was ended, and then returns the dataset, whole."""
        raise NotImplementedError

    def unharmed(self):
        """Assert that what opens is whole."""
        with contextlib.suppress(FileNotFoundError):
            self.assert_rows(memload.open(self.target), self.rows)

    def assert_rows(self, ds, rows):
        assert len(ds) == rows, f"{len(ds)} rows instead of {rows}"
        for batch in memload.FastLoader(ds.only("x"), 1000):
            first = int(batch[0, 0]) // 7
            assert torch.equal(batch, numbers(len(batch), first=first)), "other bytes"
        memload.verify(self.target)

    def finished(self):
        """Do it to its end, and assert that the result is right and nothing is left beside it."""
        complete = self.is_complete()
        self.assert_rows(self.run(), self.rows)
        left = {path.name for path in self.target.parent.iterdir()} - {self.target.name, "source.npy"}
        assert complete or not left, f"left behind: {left}"  # who is killed at its very end leaves a folder

    def is_complete(self):
        """Whether nothing is to be written any more."""
        return self.target.exists()


class Writing(Job):
    """A set that is not there yet."""

    def run(self):
        if self.target.exists():
            return memload.open(self.target)
        return memload.write(self.target, {"x": numbers(self.rows)}, **self.how)


class Appending(Job):
    """Rows behind those that are there."""

    before = 500

    def prepare(self):
        memload.write(self.target, {"x": numbers(self.before)}, **self.how)

    def run(self):
        there = len(memload.open(self.target))
        if there == self.rows:
            return memload.open(self.target)
        more = {"x": numbers(self.rows - there, first=there)}
        return memload.write(self.target, more, append=True, **self.how)

    def is_complete(self):
        return len(memload.open(self.target)) == self.rows

    def unharmed(self):
        there = len(memload.open(self.target))
        assert there in (self.before, self.rows), there
        self.assert_rows(memload.open(self.target), there)


class Converting(Job):
    """A file into shards, which is resumed where it was ended."""

    def prepare(self):
        np.save(self.folder / "source.npy", numbers(self.rows).numpy())

    def run(self):
        if self.target.exists():
            return memload.open(self.target)
        return memload.write(self.target, memload.open(self.folder / "source.npy", field="x"), **self.how)


class Caching(Job):
    """The results of a map."""

    def __init__(self, rng, folder):
        super().__init__(rng, folder)
        self.rows = 1500

    def run(self):
        mapped = memload.from_arrays(x=numbers(self.rows) - 1).map(lambda sample: {"x": sample["x"] + 1})
        return mapped.cache(self.target, version="1", progress=False)

    def unharmed(self):
        for entry in self.target.glob("[!.]*"):
            assert len(memload.open(entry)) == self.rows
            memload.verify(entry)

    def assert_rows(self, ds, rows):
        (entry,) = (path for path in self.target.iterdir() if not path.name.startswith("."))
        memload.verify(entry)
        assert len(ds) == rows
        assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(ds, 1000)]), numbers(rows))


class Scoring(Job):
    """The results of a function over batches."""

    def run(self):
        ds = memload.from_arrays(x=numbers(self.rows))
        return memload.score(lambda batch: {"x": batch["x"]}, ds, 100, path=self.target, version="1", progress=False)


KINDS = [Writing, Appending, Converting, Caching, Scoring]
