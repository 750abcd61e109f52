"""What the scripts share: rows that are known by number, loops that note them, and a report for the test that asks.

A script runs scenarios, each for FastLoader or the batch fetcher (`ours`) and for the stock DataLoader over plain
samples (`stock`). Every rank writes what it saw.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset

import memload

ROWS = 103  # a prime: no number of ranks divides it
BATCH = 8
WIDTH = 6


def dataset(rows=ROWS):
    stim = torch.randint(0, 256, (rows, WIDTH), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return memload.from_arrays(stim=stim, id=torch.arange(rows))


class Plain(Dataset):
    """The same samples without anything native."""

    def __init__(self, base):
        self.base = base

    def __len__(self):
        return len(self.base)

    def __getitem__(self, index):
        return self.base[index]


def stock_loader(ds, **arguments):
    return DataLoader(Plain(ds), **arguments)


def fetcher_loader(ds, **arguments):
    return DataLoader(ds, **arguments)


def drawing_sampler(kind, **how):
    """A sampler of memload's that draws each row with the same weight, rows of two datasets, or blocks of rows."""
    if kind == "weighted":
        return memload.WeightedSampler(torch.ones(ROWS), replacement=False, **how)
    if kind == "blocks":
        return memload.BlockShuffle(ROWS, 5, 4, **how)
    parts = [TensorDataset(torch.zeros(rows)) for rows in (ROWS - 53, 53)]
    return memload.MixingSampler(ConcatDataset(parts), [1, 1], **how)


def common_orders(kind, epochs, seed=0):
    """The rows of all ranks in each epoch, in the order in which ranks take turns."""
    orders = []
    for epoch in range(epochs):
        sampler = drawing_sampler(kind, num_replicas=1, rank=0, seed=seed)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    return orders


class Noted:
    """Notes what a loop is handed: the numbers of the rows of each batch, and whether their values are right."""

    def __init__(self, ds):
        self.truth = ds.fields["stim"].gather(torch.arange(len(ds)).numpy())
        self.epochs = []

    def begin(self):
        self.epochs.append([])

    def see(self, batch):
        rows = batch["id"].tolist()
        assert torch.equal(batch["stim"].to(torch.uint8).cpu(), self.truth[rows]), "values differ from those stored"
        if not self.epochs:  # a run that goes on in the middle of an epoch
            self.begin()
        self.epochs[-1].append(rows)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, 1)

    def forward(self, stim):
        return self.linear(stim.float() / 255).mean()


def rank():
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def report(scenarios, number=None):
    """Run the scenarios named on the command line, or all, and write what they return to the folder named first."""
    folder, *names = sys.argv[1:]
    found = {}
    for name in names or scenarios:
        torch.manual_seed(11)
        try:
            found[name] = scenarios[name]()
        except BaseException:  # the test shows it
            found[name] = {"error": traceback.format_exc()}
        if "error" in found[name]:
            break
    this = rank() if number is None else number()
    Path(folder, f"{this}.json").write_text(json.dumps(found))
    failed = any("error" in one for one in found.values())
    sys.stdout.flush()
    os._exit(failed)  # whatever other libraries left running may not hold the test up
