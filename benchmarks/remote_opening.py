"""How long does it take to open a set of 10,000 shards in a store, and how many requests?

A server of files with ranges, in a process of its own on loopback, adds latency to each answer. The sets have the same
small shard 10,000 times, since opening reads no rows. Beside them, in the same rounds, stands the local set.

- plain: the index says where tensors lie.
- ragged: as plain, with a field whose rows differ in length; the index has the offsets of these rows, which are few.
- older: the index does not say where tensors lie; opening reads the header of each shard.
- older ragged: as ragged, with an index that has neither; opening reads headers and offsets.
- cached: plain, with a folder of a cache, at first and with the folder there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import Bench, arguments
from remote import LATENCIES, serving

import memload
from memload.cli.measure import Spread
from memload.formats.shards.index import INDEX_NAME, dump_index, read_index

KINDS = ("plain", "ragged", "older", "older ragged")


def make(folder: Path, kind: str, shards: int) -> None:
    """Make a set of many shards from one, whose file has many names."""
    x: Any = torch.arange(2000).reshape(10, 200)
    if "ragged" in kind:
        x = memload.ragged([torch.arange(k) for k in range(10)])
    memload.write(folder, {"x": x, "y": torch.arange(10)}, progress=False)
    index = read_index(folder)
    (one,) = index.shards
    named = [f"shard-{k:05d}.safetensors" for k in range(shards)]
    for name in named:
        if name != one.file:
            os.link(folder / one.file, folder / name)
    if "older" in kind:
        one, index = replace(one, tensors=None, offsets={}), replace(index, inner=None)
    records = tuple(replace(one, file=name) for name in named)
    (folder / INDEX_NAME).write_bytes(dump_index(replace(index, shards=records)))


def seconds(address: Any, **options: Any) -> float:
    """Open a set, and return how long it took."""
    began = time.perf_counter()
    memload.open(address, **options)
    return time.perf_counter() - began


def at(bench: Bench, root: Path, latency: float) -> None:
    """Measure all kinds at a latency."""
    log, cache = root / "log", root / "cache"
    with serving(root / "served", latency, log) as address:
        base = address.removesuffix("/set")
        for kind in (*KINDS, "cached"):
            took, again, local, asked = [], [], [], 0
            url = f"{base}/{('plain' if kind == 'cached' else kind).replace(' ', '-')}"
            options: dict[str, Any] = {"cache_bytes": "1GB"} | ({"cache": cache} if kind == "cached" else {})
            for _ in range(bench.rounds):
                shutil.rmtree(cache, ignore_errors=True)
                before = len(log.read_text().splitlines())
                took.append(seconds(url, **options))
                asked = len(log.read_text().splitlines()) - before
                again.append(seconds(url, **options) if kind == "cached" else took[-1])
                local.append(seconds(root / "served" / url.rpartition("/")[2]))
            first, second, there = Spread.of(took), Spread.of(again), Spread.of(local)
            text = f"{asked} requests, {first} s; local {there} s"
            figures: dict[str, Any] = {"requests": asked, "seconds": first, "local": there}
            if kind == "cached":
                text, figures["again"] = f"{text}; again {second} s", second
            bench.add(f"{kind} {latency * 1000:.0f} ms", text, latency=latency, **figures)


def main() -> None:
    bench = Bench(arguments(__doc__ or "", rounds=3).parse_args())
    shards = 200 if bench.args.quick else 10_000
    with tempfile.TemporaryDirectory(prefix="memload-bench-", dir=bench.args.cache) as folder:
        root = Path(folder)
        (root / "served").mkdir()
        for kind in KINDS:
            make(root / "served" / kind.replace(" ", "-"), kind, shards)
        bench.about["shards"] = shards
        for latency in LATENCIES[:1] if bench.args.quick else LATENCIES:
            at(bench, root, latency)
    bench.save()


if __name__ == "__main__":
    main()
