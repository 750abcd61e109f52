"""Ray Data with memload.ShardSink: rows of every kind, a killed worker, a job that fails, and docs' program."""

import json
import logging
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import ray
from repository import DOCS

import memload


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
        found = {scenario.__name__: scenario(scratch) for scenario in (kinds, killed, failed, refused, page)}
        Path(sys.argv[1], "0.json").write_text(json.dumps(found))
        ray.shutdown()


main()
