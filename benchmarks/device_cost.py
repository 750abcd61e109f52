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

Of rows that lie half on the device and half in pinned RAM (`split`) the kernel is left out, and so is what the
simulation does to be late. The figure is the loader's own; on a GPU the calls of torch and of the driver come on top.
Where the copy engine brings the rows in RAM (`split, copied`), to wake the threads that gather them is part of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import memload
from memload.cli.measure import Spread, in_turn
from memload.device import gathering, kernels
from memload.device.placing import AHEAD_OF_DEVICE
from memload.device.split_tier import loaded_in_parts

ROWS, BATCHES, WARM = 32, 1500, 50
WANTED_US = 25.0


def simulated_device(*instead: type) -> Any:
    """A device of the tests that is never late; some classes may replace parts of it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from simulated import SimulatedInterface

    return type("Device", (*instead, SimulatedInterface), {})(at_once=True)


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


def split_loader(fields: int, *, by_copies: bool) -> memload.FastLoader:
    """A loader whose rows lie half on the device and half in pinned RAM, where launching a kernel does nothing.

    The rows in RAM are read by the kernel, or brought by the copy engine.
    """
    kernels_left_out()
    rows = (BATCHES + WARM) * ROWS
    ds = memload.from_arrays(**{f"x{k}": torch.zeros(rows, 600, dtype=torch.uint8) for k in range(fields)})
    here = loaded_in_parts(ds.fields, [torch.device("cpu")], ds.nbytes // 2)
    cast = {"x0": memload.Cast(torch.bfloat16)}
    loader = memload.FastLoader(replace(ds, fields=here), ROWS, shuffle=True, device=simulated_device(Never), cast=cast)
    access = loader.__memload_loader__()
    access.settings(access.cast_source()).transfer.choice.by_copies = by_copies
    return loader


def kernels_left_out() -> None:
    """Let the loader take its way over kernels, on the CPU, whose launch does nothing."""
    module = SimpleNamespace(RowKernel=nothing, launch_rows=nothing, mapped_address=lambda address, _: address)
    stream = SimpleNamespace(cuda_stream=0, device_index=0)
    gathering.kernels_serve = lambda _: True  # type: ignore[assignment]
    gathering.cuda_module = kernels.cuda_module = lambda: module  # type: ignore[assignment]
    gathering._check_numbers = nothing  # type: ignore[assignment]  # those on a GPU are not looked at
    torch.Tensor.is_pinned = lambda _: True  # type: ignore[method-assign, assignment]
    torch.cuda.current_stream = lambda _=None: stream  # type: ignore[assignment, return-value]
    torch.cuda.current_device = lambda: 0


def nothing(*_: Any, **__: Any) -> None:
    """What is left out."""


class Never:
    """What the simulated device does to be late, and to see what is read: nothing of it."""

    def launch(self, _stream: int, fn: Callable[..., Any], *args: Any) -> Any:
        """Call the function."""
        return fn(*args)

    def is_there(self, _tensor: torch.Tensor) -> bool:
        """Take each tensor for one of the device."""
        return True

    hold = nothing


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
    for fields in (1, 2):  # last, since it replaces the kernels of this process
        ways = {"split": split_loader(fields, by_copies=False), "split, copied": split_loader(fields, by_copies=True)}
        for name, each in in_turn(
            {k: lambda one=one: microseconds(one) for k, one in ways.items()}, args.rounds
        ).items():
            print(f"{fields} fields, {name}: {Spread.of(each)} us of the loop's thread for a batch")
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
