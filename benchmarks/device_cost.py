"""How much CPU time does a batch cost the loop's thread on the way to a device, and how much without one?

The device is the simulated one of the tests: nothing here is a figure of a GPU. It does everything at once, on the
thread that asks for it, since to wake a thread for each call costs more than the calls. Batches are small, so that
neither the gather nor a copy counts, and the loop's thread gathers nothing, since its loader has a timeout. The time is
that of this thread alone. It has two shares:

    bare   the simulation's calls for a batch, made by a loop of C++
    ours   the rest, the loader and its calls from Python

On a GPU the calls of the driver and of torch's allocator come on top of `ours`. A cast on the simulated device runs on
the loop's thread, so that it is not part of this. The copy is counted in `bare`, though the thread that gathers makes
it, so that `ours` is too low by that.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import memload
from memload.cli.measure import Spread, in_turn
from memload.device.placing import AHEAD_OF_DEVICE

ROWS, BATCHES, WARM = 32, 1500, 50
WANTED_US = 25.0


def simulated_device() -> Any:
    """A device of the tests that is never late."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from simulated import SimulatedInterface

    return SimulatedInterface(at_once=True)


def microseconds(loader: memload.FastLoader) -> float:
    """CPU time of the calling thread for each batch of a pass that runs."""
    batches, count = iter(loader), 0
    for _ in range(WARM):
        next(batches)
    begun = time.thread_time()
    for batch in batches:
        count += 1
        del batch
    return (time.thread_time() - begun) / count * 1e6


def bare(device: Any) -> float:
    """CPU time of the simulation's calls for a batch of one memory, in a loop of C++."""
    streams = device.copies, device.work, device.current()
    return float(device.simulated.bare_seconds(BATCHES, AHEAD_OF_DEVICE, *streams)) / BATCHES * 1e6


def shares(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """What is left of a batch's time without the simulation's calls, round by round."""
    return {"ours": [device - bare for device, bare in zip(times["device"], times["bare"], strict=True)]}


def loader_of(fields: int, device: Any) -> memload.FastLoader:
    rows = (BATCHES + WARM) * ROWS
    ds = memload.from_arrays(**{f"x{k}": torch.zeros(rows, 16, dtype=torch.uint8) for k in range(fields)})
    return memload.FastLoader(
        ds, ROWS, shuffle=True, device=device, num_workers=1, persistent_workers=True, timeout=100
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device, found = simulated_device(), []
    for fields in (1, 2):
        loaders = {"device": loader_of(fields, device), "cpu": loader_of(fields, None)}
        ways = {name: lambda one=one: microseconds(one) for name, one in loaders.items()}
        times = in_turn({**ways, "bare": lambda: bare(device)}, args.rounds)
        for name, each in {**times, **shares(times)}.items():
            spread = Spread.of(each)
            print(f"{fields} fields, {name}: {spread} us of the loop's thread for a batch")
            found.append({"fields": fields, "way": name, "microseconds": list(each)})
    said = {
        "benchmark": "device_cost",
        "device": "the simulated device of the tests, on the CPU; nothing is a figure of a GPU",
        "wanted_microseconds": WANTED_US,
        "batches": BATCHES,
        "torch": torch.__version__,
        "figures": found,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
