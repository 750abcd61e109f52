"""One peer in a process of its own environment, driven by lines of JSON: the other end of compare.py.

    FOLDER/NAME/bin/python contestant.py NAME DATA

DATA holds images.npy, the reference. Commands: {"do": "prepare"}, {"do": "settings"}, {"do": "set", "setting": {...}},
{"do": "check"} and {"do": "run", "seconds": 1.0}. An answer is one line of JSON; an error is told in it, too.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loops import LOOPS, Loop, cast

BATCH = 64
ROUNDING = 1e-7  # of values from -0.5 to 0.5, for a peer that divides before it subtracts


def check(loop: Loop, images: np.ndarray) -> dict[str, Any]:
    """Whether one epoch has each row at most once, and whether all have the reference's values, or even its bits."""
    seen: list[int] = []
    identical = True
    for made, rows in loop:
        wanted = cast(torch.from_numpy(images[rows.numpy()]))
        if made.dtype != wanted.dtype or made.shape != wanted.shape or not torch.allclose(made, wanted, 0, ROUNDING):
            return {"agrees": False, "identical": False, "rows": len(seen)}
        identical = identical and torch.equal(made, wanted)
        seen += rows.tolist()
    once = len(set(seen)) == len(seen)
    return {"agrees": once, "identical": once and identical, "rows": len(seen), "shuffled": seen != sorted(seen)}


def run(loop: Loop, seconds: float) -> dict[str, Any]:
    """Rows per second of whole epochs, until so many seconds are over; the loop does nothing with a batch."""
    gc.collect()
    rows, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        for images, _ in loop:
            rows += len(images)
    own, children = (
        resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {"rate": rows / spent, "rows": rows, "seconds": spent, "peak": own, "peak_of_a_child": children}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    prepare, settings, make = LOOPS[name]
    images = np.load(folder / "images.npy", mmap_mode="r")
    own, loop = folder / name, None
    output, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            match command["do"]:
                case "prepare":
                    own.mkdir()
                    prepare(images, own)
                case "settings":
                    answer = {"settings": settings}
                case "set":
                    del loop
                    gc.collect()
                    loop = make(own, BATCH, len(images), command["setting"])
                case "check":
                    answer = check(loop, images)
                case "run":
                    answer = run(loop, command["seconds"])
        except Exception as error:
            traceback.print_exc()
            answer, loop = {"error": f"{type(error).__name__}: {error}"}, None
        print(json.dumps(answer), file=output, flush=True)


if __name__ == "__main__":
    main()
