"""How many times as fast as PyTorch Geometric's loader are batches of small graphs, and what does opening them take?

Graphs like molecules, 10 to 30 nodes each, shuffled, in batches of 128. PyTorch Geometric's own DataLoader reads them
from an InMemoryDataset at its best of num_workers 0, 1 and 2; memload gathers them from shards and from the dataset's
own file, as PyTorch Geometric's Batch and as plain tensors. The ceiling is a copy of a batch's bytes between buffers
that are used again. Opening is measured in child processes: the most private memory meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from harness import Bench, arguments, compete, rates, share
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.loader import DataLoader

import memload
from memload.cli.measure import Epoch, Spread, cpu_seconds

GRAPHS, BATCH = 100_000, 128

OPENED = {
    "torch.load": "import torch_geometric.data, torch; held = torch.load({file!r}, weights_only=False)",
    "memload, the same file": "import torch_geometric.data, memload; held = memload.open_graphs({file!r})",
    "memload, shards": "import memload; held = memload.open_graphs({shards!r})",
}
# What a process has for itself, in bytes: read before and after, in steps of a thread that watches meanwhile.
WATCHED = """
import threading

def private():
    with open("/proc/self/smaps_rollup") as file:
        lines = (line.split() for line in file)
        return sum(int(line[1]) * 1024 for line in lines if line[0] in ("Private_Dirty:", "Private_Clean:"))

{imports}
before, most, over = private(), [0], threading.Event()

def watch():
    while not over.wait(0.001):
        most[0] = max(most[0], private())

watcher = threading.Thread(target=watch)
watcher.start()
{statement}
over.set()
watcher.join()
print(max(most[0], private()) - before)
"""


class Saved(InMemoryDataset):
    """The graphs of a file, as users of PyTorch Geometric open them."""

    def __init__(self, file: Path) -> None:
        super().__init__(None)
        self.load(str(file))


def made(count: int) -> Iterator[Data]:
    """Graphs like molecules."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        nodes = int(torch.randint(10, 30, (), generator=generator))
        edges = 2 * nodes + 4
        yield Data(
            x=torch.rand(nodes, 9, generator=generator),
            edge_index=torch.randint(nodes, (2, edges), generator=generator),
            edge_attr=torch.rand(edges, 3, generator=generator),
            y=torch.rand(1, generator=generator),
        )


def stored(folder: Path, count: int) -> tuple[Path, Path]:
    """The file and the shards with so many graphs, made once."""
    file, shards = folder / f"graphs-{count}.pt", folder / f"graphs-{count}"
    if not file.exists():
        InMemoryDataset.save(list(made(count)), str(file))
    if not shards.exists():
        memload.write(shards, memload.open_graphs(file))
    return file, shards


def theirs(file: Path, workers: int) -> DataLoader:
    """The loop of PyTorch Geometric."""
    return DataLoader(Saved(file), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def ours(dataset: Any) -> memload.FastLoader[Any]:
    """memload's loop."""
    loader = memload.FastLoader(dataset, BATCH, shuffle=True, collate_fn=memload.graph_collate)
    assert loader.engine == "native", loader.why
    return loader


def epoch(loop: Any, limit: int | None = None) -> Epoch:
    """One epoch, or its first `limit` batches."""
    cpu, begin, first = cpu_seconds(), time.perf_counter(), 0.0
    batches = graphs = 0
    for batch in loop:
        first = first or time.perf_counter() - begin
        batches, graphs = batches + 1, graphs + len(batch.ptr) - 1
        if batches == limit:
            break
    return Epoch(time.perf_counter() - begin, first, cpu_seconds() - cpu, batches, graphs, 0)


def at_its_best(file: Path, quick: bool) -> tuple[DataLoader, int]:
    """The setting of PyTorch Geometric's loader that is fastest here."""
    loops = {workers: theirs(file, workers) for workers in ((0,) if quick else (0, 1, 2))}

    def trial(loop: DataLoader) -> float:
        epoch(loop, 2)
        return epoch(loop, 40).rate

    found = {workers: trial(loop) for workers, loop in loops.items()}
    workers = max(found, key=lambda count: found[count])
    return loops[workers], workers


def speed(bench: Bench, file: Path, shards: Path) -> None:
    """Compares the loops."""
    loop, workers = at_its_best(file, bench.args.quick)
    opened = memload.open_graphs(shards)
    loaders = {
        "shards": ours(opened),
        "the same file": ours(memload.open_graphs(file)),
        "plain": ours(opened.as_plain()),
    }
    contestants: dict[str, Callable[[], Epoch]] = {name: lambda one=one: epoch(one) for name, one in loaders.items()}
    limit = 2 if bench.args.quick else 100
    epochs = compete({**contestants, "stock": lambda: epoch(loop, limit)}, bench.rounds)
    stock = Spread.of(rates(epochs["stock"]))
    copied = ceiling(opened)
    for name in loaders:
        speedup, fast = share(epochs[name], epochs["stock"]), Spread.of(rates(epochs[name]))
        bench.add(
            name,
            f"{speedup.median:.1f}x ({speedup.low:.1f} to {speedup.high:.1f}) of {stock.median:,.0f} graphs/s with "
            f"num_workers={workers}; a copy of the bytes alone would be {copied:,.0f} graphs/s",
            speedup=speedup,
            fast=fast,
            stock=stock,
            setting=f"num_workers={workers}",
            copied=copied,
        )


def ceiling(dataset: memload.GraphDataset) -> float:
    """Graphs per second whose bytes can be copied by one thread between buffers that are used again."""
    nbytes = dataset.nbytes * BATCH // len(dataset)
    found: dict[str, float] = memload._core.bench_memcpy(nbytes, threads=1, seconds=0.2)
    return found["bytes"] / found["seconds"] * len(dataset) / dataset.nbytes


def memory(bench: Bench, file: Path, shards: Path) -> None:
    """Measures what opening takes."""
    found = {name: [private_bytes(name, file, shards) for _ in range(bench.rounds)] for name in OPENED}
    whole = Spread.of(found.pop("torch.load"))
    for name, most in found.items():
        spread = Spread.of([float(one) for one in most])
        saved = 1 - spread.median / whole.median
        bench.add(
            f"open: {name}",
            f"{spread.median / 1e6:.1f} MB of private memory, {saved:.0%} less than the {whole.median / 1e6:.1f} MB of "
            "torch.load",
            private=spread,
            torch_load=whole,
            saved=saved,
        )


def private_bytes(name: str, file: Path, shards: Path) -> int:
    """The most private memory that opening takes in a new process, beside what it had before."""
    imports, statement = OPENED[name].format(file=str(file), shards=str(shards)).split("; ")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WATCHED.format(imports=imports, statement=statement)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(json.loads(done.stdout))


def main() -> None:
    parser = arguments("batches of small graphs, by PyTorch Geometric and by memload", rounds=5, default=())
    bench = Bench(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="memload-bench-") as folder:
        cache = bench.args.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        file, shards = stored(cache, 2_000 if bench.args.quick else GRAPHS)
        memory(bench, file, shards)
        speed(bench, file, shards)
        bench.save()


if __name__ == "__main__":
    main()
