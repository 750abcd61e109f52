"""How fast is a set written straight to a store by 1, 2 and 4 processes, and what CPU time does a GB take?

Each contestant converts the same .npy file into the same parts, by `memload.write_part` in processes that are running
already, followed by `memload.seal`. Two ceilings only upload: as many processes send the same shards, which lie in
files, with obstore. The first gives it the path of one shard after the other, which goes in pieces. The second has the
shards of a part under way together, each in one request out of a mapping of its file, which costs the least CPU time.
The server is one process on loopback, which answers as S3 does, adds latency to each answer, and throws the bytes of
shards away.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import mmap
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import obstore
from harness import Bench, arguments
from obstore.store import S3Store
from parallel_writing import PARTS, PROCESSES, source

import memload
from memload.cli.measure import Spread, held_in_memory, ratio

LATENCIES = (0.001, 0.020)  # seconds
SHARD = 10 << 20  # bytes: several in each part, as parts of usual size have
PIECE, PIECES_AT_ONCE = 8 << 20, 4  # of the first ceiling
KEPT = 1 << 20  # bytes of the largest object whose bytes the server keeps


class Handler(http.server.BaseHTTPRequestHandler):
    """As much of S3 as writers of sets use: objects, uploads in pieces, lists, removal, and conditions."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    latency = 0.0
    objects: dict[str, tuple[int, bytes]] = {}  # noqa: RUF012 - of the one server of this process
    pieces: dict[str, int] = {}  # noqa: RUF012
    lock = threading.Lock()

    def do_PUT(self) -> None:
        """Take an object, or a piece of one."""
        key, query = self._asked()
        body = self._body()
        if "uploadId" in query:
            with self.lock:
                self.pieces[query["uploadId"][0]] += len(body)
            return self._reply(200)
        with self.lock:
            if self.headers.get("If-None-Match") and key in self.objects:
                return self._reply(412)
            self.objects[key] = len(body), bytes(body) if len(body) <= KEPT else b""
        return self._reply(200)

    def do_POST(self) -> None:
        """Begin or end an object in pieces, or remove objects."""
        key, query = self._asked()
        body = bytes(self._body())
        with self.lock:
            if "uploads" in query:
                upload = f"{key}:{len(self.pieces)}"
                self.pieces[upload] = 0
                words = f"<UploadId>{upload}</UploadId>"
                return self._reply(200, f"<InitiateMultipartUploadResult>{words}</InitiateMultipartUploadResult>")
            if "uploadId" in query:
                self.objects[key] = self.pieces.pop(query["uploadId"][0]), b""
                words = '<ETag>"x"</ETag>'
                return self._reply(200, f"<CompleteMultipartUploadResult>{words}</CompleteMultipartUploadResult>")
            names = re.findall("<Key>(.*?)</Key>", body.decode())
            for name in names:
                self.objects.pop(name, None)
        words = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        return self._reply(200, f"<DeleteResult>{words}</DeleteResult>")

    def do_GET(self) -> None:
        """Give an object, or a list."""
        key, query = self._asked()
        with self.lock:
            if not key:
                return self._reply(200, self._listed(query.get("prefix", [""])[0], "delimiter" in query))
            nbytes, data = self.objects.get(key, (-1, b""))
        if nbytes < 0:
            return self._reply(404, "<Error><Code>NoSuchKey</Code></Error>")
        return self._reply(200, data.decode("latin-1"), nbytes)

    do_HEAD = do_GET  # noqa: N815

    def _listed(self, prefix: str, alone: bool) -> str:
        below = {name: nbytes for name, (nbytes, _) in self.objects.items() if name.startswith(prefix)}
        inner = {name: name[len(prefix) :].partition("/")[0] for name in below if alone and "/" in name[len(prefix) :]}
        about = '<LastModified>2026-11-26T00:00:00.000Z</LastModified><ETag>"x"</ETag>'
        words = [
            f"<Contents><Key>{name}</Key><Size>{nbytes}</Size>{about}</Contents>"
            for name, nbytes in below.items()
            if name not in inner
        ]
        folders = sorted({f"{prefix}{folder}/" for folder in inner.values()})
        words += [f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(words)}</ListBucketResult>"

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        url = urlsplit(self.path)
        return unquote(url.path).removeprefix("/bucket").strip("/"), parse_qs(url.query, keep_blank_values=True)

    def _body(self) -> bytearray:
        body = bytearray(int(self.headers.get("Content-Length") or 0))
        self.rfile.readinto(body)  # type: ignore[attr-defined] - a buffered reader
        return body

    def _reply(self, status: int, text: str = "", nbytes: int | None = None) -> None:
        data = text.encode("latin-1")
        time.sleep(self.latency)
        self.send_response(status)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Thu, 26 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(data) if nbytes is None else nbytes))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


def serve(latency: float) -> None:
    """Answer requests until the input ends, and print the port first."""
    Handler.latency = latency
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def serving(latency: float) -> Iterator[int]:
    """Give the port of a server that runs meanwhile."""
    command = [sys.executable, __file__, "serve", str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def address(port: int) -> dict[str, str]:
    """What obstore reads from the environment to find the server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }


def write_one(path: str, url: str, part: int, port: int) -> float:
    """Write one part of the file, and return the CPU seconds of this process."""
    os.environ.update(address(port))
    began, ds = time.process_time(), memload.open(path, field="betas")
    rows = range(len(ds) * part // PARTS, len(ds) * (part + 1) // PARTS)
    memload.write_part(url, ds, part=part, parts=PARTS, rows=rows, shard_bytes=SHARD, progress=False)
    return time.process_time() - began


def store_at(port: int) -> S3Store:
    """A store whose objects are those of the ceilings."""
    return S3Store("bucket", prefix="ceiling", endpoint=address(port)["AWS_ENDPOINT_URL"], region="us-east-1",
                   access_key_id="key", secret_access_key="secret", client_options={"allow_http": True})  # fmt: skip


def upload_some(folder: str, part: int, port: int) -> float:
    """Upload the shards of one part, which lie in files, and return the CPU seconds of this process."""
    began, store = time.process_time(), store_at(port)
    for shard in sorted(Path(folder).glob(f"shard-{part:05d}-*")):
        obstore.put(store, shard.name, shard, chunk_size=PIECE, max_concurrency=PIECES_AT_ONCE)
    return time.process_time() - began


def upload_together(folder: str, part: int, port: int) -> float:
    """Upload the shards of one part together, out of mappings, and return the CPU seconds of this process."""
    began, store = time.process_time(), store_at(port)

    async def one(shard: Path) -> None:
        with shard.open("rb") as file:
            content: Any = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        await obstore.put_async(store, shard.name, content, use_multipart=False)

    async def together() -> None:
        await asyncio.gather(*map(one, Path(folder).glob(f"shard-{part:05d}-*")))

    asyncio.run(together())
    return time.process_time() - began


def took(pool: ProcessPoolExecutor, one: Callable[..., float], *given: Any, end: Callable[[], object]) -> list[float]:
    """Return the seconds of all parts and of what ends them, and their CPU seconds."""
    began = time.perf_counter()
    jobs = [pool.submit(one, *given[:-1], part, given[-1]) for part in range(PARTS)]
    cpu = sum(job.result() for job in jobs)
    own = time.process_time()
    end()
    return [time.perf_counter() - began, cpu + time.process_time() - own]


def at(bench: Bench, path: Path, shards: Path, pools: dict[int, ProcessPoolExecutor], latency: float) -> None:
    """Run all contestants in turn, round by round, at a latency."""
    nbytes = sum(shard.stat().st_size for shard in shards.glob("shard-*"))
    found: dict[tuple[str, int], list[list[float]]] = {}
    with serving(latency) as port:
        os.environ.update(address(port))
        for number in range(-1, bench.rounds):  # the first round warms up
            for n, pool in pools.items():
                url = f"s3://bucket/set-{number}-{n}"
                ours = took(pool, write_one, str(path), url, port, end=lambda url=url: memload.seal(url))
                alone = took(pool, upload_some, str(shards), port, end=lambda: None)
                together = took(pool, upload_together, str(shards), port, end=lambda: None)
                for key, value in (("ours", ours), ("alone", alone), ("together", together)):
                    found.setdefault((key, n), []).append(value)
    found = {key: values[1:] for key, values in found.items()}
    seconds = {key: [value[0] for value in values] for key, values in found.items()}
    cpu = {key: [value[1] / nbytes * 1e9 for value in values] for key, values in found.items()}
    for n in pools:
        share = ratio([1 / s for s in seconds["ours", n]], [1 / s for s in seconds["alone", n]])
        most = ratio([1 / s for s in seconds["ours", n]], [1 / s for s in seconds["together", n]])
        over = ratio([1 / s for s in seconds["ours", n]], [1 / s for s in seconds["ours", 1]])
        rate, own = Spread.of([nbytes / s for s in seconds["ours", n]]), Spread.of(cpu["ours", n])
        least, less = Spread.of(cpu["alone", n]), Spread.of(cpu["together", n])
        text = f"{share} of uploading by path, {most} of together, {over} of one process; {rate} B/s; "
        text += f"{own} CPU s/GB, of uploading by path {least}, together {less}"
        figures = {"of_ceiling": share, "of_together": most, "over_one": over, "bytes_per_second": rate}
        cpu_figures = {
            "cpu_seconds_per_gb": own,
            "cpu_seconds_per_gb_of_ceiling": least,
            "cpu_seconds_per_gb_of_together": less,
        }
        bench.add(f"{n} at {latency * 1000:.0f} ms", text, processes=n, latency=latency, **figures, **cpu_figures)


def main() -> None:
    args = arguments(__doc__ or "", rounds=4).parse_args()
    bench = Bench(args)
    with tempfile.TemporaryDirectory(prefix="memload-bench-", dir=args.cache) as folder:
        path, shards = source(Path(folder), 200 if args.quick else 3000), Path(folder) / "shards"
        ds = memload.open(path, field="betas")
        for part in range(PARTS):
            rows = range(len(ds) * part // PARTS, len(ds) * (part + 1) // PARTS)
            memload.write_part(shards, ds, part=part, parts=PARTS, rows=rows, shard_bytes=SHARD, progress=False)
        with held_in_memory([path, *shards.glob("shard-*")]) as bench.pages:
            for latency in LATENCIES[:1] if args.quick else LATENCIES:
                pools = {n: ProcessPoolExecutor(n, mp_context=get_context("forkserver")) for n in PROCESSES}
                at(bench, path, shards, pools, latency)
                for pool in pools.values():
                    pool.shutdown()
    bench.save()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(float(sys.argv[2]))
    else:
        main()
