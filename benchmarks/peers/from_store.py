"""How many images does each loader hand out in a second, out of a store? Each reads its own format from one server.

    python benchmarks/peers/from_store.py FOLDER [--json benchmarks/results/peers_from_store.json]

FOLDER has the environments of environments.py and the data that compare.py --search made of memload, streaming and
litdata: 1,024 random images of 224 x 224 x 3 uint8, wanted as (x - 127) / 255 in float32, in shuffled batches of 64.
A server of files in a process of its own on loopback speaks as much of S3 as the peers need, and adds latency to each
answer. Each run is a new process with an empty cache; imports are not timed. Then come the first epoch, with opening,
and the epochs after it, from the cache. Settings of a peer are searched once; then all take turns. One epoch of each is
compared with the reference, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BATCH = 64
LATENCIES = (0.001, 0.020, 0.100)
WARM = 1  # epochs
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "memload": [{}],
    "streaming": [{"workers": 0}, {"workers": 1}],
    "litdata": [{"workers": 0}, {"workers": 1}, {"workers": 2}],
}
PREPARED = 512 << 20  # bytes
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


# In a process of a peer.


def memload_loop(endpoint: str, bucket: str, cache: Path, setting: dict[str, Any]) -> Any:
    import torch

    import memload

    ds = memload.open(f"s3://{bucket}/memload/shards", cache=cache, cache_bytes="1GB").as_tuple("image", "row")
    rule = memload.Cast(torch.float32, norm_removed=True)
    return memload.FastLoader(ds, BATCH, shuffle=True, drop_last=True, cast={"image": rule}, **setting)


def streaming_loop(endpoint: str, bucket: str, cache: Path, setting: dict[str, Any]) -> Any:
    import torch
    from loops import cast
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # of runs that were ended
    os.environ["S3_ENDPOINT_URL"] = endpoint
    workers, more = setting["workers"], {name: value for name, value in setting.items() if name != "workers"}
    remote = f"s3://{bucket}/streaming/mds"
    data = StreamingDataset(remote=remote, local=str(cache), shuffle=True, batch_size=BATCH, **more)
    kept = {"persistent_workers": True} if workers else {}
    loader = torch.utils.data.DataLoader(data, BATCH, drop_last=True, num_workers=workers, **kept)
    return _Epochs(loader, lambda one: (cast(one["image"]), one["row"]))


def litdata_loop(endpoint: str, bucket: str, cache: Path, setting: dict[str, Any]) -> Any:
    import torch
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader
    from loops import cast

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # it cannot be told so otherwise
    options = {"endpoint_url": endpoint, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    workers, more = setting["workers"], {name: value for name, value in setting.items() if name != "workers"}
    data = StreamingDataset(
        f"s3://{bucket}/litdata/chunks",
        cache_dir=str(cache),
        shuffle=True,
        drop_last=True,
        storage_options=options,
        **more,
    )
    loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)
    return _Epochs(loader, lambda one: (cast(torch.as_tensor(one["image"])), torch.as_tensor(one["row"])))


class _Epochs:
    def __init__(self, loader: Any, made: Any) -> None:
        self.loader, self.made = loader, made

    def __iter__(self) -> Any:
        return (self.made(one) for one in self.loader)


def epoch(loop: Any) -> int:
    """Run an epoch, and return its rows."""
    return sum(len(images) for images, _ in loop)


def run(name: str, endpoint: str, data: Path, cache: Path, setting: dict[str, Any], do_check: bool) -> dict[str, Any]:
    """Return rows per second of the first epoch and of those after it, and what a check says."""
    import numpy as np
    from contestant import check

    make = {"memload": memload_loop, "streaming": streaming_loop, "litdata": litdata_loop}[name]
    if name == "memload":
        import memload  # noqa: F401 - no peer's import is timed
    elif name == "litdata":
        import litdata  # noqa: F401
    else:
        from loops import declare_torchvision

        declare_torchvision()
        import streaming  # noqa: F401
    np.ones(PREPARED, dtype=np.uint8)  # taken and given back: pages that were not used lately cost a machine dearly
    began = time.perf_counter()
    loop = make(endpoint, data.name, cache, setting)
    rows = epoch(loop)
    first = rows / (time.perf_counter() - began)
    began = time.perf_counter()
    rows = sum(epoch(loop) for _ in range(WARM))
    said: dict[str, Any] = {"first": first, "warm": rows / (time.perf_counter() - began), "rows": rows // WARM}
    if do_check:
        said |= check(loop, np.load(data / "images.npy", mmap_mode="r"))
    return said


# The other end.


def asked(
    folder: Path, data: Path, name: str, address: str, setting: dict[str, Any], *, check: bool = False
) -> dict[str, Any]:
    """Run a peer in a process of its own with an empty cache."""
    python = sys.executable if name == "memload" else folder / name / "bin" / "python"
    environment = {**os.environ, **KEYS, "AWS_ENDPOINT_URL": address, "PYTHONWARNINGS": "ignore"}
    if name != "memload":
        environment.pop("PYTHONPATH", None)
    cache = Path(tempfile.mkdtemp(prefix="memload-peer-"))
    try:
        command = [python, HERE / "from_store.py", "run", name, address, data, cache / "c", json.dumps(setting)]
        done = subprocess.run(
            [*map(str, command), *(["check"] if check else [])],
            env=environment,
            text=True,
            capture_output=True,
            timeout=45,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {"error": done.stderr.strip().splitlines()[-1:]}
    except subprocess.TimeoutExpired:
        return {"error": "no end after 45 s"}
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def search(folder: Path, data: Path, address: str) -> dict[str, Any]:
    """Return the best setting of each peer whose rows are the reference's, and what was tried."""
    found: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        tried = [{"setting": one, **asked(folder, data, name, address, one, check=True)} for one in settings]
        working = [one for one in tried if one.get("agrees")]
        found[name] = {"best": max(working, key=lambda one: one["first"])["setting"], "tried": tried}
        print(name, json.dumps(found[name]), flush=True)
    return found


def main() -> None:
    sys.path.insert(0, str(HERE.parent))
    from remote import serving

    from memload.cli.measure import machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where figures go; those of other latencies stay there")
    parser.add_argument("--latencies", type=float, nargs="+", default=LATENCIES, help="in seconds")
    parser.add_argument("--search", action="store_true", help="search settings only, and keep them in FOLDER")
    args = parser.parse_args()
    if missing := lacking(args.folder):
        parser.error(f"{args.folder} lacks {', '.join(missing)}: run environments.py and compare.py --search first")
    data, kept, log = args.folder / "data-1024", args.folder / "best_from_store.json", args.folder / "server.log"
    if args.search or not kept.exists():
        with serving(args.folder, LATENCIES[0], log) as url:
            kept.write_text(json.dumps(search(args.folder, data, url.removesuffix("/set"))))
    if args.search:
        return
    found = json.loads(kept.read_text())
    results: dict[str, Any] = {}
    for latency in args.latencies:
        with serving(args.folder, latency, log) as url:
            for turn in range(args.rounds):
                for name in list(found)[:: 1 if turn % 2 == 0 else -1]:
                    said = asked(args.folder, data, name, url.removesuffix("/set"), found[name]["best"])
                    results.setdefault(f"{latency * 1000:.0f} ms", {}).setdefault(name, []).append(said)
    print(table(results))
    if args.json:
        about = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": machine()}
        before = json.loads(args.json.read_text())["results"] if args.json.exists() else {}
        content = {**about, "settings": found, "results": {**before, **results}}
        args.json.write_text(json.dumps(content, indent=1) + "\n")


def lacking(folder: Path) -> list[str]:
    """Return what the environments and the data of the peers have and a folder has not."""
    needed = ["data-1024/images.npy", *(f"data-1024/{name}" for name in SETTINGS)]
    needed += [f"{name}/bin/python" for name in SETTINGS if name != "memload"]
    return [one for one in needed if not (folder / one).exists()]


def table(results: dict[str, Any]) -> str:
    """The medians of images per second, with the least and the greatest of the quotients of the same rounds."""
    lines = []
    for latency, peers in results.items():
        for name, said in peers.items():
            for kind in ("first", "warm"):
                rates = [one.get(kind) for one in said]
                if None in rates:
                    lines.append(f"{latency} {name} {kind}: {[one.get('error') for one in said]}")
                    continue
                times = sorted(ours[kind] / one for ours, one in zip(peers["memload"], rates, strict=True))
                spread = f"{statistics.median(times):.1f}x ({times[0]:.1f} to {times[-1]:.1f})"
                lines.append(f"{latency} {name} {kind}: {statistics.median(rates):.0f} images/s; memload {spread}")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        name, endpoint, data, cache, setting = sys.argv[2:7]
        answer = run(name, endpoint, Path(data), Path(cache), json.loads(setting), "check" in sys.argv[7:])
        print("\n" + json.dumps(answer), flush=True)
        os._exit(0)  # a peer's threads do not end the process
    main()
