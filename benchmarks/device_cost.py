"""How much CPU time does a batch cost the loop's thread on the way to a device, and how much without one?

The device is the simulated one of the tests, whose streams are threads: nothing here is a figure of a GPU. Batches are
small, so that neither the gather nor a copy counts. The time is that of the loop's own thread, and holds what the
simulation itself costs there, which is measured beside it: each call wakes a thread, where a driver writes to a queue.
A cast on the simulated device runs on the loop's thread, so that it is not part of this.
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

ROWS, BATCHES, WARM = 32, 1500, 50
WANTED_US = 25.0


def simulated_device() -> Any:
    """A device of the tests whose streams are punctual."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from simulated import SimulatedInterface

    return SimulatedInterface(copies=(0, 0), work=(0, 0), loop=(0, 0))


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


def simulation(device: Any) -> float:
    """CPU time of the calls to the simulation that the loop's thread makes for a batch of one memory, by themselves."""
    loop, begun = device.current(), time.thread_time()
    for _ in range(BATCHES):
        device.synchronise(device.record(loop))
        memory = device.empty(1024, device.copies)
        device.wait(device.work, device.record(device.copies))
        device.wait(loop, device.record(device.work))
        device.hold(memory, loop)
    return (time.thread_time() - begun) / BATCHES * 1e6


def loader_of(fields: int, device: Any) -> memload.FastLoader:
    rows = (BATCHES + WARM) * ROWS
    ds = memload.from_arrays(**{f"x{k}": torch.zeros(rows, 16, dtype=torch.uint8) for k in range(fields)})
    return memload.FastLoader(ds, ROWS, shuffle=True, device=device, num_workers=1, persistent_workers=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device, found = simulated_device(), []
    for fields in (1, 2):
        loaders = {"device": loader_of(fields, device), "cpu": loader_of(fields, None)}
        ways = {name: lambda one=one: microseconds(one) for name, one in loaders.items()}
        times = in_turn({**ways, "simulation": lambda: simulation(device)}, args.rounds)
        for name, each in times.items():
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
