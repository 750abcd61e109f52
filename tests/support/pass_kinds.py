"""Every kind of pass: loaders by what they are, each made by a function without arguments.

Their batches have some KB, or with a larger `side` as much as one likes.
"""

import functools
import os
import time
from itertools import count

import h5py
import numpy as np
import tensordict
import torch
from simulated import SimulatedInterface
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from waiting import MOST_SECONDS

import memload
from memload import Augment, Cast, FastLoader

ROWS, BATCH = 24, 4


class OwnOrder(Sampler):
    """A sampler of a kind of its own, which may fail at a row."""

    def __init__(self, bad=None):
        self.bad = bad

    def __iter__(self):
        for row in range(ROWS):
            if row == self.bad:
                raise LookupError("the sampler's own")
            yield row

    def __len__(self):
        return ROWS


class Samples(Dataset):
    """A dataset that torch's own machinery reads, one row of which may fail."""

    def __init__(self, side, bad=None):
        self.side, self.bad = side, bad

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if row == self.bad:
            raise ValueError("the dataset's own")
        return {"stim": torch.zeros(3, self.side, self.side, dtype=torch.uint8), "row": row}


class Stream(IterableDataset):
    def __init__(self, side):
        self.side = side

    def __iter__(self):
        yield from map(Samples(self.side).__getitem__, range(ROWS))


class TellingStream(Stream):
    """A stream that tells its state."""

    at = 0

    def __iter__(self):
        while self.at < ROWS:
            self.at += 1
            yield torch.tensor(self.at)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Pinning(FastLoader):
    """A loader that pins by the simulated device."""

    def _host_memory(self):
        return SimulatedInterface()


class Resumed:
    """A loader each pass of which is resumed in its middle."""

    def __init__(self, loader):
        self.loader, batches = loader, iter(loader)
        next(batches), next(batches)
        self.state = loader.state_dict()

    def __iter__(self):
        self.loader.load_state_dict(self.state)
        return iter(self.loader)


class WrittenTo:
    """A loader whose data the loop writes to."""

    def __init__(self, **options):
        self.x = torch.zeros(ROWS, 3)
        self.loader = FastLoader(TensorDataset(self.x), BATCH, **options)

    def __iter__(self):
        for batch in self.loader:
            self.x += 1
            yield batch


class Called:
    """A function that runs passes of its own, as the one batch of a pass."""

    def __init__(self, function):
        self.function = function

    def __iter__(self):
        yield self.function()


class Failing:
    """A function that fails every fifth time; whichever thread calls it."""

    def __init__(self):
        self.calls = count(1)

    def __call__(self, batch):
        if next(self.calls) % 5 == 0:
            raise ValueError("the function's own")
        return batch


def fails_after_the_first(batch):
    if batch["row"][0]:
        raise RuntimeError("the function's own")
    time.sleep(0.02)  # until the next one is gathered, as a rule, so that it is transformed ahead of the loop
    return batch


def widened(batch):
    return {"x": batch["stim"].float()}


@functools.cache
def compiled():
    """Such a function compiled, beside random numbers, which nothing may trace into."""
    return torch.compile(lambda batch: {"x": batch["stim"].float() + torch.rand(1)}, backend="eager")


def as_it_is(batch):
    return batch


def with_rng(sample, rng):
    return {**sample, "drawn": torch.tensor(rng.random())}


def with_generator(sample, generator):
    return {**sample, "drawn": torch.rand(2, generator=generator)}


def with_torchs_own(sample):
    return {**sample, "drawn": torch.rand(2)}


def images(side):
    return memload.from_arrays(stim=torch.zeros(ROWS, 3, side, side, dtype=torch.uint8), row=torch.arange(ROWS))


def unwatched(side):
    """The same from arrays, whose changes nobody counts: batches are prepared on a device ahead of the loop."""
    return memload.from_arrays(stim=np.zeros((ROWS, 3, side, side), np.uint8), row=np.arange(ROWS))


def many_files(folder):
    """A dataset whose file of numbers of datasets is cut short behind the second batch of 256 rows."""
    path = folder / f"tags {next(NUMBERS)}.npy"
    np.save(path, np.zeros(4096, np.int64))
    found = memload.zip(x=memload.from_arrays(x=np.zeros(4096)), dataset_idx=memload.open(path))
    os.truncate(path, 8192)
    return found


def movie(side):
    return memload.from_arrays(stim=torch.zeros(60, side, side, dtype=torch.uint8), row=torch.arange(60))


def sentences(length):
    tokens = [torch.arange(row % 5 * length // 5 + 1) for row in range(ROWS)]
    return memload.from_arrays(tokens=memload.ragged(tokens), text=[f"row {row}" for row in range(ROWS)])


def graphs(nodes):
    from torch_geometric.data import Data

    edges = torch.zeros(2, 3, dtype=torch.int64)
    return [Data(x=torch.ones(nodes + row % 4, 3), edge_index=edges, y=torch.tensor([row])) for row in range(ROWS)]


def of_two(width, *, alike=False):
    names = {"b": "x" if alike else "y"}
    return memload.concat(
        {
            "a": memload.from_arrays(x=torch.zeros(ROWS, width)),
            "b": memload.from_arrays({names["b"]: torch.zeros(ROWS, width)}),
        }
    )


def fitted(net, side):
    memload.fit(net, torch.zeros(BATCH, side), effective_batch=8, loss=lambda batch: net(batch).sum())


def monitored(loader):
    with memload.Monitor(interval=0.01):
        for _ in loader:
            pass


def simulated(**options):
    return SimulatedInterface(copies=(0, 0), work=(0, 0), loop=(0, 0), **options)


def written(folder, side):
    """The folder with files of several formats."""
    memload.write(folder / "shards", images(side), progress=False)
    memload.write(folder / "zstd", images(side), codec="zstd", progress=False)
    memload.write(folder / "ragged", sentences(side * side), progress=False)
    np.save(folder / "rows.npy", np.zeros((ROWS, 3, side, side), np.uint8))
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("stim", (ROWS, 3, side, side), "u1", chunks=(4, 3, side, side), compression="gzip")
    return folder


NUMBERS = count()


def cut_short(folder, side, **options):
    """A loader of a file that is cut short once it is open."""
    path = folder / f"cut {next(NUMBERS)}.npy"
    np.save(path, np.zeros((ROWS, 64, 64, 3), np.uint8))
    found = FastLoader(memload.open(path), BATCH, **options)
    os.truncate(path, ROWS * 64 * 64)
    return found


def native_kinds(side):
    """Of data in memory, on the CPU."""
    f32 = {"stim": Cast(torch.float32)}
    crop = {"stim": Cast(torch.float32, augment=Augment(crop=(side // 2, side // 2), flip=0.5))}
    nchw = {"stim": Cast(torch.float32, layout="NCHW", channels=-1)}
    last = lambda: memload.from_arrays(stim=torch.zeros(ROWS, side, side, 3, dtype=torch.uint8))  # noqa: E731
    of_dict = lambda: tensordict.TensorDict({"x": torch.zeros(ROWS, side)}, [ROWS])  # noqa: E731
    tensors = lambda: TensorDataset(torch.zeros(ROWS, side))  # noqa: E731
    two = lambda **how: of_two(side, **how)  # noqa: E731
    mixing = lambda ds: memload.MixingSampler(ds, {"a": 1, "b": 2}, num_samples=20)  # noqa: E731
    group, words, length = memload.group_collate, sentences(side * side), torch.arange(ROWS) % 5 + 1
    return {
        "plain": lambda: FastLoader(images(side), BATCH),
        "shuffled": lambda: FastLoader(images(side), BATCH, shuffle=True, generator=torch.Generator()),
        "own sampler": lambda: FastLoader(images(side), BATCH, sampler=OwnOrder()),
        "own sampler, ahead": lambda: FastLoader(images(side), BATCH, sampler=OwnOrder(), depth=2),
        "weighted": lambda: FastLoader(images(side), BATCH, sampler=memload.WeightedSampler(torch.ones(ROWS), ROWS)),
        "distributed": lambda: FastLoader(images(side), BATCH, sampler=DistributedSampler(range(ROWS), 2, 0)),
        "workers": lambda: FastLoader(
            images(side), BATCH, num_workers=2, batch_transform=widened, timeout=MOST_SECONDS
        ),
        "persistent": lambda: FastLoader(images(side), BATCH, num_workers=2, persistent_workers=True),
        "persistent, transform": lambda: FastLoader(
            images(side), BATCH, num_workers=2, persistent_workers=True, batch_transform=widened
        ),
        "transform": lambda: FastLoader(images(side), BATCH, batch_transform=widened),
        "large transform": lambda: FastLoader(images(max(side, 320)), BATCH, batch_transform=widened),
        "compiled transform": lambda: FastLoader(images(side), BATCH, batch_transform=compiled()),
        "map": lambda: FastLoader(images(side).map(as_it_is), BATCH),
        "map, rng": lambda: FastLoader(images(side).map(with_rng), BATCH),
        "map, generator": lambda: FastLoader(images(side).map(with_generator), BATCH),
        "map, torch's own numbers": lambda: FastLoader(images(side).map(with_torchs_own), BATCH),
        "maps and transform": lambda: FastLoader(
            images(side).map(with_generator).map(dict), BATCH, batch_transform=widened
        ),
        "map, in processes": lambda: FastLoader(images(side).map(with_rng, in_processes=True), BATCH),
        "collate, transform": lambda: FastLoader(
            images(side), BATCH, collate_fn=default_collate, batch_transform=widened
        ),
        "own collate of whole batches": lambda: FastLoader(of_dict(), BATCH, collate_fn=as_it_is),
        "cast": lambda: FastLoader(images(side), BATCH, cast=f32),
        "NCHW": lambda: FastLoader(last(), BATCH, cast=nchw),
        "crop and flip": lambda: FastLoader(images(side), BATCH, cast=crop),
        "Float32View": lambda: FastLoader(memload.Float32View(images(side), norm_removed=True), BATCH),
        "pinned": lambda: Pinning(images(side), BATCH),
        "static buffers": lambda: FastLoader(images(side), BATCH, static_buffers=2),
        "windows": lambda: FastLoader(movie(side).with_lags(stim=range(4)), BATCH),
        "windows, transform": lambda: FastLoader(
            movie(side).with_lags(stim=range(4)), BATCH, shuffle=True, batch_transform=as_it_is
        ),
        "ragged": lambda: FastLoader(words, BATCH),
        "padded": lambda: FastLoader(words, BATCH, ragged="padded"),
        "padded, transform": lambda: FastLoader(words, BATCH, ragged="padded", batch_transform=as_it_is),
        "jagged": lambda: FastLoader(words, BATCH, ragged="jagged"),
        "ragged, map": lambda: FastLoader(words.map(dict), BATCH, collate_fn=list),
        "by budget": lambda: FastLoader(words, batch_sampler=memload.BudgetBatchSampler(length, 12)),
        "groups": lambda: FastLoader(two(), BATCH, shuffle=True, collate_fn=group),
        "groups, transform": lambda: FastLoader(two(), BATCH, shuffle=True, collate_fn=group, batch_transform=as_it_is),
        "groups, mixed": lambda: FastLoader(ds := two(), BATCH, sampler=mixing(ds), collate_fn=group),
        "alike": lambda: FastLoader(two(alike=True), BATCH),
        "alike, map": lambda: FastLoader(two(alike=True).map(dict), BATCH),
        "alike, mixed": lambda: FastLoader(ds := two(alike=True), BATCH, sampler=mixing(ds)),
        "zip": lambda: FastLoader(memload.zip(a=images(side), b=memload.from_arrays(y=torch.zeros(ROWS))), BATCH),
        "tuples": lambda: FastLoader(images(side).as_tuple("stim", "row"), BATCH, batch_transform=as_it_is),
        "tensors": lambda: FastLoader(tensors(), BATCH),
        "tensors, transform": lambda: FastLoader(tensors(), BATCH, batch_transform=as_it_is),
        "tensors that are written to": WrittenTo,
        "tensors that are written to, transform": lambda: WrittenTo(batch_transform=as_it_is),
        "subset": lambda: FastLoader(Subset(tensors(), range(8, 20)), BATCH),
        "stack": lambda: FastLoader(StackDataset(a=tensors(), b=images(side)), BATCH),
        "concat": lambda: FastLoader(ConcatDataset([tensors(), tensors()]), BATCH),
        "TensorDict": lambda: FastLoader(of_dict(), BATCH),
        "accumulated": lambda: memload.accumulate(FastLoader(images(side), BATCH, batch_transform=widened), 2),
        "accumulated, ahead": lambda: memload.accumulate(FastLoader(images(side), BATCH), 2, rows=lambda batch: 3),
        "resumed": lambda: Resumed(FastLoader(images(side), BATCH, shuffle=True, generator=torch.Generator())),
        "resumed, map": lambda: Resumed(FastLoader(images(side).map(dict), BATCH, shuffle=True)),
        "resumed, own sampler": lambda: Resumed(FastLoader(images(side), BATCH, sampler=OwnOrder())),
    }


def graph_kinds(side):
    collate, stored = memload.graph_collate, memload.from_graphs(graphs(side))
    return {
        "graphs": lambda: FastLoader(stored, BATCH, collate_fn=collate),
        "graphs, transform": lambda: FastLoader(stored, BATCH, collate_fn=collate, batch_transform=as_it_is),
        "graphs on a device": lambda: FastLoader(stored, BATCH, collate_fn=collate, device=simulated()),
        "graphs, map": lambda: FastLoader(stored.map(as_it_is), BATCH, collate_fn=list),
    }


def device_kinds(side):
    """Of the simulated device, and of rows that lie on one."""
    f32 = {"stim": Cast(torch.float32)}
    crop = {"stim": Cast(torch.float32, augment=Augment(crop=(side // 2, side // 2), flip=0.5))}
    lags = lambda: movie(side).with_lags(stim=range(4))  # noqa: E731
    moved = lambda ds: memload.to_device(ds, "cpu", tier="pinned")  # noqa: E731
    return {
        "device": lambda: FastLoader(unwatched(side), BATCH, device=simulated()),
        "device, cast": lambda: FastLoader(unwatched(side), BATCH, device=simulated(), cast=f32),
        "device, crop, transform": lambda: FastLoader(
            unwatched(side), BATCH, device=simulated(), cast=crop, batch_transform=as_it_is
        ),
        "device, copied": lambda: FastLoader(unwatched(side), BATCH, device=simulated(native=False), cast=f32),
        "device, map": lambda: FastLoader(unwatched(side).map(with_torchs_own), BATCH, device=simulated()),
        "device, groups": lambda: FastLoader(of_two(side), BATCH, device=simulated(), collate_fn=memload.group_collate),
        "device, ragged": lambda: FastLoader(sentences(side), BATCH, device=simulated(), ragged="jagged"),
        "device, persistent": lambda: FastLoader(
            unwatched(side), BATCH, device=simulated(), num_workers=1, persistent_workers=True
        ),
        "device, static buffers": lambda: FastLoader(
            unwatched(side), BATCH, device=simulated(), cast=f32, static_buffers=2
        ),
        "device, streamed windows": lambda: FastLoader(lags(), BATCH, device=simulated(), cast=f32),
        "the CPU as device": lambda: FastLoader(
            unwatched(side), BATCH, device="cpu", cast=f32, batch_transform=as_it_is
        ),
        "device, stock": lambda: FastLoader(Samples(side), BATCH, device=simulated(), cast=f32, batch_transform=dict),
        "moved": lambda: FastLoader(moved(images(side)), BATCH),
        "moved, windows": lambda: FastLoader(moved(movie(side)).with_lags(stim=range(4)), BATCH),
        "moved, cast, transform": lambda: FastLoader(moved(images(side)), BATCH, cast=f32, batch_transform=as_it_is),
    }


def file_kinds(side, folder):
    """Of files, on every tier."""
    shards = folder / "shards"
    return {
        "npy": lambda: FastLoader(memload.open(folder / "rows.npy"), BATCH),
        "shards": lambda: FastLoader(memload.open(shards), BATCH),
        "zstd": lambda: FastLoader(memload.open(folder / "zstd"), BATCH),
        "zstd, transform": lambda: FastLoader(memload.open(folder / "zstd"), BATCH, batch_transform=widened),
        "HDF5": lambda: FastLoader(memload.open(folder / "rows.h5"), BATCH),
        "HDF5, map": lambda: FastLoader(memload.open(folder / "rows.h5").map(dict), BATCH),
        "ragged shards": lambda: FastLoader(memload.open(folder / "ragged"), BATCH),
        "direct": lambda: FastLoader(memload.open(shards, tier="direct"), BATCH),
        "ram": lambda: FastLoader(memload.open(shards, tier="ram"), BATCH),
        "ram, shared": lambda: FastLoader(memload.open(shards, tier="ram", share=True), BATCH),
        "ram, cast": lambda: FastLoader(memload.open(shards, tier="ram", ram_dtype={"stim": torch.float32}), BATCH),
        "hybrid": lambda: FastLoader(memload.open(shards, tier="hybrid", cache_bytes=1 << 20), BATCH),
        "hybrid, transform": lambda: FastLoader(
            memload.open(shards, tier="hybrid", cache_bytes=1 << 20), BATCH, batch_transform=widened
        ),
    }


def stock_kinds(side):
    """Of torch's own machinery, and of its loaders over memload's datasets."""
    crop = {"stim": Cast(torch.float32, augment=Augment(crop=(side // 2, side // 2), flip=0.5))}
    carried = lambda: FastLoader(images(side), BATCH, cast=crop, batch_transform=as_it_is).collate_fn  # noqa: E731
    return {
        "stock": lambda: FastLoader(Samples(side), BATCH),
        "stock, transform": lambda: FastLoader(Samples(side), BATCH, batch_transform=widened),
        "stock, crop and flip": lambda: FastLoader(Samples(side), BATCH, cast=crop),
        "stock, workers": lambda: FastLoader(Samples(side), BATCH, num_workers=1, batch_transform=widened),
        "stock, own collate": lambda: FastLoader(images(side), BATCH, collate_fn=list),
        "stock, resumed": lambda: Resumed(FastLoader(Samples(side), BATCH, sampler=OwnOrder())),
        "stream": lambda: FastLoader(Stream(side), BATCH),
        "stream, transform": lambda: FastLoader(Stream(side), BATCH, batch_transform=widened),
        "stream that tells its state": lambda: FastLoader(TellingStream(side), BATCH),
        "batch fetcher": lambda: DataLoader(images(side), BATCH),
        "batch fetcher, map": lambda: DataLoader(images(side).map(with_torchs_own), BATCH),
        "batch fetcher, samples": lambda: DataLoader(images(side), BATCH, collate_fn=list),
        "batch fetcher, carried": lambda: DataLoader(images(side), BATCH, collate_fn=carried()),
    }


def call_kinds(side, folder):
    """Of functions that run passes of their own."""
    rows = lambda: memload.from_arrays(x=torch.zeros(ROWS, side))  # noqa: E731
    total = lambda batch: batch["x"].sum(1)  # noqa: E731
    fresh, net = lambda: folder / str(next(NUMBERS)), torch.nn.Linear(side, 1)
    return {
        "score": lambda: Called(lambda: memload.score(total, rows(), BATCH)),
        "score, written": lambda: Called(lambda: memload.score(total, rows(), BATCH, path=fresh(), version="1")),
        "cache in RAM": lambda: Called(lambda: len(rows().map(as_it_is).cache("ram"))),
        "cache, written": lambda: Called(lambda: len(rows().map(as_it_is).cache(fresh(), version="1"))),
        "write": lambda: Called(lambda: memload.write(fresh(), rows(), progress=False)),
        "plan": lambda: Called(lambda: memload.plan(images(side).map(dict), BATCH)),
        "fit": lambda: Called(lambda: fitted(net, side)),
        "monitored": lambda: Called(lambda: monitored(FastLoader(images(side), BATCH, batch_transform=widened))),
    }


def failing_kinds(side, folder):
    """Whose readers, samplers or functions fail in the middle of a pass."""
    of_dict = lambda: tensordict.TensorDict({"x": torch.zeros(ROWS, side)}, [ROWS])  # noqa: E731
    absent = lambda: [[0, 1], [2, 3], [99], [4, 5]]  # noqa: E731
    group, plain = memload.group_collate, lambda: images(side)
    moved = lambda: memload.to_device(images(side), "cpu", tier="pinned")  # noqa: E731
    return {
        "transform fails": lambda: FastLoader(plain(), BATCH, batch_transform=Failing()),
        "map fails": lambda: FastLoader(plain().map(Failing()), BATCH),
        "map and transform fail": lambda: FastLoader(plain().map(Failing()), BATCH, batch_transform=Failing()),
        "collate fails": lambda: FastLoader(of_dict(), BATCH, collate_fn=Failing()),
        "collate fails, transform": lambda: FastLoader(
            of_dict(), BATCH, collate_fn=Failing(), batch_transform=as_it_is
        ),
        "sampler fails": lambda: FastLoader(plain(), BATCH, sampler=OwnOrder(12)),
        "sampler fails ahead": lambda: FastLoader(plain(), BATCH, sampler=OwnOrder(12), depth=3),
        "sampler fails ahead, transform": lambda: FastLoader(
            plain(), BATCH, sampler=OwnOrder(12), depth=3, batch_transform=widened
        ),
        "sampler fails, workers": lambda: FastLoader(plain(), BATCH, sampler=OwnOrder(12), num_workers=1),
        "sampler fails at once, transform": lambda: FastLoader(
            plain(), BATCH, sampler=OwnOrder(0), num_workers=1, batch_transform=widened
        ),
        "row is not there": lambda: FastLoader(plain(), batch_sampler=absent()),
        "row is not there, transform": lambda: FastLoader(plain(), batch_sampler=absent(), batch_transform=widened),
        "row is not there, device": lambda: FastLoader(plain(), batch_sampler=absent(), device=simulated()),
        "groups are cut short, ahead": lambda: FastLoader(many_files(folder), 256, collate_fn=group, depth=8),
        "transform fails on a device": lambda: FastLoader(
            unwatched(side), BATCH, device=simulated(), batch_transform=Failing()
        ),
        "transform fails on a device, copied": lambda: FastLoader(
            unwatched(side), BATCH, device=simulated(native=False), batch_transform=Failing()
        ),
        "second transform fails on a device": lambda: FastLoader(
            unwatched(side), BATCH, device=simulated(), batch_transform=fails_after_the_first
        ),
        "map fails before a device": lambda: FastLoader(plain().map(Failing()), BATCH, device=simulated()),
        "transform fails moved": lambda: FastLoader(moved(), BATCH, batch_transform=Failing()),
        "stock fails": lambda: FastLoader(Samples(side, bad=9), BATCH),
        "stock transform fails": lambda: FastLoader(Samples(side), BATCH, batch_transform=Failing()),
        "stock workers fail": lambda: FastLoader(Samples(side, bad=9), BATCH, num_workers=1),
        "batch fetcher fails": lambda: DataLoader(images(side), batch_sampler=absent()),
        "accumulated fails": lambda: memload.accumulate(FastLoader(plain(), BATCH, batch_transform=Failing()), 2),
        "score fails": lambda: Called(lambda: memload.score(Failing(), of_dict(), BATCH)),
        "cache in RAM fails": lambda: Called(lambda: plain().map(Failing()).cache("ram")),
        "file is cut short": lambda: cut_short(folder, side),
        "file is cut short, transform": lambda: cut_short(folder, side, batch_transform=as_it_is),
        "file is cut short, device": lambda: cut_short(folder, side, device=simulated()),
    }


def sound_kinds(side, folder):
    """Those whose passes come to their end; `folder` has what `written` wrote, with the same `side`."""
    of_memory = {**native_kinds(side), **graph_kinds(side), **device_kinds(side), **stock_kinds(side)}
    return {**of_memory, **file_kinds(side, folder), **call_kinds(side, folder)}
