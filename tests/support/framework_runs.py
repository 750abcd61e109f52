"""Runs a script that uses a framework, on one rank or several, and reads what each rank reports."""

import contextlib
import json
import random
import socket
from pathlib import Path

from programs import Ahead, Nursery, Program, begin_all, script
from repository import TESTS

SCRIPTS = TESTS / "contract" / "framework_scripts"
# Without a GPU, a network, or more threads than one. Importing all of this takes longer than what the scripts do.
FRAMEWORKS = Nursery(
    imports=("vision", "memload", "accelerate", "transformers.trainer", "torch_geometric.loader", "lightning.pytorch"),
    options=(),
    environment=(("OMP_NUM_THREADS", "1"), ("CUDA_VISIBLE_DEVICES", ""), ("HF_HUB_OFFLINE", "1")),
)
TORCHRUN = """
import runpy, sys
sys.argv[0] = "torchrun"
runpy.run_module("torch.distributed.run", run_name="__main__")
"""


def free_port():
    """A port that nobody has, nor gets who does not ask for it by its number: it may be used much later."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def of_rank(rank, ranks, port):
    """What torchrun tells the processes that it starts."""
    there = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in there.items()}}


def programs_of(words, ranks, launcher):
    """What is started: all ranks, or what starts them."""
    if ranks > 1 and launcher == "environment":
        port = free_port()
        return {f"rank {k}": script(*words, environment=of_rank(k, ranks, port)) for k in range(ranks)}
    if ranks > 1 and launcher == "torchrun":
        words = (f"--nproc-per-node={ranks}", f"--master-port={free_port()}", *words)
        return {"torchrun": Program(TORCHRUN, words)}
    return {"the script": script(*words)}


def run(name, folder, *scenarios, ranks=1, launcher="environment", seconds=150):
    """Return what each rank reports, by scenario. Nothing may hang: the processes are ended after so many seconds.

    Args:
        name: of a file in framework_scripts.
        folder: empty, for the reports.
        scenarios: those to run; default: all.
        ranks: processes.
        launcher: what starts several: "environment", they begin as torchrun's would; "torchrun" itself; or "itself",
            the script.
    """
    begun = begin(name, folder, *scenarios, ranks=ranks, launcher=launcher, seconds=seconds)
    return reports(name, folder, begun(), ranks, seconds)


def ahead(name, *scenarios, ranks=1, launcher="environment", seconds=150):
    """A script that is run as by `run`, beside the tests before those that ask for its reports."""
    how = {"ranks": ranks, "launcher": launcher, "seconds": seconds}
    return Ahead(
        lambda folder: begin(name, folder, *scenarios, **how, ahead=folder),
        lambda folder, ended: reports(name, folder, ended, ranks, seconds),
    )


def begin(name, folder, *scenarios, ranks, launcher, seconds, ahead=None):
    words = (str(SCRIPTS / name), str(folder), *scenarios)
    return begin_all(programs_of(words, ranks, launcher), seconds, FRAMEWORKS, ahead=ahead)


def reports(name, folder, ended, ranks, seconds):
    """What each rank has reported. What did not go well is an error."""
    last = {name: "\n".join([*one.out, one.err])[-4000:] for name, one in ended.items()}
    late = [one for one, left in ended.items() if left.status is None]
    assert not late, f"{name} did not end within {seconds} s; its last words:\n{last[late[0]]}"
    reports = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    wrong = [one["error"] for found in reports for one in found.values() if "error" in one]
    assert not wrong, wrong[0]
    assert all(one.status == 0 for one in ended.values()), last
    assert len(reports) == ranks, last
    return reports
