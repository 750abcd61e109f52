"""Ray Data with memload.ShardSink: rows of every kind, a killed worker, a job that fails, and docs' program."""

import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import ray
from obstore.store import LocalStore
from repository import DOCS

import memload
from memload.formats.shards.index import read_index


def row(number):
    """One row with a number, an array, a text and a sequence."""
    k = int(number["id"])
    image = np.full((3, 4), float(k))
    return {"x": k, "image": image, "text": f"row {k}" * (k % 3), "tokens": np.arange(k % 4)}


def numbers():
    return ray.data.range(100, override_num_blocks=3)


def rows_of(path):
    ds = memload.open(path)
    memload.verify(path)
    return ds, [ds[k] for k in range(len(ds))]


def others(path):
    """What lies beside the shards."""
    return sorted(file.name for file in Path(path).iterdir() if not file.name.startswith("shard-"))


def kinds(folder):
    path = f"{folder}/kinds"
    numbers().map(row).write_datasink(memload.ShardSink(path, ragged=["tokens"], codec={"image": "zstd"}))
    ds, rows = rows_of(path)
    return {
        "rows": len(ds),
        "order": [int(one["x"]) for one in rows],
        "text": [one["text"] for one in rows],
        "lengths": [len(one["tokens"]) for one in rows],
        "image_sums": [float(one["image"].sum()) for one in rows],
        "parts": len({file.name.split("-")[1] for file in Path(path).glob("shard-*")}),
        "names": others(path),
    }


class Dying(memload.ShardSink):
    """Kills its worker in the middle of part 1, the first time."""

    def write(self, blocks, ctx):
        def until_killed():
            for block in blocks:
                yield block
                mark = Path(f"{self._path}.died")
                if ctx.task_idx == 1 and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        return super().write(until_killed(), ctx)


def killed(folder):
    path = f"{folder}/killed"
    numbers().map(lambda one: {"x": one["id"]}).write_datasink(Dying(path), ray_remote_args={"max_retries": 3})
    ds, rows = rows_of(path)
    order = [int(one["x"]) for one in rows]
    return {"rows": len(ds), "order": order, "names": others(path), "died": Path(f"{path}.died").exists()}


def failed(folder):
    def broken(one):
        if one["id"] == 70:
            raise ValueError("a broken row")
        return {"x": one["id"]}

    path = Path(folder, "failed")
    try:
        numbers().map(broken).write_datasink(memload.ShardSink(path))
    except Exception as error:
        return {"raised": str(error), "exists": path.exists()}
    return {"raised": "none"}


def refused(folder):
    path = f"{folder}/kinds"
    try:
        numbers().write_datasink(memload.ShardSink(path))
    except Exception as error:
        return {"raised": str(error), "rows": len(memload.open(path))}
    return {"raised": "none"}


class Late(memload.ShardSink):
    """Its part 1 goes on when its job has failed, until the file `go` is there, and says in `late` how it ended."""

    def __init__(self, path, marks):
        super().__init__(path)
        self.marks = marks

    def write(self, blocks, ctx):
        def until_told():
            yield from blocks
            (self.marks / "waits").touch()
            wait_for(self.marks / "go")

        if ctx.task_idx != 1:
            return super().write(blocks, ctx)
        said = "nothing"
        try:
            return super().write(until_told(), ctx)
        except OSError as error:
            said = str(error)
            raise
        finally:
            (self.marks / "new").write_text(said)
            (self.marks / "new").rename(self.marks / "late")


def wait_for(file):
    """Wait for a file, as a task that is deep in native code: Ray's interrupt does not reach it."""
    while not file.exists():
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.01)


def late(folder):
    return {kind: late_in(Path(folder, "late", kind), kind) for kind in ("folder", "store")}


def late_in(folder, kind):
    """A job fails while a task of it is at work, which ends when the next job has written a part of that number."""

    def broken(one):
        if one["id"] == 0:
            wait_for(folder / "waits")
            raise ValueError("a broken row")
        return {"x": one["id"]}

    def good(one):
        if one["id"] == 99:
            (folder / "go").touch()
            wait_for(folder / "late")
        return {"x": one["id"] + 1000}

    (folder / "set").mkdir(parents=True)
    place = LocalStore(folder / "set") if kind == "store" else folder / "set"
    with contextlib.suppress(Exception):
        numbers().map(broken).write_datasink(Late(place, folder))
    numbers().map(good).write_datasink(memload.ShardSink(place))
    _, rows = rows_of(folder / "set")
    return {
        "late": (folder / "late").read_text(),
        "order": [int(one["x"]) for one in rows],
        "files": sorted(path.name for path in (folder / "set").rglob("*") if path.is_file()),
        "listed": [shard.file for shard in read_index(folder / "set").shards],
    }


def page(folder):
    text = (DOCS / "parallel-writing.md").read_text()
    (program,) = re.findall(r"^```python ray\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    os.chdir(folder)
    exec(compile(program, "parallel-writing.md", "exec"), {"__name__": "page"})
    return {"rows": len(memload.open("by_ray/"))}


def main():
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as scratch:  # its sockets need a short path
        paths = os.pathsep.join([os.environ["PYTHONPATH"], *sys.path])
        # On a busy machine, Ray's own niceness of 15 gives its workers next to nothing.
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            logging_level=logging.ERROR,
            object_store_memory=1 << 30,
            _temp_dir=f"{scratch}/r",
            runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
        )
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.target_max_block_size = 1 << 20  # what a task may take of that memory
        found = {scenario.__name__: scenario(scratch) for scenario in (kinds, killed, failed, refused, late, page)}
        Path(sys.argv[1], "0.json").write_text(json.dumps(found))
        ray.shutdown()


main()
