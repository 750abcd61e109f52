"""A loop in a process of its own, driven by lines of JSON; `harness.Contestant` is the other end.

    python contestant.py '{"kind": "fast", "workload": {...}, "variant": "f32", "folder": "...", "options": {...}}'

Kinds: `fast` (options: those of `loops.fast_loader`), `stock` (quick), `ceiling` (threads, isa), `fresh` and `mover`
(none). Commands: `run` answers with an Epoch; `memory` with the peak beyond what was held before, and what the loader
states; `prepare` takes so many bytes of huge pages and gives them back, so that the machine has them at hand.
"""

from __future__ import annotations

import json
import mmap
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from harness import Case
from loops import Loop, make_loop
from workloads import Workload

from memload.cli.measure import peak_memory, run_epoch


def case_of(job: dict[str, Any]) -> Case:
    described = job["workload"]
    fields = tuple((name, tuple(shape), dtype) for name, shape, dtype in described["fields"])
    workload = Workload(**{**described, "fields": fields, "variants": tuple(described["variants"])})
    return Case(workload, job["variant"], Path(job["folder"]))


def answer(loop: Loop, what: str, limit: int | None) -> dict[str, Any]:
    if what == "run":
        return asdict(loop.run(limit))
    if what == "prepare":
        assert limit is not None
        touch(limit)
        return {}
    with peak_memory() as peak:
        run_epoch(loop.batches(), limit)
        return {"peak": peak(), "stated": loop.nbytes}


def touch(nbytes: int) -> None:
    """Takes fresh huge pages and gives them back."""
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, nbytes, mmap.PAGESIZE):
            block[at] = 1


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.ones(256, 256) @ torch.ones(256, 256)  # torch is in use before anything is measured
    loop = make_loop(case_of(job), job["kind"], **job["options"])
    print(json.dumps({"setting": loop.setting}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(answer(loop, command["what"], command["limit"])), flush=True)


if __name__ == "__main__":
    main()
