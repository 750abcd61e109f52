"""How near is a pass over a set in a store to the link, and a cached one to local files?

A server of files with ranges, in a process of its own on loopback, adds latency to each answer. Its link is as fast as
loopback is, so that this process and the server share the cores without rest. With --rate it is slower, and the first
two of these are asked:

- The first epoch, into a fresh cache or into RAM, beside programs that download the same ranges in the same order with
  obstore, and throw them away: of asyncio, 32 and 192 at once, of which the faster one counts, and likewise of 32 and
  128 threads. The server has all files in memory, and all have read from it before. Beside it stands the share that an
  epoch of the same CPU time, that of the server included, would have if no core ever waited.
- The epochs after it, with all blocks there, beside the same loader over the local shards.
- Hits of a pass with room for a part of the set, beside LRU and the best choice for the order of the pass.

    python benchmarks/remote.py
    python benchmarks/remote.py --rate 2.5 --out results/remote_link.json
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import obstore
import torch
from harness import PREPARED, Bench, arguments
from obstore.store import from_url

import memload
from memload import _core
from memload.cli.measure import Spread, ratio

LATENCIES = (0.001, 0.020, 0.100)  # seconds
ROOMS = (0.25, 0.50, 0.75)  # of the set
BATCH, AT_ONCE, THREADS = 16, (32, 192), (32, 128)
LATER, PAIRS = 10, 15  # epochs that are timed together, since one lasts 0.01 s; and how often, in turn
CPU = "/cpu"  # at which the server says how many CPU seconds it has taken


async def serve(folder: Path, latency: float, rate: float) -> None:
    """Serve the files of a folder at a rate, and print the port, and each range of a file that is asked for."""
    free = time.perf_counter()  # when the link has passed on all that was asked for before

    async def passed_on(nbytes: int) -> None:
        nonlocal free
        free = max(free, time.perf_counter()) + nbytes / rate
        await asyncio.sleep(free - time.perf_counter())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                writer.write(await reply(head))
                await writer.drain()
        writer.close()

    async def reply(head: str) -> bytes:
        method, target, _ = head.split(maxsplit=2)
        if target == CPU:
            return f"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{time.process_time():<20.9f}".encode()
        path = folder / unquote(target.partition("?")[0]).lstrip("/")
        await asyncio.sleep(latency)
        if path not in held and not path.is_file():
            print(path.name, 0, 0, flush=True)
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        if path not in held:
            held[path] = path.read_bytes()
        data = memoryview(held[path])
        size, asked = len(data), re.search(r"range: bytes=(\d+)-(\d*)", head, re.IGNORECASE)
        common = f'ETag: "{size}"\r\nLast-Modified: Wed, 25 Nov 2026 00:00:00 GMT\r\n'
        if asked is None:
            print(path.name, 0, size, flush=True)
            body = b"" if method == "HEAD" else bytes(data)
            return f"HTTP/1.1 200 OK\r\n{common}Content-Length: {size}\r\n\r\n".encode() + body
        begin, last = int(asked[1]), min(int(asked[2] or size), size - 1)
        print(path.name, begin, last + 1, flush=True)
        await passed_on(last + 1 - begin)
        ranges = f"Content-Range: bytes {begin}-{last}/{size}\r\nContent-Length: {last + 1 - begin}\r\n\r\n"
        return f"HTTP/1.1 206 Partial Content\r\n{common}{ranges}".encode() + bytes(data[begin : last + 1])

    held: dict[Path, bytes] = {}
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def serving(folder: Path, latency: float, log: Path, rate: float = math.inf) -> Iterator[str]:
    """Give the address of a server that runs meanwhile; what it prints goes to `log`."""
    command = [sys.executable, __file__, "serve", str(folder), str(latency), str(rate)]
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said)
        try:
            while not log.read_text().endswith("\n") and process.poll() is None:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{log.read_text().split()[0]}/set"
        finally:
            process.kill()
            process.wait()


def cpu_of_server(url: str) -> float:
    """Return the CPU seconds that a server has taken."""
    with urllib.request.urlopen(url.removesuffix("/set") + CPU) as answer:
        return float(answer.read())


def ranges_in(log: Path, skip: int) -> list[tuple[str, int, int]]:
    """Return the ranges that were asked for, without the first `skip` lines."""
    lines = [line.split() for line in log.read_text().splitlines()[1 + skip :]]
    return [(name, int(begin), int(end)) for name, begin, end in lines]


def epoch(loader: Any) -> tuple[float, float]:
    """Run an epoch; return its seconds, and CPU seconds of this process."""
    began, cpu = time.perf_counter(), time.process_time()
    for _ in loader:
        pass
    return time.perf_counter() - began, time.process_time() - cpu


def epochs(ds: memload.Dataset, seed: int) -> float:
    """Return the seconds of LATER epochs."""
    return sum(epoch(loader_of(ds, seed))[0] for _ in range(LATER))


async def thrown_away(url: str, ranges: list[tuple[str, int, int]], at_once: int) -> None:
    """Download ranges in this order, some at once."""
    store = from_url(url, client_options={"allow_http": "true"})
    left = iter(ranges)

    async def worker() -> None:
        for name, begin, end in left:
            await obstore.get_range_async(store, name, start=begin, end=end)

    await asyncio.gather(*(worker() for _ in range(at_once)))


def thrown_away_by_threads(url: str, ranges: list[tuple[str, int, int]], at_once: int) -> None:
    """Download ranges in this order, some at once, each on a thread."""
    store, left, lock = from_url(url, client_options={"allow_http": "true"}), iter(ranges), threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                one = next(left, None)
            if one is None:
                return
            name, begin, end = one
            obstore.get_range(store, name, start=begin, end=end)

    threads = [threading.Thread(target=worker) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def prepare() -> None:
    """Take memory and room for files, and give it back: a virtual machine pays dearly for pages not used lately."""
    torch.ones(PREPARED, dtype=torch.uint8)
    with tempfile.TemporaryFile() as file:
        for _ in range(PREPARED >> 20):
            file.write(bytes(1 << 20))


def timed(download: Callable[[], object]) -> tuple[float, float]:
    """Return seconds and CPU seconds of a download."""
    prepare()
    began, cpu = time.perf_counter(), time.process_time()
    download()
    return time.perf_counter() - began, time.process_time() - cpu


def plain(url: str, ranges: list[tuple[str, int, int]]) -> tuple[float, float]:
    """Download and throw away by asyncio, at the better number at once; return seconds and CPU seconds."""
    return min(timed(partial(asyncio.run, thrown_away(url, ranges, many))) for many in AT_ONCE)


def plain_threads(url: str, ranges: list[tuple[str, int, int]]) -> tuple[float, float]:
    """Download and throw away by threads, at the better number; return seconds and CPU seconds."""
    return min(timed(partial(thrown_away_by_threads, url, ranges, many)) for many in THREADS)


def loader_of(ds: memload.Dataset, seed: int) -> memload.FastLoader[Any]:
    """A loader that shuffles with this seed."""
    torch.manual_seed(seed)
    return memload.FastLoader(ds, BATCH, shuffle=True)


MEASURED = (
    "first",
    "first_of_threads",
    "first_in_ram",
    "first_without_waits",
    "second",
    "cpu_seconds_per_gb",
    "cpu_seconds_per_gb_of_obstore",
    "cpu_seconds_per_gb_of_server",
)
"""What `first_and_second` finds: the shares of first epochs and of the second one, and CPU seconds per GB."""


def first_and_second(bench: Bench, root: Path, nbytes: int, latency: float, rate: float) -> None:
    """Measure both epochs at a latency, over a link of this rate."""
    found: dict[str, list[float]] = {name: [] for name in MEASURED}
    local, log = memload.open(root / "served" / "set"), root / "log"
    with serving(root / "served", latency, log, rate) as url:
        epoch(loader_of(memload.open(url), 0))
        for number in range(bench.rounds):
            ds = memload.open(url, cache=(cache := root / f"cache-{latency}-{number}"), cache_bytes=2 * nbytes)
            before = len(log.read_text().splitlines()) - 1
            prepare()
            served = cpu_of_server(url)
            ours, own = epoch(loader_of(ds, number))
            served = cpu_of_server(url) - served
            ranges = ranges_in(log, before)
            theirs, other = plain(url, ranges)
            os.sync()  # what the first epoch wrote goes to the disk before the next ones, not beside them
            pairs = [(epochs(ds, k), epochs(local, k)) for k in range(PAIRS)]
            del ds
            shutil.rmtree(cache)  # what it has yet to write to the disk does not slow the next one
            prepare()
            in_memory = epoch(loader_of(memload.open(url, cache_bytes=2 * nbytes), number))[0]
            figures = (
                theirs / ours,
                plain_threads(url, ranges)[0] / ours,
                theirs / in_memory,
                theirs * len(os.sched_getaffinity(0)) / (own + served),
                statistics.median(there / here for here, there in pairs),
                *(seconds / nbytes * 1e9 for seconds in (own, other, served)),
            )
            for name, figure in zip(MEASURED, figures, strict=True):
                found[name].append(figure)
    spreads = {name: Spread.of(values) for name, values in found.items()}
    text = ", ".join(f"{name} {spread}" for name, spread in spreads.items())
    slower = rate < math.inf
    case = f"{latency * 1000:.0f} ms" + (f", {rate * 8e-9:g} Gbit/s" if slower else "")
    bench.add(case, text, latency=latency, rate=rate if slower else None, **spreads)


def hits_of(uses: list[int], room: int, held: list[int], *, best: bool) -> int:
    """Return how many uses find their block there, by the best choice or by LRU."""
    after, later = [0] * len(uses), {}
    for k in reversed(range(len(uses))):
        after[k] = later.get(uses[k], len(uses) + 1)
        later[uses[k]] = k
    there: OrderedDict[int, int] = OrderedDict((block, later.get(block, len(uses) + 1)) for block in held)
    hits = 0
    for k, block in enumerate(uses):
        hits += block in there
        if block not in there and len(there) >= room:
            del there[max(there, key=there.get) if best else next(iter(there))]  # type: ignore[arg-type]
        there[block] = after[k]
        there.move_to_end(block)
    return hits


def hits(bench: Bench, root: Path, nbytes: int, room: float) -> None:
    """Measure the hits of the second pass with room for a part."""
    with serving(root / "served", 0.0, root / "log") as url:
        ds = memload.open(url, cache_bytes=int(room * nbytes))
        cache = ds.fields["image"].column.storages[0].origin
        find = _core.BlocksOf([field.column for field in ds.fields.values()])
        epoch(loader_of(ds, 0))
        held = np.flatnonzero(cache.table.states(0, cache.table.blocks) & 3).tolist()
        before = cache.counts.hits
        order = [batch["row"].tolist() for batch in loader_of(ds, 1)]
    uses = [block for rows in order for block in find(np.array(rows))[0][1].tolist()]
    places, found = int(cache.limit // cache.table.block_bytes), cache.counts.hits - before
    best, lru = (hits_of(uses, places, held, best=kind) for kind in (True, False))
    text = f"{found / len(uses):.3f} of uses hit; best {best / len(uses):.3f}, LRU {lru / len(uses):.3f}"
    bench.add(f"room {room:.0%}", text, hits=found, best=best, lru=lru, uses=len(uses), share=ratio([found], [best]))


def main() -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--rate", type=float, default=math.inf, metavar="GBIT", help="of the link, in Gbit/s")
    bench = Bench(parser.parse_args())
    rate = bench.args.rate * 1e9 / 8
    rows = 100 if bench.args.quick else 1000
    with tempfile.TemporaryDirectory(prefix="memload-bench-", dir=bench.args.cache) as folder:
        root = Path(folder)
        images = torch.randint(0, 255, (rows, 300, 300, 3), dtype=torch.uint8)
        (root / "served").mkdir()
        data = {"image": images, "row": torch.arange(rows)}
        ds = memload.write(root / "served" / "set", data, shard_bytes="16MB", progress=False)
        for latency in LATENCIES[:1] if bench.args.quick else LATENCIES:
            first_and_second(bench, root, ds.nbytes, latency, rate)
        for room in () if rate < math.inf else ROOMS[1:2] if bench.args.quick else ROOMS:
            hits(bench, root, ds.nbytes, room)
    bench.save()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
    else:
        main()
