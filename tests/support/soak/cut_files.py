"""Files that are cut short while rows are read from them, cast, loaded into RAM and shared with other processes.

The kernel shows zeros in the page in which a file ends now, and raises nothing. So a pass may hand out such rows, but
then it does not come to its end without an error: see "Errors" in docs/sources.md.
"""

import faulthandler
import os
import threading
from collections import Counter

import h5py
import numpy as np
import torch
from soak.forked import in_child, names

import memload

ROWS = 64
TIERS = [{}, {}, {"tier": "ram"}, {"tier": "hybrid", "cache_bytes": "2MB"}, {"tier": "direct"}]
SHARED = {"tier": "ram", "share": True}


def attack(rng, folder):
    """Cut a file of a dataset before, between or amid the batches of a pass; what a pass gives must be right."""
    path, files = written(rng, folder)
    other = iter(memload.FastLoader(memload.from_arrays(x=torch.arange(600)), batch_size=6))
    next(other)
    victim = rng.choice(files)
    size = victim.stat().st_size
    end = rng.choice([0, rng.randrange(size), max(0, size - rng.choice([1, 4096, 5000]))])
    when = rng.choice(["before opening", "before the pass", "in the pass", "in the pass", "by a thread"])
    tried = Counter({f"cut {when}": 1, f"cut to {'nothing' if end == 0 else 'some bytes'}": 1})
    try:
        passes_until_told(rng, path, when, lambda: os.truncate(victim, end), tried)
    except memload.MemloadError as error:
        names(error, folder)
        tried["told by an error that names the file"] += 1
    assert sum(len(batch["x"]) for batch in other) == 594, "another loader was disturbed"
    return tried


def written(rng, folder):
    """Rows of one number each, in files of some format: what to open, and the files."""
    row = rng.choice([64, 4096, 50_000, 200_000])
    x = np.repeat(np.arange(ROWS, dtype=np.uint8), row).reshape(ROWS, row)
    kind = rng.choice(["npy", "shards", "shards", "compressed", "h5", "ragged"])
    path = folder / f"x.{kind}"
    if kind == "npy":
        np.save(path, x)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=x, chunks=rng.choice([None, (1, row)]))
    elif kind == "ragged":
        memload.write(path, {"data": memload.ragged([torch.from_numpy(one[: 1 + k]) for k, one in enumerate(x)])})
    else:
        codec = rng.choice(["zstd", "lz4"]) if kind == "compressed" else None
        memload.write(path, {"data": x}, codec=codec, shard_bytes=rng.choice(["512MB", "300KB"]))
    return path, sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def passes_until_told(rng, path, when, cut, tried):
    """Open the dataset on some tier, and make a pass over some of its rows, cut at the moment that was drawn."""
    if when == "before opening":
        cut()
    shared = rng.random() < 0.2
    ds = memload.open(path)
    tier = SHARED if shared else rng.choice(TIERS)
    if tier and path.suffix != ".ragged":
        ds = ds.with_tier(tier["tier"], progress=False, **{name: tier[name] for name in tier if name != "tier"})
    if rng.random() < 0.4:
        ds = ds.select(sorted(rng.sample(range(ROWS), rng.randint(1, ROWS))))
    if rng.random() < 0.5:
        faulthandler.enable()  # which takes the signal of a lost page for itself
        tried["after a later faulthandler.enable()"] += 1
    if when == "before the pass":
        cut()
    at, cutting = rng.randint(0, 4), when in ("in the pass", "by a thread")
    if shared or rng.random() < 0.1:
        assert in_child(lambda: one_pass(rng, ds, lambda number: cut() if cutting and number == at else None)) == 0
        tried["passes of a forked process"] += 1
    cutter = threading.Thread(target=cut)
    try:
        one_pass(rng, ds, lambda number: start(cutter, when) if cutting and number == at else None, tried)
    finally:
        faulthandler.disable()
        if cutter.ident is not None:
            cutter.join()


def start(cutter, when):
    cutter.start()
    if when == "in the pass":
        cutter.join()


def one_pass(rng, ds, between, tried=None):
    """All batches of a pass that ends are right; another ends in an error, which a process of its own keeps here."""
    cast = {} if rng.random() < 0.5 else {"cast": {"data": memload.Cast(torch.float32)}}
    mapped = {"batch_transform": dict} if rng.random() < 0.3 else {}
    right = True
    sizes = {"batch_size": rng.choice([1, 4, 16]), "shuffle": rng.random() < 0.5, "num_workers": rng.randint(0, 1)}
    try:
        for number, batch in enumerate(memload.FastLoader(ds, **sizes, **cast, **mapped)):
            right = right and has_whole_rows(batch["data"])
            between(number)
            if tried is not None:
                tried["batches looked at"] += 1
        assert right, "a pass that ended had bytes of other rows, or of nobody"
    except memload.ShardReadError as error:
        names(error, error.file)
        if tried is not None:
            raise


def has_whole_rows(data):
    """Whether each row has one value throughout."""
    rows = data.rows() if isinstance(data, memload.Ragged) else data
    return all(bool((row == row.reshape(-1)[0]).all()) for row in rows)
